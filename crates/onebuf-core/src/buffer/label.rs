//! What people call a buffer.

use onebuf_hal::locks::Arc;
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// A name, if one was given, and a number that no other buffer of the process has.
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
