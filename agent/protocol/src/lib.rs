//! Frames and messages between the agent inside a sandbox and the service that drives it.
//! `docs/agent-protocol.md` is the contract; `agent/fixtures` holds examples that both sides test against.

pub mod error;
pub mod frame;
pub mod message;

pub use error::{ErrorBody, ErrorCode, MAX_MESSAGE};
pub use frame::{Decoder, FrameError, HEADER_LENGTH, Kind, MAX_DATA, MAX_JSON, encode_header};
pub use message::*;

/// The versions of the protocol that this crate speaks, best last.
pub const VERSIONS: &[u32] = &[1];
