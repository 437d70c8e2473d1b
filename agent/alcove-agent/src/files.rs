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
use std::os::fd::AsRawFd;

/// The sandbox's working directory, which belongs to the sandbox's user. Commands may run as others, so where there can be
/// others it is open to all as `/tmp` is; one that came with the image stays what it is.
pub fn create_workdir(path: &str, user: &User, ids: Ids) -> Result<(), ErrorBody> {
    let create = || -> Result<(), Stop> {
        let parsed = path::parse(path)?;
        let missing = path::open(&parsed, libc::O_PATH).is_err();
        let dir = path::make_directories(&parsed, user, ids)?;
        if missing && ids.many() {
            path::set_mode_open(dir.as_raw_fd(), 0o1777).map_err(|error| path::failed(path, &error))?;
        }
        Ok(())
    };
    match create() {
        Ok(()) => Ok(()),
        // What is not there is made, so only a symlink can lead nowhere. What it leads to is not made: nobody asked for it, and
        // who may write where the link lies could have a directory of its own made anywhere.
        Err(Stop::Refused(error)) if error.code == ErrorCode::NotFound => Err(ErrorBody::new(
            ErrorCode::BadRequest,
            format!(
                "workdir: {path} is, or lies below, a symlink that leads nowhere; the image has to have what it leads to"
            ),
        )),
        Err(Stop::Refused(error)) => Err(ErrorBody::new(error.code, format!("workdir: {}", error.message))),
        Err(Stop::Gone) => Err(ErrorBody::new(ErrorCode::Io, format!("workdir: {path} cannot be made"))),
    }
}
