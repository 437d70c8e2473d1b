//! What images leave to whoever runs them, such as `/etc/hosts`.

use std::io::{Error, ErrorKind};

/// Whether it is not there, or empty: an engine that exports a container's files leaves an empty one where it mounts its own.
pub fn left_to_us(path: &str) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(_) => true,
    }
}

/// What files of a machine say that tell its name.
pub fn etc_of(hostname: &str) -> [(&'static str, String); 2] {
    let hosts = format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost {hostname}\n");
    [("/etc/hosts", hosts), ("/etc/hostname", format!("{hostname}\n"))]
}

/// Makes those that an image leaves out, and the one of its resolver, which has none.
/// @returns which one could not be made, and why.
pub fn complete_etc(hostname: &str) -> Result<(), (&'static str, Error)> {
    for (path, contents) in etc_of(hostname).into_iter().chain([("/etc/resolv.conf", String::new())]) {
        if left_to_us(path) {
            match std::fs::write(path, contents) {
                // A root file system that belongs to somebody else cannot be added to; nothing depends on these.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                other => other.map_err(|error| (path, error))?,
            }
        }
    }
    Ok(())
}

/// Where `/etc/hosts` leads in a root that all sandboxes share: into what each has to itself, in memory.
const OWN_HOSTS: &str = "/dev/hosts";

/// Makes that file, in a root that has such a link. Nobody's name stands in a root that is shared, and a file in each layer would
/// take its share of the disk's time with each spawn.
pub fn complete_shared_etc() -> Result<(), Error> {
    if std::fs::read_link("/etc/hosts").is_ok_and(|target| target.as_os_str() == OWN_HOSTS) {
        let [(_, hosts), _] = etc_of(&crate::hostname()?);
        make_new(OWN_HOSTS.as_ref(), &hosts)?;
    }
    Ok(())
}

/// Where nothing is: an image may have the same link, and one of its own there, which leads out of a root that paths are merely translated to.
fn make_new(path: &std::path::Path, contents: &str) -> Result<(), Error> {
    use std::io::Write;
    match std::fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        opened => opened?.write_all(contents.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_has_where_a_file_is_to_be_made_is_not_written_to() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("alcove-own-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        std::fs::write(dir.join("agent"), "agent")?;
        std::os::unix::fs::symlink("agent", dir.join("link"))?;
        std::os::unix::fs::symlink("nowhere", dir.join("loose"))?;
        for name in ["link", "loose", "new"] {
            make_new(&dir.join(name), "hosts")?;
        }
        let found = ["agent", "new"].map(|name| std::fs::read_to_string(dir.join(name)).unwrap_or_default());
        let led = dir.join("nowhere").exists();
        std::fs::remove_dir_all(&dir)?;
        assert_eq!((found, led), (["agent", "hosts"].map(str::to_owned), false));
        Ok(())
    }

    #[test]
    fn what_is_missing_or_empty_is_ours_and_links_and_contents_are_the_images() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("alcove-etc-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        std::fs::write(dir.join("empty"), "")?;
        std::fs::write(dir.join("full"), "127.0.0.1 localhost\n")?;
        std::os::unix::fs::symlink("empty", dir.join("link"))?;
        let ours = ["none", "empty", "full", "link", "."].map(|name| left_to_us(&dir.join(name).to_string_lossy()));
        std::fs::remove_dir_all(&dir)?;
        assert_eq!(ours, [true, true, false, false, false]);
        Ok(())
    }
}
