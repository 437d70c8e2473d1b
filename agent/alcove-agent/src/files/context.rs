//! What a file operation has to know about the sandbox.

use crate::identity;
use crate::users::{self, Ids, User};
use crate::workers::channel::{Served, Stop, refused};
use alcove_protocol::ErrorCode;

#[derive(Clone)]
pub struct Context {
    /// The sandbox's user.
    pub user: String,
    pub ids: Ids,
    /// What users other than root have beside their own groups: without it no path leads them anywhere.
    pub passing_group: Option<u32>,
}

impl Context {
    /// Does something for a user: with that user's rights where one was named, else with the agent's own.
    pub fn acting(&self, wanted: Option<&str>, action: impl FnOnce(&User) -> Served) -> Served {
        let mut user = self.owner(wanted)?;
        if wanted.is_none_or(str::is_empty) {
            return action(&user);
        }
        if self.ids.many() && !users::are_here(&user) {
            return Err(refused(ErrorCode::BadRequest, users::NO_SUCH_ID.to_owned()));
        }
        user.groups.extend(self.passing_group);
        let refuse = |error| refused(ErrorCode::Permission, format!("cannot act as user {}: {error}", user.name));
        identity::as_user(&user, self.ids, || action(&user)).map_err(refuse)?
    }

    pub fn owner(&self, wanted: Option<&str>) -> Result<User, Stop> {
        users::find(wanted.filter(|name| !name.is_empty()).unwrap_or(&self.user), self.ids)
            .map_err(|error| refused(ErrorCode::BadRequest, error.to_string()))
    }
}
