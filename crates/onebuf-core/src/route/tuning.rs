//! How large copies are divided. The numbers were measured on an H200 machine with 16 cores; `docs/benchmarks.md` has them.

use std::{num::NonZero, thread, time::Duration};

/// The sizes and the number of threads of large copies. Tests set others.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CopyTuning {
    /// The size of a pinned chunk, which the device transfers at once.
    pub chunk_bytes: usize,
    /// The number of chunks of one copy that are in flight.
    pub ring: usize,
    /// The number of chunks that a device keeps. Copies of several threads at once share them.
    pub kept: usize,
    /// The number of threads that copy, with the calling one, at most.
    pub threads: usize,
    /// The size of a piece, which a thread copies at once.
    pub piece_bytes: usize,
    /// The number of chunks into which a copy is divided at least, so that the device starts soon.
    pub parts: usize,
    /// How long an idle thread looks for the next copy before it sleeps.
    pub awake: Duration,
    /// How long a thread sleeps without a copy before it ends.
    pub linger: Duration,
    /// Transfers of at least this size are divided among threads.
    pub many_from_bytes: usize,
    /// Copies inside host memory of at least this size are divided among threads.
    pub host_from_bytes: usize,
    /// From this size on, stores to the caller's memory bypass the caches, which such a copy would empty.
    pub stream_from_bytes: usize,
    /// Uploads below this size store to pinned chunks past the caches. From this size on the chunks are used several times, stay in
    /// the cache, and the device reads them there: main memory is left to the caller's bytes.
    pub cache_from_bytes: usize,
    /// Whether devices that use the host's memory are treated like those with their own.
    pub as_discrete: bool,
}

impl Default for CopyTuning {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            chunk_bytes: 4 << 20,
            ring: 8,
            kept: 32,
            // On few cores a copy would wait for a thread that other work has displaced.
            threads: if cores < 4 { 1 } else { cores.min(10) },
            piece_bytes: 64 << 10,
            parts: 8,
            awake: Duration::from_millis(1),
            linger: Duration::from_secs(if cfg!(onebuf_shuttle) { 0 } else { 5 }),
            many_from_bytes: 1 << 20,
            host_from_bytes: 4 << 20,
            stream_from_bytes: 128 << 20,
            cache_from_bytes: 48 << 20,
            as_discrete: false,
        }
    }
}

impl CopyTuning {
    /// The number of threads for a copy of this size, with the calling one. At 16 MiB each thread beyond six makes a copy slower, because
    /// it has to be woken. From 128 MiB on the caller's memory is no longer in the processor's caches, and it takes ten to write it
    /// fast enough.
    pub fn threads_for(&self, bytes: usize) -> usize {
        let most = match bytes {
            _ if bytes <= 32 << 20 => 6,
            _ if bytes < 128 << 20 => 8,
            _ => usize::MAX,
        };
        self.threads.min(most)
    }

    /// The number of threads for an upload. Beyond eight none makes it faster (256 MiB: 51.5 GB/s by eight, 50.9 by twelve).
    pub fn threads_up(&self, bytes: usize) -> usize {
        self.threads_for(bytes).min(8)
    }
}
