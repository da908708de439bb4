//! The end of a wait.

use onebuf_hal::Error;
use std::time::{Duration, Instant};

/// A point in time until which something is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    began: Instant,
    limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        Self { began: Instant::now(), limit }
    }

    /// The time that is left.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.began.elapsed())
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::timeout(what, self.limit)
    }
}
