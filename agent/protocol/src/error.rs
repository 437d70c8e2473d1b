//! The errors that cross the wire.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    Protocol,
    Version,
    Unauthorized,
    Unconfigured,
    BadRequest,
    NotFound,
    Conflict,
    Exists,
    NotEmpty,
    IsDirectory,
    NotDirectory,
    NotRegular,
    Permission,
    NoSpace,
    TooLarge,
    Unsupported,
    Busy,
    Timeout,
    Io,
}

/// Payload of an `error` frame. The message is for people and names the path, id or value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
