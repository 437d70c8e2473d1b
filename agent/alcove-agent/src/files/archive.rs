use crate::workers::channel::{refused, Channel, Served};
use alcove_protocol::{ErrorCode, FileArchive};

pub fn archive(_channel: &mut Channel, _request: &FileArchive) -> Served {
    Err(refused(ErrorCode::Unsupported, "not built yet"))
}
