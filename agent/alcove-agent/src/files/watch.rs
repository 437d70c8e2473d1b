use crate::workers::channel::{refused, Channel, Served};
use alcove_protocol::{ErrorCode, FileWatch};

pub fn watch(_channel: &mut Channel, _request: &FileWatch) -> Served {
    Err(refused(ErrorCode::Unsupported, "not built yet"))
}
