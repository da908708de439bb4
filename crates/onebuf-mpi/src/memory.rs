//! The memory of messages: guards of buffers, which are held until MPI is done with the bytes.

use crate::transport::Address;
use bytemuck::Pod;
use onebuf::{Buffer, Map, MapWrite, Queue, ReadView, SubBuffer, WriteView};
use onebuf_hal::{Error, Result};
use std::{
    ops::{Bound, RangeBounds},
    ptr::NonNull,
};

/// A buffer, some of its elements, or a region: what a message is sent from or received into.
///
/// Messages to different parts of one buffer can be received at the same time only into regions
/// ([`Buffer::sub_buffer`]), because a range of a buffer takes the guard of the whole buffer.
#[derive(Debug)]
pub struct Span<'b, T: Pod> {
    of: Of<'b, T>,
    start: usize,
    end: usize,
}

#[derive(Debug)]
enum Of<'b, T: Pod> {
    Buffer(&'b Buffer<T>),
    Region(&'b SubBuffer<'b, T>),
}

impl<'b, T: Pod> From<&'b Buffer<T>> for Span<'b, T> {
    fn from(buffer: &'b Buffer<T>) -> Self {
        Self { of: Of::Buffer(buffer), start: 0, end: buffer.len() }
    }
}

impl<'b, T: Pod> From<&'b SubBuffer<'b, T>> for Span<'b, T> {
    fn from(region: &'b SubBuffer<'b, T>) -> Self {
        Self { of: Of::Region(region), start: 0, end: region.len() }
    }
}

impl<'b, T: Pod, R: RangeBounds<usize>> From<(&'b Buffer<T>, R)> for Span<'b, T> {
    fn from((buffer, range): (&'b Buffer<T>, R)) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => buffer.len(),
        };
        Self { of: Of::Buffer(buffer), start, end }
    }
}

impl<'b, T: Pod> Span<'b, T> {
    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Divides the elements among ranks: so many for each, one after another. Fails unless they are all.
    pub(crate) fn check_counts(&self, counts: &[usize], ranks: usize, what: &str) -> Result<()> {
        let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        if counts.len() != ranks || sum != Some(self.len()) {
            let (many, len) = (counts.len(), self.len());
            return Err(Error::invalid(format!(
                "{what}: {many} counts whose sum is {}, for {ranks} ranks and {len} elements",
                sum.map_or("too large".into(), |sum| sum.to_string())
            )));
        }
        Ok(())
    }

    /// Where the first element is in the buffer, in bytes.
    pub(crate) fn start_bytes(&self) -> usize {
        let region = match self.of {
            Of::Buffer(_) => 0,
            Of::Region(region) => region.range().start,
        };
        (region + self.start) * size_of::<T>()
    }

    /// The buffer, also of a region.
    pub(crate) fn buffer(&self) -> &'b Buffer<T> {
        match self.of {
            Of::Buffer(buffer) => buffer,
            Of::Region(region) => region.buffer(),
        }
    }

    /// MPI reads the elements: waits for the last writer, and holds the guard. With a queue MPI reads its device's memory, otherwise that of
    /// the host.
    pub(crate) fn read(self, queue: Option<Queue>) -> Result<Held<'b, T>> {
        if let Some(queue) = queue {
            let view = match self.of {
                Of::Buffer(buffer) => buffer.kept_read_on(&queue),
                Of::Region(region) => region.kept_read_on(&queue),
            }?;
            let at = self.on_device(&queue, view.len(), view.address()?)?;
            let bytes = self.len() * size_of::<T>();
            return Ok(Held { at, bytes, guard: Guard::DeviceRead(view) });
        }
        let range = self.start..self.end;
        let map = match self.of {
            Of::Buffer(buffer) => buffer.map_range(range),
            Of::Region(region) => region.map_range(range),
        }?;
        let bytes: &[u8] = bytemuck::cast_slice(&map);
        Ok(Held { at: Address::of(bytes), bytes: bytes.len(), guard: Guard::Read(map) })
    }

    /// MPI overwrites the elements, in the device's memory with a queue, otherwise in that of the host.
    pub(crate) fn overwrite(self, queue: Option<Queue>) -> Result<Held<'b, T>> {
        if let Some(queue) = queue {
            let view = match self.of {
                Of::Buffer(buffer) => buffer.kept_write_on(&queue, self.len() < buffer.len()),
                Of::Region(region) => region.kept_write_on(&queue),
            }?;
            let at = self.on_device(&queue, view.len(), view.address()?)?;
            let bytes = self.len() * size_of::<T>();
            return Ok(Held { at, bytes, guard: Guard::DeviceWrite(view) });
        }
        let range = self.start..self.end;
        let mut map = match self.of {
            Of::Buffer(buffer) => buffer.map_overwrite(range),
            Of::Region(region) => region.map_overwrite(range),
        }?;
        let (at, bytes) = (Address::new(map.as_mut_ptr().cast()), map.len() * size_of::<T>());
        Ok(Held { at, bytes, guard: Guard::Write(map) })
    }

    /// The elements' address in a view of the device's, after the queue has ended the work before it.
    fn on_device(&self, queue: &Queue, len: usize, first: NonNull<T>) -> Result<Address> {
        let range = self.start..self.end;
        if range.is_empty() || range.end > len {
            return Err(Error::invalid(format!("elements {range:?} of {len}")));
        }
        queue.finish()?;
        Ok(Address::new(first.as_ptr().cast()).plus(range.start * size_of::<T>()))
    }
}

enum Guard<'b, T: Pod> {
    Read(Map<'b, T>),
    Write(MapWrite<'b, T>),
    DeviceRead(ReadView<'b, T>),
    DeviceWrite(WriteView<'b, T>),
}

/// Memory that MPI may use. Forgetting it keeps the memory forever: a buffer whose guard was never dropped is not freed.
pub(crate) struct Held<'b, T: Pod> {
    at: Address,
    bytes: usize,
    guard: Guard<'b, T>,
}

impl<T: Pod> Held<'_, T> {
    pub fn at(&self) -> Address {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, if they are in a device's memory.
    pub fn device_bytes(&self) -> usize {
        let on_device = matches!(self.guard, Guard::DeviceRead(_) | Guard::DeviceWrite(_));
        if on_device { self.bytes } else { 0 }
    }

    /// Gives the memory back. What was received is written to a device that the host cannot see.
    pub fn release(self) -> Result<()> {
        match self.guard {
            Guard::Read(map) => {
                drop(map);
                Ok(())
            }
            Guard::Write(map) => map.unmap(),
            Guard::DeviceRead(view) => {
                drop(view);
                Ok(())
            }
            Guard::DeviceWrite(view) => {
                view.overwritten();
                Ok(())
            }
        }
    }
}
