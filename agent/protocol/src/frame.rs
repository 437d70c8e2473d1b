//! Frames: a length, a kind and bytes. The decoder never holds more than one frame's bound.

use std::fmt;

pub const HEADER_LENGTH: usize = 5;
/// Longest payload of a frame that carries JSON.
pub const MAX_JSON: usize = 4 << 20;
/// Longest payload of a frame that carries raw bytes.
pub const MAX_DATA: usize = 1 << 20;
/// Bytes of the offset that leads the payload of an output frame.
pub const OFFSET_LENGTH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Hello = 0x01,
    Welcome = 0x02,
    Request = 0x03,
    Reply = 0x04,
    Error = 0x05,
    Event = 0x06,
    End = 0x07,
    Data = 0x10,
    Eof = 0x11,
    Stdout = 0x12,
    Stderr = 0x13,
    /// Output before this offset was handed on. Only for agents with the feature `output_ack`.
    Ack = 0x14,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Request,
        Kind::Reply,
        Kind::Error,
        Kind::Event,
        Kind::End,
        Kind::Data,
        Kind::Eof,
        Kind::Stdout,
        Kind::Stderr,
        Kind::Ack,
    ];

    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Longest payload this kind may carry.
    pub fn max_payload(self) -> usize {
        match self {
            Kind::Hello | Kind::Welcome | Kind::Request | Kind::Reply | Kind::Error | Kind::Event => MAX_JSON,
            Kind::End | Kind::Eof => 0,
            Kind::Data => MAX_DATA,
            Kind::Ack => OFFSET_LENGTH,
            Kind::Stdout | Kind::Stderr => MAX_DATA + OFFSET_LENGTH,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    UnknownKind(u8),
    TooLong { kind: Kind, length: usize },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::UnknownKind(byte) => write!(f, "frame kind 0x{byte:02x} is unknown"),
            FrameError::TooLong { kind, length } => {
                write!(f, "a {kind:?} frame of {length} bytes is longer than the {} allowed", kind.max_payload())
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// Header of a frame whose payload has `length` bytes.
pub fn encode_header(kind: Kind, length: usize) -> [u8; HEADER_LENGTH] {
    let size = (length as u32).to_be_bytes();
    [size[0], size[1], size[2], size[3], kind as u8]
}

/// Appends a whole frame to `out`.
pub fn encode(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) {
    out.extend_from_slice(&encode_header(kind, payload.len()));
    out.extend_from_slice(payload);
}

/// Reads a header. `None` when fewer than five bytes are there.
pub fn parse_header(bytes: &[u8]) -> Result<Option<(Kind, usize)>, FrameError> {
    let Some(header) = bytes.get(..HEADER_LENGTH) else { return Ok(None) };
    let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let kind = Kind::from_byte(header[4]).ok_or(FrameError::UnknownKind(header[4]))?;
    if length > kind.max_payload() {
        return Err(FrameError::TooLong { kind, length });
    }
    Ok(Some((kind, length)))
}

/// Cuts a stream of bytes into frames. Bytes go in through [`Decoder::extend`] or [`Decoder::spare`]; a frame's payload
/// stays borrowed from the decoder until the next call.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn extend(&mut self, bytes: &[u8]) {
        self.compact();
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes wait here, decoded into no frame yet.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// How many more bytes the first frame needs, a header's worth when even that is not complete.
    pub fn missing(&self) -> Result<usize, FrameError> {
        let bytes = &self.buffer[self.start..];
        Ok(match parse_header(bytes)? {
            None => HEADER_LENGTH - bytes.len(),
            Some((_, length)) => (HEADER_LENGTH + length).saturating_sub(bytes.len()),
        })
    }

    /// The next whole frame, if there is one. A refused frame stays first: the stream cannot be read on.
    pub fn next_frame(&mut self) -> Result<Option<(Kind, &[u8])>, FrameError> {
        let bytes = &self.buffer[self.start..];
        let Some((kind, length)) = parse_header(bytes)? else { return Ok(None) };
        if bytes.len() < HEADER_LENGTH + length {
            return Ok(None);
        }
        let from = self.start + HEADER_LENGTH;
        self.start = from + length;
        Ok(Some((kind, &self.buffer[from..from + length])))
    }

    /// Moves undecoded bytes out as they are, for a reader that takes the stream over. Returns how many.
    pub fn take_raw(&mut self, target: &mut [u8]) -> usize {
        let bytes = &self.buffer[self.start..];
        let count = bytes.len().min(target.len());
        target[..count].copy_from_slice(&bytes[..count]);
        self.start += count;
        if self.start == self.buffer.len() {
            self.buffer = Vec::new();
            self.start = 0;
        }
        count
    }

    /// Gives the memory of an emptied buffer back when it has grown large.
    pub fn shrink(&mut self) {
        self.compact();
        if self.buffer.is_empty() && self.buffer.capacity() > 8192 {
            self.buffer = Vec::new();
        }
    }

    fn compact(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start > 0 && self.start >= self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small xorshift generator: the same numbers in every run.
    struct Random(u64);
    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
        fn below(&mut self, limit: usize) -> usize {
            (self.next() % limit as u64) as usize
        }
    }

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..300 {
            let mut stream = Vec::new();
            let mut sent = Vec::new();
            for _ in 0..random.below(12) {
                let kind = Kind::ALL[random.below(Kind::ALL.len())];
                let length = random.below(3000).min(kind.max_payload());
                let payload: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                encode(&mut stream, kind, &payload);
                sent.push((kind, payload));
            }
            let mut decoder = Decoder::new();
            let mut received = Vec::new();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + random.below(rest.len()));
                decoder.extend(now);
                rest = later;
                while let Some((kind, payload)) = decoder.next_frame().expect("valid frames") {
                    received.push((kind, payload.to_vec()));
                }
            }
            assert_eq!(received, sent);
            assert_eq!(decoder.buffered(), 0);
        }
    }

    #[test]
    fn random_bytes_give_frames_within_bounds_or_an_error_that_stays() {
        let mut random = Random(42);
        for _ in 0..3000 {
            let mut decoder = Decoder::new();
            let bytes: Vec<u8> = (0..random.below(64))
                .map(|_| (random.next() as u8) & if random.below(2) == 0 { 0x13 } else { 0xff })
                .collect();
            decoder.extend(&bytes);
            loop {
                match decoder.next_frame() {
                    Ok(Some((kind, payload))) => assert!(payload.len() <= kind.max_payload()),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(decoder.next_frame(), Err(error));
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn a_frame_above_its_bound_is_refused_by_its_header_alone() {
        for kind in Kind::ALL {
            let mut decoder = Decoder::new();
            decoder.extend(&encode_header(kind, kind.max_payload() + 1));
            assert_eq!(decoder.next_frame(), Err(FrameError::TooLong { kind, length: kind.max_payload() + 1 }));
        }
    }

    #[test]
    fn a_large_buffer_is_given_back_once_it_is_empty() {
        let mut decoder = Decoder::new();
        let mut stream = Vec::new();
        encode(&mut stream, Kind::Data, &vec![7; MAX_DATA]);
        decoder.extend(&stream);
        assert!(decoder.next_frame().expect("valid").is_some());
        decoder.shrink();
        assert_eq!(decoder.buffer.capacity(), 0);
    }
}
