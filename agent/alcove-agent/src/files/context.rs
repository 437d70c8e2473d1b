//! What a file operation has to know about the sandbox.

use crate::users::{self, Ids, User};
use crate::workers::channel::{Stop, refused};
use alcove_protocol::ErrorCode;

#[derive(Clone)]
pub struct Context {
    /// The sandbox's user.
    pub user: String,
    pub ids: Ids,
}

impl Context {
    pub fn owner(&self, wanted: Option<&str>) -> Result<User, Stop> {
        users::find(wanted.filter(|name| !name.is_empty()).unwrap_or(&self.user), self.ids)
            .map_err(|error| refused(ErrorCode::BadRequest, error.to_string()))
    }
}
