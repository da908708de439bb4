//! Host guards that deref to slices.

use super::{Buffer, Hold, Part, alias::HOME};
use crate::{ledger::Cause, observe::What};
use bytemuck::Pod;
use onebuf_hal::{Access, CopyPolicy, Error, Result};
use std::{
    fmt,
    ops::{Deref, DerefMut},
};

/// The storage of a guard's slice.
enum Slice<'b, T: Pod> {
    /// The buffer's own memory.
    Direct(Hold<'b>),
    /// A copy, for memory that the host cannot see. The hold excludes conflicting users meanwhile.
    Copied(Vec<T>, Hold<'b>),
}

impl<'b, T: Pod> Slice<'b, T> {
    fn open(part: Part<'b>, access: Access) -> Result<Self> {
        let core = part.core;
        part.check_host(true, access.writes())?;
        if core.host_alias().is_some() {
            let hold = Hold::by_host(part, access)?;
            check_alone(&hold)?;
            check_aligned::<T>(&hold)?;
            return Ok(Slice::Direct(hold));
        }
        if core.policy == CopyPolicy::Forbid {
            return Err(Error::CopyForbidden {
                route: format!("{} -> host", core.device_id(core.plan.allocate_on)),
                why: "the host cannot see this memory: share the buffer with the host too".into(),
            });
        }
        let began = core.hub.tracer().begin(What::Copy);
        let (data, hold) = part.copied_hold::<T>(access)?;
        let (from, to) = (core.plan.allocate_on, core.hub.host_index());
        core.count_implied_bytes(from, to, hold.bytes());
        hold.tell_copy(began, "map", Cause::Implied, from, to, hold.bytes());
        Ok(Slice::Copied(data, hold))
    }

    fn get(&self) -> &[T] {
        match self {
            Slice::Copied(data, _) => data,
            Slice::Direct(hold) => hold.host_bytes().map_or(&[], bytemuck::cast_slice),
        }
    }

    fn get_mut(&mut self) -> &mut [T] {
        match self {
            Slice::Copied(data, _) => data,
            Slice::Direct(hold) => hold.host_bytes_mut().map_or(&mut [], bytemuck::cast_slice_mut),
        }
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
        Slice::open(part, Access::Read).map(Map)
    }
}

impl<'b, T: Pod> MapMut<'b, T> {
    pub(super) fn open(part: Part<'b>) -> Result<Self> {
        Ok(MapMut { slice: Some(Slice::open(part, Access::ReadWrite)?), part })
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
        let Some(Slice::Copied(data, hold)) = self.slice.take() else { return Ok(()) };
        let core = self.part.core;
        let began = core.hub.tracer().begin(What::Copy);
        core.upload(&hold, 0, bytemuck::cast_slice(&data))?;
        let (from, to) = (core.hub.host_index(), core.plan.allocate_on);
        core.count_implied_bytes(from, to, hold.bytes());
        hold.tell_copy(began, "unmap", Cause::Implied, from, to, hold.bytes());
        Ok(())
    }
}

impl<T: Pod> Drop for MapMut<'_, T> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "a mapped copy could not be written back: its changes are lost");
        }
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
