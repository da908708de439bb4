//! The memory of messages: guards of buffers, which are held until MPI is done with the bytes.

use crate::transport::Address;
use bytemuck::Pod;
use onebuf::{Buffer, Map, MapWrite, SubBuffer};
use onebuf_hal::{Error, Result};
use std::ops::{Bound, RangeBounds};

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

    /// The host reads the elements: waits for the last writer, and holds the guard.
    pub(crate) fn read(self) -> Result<Held<'b, T>> {
        let range = self.start..self.end;
        let map = match self.of {
            Of::Buffer(buffer) => buffer.map_range(range),
            Of::Region(region) => region.map_range(range),
        }?;
        let bytes: &[u8] = bytemuck::cast_slice(&map);
        Ok(Held { at: Address::of(bytes), bytes: bytes.len(), guard: Guard::Read(map) })
    }

    /// The host overwrites the elements.
    pub(crate) fn overwrite(self) -> Result<Held<'b, T>> {
        let range = self.start..self.end;
        let mut map = match self.of {
            Of::Buffer(buffer) => buffer.map_overwrite(range),
            Of::Region(region) => region.map_overwrite(range),
        }?;
        let (at, bytes) = (Address::new(map.as_mut_ptr().cast()), map.len() * size_of::<T>());
        Ok(Held { at, bytes, guard: Guard::Write(map) })
    }
}

enum Guard<'b, T: Pod> {
    Read(Map<'b, T>),
    Write(MapWrite<'b, T>),
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

    /// Gives the memory back. What was received is written to a device that the host cannot see.
    pub fn release(self) -> Result<()> {
        match self.guard {
            Guard::Read(map) => {
                drop(map);
                Ok(())
            }
            Guard::Write(map) => map.unmap(),
        }
    }
}
