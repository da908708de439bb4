//! Counters of streams and turns, which other threads read while a pipeline runs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What has passed an end of a stream, or a turn, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MpiCounts {
    /// Frames that have passed.
    pub frames: u64,
    /// Bytes of these frames that went to or came from other ranks.
    pub bytes: u64,
    /// Frame numbers of the sender's pipeline that were skipped: frames that it has dropped before. Zero for other ends.
    pub skipped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    frames: AtomicU64,
    bytes: AtomicU64,
    skipped: AtomicU64,
}

impl Counters {
    pub fn add(&self, bytes: usize, skipped: u64) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.skipped.fetch_add(skipped, Ordering::Relaxed);
    }
}

/// Reads the counters of an end that a pipeline owns.
#[derive(Clone, Debug)]
pub struct MpiMeter(pub(crate) Arc<Counters>);

impl MpiMeter {
    /// The counters so far.
    pub fn counts(&self) -> MpiCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { frames, bytes, skipped } = &*self.0;
        MpiCounts { frames: get(frames), bytes: get(bytes), skipped: get(skipped) }
    }
}
