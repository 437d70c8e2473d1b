//! What a client may send as JSON: a request, a hello. Nothing panics, and what is refused says why in bounded words.
#![no_main]

use alcove_protocol::{ErrorBody, ErrorCode, Hello, MAX_MESSAGE, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(error) = serde_json::from_slice::<Request>(data) {
        let refused = ErrorBody::new(ErrorCode::Protocol, format!("the request cannot be read: {error}"));
        assert!(refused.message.len() <= MAX_MESSAGE, "a refusal of {} bytes", refused.message.len());
    }
    let _ = serde_json::from_slice::<Hello>(data);
});
