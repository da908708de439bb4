//! Host guards that deref to slices.

use super::{Buffer, Core, Hold, Part, alias::HOME};
use crate::{ledger::Cause, observe::What};
use bytemuck::Pod;
use onebuf_hal::{Access, CopyPolicy, Error, Result};
use std::{
    fmt,
    ops::{Deref, DerefMut, Range, RangeBounds},
};

/// What the host does with the mapped bytes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MapUse {
    Read,
    ReadWrite,
    /// Writes some bytes, and reads none.
    Write,
    /// Writes all bytes, and reads none.
    Overwrite,
}

impl MapUse {
    fn reads(self) -> bool {
        matches!(self, MapUse::Read | MapUse::ReadWrite)
    }

    fn access(self) -> Access {
        if self == MapUse::Read { Access::Read } else { Access::ReadWrite }
    }
}

/// The storage of a guard's slice.
enum Slice<'b, T: Pod> {
    /// A range of the buffer's own memory.
    Direct(Hold<'b>, Range<usize>),
    /// A copy of the bytes from an offset on, for memory that the host cannot see. The hold excludes conflicting users meanwhile.
    Copied(Vec<T>, Hold<'b>, usize),
}

impl<'b, T: Pod> Slice<'b, T> {
    /// Maps a range of the part's bytes. The guard covers the whole part: a hand-over does, too.
    fn open(part: Part<'b>, used: MapUse, range: Range<usize>) -> Result<Self> {
        let (core, access) = (part.core, used.access());
        part.check_host(used.reads(), access.writes())?;
        let overwrites = used == MapUse::Overwrite && range.len() == part.span.len();
        if core.host_alias().is_some() {
            let hold = match overwrites {
                true => Hold::overwrite(part, core.hub.host_queue_state()?)?,
                false => Hold::by_host(part, access)?,
            };
            check_alone(&hold)?;
            check_aligned::<T>(&hold)?;
            return Ok(Slice::Direct(hold, range));
        }
        if core.policy == CopyPolicy::Forbid {
            return Err(Error::CopyForbidden {
                route: format!("{} -> host", core.device_id(core.plan.allocate_on)),
                why: "the host cannot see this memory: share the buffer with the host too".into(),
            });
        }
        if used == MapUse::Overwrite {
            let data = vec![T::zeroed(); range.len() / size_of::<T>()];
            return Ok(Slice::Copied(data, part.hold_to_overwrite(overwrites)?, range.start));
        }
        if !core.host.reads() {
            return Err(Error::unsupported(
                "a map for writing parts of memory that the host cannot see, with host access `write`,",
                "a map that overwrites everything (`map_overwrite`), or `write_range`",
            ));
        }
        let (began, bytes) = (core.hub.tracer().begin(What::Copy), range.len());
        let (data, hold) = part.copied_hold::<T>(access, range.clone())?;
        let (from, to) = (core.plan.allocate_on, core.hub.host_index());
        core.count_implied_bytes(from, to, bytes);
        hold.tell_copy(began, "map", Cause::Implied, from, to, bytes);
        Ok(Slice::Copied(data, hold, range.start))
    }

    fn get(&self) -> &[T] {
        match self {
            Slice::Copied(data, ..) => data,
            Slice::Direct(hold, range) => {
                hold.host_bytes().map_or(&[], |all| bytemuck::cast_slice(&all[range.clone()]))
            }
        }
    }

    fn get_mut(&mut self) -> &mut [T] {
        match self {
            Slice::Copied(data, ..) => data,
            Slice::Direct(hold, range) => hold
                .host_bytes_mut()
                .map_or(&mut [], |all| bytemuck::cast_slice_mut(&mut all[range.clone()])),
        }
    }

    /// Ends a map for writing: writes a copy back.
    fn close(self, core: &Core) -> Result<()> {
        let (data, hold, offset) = match self {
            Slice::Direct(hold, _) => {
                hold.overwritten();
                return Ok(());
            }
            Slice::Copied(data, hold, offset) => (data, hold, offset),
        };
        let (began, bytes) = (core.hub.tracer().begin(What::Copy), size_of_val(&data[..]));
        core.upload(&hold, offset, bytemuck::cast_slice(&data))?;
        hold.overwritten();
        let (from, to) = (core.hub.host_index(), core.plan.allocate_on);
        core.count_implied_bytes(from, to, bytes);
        hold.tell_copy(began, "unmap", Cause::Implied, from, to, bytes);
        Ok(())
    }
}

/// Rejects memory that another process can write: a slice must not change while it is borrowed.
fn check_alone(hold: &Hold<'_>) -> Result<()> {
    if !hold.is_exposed() {
        return Ok(());
    }
    Err(Error::unsupported(
        "a map of memory that another process can write",
        "a buffer of this process alone: `read` and `write` copy, and are safe; a view's `address()` is for \
         unsafe code",
    ))
}

/// Checks the alignment for `T`: foreign memory is where its owner allocated it, and may have been wrapped as another type.
fn check_aligned<T>(hold: &Hold<'_>) -> Result<()> {
    let at = hold.host_bytes().map(|bytes| bytes.as_ptr().addr());
    if at.is_some_and(|at| at.is_multiple_of(align_of::<T>())) {
        return Ok(());
    }
    let what = format!("a host view aligned to {} bytes", align_of::<T>());
    Err(Error::unsupported(what, "memory with this alignment: use `read` and `write`"))
}

/// A guard under which the host reads the buffer as a slice.
pub struct Map<'b, T: Pod>(Slice<'b, T>);

/// A guard under which the host reads and writes the buffer as a slice.
pub struct MapMut<'b, T: Pod> {
    slice: Option<Slice<'b, T>>,
    part: Part<'b>,
}

impl<T: Pod> Buffer<T> {
    /// Makes the host's stores to these bytes, through a map that it has, visible to devices whose map is not coherent. Returns
    /// whether that took a driver's call. A hand-over does it for the whole map.
    #[doc(hidden)]
    pub fn flush_stores(&self, offset: usize, bytes: usize) -> Result<bool> {
        let (part, mut called) = (self.part(), false);
        for memory in part.core.aliases.iter().filter_map(|alias| alias.memory()) {
            called |= memory.flush_stores(part.span.start + offset, bytes)?;
        }
        Ok(called)
    }

    /// Lets the host read the buffer in place.
    ///
    /// # Errors
    /// [`Error::CopyForbidden`] if the host cannot see the memory and the policy forbids a copy (otherwise
    /// the map makes and counts one); [`Error::Unsupported`] for memory that another process can write
    /// (see `peer`); [`Error::Busy`]; [`Error::Timeout`].
    pub fn map(&self) -> Result<Map<'_, T>> {
        Map::open(self.part())
    }

    /// Lets the host read and write the buffer in place.
    ///
    /// # Errors
    /// As for [`Buffer::map`].
    pub fn map_mut(&self) -> Result<MapMut<'_, T>> {
        MapMut::open(self.part())
    }

    /// Lets the host read some elements in place. A copy, where one is made, has only those.
    ///
    /// # Errors
    /// As for [`Buffer::map`], and [`Error::InvalidArgument`] for an empty range or one that is not inside.
    pub fn map_range(&self, range: impl RangeBounds<usize>) -> Result<Map<'_, T>> {
        Map::open_range(self.part(), self.bytes_of(range)?)
    }

    /// Lets the host read and write some elements in place.
    ///
    /// # Errors
    /// As for [`Buffer::map_range`].
    pub fn map_range_mut(&self, range: impl RangeBounds<usize>) -> Result<MapMut<'_, T>> {
        MapMut::open_range(self.part(), self.bytes_of(range)?)
    }

    /// Lets the host write some elements in place, without reading; elements that it does not write keep their values. A buffer
    /// with [`HostAccess::Write`](onebuf_hal::HostAccess) can be mapped this way.
    ///
    /// # Errors
    /// As for [`Buffer::map_range`]. [`Error::Unsupported`] for memory that the host cannot see, if the buffer has that access.
    pub fn map_write(&self, range: impl RangeBounds<usize>) -> Result<MapWrite<'_, T>> {
        MapWrite::open(self.part(), MapUse::Write, self.bytes_of(range)?)
    }

    /// Lets the host write all of these elements in place, without reading: their earlier values are not brought along, and what
    /// is not written is unspecified afterwards.
    ///
    /// ```
    /// # let hub = onebuf::discover()?;
    /// # let buffer = hub.buffer::<f32>(4).build()?;
    /// let mut map = buffer.map_overwrite(..)?;
    /// map.write(0, &[1.0, 2.0, 3.0, 4.0])?;
    /// map.unmap()?;
    /// assert_eq!(buffer.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Buffer::map_range`].
    pub fn map_overwrite(&self, range: impl RangeBounds<usize>) -> Result<MapWrite<'_, T>> {
        MapWrite::open(self.part(), MapUse::Overwrite, self.bytes_of(range)?)
    }

    fn bytes_of(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let (offset, bytes) = self.byte_range(range)?;
        Ok(offset..offset + bytes)
    }
}

impl<T: Pod> Buffer<T> {
    /// Whether the host can map the buffer in place: it sees the home's memory, and no other process can write that.
    #[doc(hidden)]
    pub fn maps_in_place(&self, for_writing: bool) -> bool {
        let (core, part) = (self.core(), self.part());
        let seen = core.host_alias().is_some_and(|alias| core.aliases[alias].replica() == HOME);
        seen && part.check_host(true, for_writing).is_ok() && !core.lock_state().exposed
    }
}

impl<'b, T: Pod> Map<'b, T> {
    pub(super) fn open(part: Part<'b>) -> Result<Self> {
        Self::open_range(part, 0..part.span.len())
    }

    pub(super) fn open_range(part: Part<'b>, range: Range<usize>) -> Result<Self> {
        Slice::open(part, MapUse::Read, range).map(Map)
    }
}

impl<'b, T: Pod> MapMut<'b, T> {
    pub(super) fn open(part: Part<'b>) -> Result<Self> {
        Self::open_range(part, 0..part.span.len())
    }

    pub(super) fn open_range(part: Part<'b>, range: Range<usize>) -> Result<Self> {
        Ok(MapMut { slice: Some(Slice::open(part, MapUse::ReadWrite, range)?), part })
    }
}

impl<T: Pod> Deref for Map<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.get()
    }
}

impl<T: Pod> Deref for MapMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.slice.as_ref().map_or(&[], Slice::get)
    }
}

impl<T: Pod> DerefMut for MapMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.slice.as_mut().map_or(&mut [], Slice::get_mut)
    }
}

impl<T: Pod> MapMut<'_, T> {
    /// Ends the map, and returns whether the changes were written back: that can fail only if the host worked
    /// on a copy. Dropping the map does the same, but only logs the error.
    pub fn unmap(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        self.slice.take().map_or(Ok(()), |slice| slice.close(self.part.core))
    }
}

impl<T: Pod> Drop for MapMut<'_, T> {
    fn drop(&mut self) {
        log_loss(self.close());
    }
}

fn log_loss(closed: Result<()>) {
    if let Err(error) = closed {
        tracing::error!(%error, "a mapped copy could not be written back: its changes are lost");
    }
}

/// A guard under which the host writes elements in place, without reading: the driver may have mapped them for writing only.
pub struct MapWrite<'b, T: Pod>(MapMut<'b, T>);

impl<'b, T: Pod> MapWrite<'b, T> {
    pub(super) fn open(part: Part<'b>, used: MapUse, range: Range<usize>) -> Result<Self> {
        Ok(Self(MapMut { slice: Some(Slice::open(part, used, range)?), part }))
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match &self.0.slice {
            Some(Slice::Copied(data, ..)) => data.len(),
            Some(Slice::Direct(_, range)) => range.len() / size_of::<T>(),
            None => 0,
        }
    }

    /// Always false: a map has at least one element.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes elements from an index on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are more elements than the map has from there on.
    pub fn write(&mut self, at: usize, from: &[T]) -> Result<()> {
        let len = self.len();
        let to = at.checked_add(from.len()).and_then(|end| self.0.get_mut(at..end));
        let count = from.len();
        let beyond = || Error::invalid(format!("{count} elements at {at} of a map of {len}"));
        to.ok_or_else(beyond)?.copy_from_slice(from);
        Ok(())
    }

    /// Sets every element.
    pub fn fill(&mut self, value: T) {
        self.0.fill(value);
    }

    /// The address of the first element, for code that writes by a pointer. It is valid until the map ends. Do not read there: the
    /// memory may be mapped for writing only.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.0.as_mut_ptr()
    }

    /// Ends the map, and returns whether everything was written back: that can fail only if the host worked on a copy.
    ///
    /// # Errors
    /// The driver's.
    pub fn unmap(self) -> Result<()> {
        self.0.unmap()
    }
}

impl<T: Pod> fmt::Debug for MapWrite<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapWrite({} elements)", self.len())
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Map<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Map({} elements)", self.len())
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for MapMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapMut({} elements)", self.len())
    }
}
