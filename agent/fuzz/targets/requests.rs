//! What a client may send as JSON: a request, a hello. Nothing panics, and what is refused says why in bounded words.
#![no_main]

use alcove_protocol::{Hello, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(error) = serde_json::from_slice::<Request>(data) {
        assert!(error.to_string().len() <= data.len() + 4096, "a refusal that grows");
    }
    let _ = serde_json::from_slice::<Hello>(data);
});
