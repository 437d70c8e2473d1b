//! `file.unpack` of damaged archives, on a live agent: it answers, stays, and nothing gets out of the directory. The
//! samples are those of the service's own tar reader, `agent/fuzz/corpus/tars`. `ALCOVE_FUZZ_RUNS` asks for more runs,
//! `ALCOVE_FUZZ_SECONDS` for as many as that takes; `ALCOVE_FUZZ_SEED` is the first seed.

mod support;

use alcove_protocol::Kind;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use support::TestAgent;

/// xorshift: the same damage for the same seed.
struct Damage(u64);

impl Damage {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound.max(1)
    }

    fn damaged(&mut self, samples: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = samples[self.below(samples.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(32)).min(bytes.len());
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 => {
                    let value = [0, b' ', b'/', b'.', b'7', 0x80, 0xff][self.below(7)];
                    bytes[at..end].fill(value);
                }
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let other = &samples[self.below(samples.len())];
                    let from = 512 * self.below(other.len() / 512);
                    bytes.truncate(at - at % 512);
                    bytes.extend_from_slice(&other[from..]);
                }
                _ => bytes.truncate(at),
            }
        }
        if self.below(4) > 0 {
            correct_checksums(&mut bytes);
        }
        bytes
    }
}

/// So that damage gets past the checksum of its header.
fn correct_checksums(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

#[test]
fn a_damaged_archive_is_unpacked_or_refused_and_stays_in_its_directory() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/tars");
    let samples: Vec<Vec<u8>> =
        names(&corpus).iter().map(|name| std::fs::read(corpus.join(name)).expect("a sample")).collect();
    let asked = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (first, most) = (asked("ALCOVE_FUZZ_SEED").unwrap_or(1), asked("ALCOVE_FUZZ_RUNS").unwrap_or(300));
    let end = asked("ALCOVE_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let agent = TestAgent::start();
    let outer = agent.path("ws/outer");
    let outside = || {
        let etc = std::fs::metadata("/etc/passwd").expect("a file");
        (names(Path::new(&agent.path("ws"))), names(Path::new(&outer)), etc.modified().expect("a time"), etc.len())
    };
    let (mut unpacked, mut refused) = (0, 0);
    std::fs::create_dir(&outer).expect("a folder");
    std::fs::create_dir(format!("{outer}/in")).expect("a folder");
    let before = outside();
    let mut runs = 0;
    while end.map_or(runs < most, |end| Instant::now() < end) {
        let seed = first + runs;
        runs += 1;
        let mut damage = Damage(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let archive = damage.damaged(&samples);
        let mut client = agent.client();
        let frames = client.run_with(&json!({"op": "file.unpack", "path": format!("{outer}/in")}), &archive);
        match frames.last() {
            Some((Kind::End, _)) => unpacked += 1,
            Some((Kind::Error, _)) => {
                let code = support::error_code(&frames);
                assert!(code != "internal" && code != "protocol", "seed {seed}: {code}");
                refused += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        assert_eq!(outside(), before, "seed {seed}");
        let mut client = agent.client();
        client.run(&json!({"op": "file.remove", "path": format!("{outer}/in"), "recursive": true}));
        std::fs::create_dir(format!("{outer}/in")).expect("removed and made again");
    }
    assert!(unpacked > runs / 20 && refused > runs / 20, "{unpacked} unpacked, {refused} refused");
}
