use super::context::Context;
use crate::workers::channel::{refused, Channel, Served};
use alcove_protocol::{ErrorCode, FileUnpack};

pub fn unpack(_channel: &mut Channel, _context: &Context, _request: &FileUnpack) -> Served {
    Err(refused(ErrorCode::Unsupported, "not built yet"))
}
