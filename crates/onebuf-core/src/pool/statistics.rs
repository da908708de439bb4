//! What a pool has done and holds.

use super::Outstanding;
use onebuf_hal::MemoryKind;
use std::{collections::BTreeMap, fmt};

/// Counted by the memory resources of a pool; what a stack has no memory resource for stays zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Buffers handed out that were used before.
    pub hits: u64,
    /// Buffers handed out that had to be made.
    pub misses: u64,
    /// Buffers made, for whatever reason.
    pub made: u64,
    /// Buffers freed.
    pub freed: u64,
    /// Buffers that came back and could not be used again: forgotten guards, timed-out fences, detached.
    pub lost: u64,
    /// Buffers in use.
    pub live_buffers: u64,
    /// Their bytes, rounded up to their size classes.
    pub live_bytes: u64,
    /// Buffers ready to be used again.
    pub idle_buffers: u64,
    /// Their bytes.
    pub idle_bytes: u64,
    /// The same, by the form of the memory.
    pub idle_by_memory_kind: BTreeMap<MemoryKind, u64>,
    /// The most bytes ever in use at one time.
    pub peak_live_bytes: u64,
    /// The most bytes ever held at one time, idle ones included.
    pub peak_held_bytes: u64,
    /// The limit, where there is one.
    pub limit_bytes: Option<u64>,
    /// Buffers that are out, where the stack has [`Leaks`](super::Leaks).
    pub outstanding: Vec<Outstanding>,
}

impl PoolStatistics {
    /// How much more was ever held than ever in use, as a part of that: zero is perfect.
    pub fn fragmentation(&self) -> f64 {
        let (held, live) = (self.peak_held_bytes as f64, self.peak_live_bytes as f64);
        if live > 0.0 { held / live - 1.0 } else { 0.0 }
    }

    /// What is still out, in words.
    pub fn leak_report(&self) -> String {
        let places: Vec<String> = self.outstanding.iter().map(Outstanding::to_string).collect();
        let buffers = self.live_buffers.max(places.len() as u64);
        let list =
            if places.is_empty() { String::new() } else { format!(": {}", places.join(", ")) };
        format!("{buffers} buffers of {} bytes are out{list}", self.live_bytes)
    }
}

impl fmt::Display for PoolStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hits, misses, live_buffers, live_bytes, idle_buffers, idle_bytes, .. } = self;
        write!(f, "{live_buffers} buffers in use ({live_bytes} bytes), {idle_buffers} idle ")?;
        write!(f, "({idle_bytes} bytes), {hits} used again, {misses} made")
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
        assert_eq!(found.leak_report(), "2 buffers of 128 bytes are out");
    }
}
