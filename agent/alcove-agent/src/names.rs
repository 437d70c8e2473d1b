//! The name of a machine, and the files of /etc that tell it. Images leave those to whoever runs them.

use crate::sys;
use std::fs;
use std::io::{ErrorKind, Result};

/// What the kernel takes.
const LONGEST: usize = 64;

/// @returns the name, or what is wrong with it.
pub fn checked(name: &str) -> std::result::Result<&str, String> {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if name.len() > LONGEST {
        return Err(format!("is longer than {LONGEST} bytes"));
    }
    if name.split('.').all(label) { Ok(name) } else { Err("is no name of a host".into()) }
}

/// Names the machine. Files that the image leaves out are made, those made for `before` are made anew, others are the image's.
pub fn set(before: Option<&str>, name: &str) -> Result<()> {
    sys::set_hostname(name)?;
    for (path, contents) in sys::etc_of(name) {
        let ours = before
            .and_then(|before| sys::etc_of(before).into_iter().find(|(known, _)| *known == path))
            .is_some_and(|(_, contents)| fs::read(path).is_ok_and(|found| found == contents.as_bytes()));
        if ours {
            fs::write(path, contents)?;
        } else {
            complete(path, &contents)?;
        }
    }
    Ok(())
}

/// Makes a file that the image leaves to us.
pub fn complete(path: &str, contents: &str) -> Result<()> {
    if !sys::left_to_us(path) {
        return Ok(());
    }
    match fs::create_dir("/etc") {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(path, contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_with_dots_between() {
        for name in ["sb-abc123", "a.b-c.d", "1"] {
            assert_eq!(checked(name), Ok(name));
        }
        for name in ["", ".", "a..b", "-a", "a b", "a\nb", "ä", &"a".repeat(65)] {
            assert!(checked(name).is_err(), "{name}");
        }
    }
}
