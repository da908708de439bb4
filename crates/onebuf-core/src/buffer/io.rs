//! Reads, writes, fills and copies of element ranges that the caller requests.
//!
//! They go to where the newest contents are: through the pointer if the host sees them, by enqueued
//! transfers if only a device does.
//!
//! # Safety
//! A driver gets pointers into host memory only from asynchronous transfers, which own that memory (see
//! [`Pending`]).

#![allow(unsafe_code)]

use super::{
    Buffer, Core, Hold, Part, Pending, WriteBatch,
    alias::{Alias, HOME},
};
use crate::{
    ledger::Cause, observe::What, queue_state::QueueState, queues::Queue, route::staged,
    topology::DeviceIx,
};
use bytemuck::Pod;
use onebuf_hal::{Access, AccessState, Error, Event, MemoryKind, Result, locks::Arc};
use std::ops::{Range, RangeBounds};

impl<T: Pod> Buffer<T> {
    /// Writes the whole buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the slice has the buffer's length; [`Error::Busy`] while a
    /// guard is held.
    pub fn write(&self, from: &[T]) -> Result<()> {
        self.write_range(.., from)
    }

    /// Writes a range of elements.
    pub fn write_range(&self, range: impl RangeBounds<usize>, from: &[T]) -> Result<()> {
        let (offset, _) = self.checked(range, from.len())?;
        self.part().write_asked(offset, bytemuck::cast_slice(from))
    }

    /// Reads the whole buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the slice has the buffer's length; [`Error::Busy`] while
    /// a writer holds a guard.
    pub fn read(&self, into: &mut [T]) -> Result<()> {
        self.read_range(.., into)
    }

    /// Reads a range of elements.
    pub fn read_range(&self, range: impl RangeBounds<usize>, into: &mut [T]) -> Result<()> {
        let (offset, _) = self.checked(range, into.len())?;
        self.part().read_asked(offset, bytemuck::cast_slice_mut(into))
    }

    /// Reads the whole buffer into a new vector.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read(&mut all)?;
        Ok(all)
    }

    /// Sets every element.
    pub fn fill(&self, value: T) -> Result<()> {
        self.fill_range(.., value)
    }

    /// Sets a range of elements.
    pub fn fill_range(&self, range: impl RangeBounds<usize>, value: T) -> Result<()> {
        let (offset, bytes) = self.byte_range(range)?;
        self.part().fill_asked(offset, bytes, bytemuck::bytes_of(&value))
    }

    /// Repeats a pattern of elements over a range.
    ///
    /// ```
    /// # use onebuf::Access;
    /// let hub = onebuf::discover()?;
    /// let buffer = hub.buffer::<u32>(6).build()?;
    /// buffer.fill_pattern(2.., &[7, 8])?;
    /// assert_eq!(buffer.to_vec()?, [0, 0, 7, 8, 7, 8]);
    /// assert!(buffer.fill_pattern(1.., &[7, 8]).is_err());
    /// let region = buffer.sub_buffer(..4, Access::ReadWrite)?;
    /// region.fill_pattern(..2, &[9])?;
    /// region.write_range(3..4, &[5])?;
    /// let mut middle = [0; 3];
    /// region.read_range(1..4, &mut middle)?;
    /// assert_eq!(middle, [9, 7, 5]);
    /// assert!(region.write_range(4.., &[5]).is_err());
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the range begins and ends at multiples of the pattern's length.
    pub fn fill_pattern(&self, range: impl RangeBounds<usize>, pattern: &[T]) -> Result<()> {
        let (offset, bytes) = self.byte_range(range)?;
        self.part().fill_checked(offset, bytes, bytemuck::cast_slice(pattern))
    }

    /// Starts a read into a vector. Waiting for the transfer returns the vector.
    ///
    /// # Errors
    /// As for [`Buffer::read_range`]; the vector must have the length of the range.
    pub fn read_async(
        &self,
        range: impl RangeBounds<usize>,
        mut into: Vec<T>,
    ) -> Result<Pending<T>> {
        let (offset, bytes) = self.checked(range, into.len())?;
        self.part().check_host(true, false)?;
        let Some((queue_state, hold)) = self.part().device_hold(Access::Read)? else {
            self.part().read_asked(offset, bytemuck::cast_slice_mut(&mut into))?;
            return Ok(Pending::ready(into, self.core.hub.timeout()));
        };
        let began = queue_state.tracer.begin(What::Copy);
        let timeout = self.core.hub.timeout();
        if let Some((landing, event)) =
            self.part().read_to_chunks(&queue_state, &hold, offset, bytes)?
        {
            self.part().count_read(bytes);
            hold.tell_asked(began, "read", true, bytes);
            let pending = Pending::landing(into, event, &queue_state, timeout, landing);
            queue_state.hal.flush()?;
            return Ok(pending);
        }
        let pointer = into.as_mut_ptr().cast();
        // SAFETY: the `Pending` owns the vector until the event completes, and leaks it if that cannot be established.
        let event = unsafe { queue_state.hal.read(hold.memory(), offset, pointer, bytes) };
        let (event, into) = started(event, into)?;
        self.part().count_read(bytes);
        hold.tell_asked(began, "read", true, bytes);
        let pending = Pending::new(into, event, &queue_state, timeout);
        queue_state.hal.flush()?;
        Ok(pending)
    }

    /// Starts a write from a vector. Waiting for the transfer returns the vector.
    ///
    /// # Errors
    /// As for [`Buffer::write_range`].
    pub fn write_async(&self, range: impl RangeBounds<usize>, from: Vec<T>) -> Result<Pending<T>> {
        let (offset, bytes) = self.checked(range, from.len())?;
        self.part().check_host(false, true)?;
        let Some((queue_state, hold)) = self.part().device_hold(Access::ReadWrite)? else {
            self.part().write_asked(offset, bytemuck::cast_slice(&from))?;
            return Ok(Pending::ready(from, self.core.hub.timeout()));
        };
        let began = queue_state.tracer.begin(What::Copy);
        let slice = bytemuck::cast_slice(&from);
        let by_chunks = self.part().write_by_chunks(&queue_state, &hold, offset, slice)?;
        let (event, from) = match by_chunks {
            Some(event) => (event, from),
            None => {
                let pointer = from.as_ptr().cast();
                // SAFETY: as for `read_async`.
                let event = unsafe { queue_state.hal.write(hold.memory(), offset, pointer, bytes) };
                started(event, from)?
            }
        };
        self.part().count_write(bytes);
        hold.tell_asked(began, "write", false, bytes);
        let pending = Pending::new(from, event, &queue_state, self.core.hub.timeout());
        queue_state.hal.flush()?;
        Ok(pending)
    }

    /// Returns a batch, which collects small writes and makes them in one hand-over.
    pub fn batch(&self) -> WriteBatch<'_, T> {
        WriteBatch::new(self)
    }

    /// Whether transfers of the queue's API can use the buffer's memory; otherwise only its kernels can.
    #[doc(hidden)]
    pub fn transfers_on(&self, queue: &Queue) -> bool {
        let core = self.core();
        core.alias_of(queue.queue_state.device)
            .is_some_and(|alias| core.aliases[alias].takes_transfers())
    }

    /// Writes the whole buffer through the queue's API, even if another path would be better.
    #[doc(hidden)]
    pub fn write_through(&self, queue: &Queue, from: &[T]) -> Result<()> {
        let (_, bytes) = self.checked(.., from.len())?;
        let all = std::iter::once((0, bytemuck::cast_slice(from)));
        self.part().write_parts_on(&queue.queue_state, all)?;
        self.part().count_write(bytes);
        Ok(())
    }

    /// Reads the whole buffer through the queue's API.
    #[doc(hidden)]
    pub fn read_through(&self, queue: &Queue) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read_through_at(queue, 0, &mut all)?;
        Ok(all)
    }

    /// Reads the elements from `at` on through the queue's API.
    #[doc(hidden)]
    pub fn read_through_at(&self, queue: &Queue, at: usize, into: &mut [T]) -> Result<()> {
        let (offset, bytes) = self.checked(at..at + into.len(), into.len())?;
        self.part().read_bytes_on(&queue.queue_state, offset, bytemuck::cast_slice_mut(into))?;
        self.part().count_read(bytes);
        Ok(())
    }

    fn checked(&self, range: impl RangeBounds<usize>, elements: usize) -> Result<(usize, usize)> {
        let (offset, bytes) = self.byte_range(range)?;
        if bytes != elements * size_of::<T>() {
            return Err(Error::invalid(format!(
                "the slice has {elements} elements, the range has {}",
                bytes / size_of::<T>()
            )));
        }
        Ok((offset, bytes))
    }
}

/// The event of a transfer that owns a vector. If the start timed out, the driver may use the vector, which is then leaked.
fn started<T>(event: Result<Arc<dyn Event>>, vector: Vec<T>) -> Result<(Arc<dyn Event>, Vec<T>)> {
    match event {
        Ok(event) => Ok((event, vector)),
        Err(why) => {
            if matches!(why, Error::Timeout { .. }) {
                std::mem::forget(vector);
            }
            Err(why)
        }
    }
}

impl Core {
    pub(crate) fn count_asked(&self, from: DeviceIx, to: DeviceIx, bytes: usize) {
        self.hub.ledger().record(from, to, Cause::Asked, bytes);
    }

    pub(super) fn upload(&self, hold: &Hold<'_>, offset: usize, from: &[u8]) -> Result<()> {
        let means = self.means(hold.device())?;
        self.watch(staged::upload(from, hold.queue(), hold.memory(), offset, means))
    }

    fn download(&self, hold: &Hold<'_>, offset: usize, into: &mut [u8]) -> Result<()> {
        let means = self.means(hold.device())?;
        self.watch(staged::download(hold.queue(), hold.memory(), offset, into, means))
    }

    /// Quarantines the buffer if a transfer timed out: it may still be using the memory.
    pub fn watch(&self, outcome: Result<()>) -> Result<()> {
        if matches!(outcome, Err(Error::Timeout { .. })) {
            self.lock_state().quarantine();
        }
        outcome
    }

    /// Records a use of all bytes by a queue whose work failed or timed out: it may still be using the memory.
    pub(crate) fn keep_for(&self, queue_state: &Arc<QueueState>, error: &Error) {
        let mut state = self.lock_state();
        state.uses.note_change(self.use_of_all(queue_state));
        if matches!(error, Error::Timeout { .. }) {
            state.quarantine();
        }
    }

    /// Returns the aliases that have the newest contents (any alias, to overwrite `all` bytes) and can use them without an
    /// implied copy.
    pub fn at_hand(&self, write: bool, all: bool) -> Vec<usize> {
        let state = self.lock_state();
        let has = |alias: &Alias| (write && all) || state.has_newest(alias.replica());
        let ready = |alias: &Alias| match alias.memory().map(|memory| memory.access_state()) {
            None => false,
            Some(AccessState::SharedRead) => !write,
            Some(access_state) => access_state == AccessState::Acquired,
        };
        let fits = |&index: &usize| {
            let alias = &self.aliases[index];
            has(alias) && alias.takes_transfers() && (!alias.copies() || ready(alias))
        };
        (0..self.aliases.len()).filter(fits).collect()
    }

    /// Writes the initial contents of memory that was not created with them.
    pub(super) fn fill_in(&self, contents: &[u8]) -> Result<()> {
        Part::whole(self).write_bytes(0, contents)
    }

    /// Zeroes new memory. Host pages are zeroed by the operating system.
    pub(super) fn clear(&self) -> Result<()> {
        if self.plan.memory_kind == MemoryKind::HostPages {
            return Ok(());
        }
        let queue_state = self.queue_state_at(HOME)?;
        let hold = Hold::take(Part::whole(self), &queue_state, Access::ReadWrite)?;
        queue_state.hal.fill(hold.memory(), 0, self.bytes, &[0])
    }
}

impl<'b> Part<'b> {
    /// Checks a host access against the one that the buffer was created for; not all drivers enforce it.
    pub fn check_host(&self, reads: bool, writes: bool) -> Result<()> {
        let host = self.core.host;
        if (reads && !host.reads()) || (writes && !host.writes()) {
            let verb = if writes { "written" } else { "read" };
            return Err(Error::invalid(format!(
                "a buffer made for host access `{host}` cannot be {verb} by the host"
            )));
        }
        Ok(())
    }

    fn count_read(&self, bytes: usize) {
        self.core.count_asked(self.core.plan.allocate_on, self.core.hub.host_index(), bytes);
    }

    pub(super) fn count_write(&self, bytes: usize) {
        self.core.count_asked(self.core.hub.host_index(), self.core.plan.allocate_on, bytes);
    }

    pub fn read_asked(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check_host(true, false)?;
        self.read_bytes(offset, into)?;
        self.count_read(into.len());
        Ok(())
    }

    pub fn write_asked(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check_host(false, true)?;
        self.write_bytes(offset, from)?;
        self.count_write(from.len());
        Ok(())
    }

    pub(super) fn fill_asked(&self, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        self.fill_bytes(offset, bytes, pattern)?;
        self.count_write(bytes);
        Ok(())
    }

    /// Fills with a pattern, after checking its length by a rule that is the same on every device.
    pub(super) fn fill_checked(&self, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let n = pattern.len();
        if n == 0 || !offset.is_multiple_of(n) || !bytes.is_multiple_of(n) {
            return Err(Error::invalid(format!(
                "a fill of {bytes} bytes at {offset} with a pattern of {n} bytes: both must be multiples \
                 of a pattern that is not empty"
            )));
        }
        self.fill_asked(offset, bytes, pattern)
    }

    /// Returns the queue for transfers at an alias with the newest contents.
    fn newest_queue_state(&self) -> Result<Arc<QueueState>> {
        self.core.queue_state_at(self.core.newest_alias())
    }

    /// Takes a hold at a device other than the host that has the newest contents; `None` if only the host has them.
    fn device_hold(&self, access: Access) -> Result<Option<(Arc<QueueState>, Hold<'b>)>> {
        let Some(alias) = self.core.newest_device_alias() else { return Ok(None) };
        let queue_state = self.core.queue_state_at(alias)?;
        let hold = Hold::take(*self, &queue_state, access)?;
        Ok(Some((queue_state, hold)))
    }

    fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<()> {
        if from.len() < self.core.bytes {
            return self.write_parts(std::iter::once((offset, from)));
        }
        self.write_held(self.hold_to_overwrite(true)?, std::iter::once((0, from)))
    }

    /// Makes several writes in one hand-over.
    pub(super) fn write_parts<'p>(
        &self,
        parts: impl Iterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        self.write_parts_on(&self.newest_queue_state()?, parts)
    }

    fn write_parts_on<'p>(
        &self,
        queue_state: &Arc<QueueState>,
        parts: impl Iterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        self.write_held(Hold::take(*self, queue_state, Access::ReadWrite)?, parts)
    }

    fn write_held<'p>(
        &self,
        mut hold: Hold<'_>,
        mut parts: impl Iterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        let (began, mut all) = (self.core.hub.tracer().begin(What::Copy), 0);
        parts.try_for_each(|(offset, from)| {
            all += from.len();
            if let Some(bytes) = hold.host_bytes_mut() {
                self.core.hub.copy_pool().copy_slice(from, &mut bytes[offset..offset + from.len()]);
                return Ok(());
            }
            match hold.volatile() {
                Some(bytes) => bytes.write(offset, from),
                None => self.core.upload(&hold, offset, from),
            }
        })?;
        hold.overwritten();
        hold.tell_asked(began, "write", false, all);
        Ok(())
    }

    fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.read_bytes_on(&self.newest_queue_state()?, offset, into)
    }

    fn read_bytes_on(
        &self,
        queue_state: &Arc<QueueState>,
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let hold = Hold::take(*self, queue_state, Access::Read)?;
        let began = self.core.hub.tracer().begin(What::Copy);
        match (hold.host_bytes(), hold.volatile()) {
            (Some(bytes), _) => {
                let from = &bytes[offset..offset + into.len()];
                self.core.hub.copy_pool().copy_slice(from, into);
            }
            (None, Some(bytes)) => bytes.read(offset, into)?,
            (None, None) => self.core.download(&hold, offset, into)?,
        }
        hold.tell_asked(began, "read", true, into.len());
        Ok(())
    }

    fn fill_bytes(&self, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let queue_state = self.newest_queue_state()?;
        let mut hold = Hold::take(*self, &queue_state, Access::ReadWrite)?;
        let began = self.core.hub.tracer().begin(What::Copy);
        match hold.host_bytes_mut() {
            Some(all) => {
                let elements = all[offset..offset + bytes].chunks_exact_mut(pattern.len());
                elements.for_each(|element| element.copy_from_slice(pattern));
            }
            None => queue_state.hal.fill(hold.memory(), offset, bytes, pattern)?,
        }
        hold.tell_asked(began, "fill", false, bytes);
        Ok(())
    }

    /// Copies a range of the contents into a vector, and returns it with the guard under which they were read.
    pub(super) fn copied_hold<T: Pod>(
        &self,
        access: Access,
        range: Range<usize>,
    ) -> Result<(Vec<T>, Hold<'b>)> {
        let hold = Hold::take(*self, &self.newest_queue_state()?, access)?;
        let mut data = vec![T::zeroed(); range.len() / size_of::<T>()];
        self.core.download(&hold, range.start, bytemuck::cast_slice_mut(&mut data))?;
        Ok((data, hold))
    }

    /// Takes a hold at a device for a caller that overwrites a range, or everything.
    pub(super) fn hold_to_overwrite(&self, everything: bool) -> Result<Hold<'b>> {
        match everything {
            true => {
                let queue_state = self.core.queue_state_at(self.core.overwrite_alias())?;
                Hold::overwrite(*self, &queue_state)
            }
            false => Hold::take(*self, &self.newest_queue_state()?, Access::ReadWrite),
        }
    }
}
