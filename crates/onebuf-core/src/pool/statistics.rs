//! Statistics of a pool.

use onebuf_hal::MemoryKind;
use std::{collections::BTreeMap, fmt, panic::Location};

/// Counters of the memory resources of a pool. Those without a resource in the stack stay zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Buffers handed out that were reused.
    pub hits: u64,
    /// Buffers handed out that had to be allocated.
    pub misses: u64,
    /// Buffers allocated in total.
    pub made: u64,
    /// Buffers freed.
    pub freed: u64,
    /// Buffers that were returned and could not be reused: leaked guards, timed-out fences, detached memory.
    pub lost: u64,
    /// Buffers in use.
    pub live_buffers: u64,
    /// Their bytes, rounded up to their size classes.
    pub live_bytes: u64,
    /// Buffers ready for reuse.
    pub idle_buffers: u64,
    /// Their bytes.
    pub idle_bytes: u64,
    /// Bytes of idle buffers by memory kind.
    pub idle_by_memory_kind: BTreeMap<MemoryKind, u64>,
    /// The peak of bytes in use.
    pub peak_live_bytes: u64,
    /// The peak of bytes held, idle buffers included.
    pub peak_held_bytes: u64,
    /// The limit, if any.
    pub limit_bytes: Option<u64>,
    /// Buffers in use, if the stack has [`Leaks`](super::Leaks).
    pub outstanding: Vec<Outstanding>,
}

/// A buffer that has not been returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// The requested size in bytes.
    pub bytes: usize,
    /// The requesting source location.
    pub place: &'static Location<'static>,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.bytes, self.place)
    }
}

impl PoolStatistics {
    /// How much the peak held exceeds the peak in use, as a fraction of the latter. Zero is optimal.
    pub fn fragmentation(&self) -> f64 {
        let (held, live) = (self.peak_held_bytes as f64, self.peak_live_bytes as f64);
        if live > 0.0 { held / live - 1.0 } else { 0.0 }
    }

    /// Describes the buffers still in use.
    pub fn leak_report(&self) -> String {
        let places: Vec<String> = self.outstanding.iter().map(Outstanding::to_string).collect();
        let buffers = self.live_buffers.max(places.len() as u64);
        let list =
            if places.is_empty() { String::new() } else { format!(": {}", places.join(", ")) };
        format!("{buffers} buffers of {} bytes are in use{list}", self.live_bytes)
    }
}

impl fmt::Display for PoolStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hits, misses, live_buffers, live_bytes, idle_buffers, idle_bytes, .. } = self;
        write!(f, "{live_buffers} buffers in use ({live_bytes} bytes), {idle_buffers} idle ")?;
        write!(f, "({idle_bytes} bytes), {hits} reused, {misses} allocated")
    }
}

#[cfg(test)]
mod tests {
    use super::PoolStatistics;

    #[test]
    fn fragmentation_is_a_part_of_what_was_in_use() {
        let of = |peak_live_bytes, peak_held_bytes| {
            PoolStatistics { peak_live_bytes, peak_held_bytes, ..Default::default() }
                .fragmentation()
        };
        assert_eq!([of(0, 0), of(100, 100), of(100, 125)], [0.0, 0.0, 0.25]);
    }

    #[test]
    fn the_report_does_without_places() {
        let found = PoolStatistics { live_buffers: 2, live_bytes: 128, ..Default::default() };
        assert_eq!(found.leak_report(), "2 buffers of 128 bytes are in use");
    }
}
