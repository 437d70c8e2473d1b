use crate::workers::channel::{Channel, Served};
use alcove_protocol::Stats;

pub fn serve(channel: &mut Channel) -> Served {
    channel.reply(&Stats::default())
}
