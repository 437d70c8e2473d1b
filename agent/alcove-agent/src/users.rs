//! Users of the sandbox, read from its own `/etc/passwd` and `/etc/group`: a static program has no name service.

use crate::account_files::{self, Account, accounts};
use crate::{caps, closed_folder, sys};
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
    /// Whether `/etc/passwd` has it.
    pub known: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum UserError {
    Unknown(String),
    /// Only one user id exists here, and it is not this one.
    SingleId {
        wanted: String,
        uid: u32,
    },
    /// It is an id of the agent itself.
    Reserved {
        wanted: String,
        uid: u32,
    },
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
            UserError::Reserved { wanted, uid } => {
                write!(f, "user \"{wanted}\" cannot be used: {uid} is the user id of the agent itself")
            }
        }
    }
}

/// Whether the agent can become other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// `own` is the id that the agent and its monitors keep to themselves, where there is one to spare.
    Many {
        own: Option<u32>,
    },
    Single {
        uid: u32,
        gid: u32,
    },
}

impl Ids {
    pub fn many(self) -> bool {
        matches!(self, Ids::Many { .. })
    }

    /// The id of the agent itself, which nothing else may run as.
    pub fn own(self) -> Option<u32> {
        match self {
            Ids::Many { own } => own,
            Ids::Single { .. } => None,
        }
    }
}

/// User and group of the agent and its monitors once commands run: without an id in common, a command without
/// capabilities can neither signal them nor change their limits, whoever it runs as.
pub const OWN_ID: u32 = 65533;

/// First inside id and length of each line of an id map; None where it cannot be read.
fn id_map(path: &CStr) -> Option<Vec<(u64, u64)>> {
    let bytes = sys::read_small(path, 64 * 1024).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map_while(|field| field.parse::<u64>().ok());
        Some((numbers.next()?, numbers.nth(1)?))
    };
    Some(text.lines().filter_map(line).collect())
}

fn holds(map: Option<&Vec<(u64, u64)>>, id: u32) -> bool {
    map.is_none_or(|map| map.iter().any(|(first, length)| (*first..first + length).contains(&u64::from(id))))
}

/// Of a user that nobody can be here, since the sandbox has not got so many.
pub const NO_SUCH_ID: &str = "the user or one of its groups has an id that this sandbox does not have";

/// Whether a sandbox of many ids has all of a user's.
pub fn are_here(user: &User) -> bool {
    let (users, groups) = (id_map(c"/proc/self/uid_map"), id_map(c"/proc/self/gid_map"));
    holds(users.as_ref(), user.uid) && user.groups.iter().chain([&user.gid]).all(|gid| holds(groups.as_ref(), *gid))
}

/// Finds out once, at start.
pub fn detect_ids() -> Ids {
    let (users, groups) = (id_map(c"/proc/self/uid_map"), id_map(c"/proc/self/gid_map"));
    let mapped = users.as_ref().map_or(u64::MAX, |map| map.iter().map(|(_, length)| length).sum());
    let needed = 1 << caps::SETUID | 1 << caps::SETGID;
    if mapped > 1 && caps::permitted() & needed == needed {
        // A path translator that shows its user as root only pretends to change ids.
        let spare = !sys::compat() && holds(users.as_ref(), OWN_ID) && holds(groups.as_ref(), OWN_ID);
        return Ids::Many { own: spare.then_some(OWN_ID) };
    }
    // SAFETY: these calls cannot fail.
    unsafe { Ids::Single { uid: libc::geteuid(), gid: libc::getegid() } }
}

/// Finds a user: a name, a uid, or either followed by `:` and a group's name or gid. Numbers work without any file.
pub fn find(spec: &str, ids: Ids) -> Result<User, UserError> {
    let (passwd, groups) = account_files::read();
    let user = look_up(spec, &passwd, &groups).ok_or_else(|| UserError::Unknown(spec.to_owned()))?;
    match ids {
        Ids::Many { own } if own == Some(user.uid) || closed_folder::is_owner(user.uid) => {
            Err(UserError::Reserved { wanted: spec.to_owned(), uid: user.uid })
        }
        Ids::Single { uid, .. } if uid != user.uid => Err(UserError::SingleId { wanted: spec.to_owned(), uid }),
        Ids::Single { gid, .. } => Ok(User { gid, groups: Vec::new(), ..user }),
        Ids::Many { .. } => Ok(user),
    }
}

fn look_up(spec: &str, passwd: &str, groups: &str) -> Option<User> {
    let (name, group) = match spec.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (spec, None),
    };
    let number = |text: &str| {
        let id = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
        id.filter(|id| *id != u32::MAX)
    };
    let by_name = || accounts(passwd).find(|entry| entry.field(0) == name && !name.is_empty());
    let by_number = |id| accounts(passwd).find(|entry: &Account<'_>| number(entry.field(2)) == Some(id));
    let entry = by_name().or_else(|| number(name).and_then(by_number));
    let mut user = match entry {
        Some(entry) => User {
            uid: number(entry.field(2))?,
            gid: number(entry.field(3))?,
            groups: Vec::new(),
            name: entry.field(0).to_owned(),
            home: Some(entry.field(5)).filter(|home| home.starts_with('/')).unwrap_or("/").to_owned(),
            shell: Some(entry.field(6)).filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh").to_owned(),
            known: true,
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
                known: false,
            }
        }
    };
    if let Some(group) = group {
        user.gid = accounts(groups)
            .find(|entry| entry.field(0) == group)
            .and_then(|entry| number(entry.field(2)))
            .or_else(|| number(group))?;
    } else {
        user.groups = accounts(groups)
            .filter(|entry| entry.field(3).split(',').any(|member| member == user.name))
            .filter_map(|entry| number(entry.field(2)))
            .filter(|gid| *gid != user.gid)
            .take(1024)
            .collect();
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(spec: &str) -> Option<User> {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1001::/home/ann:\nbad line\nodd:x:nine:1::/:";
        let groups = "root:x:0:\nstaff:x:50:ann,bob\nann:x:1001:ann\nwheel:x:10:bob";
        look_up(spec, passwd, groups)
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
        assert_eq!(look_up("root", "", "").map(|user| (user.uid, user.home)), Some((0, "/root".into())));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        for spec in ["", "nobody", "odd", "ann:nogroup", "-1", "+5", "4294967295", ":", "1:"] {
            assert_eq!(find(spec), None, "{spec}");
        }
    }
}
