//! Rounds sizes up, so that buffers of similar sizes can replace each other.

use super::{AllocationRequest, Block, MemoryResource, PoolStatistics};
use onebuf_hal::{Error, Result};

/// Rounds capacities up to size classes: four per power of two, so that at most a fifth of a buffer is unused. Classes from
/// 16 KiB on are whole pages, smaller ones whole cache lines.
#[derive(Debug, Default)]
pub struct SizeClasses<S>(pub S);

/// One cache line: the smallest class.
const SMALLEST: usize = 64;

impl<S: MemoryResource> SizeClasses<S> {
    /// The smallest class that holds this size.
    ///
    /// ```
    /// use onebuf::pool::{Fresh, SizeClasses};
    /// assert_eq!(SizeClasses::<Fresh>::class_of(1), 64);
    /// assert_eq!(SizeClasses::<Fresh>::class_of(1 << 20), 1 << 20);
    /// assert_eq!(SizeClasses::<Fresh>::class_of((1 << 20) + 1), (1 << 20) + (1 << 18));
    /// ```
    pub fn class_of(bytes: usize) -> usize {
        if bytes <= 4 * SMALLEST {
            return bytes.max(1).next_multiple_of(SMALLEST);
        }
        // A quarter of the next lower power of two.
        let step = 1 << ((bytes - 1).ilog2() - 2);
        bytes.checked_next_multiple_of(step).unwrap_or(bytes)
    }
}

impl<S: MemoryResource> MemoryResource for SizeClasses<S> {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let class = Self::class_of(request.capacity);
        match self.0.take(&request.with_capacity(class)) {
            // Only the rounded size exceeds the limit, so the exact size is tried.
            Err(Error::OutOfMemory { limit: Some(limit), .. }) if class as u64 > limit => {
                self.0.take(request)
            }
            taken => taken,
        }
    }

    fn give(&self, block: Block) {
        self.0.give(block);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        self.0.trim(keep_bytes)
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        self.0.count(statistics);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Fresh, *};

    #[test]
    fn classes_hold_what_they_are_for_and_little_more() {
        let class = SizeClasses::<Fresh>::class_of;
        let mut last = 0;
        for bytes in (1..20_000).chain((14..40).flat_map(|n| [(1 << n) - 1, 1 << n, (1 << n) + 1]))
        {
            let room = class(bytes);
            assert!(room >= bytes && room >= last, "{bytes} -> {room} after {last}");
            assert_eq!(class(room), room, "{bytes}");
            assert!(bytes <= 256 || (room - bytes) * 5 <= room, "{bytes} -> {room}");
            let unit = if room >= 16 << 10 { 4096 } else { 64 };
            assert_eq!(room % unit, 0, "{bytes} -> {room}");
            last = if bytes < 19_999 { room } else { 0 };
        }
        assert_eq!(class(usize::MAX), usize::MAX);
    }
}
