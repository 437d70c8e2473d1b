//! What an agent that is held before it is anybody's, and whoever holds it, say to each other: a byte each.

/// It runs, and waits to be told whose it is.
pub const READY: u8 = b'P';
/// It is somebody's.
pub const BEGUN: u8 = b'X';
