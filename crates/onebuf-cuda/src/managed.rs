//! Managed memory of chips with their own memory: one address for host and kernels, with pages that calls move.
//!
//! Without such calls, pages would move on access, a few at a time and silently. So a hand-over moves them first, in
//! order with a stream, and this module records which side has which pages.

use super::{
    aligned::{self, Aligned},
    device::Context,
    queue::RawQueue,
};
use onebuf_hal::{
    AccessState, Result,
    locks::{Mutex, lock},
};
use onebuf_sys::{
    Refused,
    cuda_like::{CudaLike, DevicePtr, Location, consts},
};
use std::ops::Range;

/// Whether the driver has every call that this module makes.
pub(super) fn is_there(table: &CudaLike) -> bool {
    table.has_alloc_managed() && (table.has_prefetch_to_location() || table.has_prefetch())
}

/// An allocation in whole pages, and the location of each page.
#[derive(Debug)]
pub(super) struct Managed {
    /// The address that the driver returned.
    base: DevicePtr,
    /// The first page.
    pub at: DevicePtr,
    bytes: usize,
    page: usize,
    /// Byte ranges that were moved to the host; all others are on the device, or not yet populated.
    on_host: Mutex<Stretches>,
}

impl Managed {
    /// Allocates memory that shares no page with another allocation: such a page would move with that allocation too.
    /// The context is current.
    pub fn new(context: &Context, bytes: usize, align: usize) -> Result<Managed, Refused> {
        let page = page_bytes();
        let (whole, align) = (bytes.next_multiple_of(page), align.max(page));
        // Drivers place small allocations side by side: such an address is in the middle of a page.
        let made = aligned::on_device(context, whole, align, |bytes| allocate(context, bytes))?;
        let Aligned { base, at, .. } = made;
        Ok(Managed { base, at, bytes, page, on_host: Mutex::default() })
    }

    /// The number of these bytes, rounded to whole pages, that are on the other side.
    pub fn misplaced(&self, range: Range<usize>, wanted: AccessState) -> usize {
        let range = self.pages_of(range);
        let on_host = lock(&self.on_host).bytes_in(&range);
        if wanted == AccessState::Acquired { on_host } else { range.len() - on_host }
    }

    /// Moves the pages of these bytes after the stream's work so far. The context is current.
    pub fn move_pages(&self, queue: &RawQueue, range: Range<usize>, to: AccessState) -> Result<()> {
        let range = self.pages_of(range);
        let mut on_host = lock(&self.on_host);
        let mut after = on_host.clone();
        match to {
            AccessState::Acquired => after.remove(&range),
            AccessState::SharedRead | AccessState::Released => after.add(range.clone()),
        }
        queue.driver().check(self.prefetch(queue, &range, to))?;
        *on_host = after;
        Ok(())
    }

    fn prefetch(
        &self,
        queue: &RawQueue,
        range: &Range<usize>,
        to: AccessState,
    ) -> Result<(), Refused> {
        let (table, own) = (queue.context.table(), queue.driver().device);
        let (at, bytes) = (DevicePtr(self.at.0 + range.start as u64), range.len());
        let (location, device) = match to {
            AccessState::Acquired => (Location { kind: consts::LOCATION_DEVICE, id: own }, own),
            _ => (Location { kind: consts::LOCATION_HOST, id: 0 }, consts::DEVICE_CPU),
        };
        // SAFETY: managed memory that is freed after the stream's work; a live stream of the current context.
        unsafe {
            match table.has_prefetch_to_location() {
                true => table.prefetch_to_location(at, bytes, location, 0, queue.raw),
                false => table.prefetch(at, bytes, device, queue.raw),
            }
        }
    }

    /// Rounds a range to whole pages, up to the end of the memory.
    fn pages_of(&self, range: Range<usize>) -> Range<usize> {
        let start = range.start - range.start % self.page;
        start..range.end.next_multiple_of(self.page).min(self.bytes)
    }

    /// Frees the memory. The context is current, and no work uses it.
    pub fn free(self, context: &Context) {
        // SAFETY: allocated by `new`, freed once.
        context.driver.note(unsafe { context.table().free(self.base) });
    }
}

fn allocate(context: &Context, bytes: usize) -> Result<DevicePtr, Refused> {
    // SAFETY: the context is current.
    unsafe { context.table().alloc_managed(bytes, consts::MEM_ATTACH_GLOBAL) }
}

/// The host's page size, to which drivers round a move.
fn page_bytes() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let said = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(said).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Byte ranges in ascending order; none is empty, and none touches the next.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stretches(Vec<Range<usize>>);

impl Stretches {
    fn bytes_in(&self, range: &Range<usize>) -> usize {
        let common =
            |s: &Range<usize>| s.end.min(range.end).saturating_sub(s.start.max(range.start));
        self.0.iter().map(common).sum()
    }

    fn remove(&mut self, range: &Range<usize>) {
        let outside =
            |s: Range<usize>| [s.start..s.end.min(range.start), s.start.max(range.end)..s.end];
        let all = std::mem::take(&mut self.0).into_iter();
        self.0 = all.flat_map(outside).filter(|s| !s.is_empty()).collect();
    }

    fn add(&mut self, range: Range<usize>) {
        self.remove(&range);
        let at = self.0.partition_point(|s| s.start < range.start);
        self.0.insert(at, range);
        self.0.dedup_by(|next, kept| {
            let touch = kept.end == next.start;
            if touch {
                kept.end = next.end;
            }
            touch
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ends: &[(usize, usize)]) -> Stretches {
        Stretches(ends.iter().map(|(start, end)| *start..*end).collect())
    }

    #[test]
    fn stretches_are_cut_and_joined() {
        let mut all = Stretches::default();
        all.add(8..16);
        all.add(24..32);
        assert_eq!(all, of(&[(8, 16), (24, 32)]));
        assert_eq!([0..64, 0..8, 10..26].map(|range| all.bytes_in(&range)), [16, 0, 8]);
        all.add(16..24);
        assert_eq!(all, of(&[(8, 32)]));
        all.remove(&(12..20));
        assert_eq!(all, of(&[(8, 12), (20, 32)]));
        all.add(0..64);
        assert_eq!(all, of(&[(0, 64)]));
        all.remove(&(0..64));
        assert_eq!((all.bytes_in(&(0..64)), all), (0, Stretches::default()));
    }

    /// Compares with a plain model: one flag for each byte.
    #[test]
    fn stretches_say_what_single_bytes_say() {
        let (mut all, mut model, mut seed) = (Stretches::default(), [false; 40], 1u32);
        for _ in 0..2000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (start, len) = ((seed >> 8) as usize % 40, (seed >> 16) as usize % 12 + 1);
            let range = start..(start + len).min(40);
            let adds = seed >> 31 == 1;
            match adds {
                true => all.add(range.clone()),
                false => all.remove(&range),
            }
            model[range].fill(adds);
            for (byte, there) in model.iter().enumerate() {
                assert_eq!(all.bytes_in(&(byte..byte + 1)) == 1, *there, "{all:?}");
            }
            assert!(all.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{all:?}");
        }
    }
}
