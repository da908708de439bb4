//! What a buffer's handle names: a buffer or a region of one, guards that map it for the host, and its persistent map.
//!
//! # Safety
//! Regions and guards borrow from a [`Kept`] inside an `Arc`. Each of them holds that `Arc` and drops it last.

use crate::fault::{Fault, Result};
use onebuf::{Access, Buffer, Map, MapMut, MapWrite, SubBuffer};
use std::{
    ffi::c_void,
    ops::{Deref, Range},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A buffer as its handle keeps it, with its persistent map, which is dropped first.
#[doc(hidden)]
pub struct Kept {
    pub(crate) persistent: Place,
    pub(crate) buf: Buf,
}

impl Kept {
    /// Whether the buffer may be moved out. A persistent map borrows the buffer and forbids that.
    pub(crate) fn is_free(&self) -> bool {
        self.persistent.is_empty()
    }
}

impl Deref for Kept {
    type Target = Buf;

    fn deref(&self) -> &Buf {
        &self.buf
    }
}

impl<B: Into<Buf>> From<B> for Kept {
    fn from(buf: B) -> Self {
        Self { persistent: Place::default(), buf: buf.into() }
    }
}

/// A whole buffer, or a region with the buffer that it is part of. The region is dropped first.
#[doc(hidden)]
pub enum Buf {
    Whole(Whole),
    Region { region: SubBuffer<'static, u8>, _of: Arc<Kept> },
}

/// A buffer of this process, or a buffer of another process whose ownership is shared with the connection.
#[doc(hidden)]
pub enum Whole {
    Own(Buffer<u8>),
    Attached(Arc<Buffer<u8>>),
}

impl Deref for Whole {
    type Target = Buffer<u8>;

    fn deref(&self) -> &Buffer<u8> {
        match self {
            Whole::Own(buffer) => buffer,
            Whole::Attached(buffer) => buffer,
        }
    }
}

impl From<Buffer<u8>> for Buf {
    fn from(buffer: Buffer<u8>) -> Self {
        Buf::Whole(Whole::Own(buffer))
    }
}

impl Buf {
    pub(crate) fn region(
        of: &Arc<Kept>,
        range: Range<usize>,
        access: onebuf::Access,
    ) -> Result<Self> {
        let Buf::Whole(buffer) = &of.buf else {
            return Err(Fault::invalid("a region has no regions: create it from the buffer"));
        };
        let region = buffer.sub_buffer(range, access)?;
        // SAFETY: the buffer lies behind `of`, which stays until the region is gone: fields are dropped in
        // the order in which they are declared.
        let region =
            unsafe { std::mem::transmute::<SubBuffer<'_, u8>, SubBuffer<'static, u8>>(region) };
        Ok(Buf::Region { region, _of: of.clone() })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Buf::Whole(buffer) => buffer.len(),
            Buf::Region { region, .. } => region.len(),
        }
    }

    /// The buffer that this is part of, and the offset in it.
    pub(crate) fn whole(&self) -> (&Buffer<u8>, usize) {
        match self {
            Buf::Whole(buffer) => (buffer, 0),
            Buf::Region { region, .. } => (region.buffer(), region.range().start),
        }
    }

    /// Whether both have a byte in common.
    pub(crate) fn overlaps(&self, other: &Buf) -> bool {
        let ((memory, mine), (of, theirs)) = (self.extent(), other.extent());
        memory == of && mine.start < theirs.end && theirs.start < mine.end
    }

    /// The memory, and the range of its bytes.
    fn extent(&self) -> (usize, Range<usize>) {
        let (whole, first) = self.whole();
        let (memory, range) = whole.extent();
        (memory, range.start + first..range.start + first + self.len())
    }

    /// A range of the buffer's bytes. Checked before the caller's memory is accessed, because the caller guarantees
    /// only as many bytes as the numbers say, and a wrong number is an error.
    pub(crate) fn range(&self, offset: usize, bytes: usize) -> Result<Range<usize>> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len() && bytes > 0 => Ok(offset..end),
            _ => Err(Fault::invalid(format!(
                "{bytes} bytes at offset {offset} of a buffer of {}: the range must be non-empty and inside",
                self.len()
            ))),
        }
    }

    /// The same range, relative to the whole buffer.
    pub(crate) fn outer(&self, offset: usize, bytes: usize) -> Result<(&Buffer<u8>, Range<usize>)> {
        let Range { start, end } = self.range(offset, bytes)?;
        let (whole, first) = self.whole();
        Ok((whole, first + start..first + end))
    }
}

/// A mapping whose lifetime is extended to `'static`. It must not outlive the buffer.
pub(crate) enum Guard {
    Read(Map<'static, u8>),
    ReadWrite(MapMut<'static, u8>),
    Write(MapWrite<'static, u8>),
}

/// What the host does with the mapped bytes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum MapUse {
    Read,
    ReadWrite,
    Write,
    Overwrite,
}

impl Guard {
    pub fn take(buffer: &Arc<Kept>, used: MapUse, range: Range<usize>) -> Result<Self> {
        // SAFETY: the buffer does not move until the caller's `Arc` is dropped, and `Mapping` and `Persistent` drop their
        // guards before that.
        let buffer: &'static Kept = unsafe { &*Arc::as_ptr(buffer) };
        Ok(match (&buffer.buf, used) {
            (Buf::Whole(of), MapUse::Read) => Guard::Read(of.map_range(range)?),
            (Buf::Whole(of), MapUse::ReadWrite) => Guard::ReadWrite(of.map_range_mut(range)?),
            (Buf::Whole(of), MapUse::Write) => Guard::Write(of.map_write(range)?),
            (Buf::Whole(of), MapUse::Overwrite) => Guard::Write(of.map_overwrite(range)?),
            (Buf::Region { region: of, .. }, MapUse::Read) => Guard::Read(of.map_range(range)?),
            (Buf::Region { region: of, .. }, MapUse::ReadWrite) => {
                Guard::ReadWrite(of.map_range_mut(range)?)
            }
            (Buf::Region { region: of, .. }, MapUse::Write) => Guard::Write(of.map_write(range)?),
            (Buf::Region { region: of, .. }, MapUse::Overwrite) => {
                Guard::Write(of.map_overwrite(range)?)
            }
        })
    }

    /// The address of the bytes, which is constant for the lifetime of the guard.
    pub fn pointer(&mut self) -> *mut c_void {
        match self {
            Guard::Read(map) => map.as_ptr().cast_mut().cast(),
            Guard::ReadWrite(map) => map.as_mut_ptr().cast(),
            Guard::Write(map) => map.as_mut_ptr().cast(),
        }
    }

    pub fn close(self) -> Result<()> {
        match self {
            Guard::ReadWrite(map) => Ok(map.unmap()?),
            Guard::Write(map) => Ok(map.unmap()?),
            Guard::Read(_) => Ok(()),
        }
    }
}

/// The persistent map of a buffer. Each has its own lock, because mapping waits for kernels.
#[derive(Default)]
pub(crate) struct Place(Mutex<Turn>);

/// Which side may access the buffer.
#[derive(Default)]
pub(crate) enum Turn {
    #[default]
    Kernels,
    Host(Persistent),
    /// The buffer's handle was freed: no further map is created.
    Over,
}

/// A guard of the buffer that it is stored beside. It is dropped first, and the buffer is not moved while it exists:
/// see `Kept::is_free`.
pub(crate) struct Persistent {
    guard: Guard,
    pub data: *mut c_void,
    access: Access,
}

// SAFETY: the pointer is only handed out; the guard may be sent between threads like any mapping's.
unsafe impl Send for Persistent {}

impl Persistent {
    fn open(buffer: &Arc<Kept>, access: Access) -> Result<Self> {
        let used = match access {
            Access::Read => MapUse::Read,
            Access::Write => MapUse::Write,
            Access::ReadWrite => MapUse::ReadWrite,
        };
        let mut guard = Guard::take(buffer, used, 0..buffer.len())?;
        let data = guard.pointer();
        Ok(Self { guard, data, access })
    }

    pub fn allows(&self, access: Access) -> bool {
        self.access == access || self.access == Access::ReadWrite
    }
}

impl Turn {
    /// The map, if it allows this access.
    pub fn map(&self, access: Access) -> Option<&Persistent> {
        self.host().filter(|persistent| persistent.allows(access))
    }

    /// The map, whatever it allows.
    pub fn host(&self) -> Option<&Persistent> {
        match self {
            Turn::Host(persistent) => Some(persistent),
            _ => None,
        }
    }

    /// Gives the kernels access. Takes the host's map.
    fn take(&mut self) -> Option<Persistent> {
        match self {
            Turn::Host(_) => match std::mem::take(self) {
                Turn::Host(persistent) => Some(persistent),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Place {
    pub fn lock(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the map, if there is one.
    pub fn to_device(&self) -> Result<()> {
        // Outside of the lock, because unmapping may take long.
        let persistent = self.lock().take();
        persistent.map_or(Ok(()), |persistent| persistent.guard.close())
    }

    /// Whether there is no map.
    pub fn is_empty(&self) -> bool {
        !matches!(*self.lock(), Turn::Host(_))
    }

    /// Ends the map and forbids further ones: the handle was freed.
    pub fn end(&self) {
        let last = std::mem::replace(&mut *self.lock(), Turn::Over);
        drop(last);
    }

    /// Maps the buffer, unless it is already mapped for this access, and returns the address.
    pub fn to_host(buffer: &Arc<Kept>, access: Access) -> Result<*mut c_void> {
        let mut turn = buffer.persistent.lock();
        if let Some(persistent) = turn.map(access) {
            return Ok(persistent.data);
        }
        if matches!(*turn, Turn::Over) {
            return Err(Fault::Handle("the buffer was freed meanwhile".into()));
        }
        // A map for less ends before this one begins.
        if let Some(persistent) = turn.take() {
            persistent.guard.close()?;
        }
        let persistent = Persistent::open(buffer, access)?;
        let data = persistent.data;
        *turn = Turn::Host(persistent);
        Ok(data)
    }
}
