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

/// Longest message of an error, in bytes: room for two longest paths. What is cut off is counted behind it.
pub const MAX_MESSAGE: usize = 16 << 10;

/// Payload of an `error` frame. The message is for people and names the path, id or value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: bounded(message.into()) }
    }
}

/// A reader of JSON repeats the value that it refuses, each byte as up to six: of a request of 4 MiB that would be an
/// error no frame may carry.
fn bounded(mut message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let rest = format!(" … ({} bytes more)", message.len() - MAX_MESSAGE);
    let mut end = MAX_MESSAGE - rest.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message.push_str(&rest);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    #[test]
    fn a_refusal_is_bounded_whatever_it_repeats() {
        let text = "\u{7f}".repeat(100_000);
        let unread =
            serde_json::from_slice::<Request>(format!("\"{text}\"").as_bytes()).expect_err("a text is no request");
        assert!(unread.to_string().len() > 600_000, "the reader repeats what it refuses");

        let refused = ErrorBody::new(ErrorCode::Protocol, unread.to_string());
        assert!(refused.message.len() <= MAX_MESSAGE, "{} bytes", refused.message.len());
        assert!(refused.message.ends_with(" bytes more)"), "{}", &refused.message[MAX_MESSAGE - 100..]);
    }

    #[test]
    fn a_refusal_is_cut_between_characters() {
        for shift in 0..4 {
            let refused = ErrorBody::new(ErrorCode::Io, format!("{}{}", "x".repeat(shift), "😀".repeat(MAX_MESSAGE)));
            assert!(refused.message.len() <= MAX_MESSAGE);
        }
    }
}
