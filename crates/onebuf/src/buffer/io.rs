//! Reads, writes, fills and copies by element ranges: moved because the caller asked.
//!
//! The way is chosen by where the newest contents are: through the pointer where the host sees them,
//! by enqueued transfers where only a device does.
//!
//! # Safety
//! Drivers get pointers into host memory only from asynchronous transfers, which own that memory (see
//! [`Pending`]).

#![allow(unsafe_code)]

use super::{Buffer, Core, Pending, WriteBatch, core::HOME};
use crate::{
    Access, Error, Queue, Result, Strategy, ledger::Cause, queue::Line, route::staged, sync::Arc,
    topology::DeviceIx, view::Hold,
};
use bytemuck::Pod;
use std::ops::RangeBounds;

/// Bytes that a copy between buffers without a common device bounces at a time.
const BOUNCE_BYTES: usize = 16 << 20;

impl<T: Pod> Buffer<T> {
    /// Writes the whole buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are exactly as many elements; [`Error::Busy`] while a
    /// guard is held.
    pub fn write(&self, from: &[T]) -> Result<()> {
        self.write_range(.., from)
    }

    /// Writes a range of elements.
    pub fn write_range(&self, range: impl RangeBounds<usize>, from: &[T]) -> Result<()> {
        let (offset, bytes) = self.checked(range, from.len())?;
        self.core.write_bytes(offset, bytemuck::cast_slice(from))?;
        self.count_asked(self.host(), self.home(), bytes);
        Ok(())
    }

    /// Reads the whole buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are exactly as many elements; [`Error::Busy`] while
    /// somebody writes.
    pub fn read(&self, into: &mut [T]) -> Result<()> {
        self.read_range(.., into)
    }

    /// Reads a range of elements.
    pub fn read_range(&self, range: impl RangeBounds<usize>, into: &mut [T]) -> Result<()> {
        let (offset, bytes) = self.checked(range, into.len())?;
        self.core.read_bytes(offset, bytemuck::cast_slice_mut(into))?;
        self.count_asked(self.home(), self.host(), bytes);
        Ok(())
    }

    /// The whole buffer as a vector.
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
        self.core.fill_bytes(offset, bytes, bytemuck::bytes_of(&value))?;
        self.count_asked(self.host(), self.home(), bytes);
        Ok(())
    }

    /// Copies a range of another buffer (or of this one) to the elements from `at` on: inside a device
    /// where both have one in common.
    pub fn copy_from(
        &self,
        at: usize,
        from: &Buffer<T>,
        range: impl RangeBounds<usize>,
    ) -> Result<()> {
        if !self.core.hub.is(&from.core.hub) {
            return Err(Error::invalid(
                "a copy between buffers of different hubs: read and write instead",
            ));
        }
        let (from_offset, bytes) = from.byte_range(range)?;
        let end = at.checked_add(bytes / size_of::<T>());
        let end = end.ok_or_else(|| Error::invalid("a range that ends past the largest index"))?;
        let (offset, _) = self.byte_range(at..end)?;
        copy_bytes(&from.core, from_offset, &self.core, offset, bytes)?;
        self.count_asked(from.home(), self.home(), bytes);
        Ok(())
    }

    /// Starts a read into a vector, which the wait gives back.
    ///
    /// # Errors
    /// As for [`Buffer::read_range`]; the vector's length must be the range's.
    pub fn read_async(
        &self,
        range: impl RangeBounds<usize>,
        mut into: Vec<T>,
    ) -> Result<Pending<T>> {
        let (offset, bytes) = self.checked(range, into.len())?;
        let Some((line, hold)) = self.core.device_hold(Access::Read)? else {
            self.core.read_bytes(offset, bytemuck::cast_slice_mut(&mut into))?;
            self.count_asked(self.home(), self.host(), bytes);
            return Ok(Pending::ready(into, self.core.hub.timeout()));
        };
        let pointer = into.as_mut_ptr().cast();
        // SAFETY: the pending owns the vector until the event completes, and leaks it otherwise.
        let event = unsafe { line.hal.read(hold.memory(), offset, pointer, bytes)? };
        self.count_asked(self.home(), self.host(), bytes);
        let pending = Pending::new(into, event, self.core.hub.timeout());
        line.hal.flush()?;
        Ok(pending)
    }

    /// Starts a write from a vector, which the wait gives back.
    ///
    /// # Errors
    /// As for [`Buffer::write_range`].
    pub fn write_async(&self, range: impl RangeBounds<usize>, from: Vec<T>) -> Result<Pending<T>> {
        let (offset, bytes) = self.checked(range, from.len())?;
        let Some((line, hold)) = self.core.device_hold(Access::ReadWrite)? else {
            self.core.write_bytes(offset, bytemuck::cast_slice(&from))?;
            self.count_asked(self.host(), self.home(), bytes);
            return Ok(Pending::ready(from, self.core.hub.timeout()));
        };
        // SAFETY: as for `read_async`.
        let event = unsafe { line.hal.write(hold.memory(), offset, from.as_ptr().cast(), bytes)? };
        self.count_asked(self.host(), self.home(), bytes);
        let pending = Pending::new(from, event, self.core.hub.timeout());
        line.hal.flush()?;
        Ok(pending)
    }

    /// Gathers small writes and makes them in one hand-over.
    pub fn batch(&self) -> WriteBatch<'_, T> {
        WriteBatch::new(self)
    }

    /// Writes everything through one queue's own API, whatever way would be best.
    pub(crate) fn write_through(&self, queue: &Queue, from: &[T]) -> Result<()> {
        let (_, bytes) = self.checked(.., from.len())?;
        self.core.write_parts_on(&queue.line, std::iter::once((0, bytemuck::cast_slice(from))))?;
        self.count_asked(self.host(), self.home(), bytes);
        Ok(())
    }

    /// Reads everything through one queue's own API.
    pub(crate) fn read_through(&self, queue: &Queue) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read_through_at(queue, 0, &mut all)?;
        Ok(all)
    }

    /// The elements from `at` on.
    pub(crate) fn read_through_at(&self, queue: &Queue, at: usize, into: &mut [T]) -> Result<()> {
        let (offset, bytes) = self.checked(at..at + into.len(), into.len())?;
        self.core.read_bytes_on(&queue.line, offset, bytemuck::cast_slice_mut(into))?;
        self.count_asked(self.home(), self.host(), bytes);
        Ok(())
    }

    fn checked(&self, range: impl RangeBounds<usize>, elements: usize) -> Result<(usize, usize)> {
        let (offset, bytes) = self.byte_range(range)?;
        if bytes != elements * size_of::<T>() {
            return Err(Error::invalid(format!(
                "a slice of {elements} elements for a range of {}",
                bytes / size_of::<T>()
            )));
        }
        Ok((offset, bytes))
    }

    fn host(&self) -> DeviceIx {
        self.core.hub.host_index()
    }

    fn home(&self) -> DeviceIx {
        self.core.plan.allocate_on
    }

    pub(super) fn count_asked(&self, from: DeviceIx, to: DeviceIx, bytes: usize) {
        self.core.hub.ledger().record(from, to, Cause::Asked, bytes);
    }

    pub(super) fn count_batch(&self, bytes: usize) {
        self.count_asked(self.host(), self.home(), bytes);
    }
}

impl Core {
    /// A queue at the site that has the newest contents.
    fn newest_line(&self) -> Result<Arc<Line>> {
        self.line_at(self.newest_site())
    }

    /// The same on a device other than the host; `None` when only the host has the contents.
    fn device_hold(&self, access: Access) -> Result<Option<(Arc<Line>, Hold<'_>)>> {
        let Some(site) = self.newest_device_site() else { return Ok(None) };
        let line = self.line_at(site)?;
        let hold = Hold::take(self, &line, access)?;
        Ok(Some((line, hold)))
    }

    pub(super) fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<()> {
        if from.len() < self.bytes {
            return self.write_parts(std::iter::once((offset, from)));
        }
        let line = self.line_at(self.overwrite_site())?;
        self.write_held(Hold::overwrite(self, &line)?, std::iter::once((0, from)))
    }

    /// Several writes in one hand-over.
    pub(super) fn write_parts<'p>(
        &self,
        parts: impl Iterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        self.write_parts_on(&self.newest_line()?, parts)
    }

    fn write_parts_on<'p>(
        &self,
        line: &Arc<Line>,
        parts: impl Iterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        self.write_held(Hold::take(self, line, Access::ReadWrite)?, parts)
    }

    fn write_held<'p>(
        &self,
        mut hold: Hold<'_>,
        mut parts: impl Iterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        parts.try_for_each(|(offset, from)| match hold.host_bytes_mut() {
            Some(bytes) => {
                bytes[offset..offset + from.len()].copy_from_slice(from);
                Ok(())
            }
            None => self.upload(&hold, offset, from),
        })
    }

    pub(super) fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.read_bytes_on(&self.newest_line()?, offset, into)
    }

    fn read_bytes_on(&self, line: &Arc<Line>, offset: usize, into: &mut [u8]) -> Result<()> {
        let hold = Hold::take(self, line, Access::Read)?;
        match hold.host_bytes() {
            Some(bytes) => into.copy_from_slice(&bytes[offset..offset + into.len()]),
            None => self.download(&hold, offset, into)?,
        }
        Ok(())
    }

    fn fill_bytes(&self, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let line = self.newest_line()?;
        let mut hold = Hold::take(self, &line, Access::ReadWrite)?;
        match hold.host_bytes_mut() {
            Some(all) => {
                let elements = all[offset..offset + bytes].chunks_exact_mut(pattern.len());
                elements.for_each(|element| element.copy_from_slice(pattern));
                Ok(())
            }
            None => line.hal.fill(hold.memory(), offset, bytes, pattern),
        }
    }

    /// Zeroes new memory, unless the kernel has.
    pub(super) fn clear(&self) -> Result<()> {
        if self.plan.strategy == Strategy::HostPages {
            return Ok(());
        }
        let line = self.line_at(HOME)?;
        let hold = Hold::take(self, &line, Access::ReadWrite)?;
        line.hal.fill(hold.memory(), 0, self.bytes, &[0])
    }

    /// The whole contents in a vector, and the guard they were read under.
    pub(super) fn copied_hold<T: Pod>(&self, access: Access) -> Result<(Vec<T>, Hold<'_>)> {
        let hold = Hold::take(self, &self.newest_line()?, access)?;
        let mut data = vec![T::zeroed(); self.bytes / size_of::<T>()];
        self.download(&hold, 0, bytemuck::cast_slice_mut(&mut data))?;
        Ok((data, hold))
    }

    pub(super) fn upload(&self, hold: &Hold<'_>, offset: usize, from: &[u8]) -> Result<()> {
        let (queue, memory, timeout) = (&*hold.line().hal, hold.memory(), self.hub.timeout());
        self.watch(staged::upload(from, queue, memory, offset, timeout))
    }

    fn download(&self, hold: &Hold<'_>, offset: usize, into: &mut [u8]) -> Result<()> {
        let (queue, memory, timeout) = (&*hold.line().hal, hold.memory(), self.hub.timeout());
        self.watch(staged::download(queue, memory, offset, into, timeout))
    }

    /// A transfer that ran out of time may still be using the memory.
    fn watch(&self, outcome: Result<()>) -> Result<()> {
        if matches!(outcome, Err(Error::Timeout { .. })) {
            self.lock_state().quarantine();
        }
        outcome
    }
}

fn copy_bytes(
    from: &Core,
    from_offset: usize,
    to: &Core,
    to_offset: usize,
    bytes: usize,
) -> Result<()> {
    if !std::ptr::eq(from, to)
        && let Some(device) = common_device(from, to)
    {
        let line = to.hub.service_line(device)?;
        let source = Hold::take(from, &line, Access::Read)?;
        let target = Hold::take(to, &line, Access::ReadWrite)?;
        return line.hal.copy(source.memory(), from_offset, target.memory(), to_offset, bytes);
    }
    // A copy within one buffer may overlap: take the last chunk first when moving up.
    let mut starts: Vec<usize> = (0..bytes).step_by(BOUNCE_BYTES).collect();
    if to_offset > from_offset {
        starts.reverse();
    }
    let mut bounce = vec![0; bytes.min(BOUNCE_BYTES)];
    for start in starts {
        let chunk = &mut bounce[..BOUNCE_BYTES.min(bytes - start)];
        from.read_bytes(from_offset + start, chunk)?;
        to.write_bytes(to_offset + start, chunk)?;
    }
    Ok(())
}

/// A device at which both buffers have their newest contents.
fn common_device(from: &Core, to: &Core) -> Option<DeviceIx> {
    let theirs = to.newest_devices();
    from.newest_devices().into_iter().find(|d| theirs.contains(d))
}
