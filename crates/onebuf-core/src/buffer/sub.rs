//! Regions of a buffer that are used like buffers.

use super::{
    Buffer, Map, MapMut, MapWrite, byte_range,
    map::MapUse,
    part::{Part, Regions},
    span::Span,
};
use crate::{fence::Fence, topology::DeviceIx};
use bytemuck::Pod;
use onebuf_hal::{Access, Error, Result};
use std::{
    fmt,
    ops::{Range, RangeBounds},
};

/// A region of a buffer that is used like a buffer: by kernels, reads, writes and maps.
///
/// It is the same memory at an offset, and allows no more than its own [`Access`]: if kernels only write one
/// region and only read another, a driver may skip coherence work. Guards cover only the region's bytes:
/// queues of one device may write regions that do not overlap at the same time, and each waits only for the work
/// on its own bytes. Hand-overs to another device, or to the host and back, cover the whole buffer.
///
/// A region has no regions, as in OpenCL.
pub struct SubBuffer<'b, T: Pod> {
    buffer: &'b Buffer<T>,
    span: Span,
    access: Access,
    regions: Regions,
}

impl<T: Pod> Buffer<T> {
    /// Returns the elements of `range` as a region for `access`, which must not be wider than the access that the
    /// buffer itself was created for.
    ///
    /// ```
    /// # use onebuf::Access;
    /// let hub = onebuf::discover()?;
    /// let buffer = hub.buffer::<f32>(1024).build()?;
    /// let (left, right) =
    ///     (buffer.sub_buffer(..512, Access::Write)?, buffer.sub_buffer(512.., Access::Read)?);
    /// let queue = hub.host().queue()?;
    /// let (writes, reads) = (left.write_on(&queue)?, right.read_on(&queue)?); // at the same time
    /// # drop((writes, reads));
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is empty or outside the buffer, if its start is not aligned for every
    /// device that sees the buffer (the message contains the required alignment), or if `access` is wider than the
    /// buffer's.
    pub fn sub_buffer(
        &self,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<SubBuffer<'_, T>> {
        let (offset, bytes) = self.byte_range(range)?;
        let (core, whole) = (&*self.core, self.part());
        if !whole.access.allows(access) {
            return Err(Error::invalid(format!(
                "a {access} region of a buffer made for {}: a region may allow less, never more",
                whole.access
            )));
        }
        // If this buffer wraps a foreign sub-buffer, the offset is that in the parent buffer.
        let offset = whole.span.start + offset;
        self.check_origin(offset)?;
        let span = Span::from(offset..offset + bytes);
        Ok(SubBuffer { buffer: self, span, access, regions: Regions::new(core.aliases.len()) })
    }

    /// Checks the offset against `CL_DEVICE_MEM_BASE_ADDR_ALIGN`. Not all drivers do, and some then use wrong bytes.
    fn check_origin(&self, offset: usize) -> Result<()> {
        let core = &*self.core;
        let align = |device: DeviceIx| core.hub.topology().node(device).info.caps.align_bytes;
        let strictest =
            core.aliases.iter().map(|alias| alias.device).max_by_key(|&device| align(device));
        let Some(device) = strictest.filter(|&device| !offset.is_multiple_of(align(device))) else {
            return Ok(());
        };
        let (id, align, element) = (core.device_id(device), align(device), size_of::<T>());
        Err(Error::invalid(format!(
            "a region that begins at byte {offset} (element {}): on {id} it must begin at a multiple of \
             {align} bytes",
            offset / element
        )))
    }
}

impl<T: Pod> SubBuffer<'_, T> {
    pub(crate) fn part(&self) -> Part<'_> {
        let (core, regions) = (&*self.buffer.core, Some(&self.regions));
        Part { core, span: self.span, access: self.access, regions }
    }

    /// Returns the buffer that contains the region.
    pub fn buffer(&self) -> &Buffer<T> {
        self.buffer
    }

    /// Returns the range of the buffer's elements that the region covers.
    pub fn range(&self) -> Range<usize> {
        let start = (self.span.start - self.buffer.part().span.start) / size_of::<T>();
        start..start + self.len()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.span.len() / size_of::<T>()
    }

    /// Always false: a region has at least one element.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns what kernels may do with the region.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Lets the host read the region in place; see [`Buffer::map`].
    pub fn map(&self) -> Result<Map<'_, T>> {
        Map::open(self.part())
    }

    /// Lets the host read and write the region in place; see [`Buffer::map_mut`].
    pub fn map_mut(&self) -> Result<MapMut<'_, T>> {
        MapMut::open(self.part())
    }

    /// Lets the host read some elements of the region in place; see [`Buffer::map_range`].
    pub fn map_range(&self, range: impl RangeBounds<usize>) -> Result<Map<'_, T>> {
        Map::open_range(self.part(), self.bytes_of(range)?)
    }

    /// Lets the host read and write some elements of the region in place; see [`Buffer::map_range_mut`].
    pub fn map_range_mut(&self, range: impl RangeBounds<usize>) -> Result<MapMut<'_, T>> {
        MapMut::open_range(self.part(), self.bytes_of(range)?)
    }

    /// Lets the host write some elements of the region in place; see [`Buffer::map_write`].
    pub fn map_write(&self, range: impl RangeBounds<usize>) -> Result<MapWrite<'_, T>> {
        MapWrite::open(self.part(), MapUse::Write, self.bytes_of(range)?)
    }

    /// Lets the host overwrite elements of the region in place; see [`Buffer::map_overwrite`].
    pub fn map_overwrite(&self, range: impl RangeBounds<usize>) -> Result<MapWrite<'_, T>> {
        MapWrite::open(self.part(), MapUse::Overwrite, self.bytes_of(range)?)
    }

    fn bytes_of(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let (offset, bytes) = byte_range::<T>(range, self.len())?;
        Ok(offset..offset + bytes)
    }

    /// Reads the region; see [`Buffer::read`].
    pub fn read(&self, into: &mut [T]) -> Result<()> {
        self.check_len(into.len())?;
        self.part().read_asked(0, bytemuck::cast_slice_mut(into))
    }

    /// Writes the region; see [`Buffer::write`].
    pub fn write(&self, from: &[T]) -> Result<()> {
        self.check_len(from.len())?;
        self.part().write_asked(0, bytemuck::cast_slice(from))
    }

    /// Sets every element of the region.
    pub fn fill(&self, value: T) -> Result<()> {
        self.part().fill_asked(0, self.span.len(), bytemuck::bytes_of(&value))
    }

    /// Reads a range of the region's elements; see [`Buffer::read_range`].
    pub fn read_range(&self, range: impl RangeBounds<usize>, into: &mut [T]) -> Result<()> {
        let offset = self.offset_of(range, into.len())?;
        self.part().read_asked(offset, bytemuck::cast_slice_mut(into))
    }

    /// Writes a range of the region's elements; see [`Buffer::write_range`].
    pub fn write_range(&self, range: impl RangeBounds<usize>, from: &[T]) -> Result<()> {
        let offset = self.offset_of(range, from.len())?;
        self.part().write_asked(offset, bytemuck::cast_slice(from))
    }

    /// Repeats a pattern over a range of the region's elements; see [`Buffer::fill_pattern`].
    pub fn fill_pattern(&self, range: impl RangeBounds<usize>, pattern: &[T]) -> Result<()> {
        let (offset, bytes) = byte_range::<T>(range, self.len())?;
        self.part().fill_checked(offset, bytes, bytemuck::cast_slice(pattern))
    }

    /// Returns the byte offset of a range, after checking that it has as many elements as a slice.
    fn offset_of(&self, range: impl RangeBounds<usize>, elements: usize) -> Result<usize> {
        match byte_range::<T>(range, self.len())? {
            (offset, bytes) if bytes == elements * size_of::<T>() => Ok(offset),
            (_, bytes) => Err(Error::invalid(format!(
                "the slice has {elements} elements, the range has {}",
                bytes / size_of::<T>()
            ))),
        }
    }

    fn check_len(&self, elements: usize) -> Result<()> {
        if elements == self.len() {
            return Ok(());
        }
        let len = self.len();
        Err(Error::invalid(format!("a slice of {elements} elements for a region of {len}")))
    }

    /// Returns a fence of the last writes of this region's bytes, or of the last reads if nothing was written yet.
    pub fn fence(&self) -> Option<Fence> {
        self.buffer.core.fence(self.span)
    }

    /// Returns a fence of the last writes of this region's bytes and the reads since: what a writer waits for.
    pub fn uses(&self) -> Option<Fence> {
        self.buffer.core.uses(self.span)
    }
}

impl<T: Pod> fmt::Debug for SubBuffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubBuffer({:?} of {:?}, {})", self.range(), self.buffer, self.access)
    }
}
