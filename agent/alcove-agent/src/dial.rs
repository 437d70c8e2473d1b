use crate::workers::channel::{refused, Channel, Served};
use alcove_protocol::{ErrorCode, PortDial};

pub fn dial(_channel: &mut Channel, _request: &PortDial) -> Served {
    Err(refused(ErrorCode::Unsupported, "not built yet"))
}
