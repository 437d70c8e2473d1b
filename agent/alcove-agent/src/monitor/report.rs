//! What a monitor tells the agent.

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    Fork = 1,
    Setup = 2,
    Cwd = 3,
    Exec = 4,
    /// As `Exec`, on a file system that allows no execution.
    NoExec = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    Started {
        pid: i32,
    },
    Failed {
        stage: Stage,
        errno: i32,
        pid: i32,
    },
    /// Wait status of the command's first process, and what it and all that ended before it used.
    Ended {
        status: i32,
        usage: Usage,
    },
    /// Nothing descends from the monitor any more.
    Idle,
}

/// What processes used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_ms: u32,
    /// The most that one of them had in memory at a time.
    pub max_memory_kb: u32,
}

impl Usage {
    pub fn add(&mut self, used: &libc::rusage) {
        let ms = |time: libc::timeval| time.tv_sec * 1000 + time.tv_usec / 1000;
        let cpu_ms = ms(used.ru_utime) + ms(used.ru_stime);
        self.cpu_ms = self.cpu_ms.saturating_add(u32::try_from(cpu_ms).unwrap_or(u32::MAX));
        self.max_memory_kb = self.max_memory_kb.max(u32::try_from(used.ru_maxrss).unwrap_or(u32::MAX));
    }
}

const WORDS: usize = 4;
pub const REPORT_LENGTH: usize = 4 * WORDS;

impl Report {
    pub fn encode(self) -> [u8; REPORT_LENGTH] {
        let words: [i32; WORDS] = match self {
            Report::Started { pid } => [1, pid, 0, 0],
            Report::Failed { stage, errno, pid } => [2, stage as i32, errno, pid],
            Report::Ended { status, usage } => [3, status, usage.cpu_ms as i32, usage.max_memory_kb as i32],
            Report::Idle => [4, 0, 0, 0],
        };
        let mut bytes = [0; REPORT_LENGTH];
        for (index, word) in words.iter().enumerate() {
            bytes[index * 4..index * 4 + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let word = |index: usize| -> Option<i32> {
            Some(i32::from_ne_bytes(bytes.get(index * 4..index * 4 + 4)?.try_into().ok()?))
        };
        Some(match word(0)? {
            1 => Report::Started { pid: word(1)? },
            2 => Report::Failed {
                stage: match word(1)? {
                    1 => Stage::Fork,
                    3 => Stage::Cwd,
                    4 => Stage::Exec,
                    5 => Stage::NoExec,
                    _ => Stage::Setup,
                },
                errno: word(2)?,
                pid: word(3)?,
            },
            3 => Report::Ended {
                status: word(1)?,
                usage: Usage { cpu_ms: word(2)? as u32, max_memory_kb: word(3)? as u32 },
            },
            4 => Report::Idle,
            _ => return None,
        })
    }
}
