//! The decoder of frames: however a stream is cut into pieces, the same frames come out, and encoding them again gives
//! the bytes that were read.
#![no_main]

use alcove_protocol::frame::{self, Decoder};
use libfuzzer_sys::fuzz_target;

/// Frames, bytes used and whether the decoder refused what follows.
fn decode(bytes: &[u8], piece: usize) -> (Vec<(frame::Kind, Vec<u8>)>, usize, bool) {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    let mut used = 0;
    for part in bytes.chunks(piece) {
        decoder.extend(part);
        loop {
            let before = decoder.buffered();
            match decoder.next_frame() {
                Ok(Some((kind, payload))) => {
                    frames.push((kind, payload.to_vec()));
                    used += before - decoder.buffered();
                }
                Ok(None) => break,
                Err(_) => return (frames, used, true),
            }
        }
        decoder.shrink();
    }
    assert_eq!(used + decoder.buffered(), bytes.len(), "bytes were lost");
    (frames, used, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let whole = decode(bytes, bytes.len().max(1));
    let cut = decode(bytes, usize::from(*first).max(1));
    assert_eq!(whole, cut, "the pieces decide what is decoded");
    let mut again = Vec::new();
    for (kind, payload) in &whole.0 {
        assert!(payload.len() <= kind.max_payload());
        frame::encode(&mut again, *kind, payload);
    }
    assert_eq!(again, bytes[..whole.1]);
});
