//! The label of a buffer in logs, traces and viewers.

use onebuf_hal::locks::Arc;
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// A name, if the caller set one, and a number that is unique in the process.
#[derive(Debug)]
pub(crate) struct Label {
    pub number: u64,
    pub name: Option<Arc<str>>,
}

impl Label {
    pub fn new(name: Option<Arc<str>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), name }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "buffer {}", self.number),
        }
    }
}
