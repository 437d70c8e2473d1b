//! What the service told about the sandbox, and what the agent found out about its surroundings.

use crate::users::{self, Ids, User, UserError};
use std::collections::BTreeMap;

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
pub const DEFAULT_WORKDIR: &str = "/workspace";

#[derive(Clone)]
pub struct Config {
    pub sandbox_id: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: String,
    pub workdir: String,
    /// Capabilities that commands get.
    pub exec_caps: u64,
    /// Capabilities that those of root get beside them: in a machine of its own, all there are.
    pub root_caps: u64,
    pub ring_bytes: usize,
    pub journals_bytes: usize,
    pub ids: Ids,
    /// See `Options`.
    pub passing_group: Option<u32>,
}

impl Config {
    pub fn new(ids: Ids) -> Self {
        Self {
            sandbox_id: None,
            env: BTreeMap::new(),
            user: match ids {
                Ids::Many { .. } => "0".into(),
                Ids::Single { uid, .. } => uid.to_string(),
            },
            workdir: DEFAULT_WORKDIR.into(),
            exec_caps: 0,
            root_caps: 0,
            ring_bytes: 1 << 20,
            journals_bytes: 16 << 20,
            ids,
            passing_group: None,
        }
    }

    /// The user that a request names, else the sandbox's.
    pub fn user(&self, wanted: Option<&str>) -> Result<User, UserError> {
        users::find(wanted.filter(|name| !name.is_empty()).unwrap_or(&self.user), self.ids)
    }
}

/// The environment of a command: defaults, then the sandbox's, then its own.
pub fn environment(
    config: &Config,
    own: &BTreeMap<String, String>,
    user: &User,
    tty: bool,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        // Nobody but root may write to /, which is all that a user without an entry has.
        ("HOME".to_owned(), if user.known || user.uid == 0 { user.home.clone() } else { config.workdir.clone() }),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
        ("SHELL".to_owned(), user.shell.clone()),
        // What is typed and printed is UTF-8; an image or a caller that wants another says so.
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]);
    if tty {
        env.insert("TERM".to_owned(), "xterm-256color".to_owned());
    }
    for (name, value) in config.env.iter().chain(own) {
        env.insert(name.clone(), value.clone());
    }
    env
}
