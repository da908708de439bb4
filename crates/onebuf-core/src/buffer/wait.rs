//! Guards that are in the way: naming them, and waiting until they are dropped.
//!
//! A guard that makes an attempt fail has a guard entry: the attempt recalled its lease. Dropping it therefore takes the lock,
//! where waiting threads are counted; guards on a lease cost nothing more.

use super::{
    Buffer, Core, GuardEntry,
    guard_entries::{Refused, not_ours},
    state::CoreState,
};
use bytemuck::Pod;
use onebuf_hal::{Error, Result};
use std::time::{Duration, Instant};

impl Core {
    /// Adds a guard entry. The error names the buffer and the guard in the way.
    pub(super) fn enter(&self, state: &mut CoreState, entry: GuardEntry) -> Result<()> {
        state.guard_entries.take(entry).map_err(|refused| self.refused(&entry, refused))
    }

    #[cold]
    pub(super) fn refused(&self, wanted: &GuardEntry, refused: Refused) -> Error {
        let held = match refused {
            Refused::Turn(turn) => return not_ours(turn),
            Refused::Held(held) => held,
        };
        let device = self.aliases[held.alias].device;
        let by_host = device == self.hub.host_index();
        let (holder, what) =
            if by_host { ("the host", "view or map") } else { (self.device_id(device), "view") };
        let access = if held.write { "write" } else { "read" };
        let place = match () {
            () if held.span == wanted.span => "",
            () if held.span.overlaps(wanted.span) => " of overlapping bytes",
            () => " of other bytes on another device",
        };
        let what = format!("{} is in use: {holder} holds a {access} {what}{place}", self.label);
        Error::Busy { what: what + "; end that first" }
    }

    /// Wakes the threads that wait for a guard to be dropped.
    #[inline]
    pub(super) fn wake(&self, state: &mut CoreState) {
        state.drops = state.drops.wrapping_add(1);
        if state.waiting > 0 {
            self.dropped.notify_all();
        }
    }

    /// Waits until a guard is dropped after `drops` was read. Returns false at the deadline.
    fn wait_for_drop(&self, drops: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.lock_state();
        while state.drops == drops {
            let now = Instant::now();
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
            if left.is_zero() {
                return false;
            }
            state.waiting += 1;
            let woken = self.dropped.wait_timeout(state, left);
            state = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            state.waiting -= 1;
        }
        true
    }
}

impl<T: Pod> Buffer<T> {
    /// Calls `take` until it returns something else than [`Error::Busy`]: at once, and again after each guard of this buffer
    /// that is dropped. `take` takes a guard of the buffer:
    ///
    /// ```
    /// # let hub = onebuf::discover()?;
    /// # let (buffer, queue) = (hub.buffer::<u32>(4).build()?, hub.host().queue()?);
    /// # let timeout = std::time::Duration::from_secs(1);
    /// let view = buffer.when_free(timeout, || buffer.write_on(&queue))?;
    /// # drop(view);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// A thread that waits for its own guard waits until the timeout. Waiting is not fair: readers may keep a writer out.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the guard in the way, and those of `take`.
    pub fn when_free<R>(
        &self,
        timeout: Duration,
        mut take: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let drops = self.drops();
            match take() {
                Err(Error::Busy { what }) if !self.wait_for_drop(drops, deadline) => {
                    let after_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                    return Err(Error::Timeout { what, after_ms });
                }
                Err(Error::Busy { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// How many guards were dropped so far, except those on a lease. For [`Buffer::wait_for_drop`].
    #[doc(hidden)]
    pub fn drops(&self) -> u64 {
        self.core().lock_state().drops
    }

    /// Waits until a guard is dropped after [`Buffer::drops`] returned that number. Returns false at the deadline.
    #[doc(hidden)]
    pub fn wait_for_drop(&self, drops: u64, deadline: Option<Instant>) -> bool {
        self.core().wait_for_drop(drops, deadline)
    }
}
