//! Whose a range of ids is, as services of one machine tell each other: a link, named by its first id, that leads to the runtime's
//! directory.

use crate::error::{AtStep, Result};
use crate::spec::RangeLink;
use crate::sys;

/// At no time is it nobody's: a new link is taken for somebody's although what it leads to is not there yet. The one before is left for
/// `drop_former`: where it is on a disk, freeing its block may wait for that.
pub fn give(range: &RangeLink) -> Result<()> {
    let RangeLink { link, target } = range;
    let partial = partial(link);
    // Of a service that died over this range's last claim.
    let _ = std::fs::remove_file(&partial);
    std::os::unix::fs::symlink(target, &partial).at("range", &partial)?;
    sys::rename_exchange(&partial, link).at("range", link)
}

pub fn drop_former(range: &RangeLink) {
    let _ = std::fs::remove_file(partial(&range.link));
}

fn partial(link: &str) -> String {
    format!("{link}.new")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{read_dir, read_link};

    #[test]
    fn a_range_that_is_given_on_is_its_new_owners_at_once_and_leaves_no_other_name() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("alcove-range-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let link = dir.join("70000").to_string_lossy().into_owned();
        // The second time in place of one, the third although something was left.
        for (target, left) in [("/runtimes/rt-1", false), ("/runtimes/rt-2", false), ("/runtimes/rt-3", true)] {
            let range = RangeLink { link: link.clone(), target: target.to_owned() };
            if left {
                std::os::unix::fs::symlink("left", partial(&link))?;
            }
            give(&range).expect("given");
            assert_eq!(read_link(&link)?.to_string_lossy(), target);
            drop_former(&range);
            assert_eq!(read_dir(&dir)?.count(), 1);
        }
        std::fs::remove_dir_all(dir)
    }
}
