//! The output of one exec: both streams interleaved in arrival order in a ring that keeps the newest bytes. Offsets are
//! absolute and count the bytes of both streams. Memory is taken when output arrives, never before.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A stretch of output of one stream; it ends where the next one starts.
struct Segment {
    start: u64,
    stream: Stream,
}

/// A change of stream is remembered for so many bytes of the ring, which bounds what the segments take beside it: a
/// command that alternates byte by byte keeps less output.
const BYTES_PER_SEGMENT: usize = 64;
const LEAST_SEGMENTS: usize = 64;
const FIRST_ALLOCATION: usize = 512;

pub struct Journal {
    ring: Vec<u8>,
    limit: usize,
    start: u64,
    end: u64,
    segments: VecDeque<Segment>,
}

/// Output that can be sent in one frame. `parts` are adjacent; the second is empty unless the ring wraps there.
pub struct Chunk<'a> {
    pub stream: Stream,
    pub offset: u64,
    pub parts: [&'a [u8]; 2],
}

impl Chunk<'_> {
    pub fn length(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }
}

impl Journal {
    pub fn new(limit: usize) -> Self {
        Self { ring: Vec::new(), limit: limit.max(1), start: 0, end: 0, segments: VecDeque::new() }
    }

    /// Offset of the oldest byte kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Offset after the newest byte: how many bytes the command has written.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Most bytes it keeps.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Size of the ring.
    pub fn allocated(&self) -> usize {
        self.ring.len()
    }

    /// What all of it takes.
    pub fn memory(&self) -> usize {
        self.ring.len() + self.segments.capacity() * size_of::<Segment>()
    }

    fn max_segments(&self) -> usize {
        (self.ring.len() / BYTES_PER_SEGMENT).max(LEAST_SEGMENTS)
    }

    fn kept(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// The ring's size that would keep `more` further bytes without losing any, within the limit.
    pub fn size_for(&self, more: usize) -> usize {
        let crowded = self.segments.len() >= self.max_segments();
        let wanted = (self.kept() + more).max(if crowded { self.ring.len() + 1 } else { 0 });
        if wanted <= self.ring.len() {
            return self.ring.len();
        }
        wanted.next_power_of_two().max(FIRST_ALLOCATION).min(self.limit).max(self.ring.len())
    }

    /// The ring's size that loses nothing from `oldest` on when `more` bytes of another stream follow, whatever the limit.
    pub fn size_to_keep(&self, oldest: u64, more: usize) -> usize {
        let bytes = (self.end - oldest.clamp(self.start, self.end)) as usize + more;
        bytes.max((self.segments.len() + 2) * BYTES_PER_SEGMENT)
    }

    /// An offset before `offset`, so that at most half of what the ring can keep lies between them.
    pub fn half_before(&self, offset: u64) -> u64 {
        let bytes = offset.saturating_sub(self.ring.len() as u64 / 2);
        let begun = self.segments.partition_point(|segment| segment.start < offset);
        let oldest = begun.checked_sub(self.max_segments() / 2).and_then(|index| self.segments.get(index));
        oldest.map_or(bytes, |segment| bytes.max(segment.start))
    }

    /// Takes more memory for the ring; `size` may be above the limit when the last output of an ended command must fit.
    pub fn grow(&mut self, size: usize) {
        if size <= self.ring.len() {
            return;
        }
        let mut ring = vec![0; size];
        let mut offset = self.start;
        while offset < self.end {
            let from = self.position(offset);
            let to = (offset % size as u64) as usize;
            let count = (self.ring.len() - from).min(size - to).min((self.end - offset) as usize);
            ring[to..to + count].copy_from_slice(&self.ring[from..from + count]);
            offset += count as u64;
        }
        self.ring = ring;
    }

    /// Gives all memory back; what was kept is gone, the offsets stay.
    pub fn release(&mut self) {
        self.ring = Vec::new();
        self.segments = VecDeque::new();
        self.start = self.end;
    }

    fn position(&self, offset: u64) -> usize {
        (offset % self.ring.len() as u64) as usize
    }

    /// Room for up to `wanted` bytes in one piece. The oldest bytes give way, but none from `protect` on: then the room
    /// may be empty, and the caller waits until a reader has caught up.
    pub fn room(&mut self, wanted: usize, protect: Option<u64>) -> &mut [u8] {
        if self.ring.is_empty() {
            return &mut [];
        }
        let oldest_needed = protect.map_or(self.end, |offset| offset.clamp(self.start, self.end));
        if self.segments.len() >= self.max_segments() {
            let second = self.segments[1].start;
            if second > oldest_needed {
                return &mut [];
            }
            self.drop_before(second);
        }
        let at = self.position(self.end);
        let free = self.ring.len() - (self.end - oldest_needed) as usize;
        let count = wanted.min(free).min(self.ring.len() - at);
        let kept_after = self.ring.len() - count;
        if self.kept() > kept_after {
            self.drop_before(self.end - kept_after as u64);
        }
        &mut self.ring[at..at + count]
    }

    fn drop_before(&mut self, offset: u64) {
        self.start = self.start.max(offset);
        while self.segments.len() > 1 && self.segments[1].start <= self.start {
            self.segments.pop_front();
        }
        if self.start == self.end {
            self.segments.clear();
        }
    }

    /// The first `count` bytes of the last `room` now hold output of `stream`.
    pub fn commit(&mut self, count: usize, stream: Stream) {
        if count == 0 {
            return;
        }
        if self.segments.back().is_none_or(|last| last.stream != stream) {
            self.segments.push_back(Segment { start: self.end, stream });
        }
        self.end += count as u64;
    }

    /// Copies `bytes` in, the oldest giving way; the ring must have been grown before.
    pub fn append(&mut self, mut bytes: &[u8], stream: Stream) {
        while !bytes.is_empty() {
            let room = self.room(bytes.len(), None);
            let count = room.len();
            if count == 0 {
                return;
            }
            room.copy_from_slice(&bytes[..count]);
            self.commit(count, stream);
            bytes = &bytes[count..];
        }
    }

    /// What is kept from `offset` on, of one stream and at most `limit` bytes.
    pub fn chunk(&self, offset: u64, limit: usize) -> Option<Chunk<'_>> {
        let offset = offset.max(self.start);
        if offset >= self.end {
            return None;
        }
        let next = self.segments.partition_point(|segment| segment.start <= offset);
        let stream = self.segments[next - 1].stream;
        let until = self.segments.get(next).map_or(self.end, |segment| segment.start);
        let count = ((until - offset) as usize).min(limit);
        let from = self.position(offset);
        let first = count.min(self.ring.len() - from);
        Some(Chunk { stream, offset, parts: [&self.ring[from..from + first], &self.ring[..count - first]] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(journal: &mut Journal, bytes: &[u8], stream: Stream) {
        let size = journal.size_for(bytes.len());
        journal.grow(size);
        journal.append(bytes, stream);
    }

    fn read(journal: &Journal, mut offset: u64) -> Vec<(u64, Stream, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(chunk) = journal.chunk(offset, usize::MAX) {
            all.push((chunk.offset, chunk.stream, chunk.parts.concat()));
            offset = chunk.offset + chunk.length() as u64;
        }
        all
    }

    #[test]
    fn an_empty_journal_takes_no_memory() {
        let journal = Journal::new(1 << 20);
        assert_eq!(journal.allocated(), 0);
        assert!(journal.chunk(0, 10).is_none());
    }

    #[test]
    fn streams_come_back_interleaved_with_their_offsets() {
        let mut journal = Journal::new(1 << 20);
        write(&mut journal, b"one", Stream::Stdout);
        write(&mut journal, b"two", Stream::Stderr);
        write(&mut journal, b"three", Stream::Stderr);
        write(&mut journal, b"four", Stream::Stdout);
        assert_eq!(
            read(&journal, 1),
            [
                (1, Stream::Stdout, b"ne".to_vec()),
                (3, Stream::Stderr, b"twothree".to_vec()),
                (11, Stream::Stdout, b"four".to_vec())
            ]
        );
    }

    #[test]
    fn a_full_ring_keeps_the_newest_bytes() {
        let mut journal = Journal::new(1000);
        let written: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
        for (index, piece) in written.chunks(37).enumerate() {
            write(&mut journal, piece, if index % 3 == 0 { Stream::Stderr } else { Stream::Stdout });
        }
        assert_eq!(journal.allocated(), 1000);
        assert_eq!((journal.start(), journal.end()), (4000, 5000));
        let kept: Vec<u8> = read(&journal, 0).into_iter().flat_map(|(_, _, bytes)| bytes).collect();
        assert_eq!(kept, &written[4000..]);
    }

    #[test]
    fn protected_bytes_are_never_overwritten() {
        let mut journal = Journal::new(512);
        write(&mut journal, &[1; 512], Stream::Stdout);
        assert!(journal.room(10, Some(0)).is_empty());
        assert_eq!(journal.room(10, Some(4)).len(), 4);
        assert_eq!(journal.start(), 4);
    }

    #[test]
    fn alternating_streams_stay_within_the_bound_of_segments() {
        let mut journal = Journal::new(1 << 20);
        for n in 0..100_000u32 {
            write(&mut journal, b"x", if n % 2 == 0 { Stream::Stdout } else { Stream::Stderr });
        }
        assert_eq!(journal.allocated(), 1 << 20, "it grows rather than lose output");
        assert!(journal.segments.len() <= (1 << 20) / BYTES_PER_SEGMENT);
        assert!(journal.memory() <= (1 << 20) * 3 / 2, "{}", journal.memory());
        assert_eq!(journal.end(), 100_000);
        assert_eq!(read(&journal, 0).len(), journal.segments.len());
    }
}
