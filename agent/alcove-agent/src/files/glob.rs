use crate::workers::channel::{refused, Channel, Served};
use alcove_protocol::{ErrorCode, FileGlob};

pub fn glob(_channel: &mut Channel, _request: &FileGlob) -> Served {
    Err(refused(ErrorCode::Unsupported, "not built yet"))
}
