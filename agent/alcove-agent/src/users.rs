//! Users of the sandbox, read from its own `/etc/passwd` and `/etc/group`: a static program has no name service.

use crate::{caps, sys};
use std::ffi::CStr;
use std::fmt;

/// Whom a command runs as, or to whom a file belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub name: String,
    pub home: String,
    pub shell: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum UserError {
    Unknown(String),
    /// Only one user id exists here, and it is not this one.
    SingleId { wanted: String, uid: u32 },
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserError::Unknown(name) => {
                write!(f, "user \"{name}\" is unknown in this sandbox: use a name of its /etc/passwd, or uid[:gid]")
            }
            UserError::SingleId { wanted, uid } => {
                write!(f, "user \"{wanted}\" cannot be used: this sandbox has the user id {uid} alone")
            }
        }
    }
}

/// Whether the agent can become other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    Many,
    Single { uid: u32, gid: u32 },
}

/// Files larger than this are not read: no honest one comes near.
const MAX_FILE: usize = 4 << 20;

/// Finds out once, at start.
pub fn detect_ids() -> Ids {
    let mapped: u64 = sys::read_small(c"/proc/self/uid_map", 64 * 1024)
        .map(|bytes| {
            String::from_utf8_lossy(&bytes)
                .lines()
                .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
                .sum()
        })
        .unwrap_or(u64::MAX);
    let needed = 1 << caps::SETUID | 1 << caps::SETGID;
    if mapped > 1 && caps::permitted() & needed == needed {
        return Ids::Many;
    }
    // SAFETY: these calls cannot fail.
    unsafe { Ids::Single { uid: libc::geteuid(), gid: libc::getegid() } }
}

fn lines(path: &CStr) -> Vec<Vec<String>> {
    let Ok(bytes) = sys::read_small(path, MAX_FILE) else { return Vec::new() };
    String::from_utf8_lossy(&bytes)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(':').map(str::to_owned).collect())
        .collect()
}

/// Finds a user: a name, a uid, or either followed by `:` and a group's name or gid. Numbers work without any file.
pub fn find(spec: &str, ids: Ids) -> Result<User, UserError> {
    let passwd = lines(c"/etc/passwd");
    let groups = lines(c"/etc/group");
    let user = look_up(spec, &passwd, &groups).ok_or_else(|| UserError::Unknown(spec.to_owned()))?;
    match ids {
        Ids::Single { uid, .. } if uid != user.uid => Err(UserError::SingleId { wanted: spec.to_owned(), uid }),
        Ids::Single { gid, .. } => Ok(User { gid, groups: Vec::new(), ..user }),
        Ids::Many => Ok(user),
    }
}

fn look_up(spec: &str, passwd: &[Vec<String>], groups: &[Vec<String>]) -> Option<User> {
    let (name, group) = match spec.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (spec, None),
    };
    let field = |entry: &[String], index: usize| entry.get(index).cloned().unwrap_or_default();
    let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let entry = passwd
        .iter()
        .find(|entry| field(entry, 0) == name && !name.is_empty())
        .or_else(|| passwd.iter().find(|entry| number(name).is_some() && number(&field(entry, 2)) == number(name)));
    let mut user = match entry {
        Some(entry) => User {
            uid: number(&field(entry, 2))?,
            gid: number(&field(entry, 3))?,
            groups: Vec::new(),
            name: field(entry, 0),
            home: Some(field(entry, 5)).filter(|home| home.starts_with('/')).unwrap_or_else(|| "/".into()),
            shell: Some(field(entry, 6)).filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into()),
        },
        None => {
            let uid = if name == "root" { 0 } else { number(name)? };
            User {
                uid,
                gid: if uid == 0 { 0 } else { uid },
                groups: Vec::new(),
                name: if uid == 0 { "root".into() } else { uid.to_string() },
                home: if uid == 0 { "/root".into() } else { "/".into() },
                shell: "/bin/sh".into(),
            }
        }
    };
    if let Some(group) = group {
        user.gid = groups
            .iter()
            .find(|entry| field(entry, 0) == group)
            .and_then(|entry| number(&field(entry, 2)))
            .or_else(|| number(group))?;
    } else {
        user.groups = groups
            .iter()
            .filter(|entry| field(entry, 3).split(',').any(|member| member == user.name))
            .filter_map(|entry| number(&field(entry, 2)))
            .filter(|gid| *gid != user.gid)
            .take(1024)
            .collect();
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Vec<String>> {
        text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    }

    fn find(spec: &str) -> Option<User> {
        let passwd = parse("root:x:0:0:root:/root:/bin/bash\nann:x:1000:1001::/home/ann:\nbad line\nodd:x:nine:1::/:");
        let groups = parse("root:x:0:\nstaff:x:50:ann,bob\nann:x:1001:ann\nwheel:x:10:bob");
        look_up(spec, &passwd, &groups)
    }

    #[test]
    fn a_name_gives_ids_groups_home_and_shell() {
        let ann = find("ann").expect("ann");
        assert_eq!((ann.uid, ann.gid, ann.groups.as_slice()), (1000, 1001, &[50][..]));
        assert_eq!((ann.home.as_str(), ann.shell.as_str()), ("/home/ann", "/bin/sh"));
        assert_eq!(find("1000"), Some(ann));
    }

    #[test]
    fn numbers_work_without_an_entry_and_groups_by_name_or_number() {
        let user = find("4321:staff").expect("numeric");
        assert_eq!((user.uid, user.gid, user.home.as_str()), (4321, 50, "/"));
        assert_eq!(find("ann:77").map(|user| user.gid), Some(77));
        assert_eq!(look_up("root", &[], &[]).map(|user| (user.uid, user.home)), Some((0, "/root".into())));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        for spec in ["", "nobody", "odd", "ann:nogroup", "-1", "4294967295", ":", "1:"] {
            assert_eq!(find(spec), None, "{spec}");
        }
    }
}
