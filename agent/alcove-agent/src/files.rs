//! File operations. They run on worker threads; paths are resolved by the kernel, inside the sandbox.

pub mod archive;
pub mod change;
pub mod context;
pub mod copy;
pub mod glob;
pub mod inspect;
pub mod list;
pub mod path;
pub mod read;
pub mod remove;
pub mod unpack;
pub mod walk;
pub mod watch;
pub mod write;

use crate::users::{Ids, User};
use crate::workers::channel::Stop;
use alcove_protocol::{ErrorBody, ErrorCode};

/// The sandbox's working directory, which belongs to the sandbox's user.
pub fn create_workdir(path: &str, user: &User, ids: Ids) -> Result<(), ErrorBody> {
    let created = path::parse(path).and_then(|parsed| path::make_directories(&parsed, user, ids));
    match created {
        Ok(_) => Ok(()),
        Err(Stop::Refused(error)) => Err(ErrorBody::new(error.code, format!("workdir: {}", error.message))),
        Err(Stop::Gone) => Err(ErrorBody::new(ErrorCode::Io, format!("workdir: {path} cannot be made"))),
    }
}
