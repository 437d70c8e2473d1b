//! What went wrong, and in which step: the service shows both.

use std::fmt;
use std::io;

#[derive(Debug)]
pub struct StepError {
    /// A short stable name, which the provider goes by to advise.
    pub step: String,
    pub message: String,
    pub errno: Option<i32>,
}

pub type Result<T> = std::result::Result<T, StepError>;

impl StepError {
    pub fn new(step: &str, message: impl Into<String>) -> Self {
        Self { step: step.to_owned(), message: message.into(), errno: None }
    }

    pub fn io(step: &str, what: impl fmt::Display, error: io::Error) -> Self {
        Self { step: step.to_owned(), message: format!("{what}: {error}"), errno: error.raw_os_error() }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.step, self.message)
    }
}

/// Names the step and the thing while an `io::Result` is passed on.
pub trait AtStep<T> {
    fn at(self, step: &'static str, what: impl fmt::Display) -> Result<T>;
}

impl<T> AtStep<T> for io::Result<T> {
    fn at(self, step: &'static str, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| StepError::io(step, what, error))
    }
}
