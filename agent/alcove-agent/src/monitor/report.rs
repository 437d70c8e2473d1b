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
    /// Wait status of the command's first process.
    Ended {
        status: i32,
    },
    /// Nothing descends from the monitor any more.
    Idle,
}

pub const REPORT_LENGTH: usize = 16;

impl Report {
    pub fn encode(self) -> [u8; REPORT_LENGTH] {
        let words: [i32; 4] = match self {
            Report::Started { pid } => [1, pid, 0, 0],
            Report::Failed { stage, errno, pid } => [2, stage as i32, errno, pid],
            Report::Ended { status } => [3, status, 0, 0],
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
            3 => Report::Ended { status: word(1)? },
            4 => Report::Idle,
            _ => return None,
        })
    }
}
