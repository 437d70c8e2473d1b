//! Who owes the service an answer: the processes of requests. One that is killed says nothing itself, and whoever asked would wait for as
//! long as any request may take.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::error::StepError;
use crate::sys;

const STEP: &str = "request";
const ANSWERED: u8 = b'A';

/// The launcher's side.
#[derive(Default)]
pub struct Debts {
    open: Vec<Open>,
}

struct Open {
    /// Of the request.
    id: u64,
    /// Readable with the answer, or with the end of who owes it.
    answered: OwnedFd,
    since: Instant,
    /// How long it may take: who takes longer ends itself. None: as long as it likes.
    most: Option<Duration>,
}

/// The side of a request's process: dropped unpaid it tells that nobody answers.
pub struct Debt(Option<OwnedFd>);

impl Debt {
    /// Of a request that nobody waits for but its reader.
    pub fn none() -> Self {
        Self(None)
    }

    /// What the service was to hear it has heard.
    pub fn settle(self) {
        if let Some(told) = self.0 {
            // The launcher is gone where this fails, and with it everybody who waits.
            let _ = sys::write_all(told.as_raw_fd(), &[ANSWERED]);
        }
    }
}

impl Debts {
    /// Where this process lacks a descriptor the request is served all the same, and its end by somebody's hand is told by time alone.
    /// @param most how long the request may take.
    pub fn add(&mut self, id: u64, most: Option<Duration>) -> Debt {
        let Ok((answered, told)) = sys::pipe() else { return Debt(None) };
        self.open.push(Open { id, answered, since: Instant::now(), most });
        Debt(Some(told))
    }

    /// Readable when somebody has answered, or has ended.
    pub fn owing(&self) -> impl Iterator<Item = RawFd> {
        self.open.iter().map(|open| open.answered.as_raw_fd())
    }

    /// @returns the numbers of requests that nobody will answer, and why not.
    pub fn collect(&mut self) -> Vec<(u64, StepError)> {
        let mut lost = Vec::new();
        self.open.retain(|Open { id, answered, since, most }| {
            if !sys::wait_readable(answered.as_raw_fd(), 0).unwrap_or(false) {
                return true;
            }
            let mut said = [0u8; 1];
            if sys::read(answered.as_raw_fd(), &mut said).ok() != Some(1) {
                let why = match most.filter(|most| since.elapsed() >= *most) {
                    Some(most) => {
                        format!("not done within {} s: the machine has no time for it, or a disk hangs", most.as_secs())
                    }
                    None => {
                        "the process that served it was killed before it answered, by the kernel for want of memory perhaps"
                            .to_owned()
                    }
                };
                lost.push((*id, StepError::new(STEP, why)));
            }
            false
        });
        lost
    }

    /// For processes of requests: none holds what tells of another's end.
    pub fn forget(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(20);

    #[test]
    fn who_ends_without_an_answer_is_told_of_once_and_who_answered_never() {
        let mut debts = Debts::default();
        let [first, second, third] = [7, 8, 9].map(|id| debts.add(id, Some(MOST)));
        assert!(debts.collect().is_empty());
        first.settle();
        drop(second);
        let lost = debts.collect();
        assert_eq!(lost.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [8]);
        assert!(lost[0].1.message.contains("killed"), "{}", lost[0].1);
        assert_eq!(debts.owing().count(), 1);
        assert!(debts.collect().is_empty());
        debts.open[0].since -= MOST;
        drop(third);
        assert!(debts.collect()[0].1.message.contains("within 20 s"));
        assert_eq!(debts.owing().count(), 0);
        let unbounded = debts.add(10, None);
        debts.open[0].since -= MOST;
        drop(unbounded);
        assert!(debts.collect()[0].1.message.contains("killed"));
    }
}
