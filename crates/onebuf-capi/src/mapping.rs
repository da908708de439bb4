//! Mappings
//!
//! A mapping gives the host a pointer to a buffer's memory. Mapping waits for earlier work. Until the mapping is
//! unmapped, nothing else may write the buffer; while the host may write it, nothing else may use it. A mapping for
//! writing only (ONEBUF_WRITE) must not be read: the driver may have mapped the memory for writing alone.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{self, Options, Slot, out, timeout},
    kept::{Buf, Guard, Kept, MapUse},
    status::onebuf_status,
    wait::{Blocked, when_free},
    words::{self, onebuf_access},
};
use onebuf::{Access, Error, Fence, Hub};
use std::{
    ffi::c_void,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A mapping. End it with onebuf_mapping_unmap().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_mapping {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_mapping, Mapping, 6);

/// A mapping, and the buffer that it belongs to. The guard is dropped first.
#[doc(hidden)]
pub struct Mapping {
    state: Mutex<MapState>,
    request: Request,
    buffer: Arc<Kept>,
}

/// What is mapped, and for what.
#[derive(Clone)]
struct Request {
    used: MapUse,
    range: Range<usize>,
    wait_ms: u64,
}

enum MapState {
    /// The host waits for this work, if there was any. Others may still use the buffer.
    Asked(Option<Fence>),
    Mapped(Guard, *mut c_void),
    Over,
}

// SAFETY: the pointer is only handed out; the guard may be sent between threads like any mapping's.
unsafe impl Send for MapState {}

impl Request {
    fn new(buffer: &Kept, options: &onebuf_map_options) -> Result<Self> {
        let used = match (words::access(options.access)?, options.discard != 0) {
            (Access::Read, false) => MapUse::Read,
            (Access::ReadWrite, false) => MapUse::ReadWrite,
            (Access::Write, false) => MapUse::Write,
            (Access::Write, true) => MapUse::Overwrite,
            _ => return Err(Fault::invalid("`discard` is for ONEBUF_WRITE")),
        };
        let rest = || buffer.len().saturating_sub(options.offset);
        let bytes = if options.bytes == 0 { rest() } else { options.bytes };
        let range = buffer.range(options.offset, bytes)?;
        Ok(Self { used, range, wait_ms: options.wait_ms })
    }

    /// Maps now, or waits until no conflicting view or mapping is held.
    fn open(&self, buffer: &Arc<Kept>) -> Result<MapState> {
        let open = || Guard::take(buffer, self.used, self.range.clone());
        let mut guard = match self.wait_ms {
            0 => open()?,
            wait_ms => when_free(wait_ms, hub(buffer), || {
                open().map_err(|fault| Blocked::on(buffer, fault))
            })?,
        };
        let pointer = guard.pointer();
        Ok(MapState::Mapped(guard, pointer))
    }
}

fn hub(buffer: &Kept) -> &Hub {
    buffer.whole().0.hub()
}

impl Mapping {
    /// A mapping, and the address of its bytes.
    fn open(buffer: Arc<Kept>, request: Request) -> Result<(Self, *mut c_void)> {
        let state = request.open(&buffer)?;
        let pointer = match &state {
            MapState::Mapped(_, pointer) => *pointer,
            _ => std::ptr::null_mut(),
        };
        Ok((Self { state: Mutex::new(state), request, buffer }, pointer))
    }

    /// A mapping that begins when the work on the buffer so far is done.
    fn ask(buffer: Arc<Kept>, request: Request) -> Self {
        let fence = match (&buffer.buf, request.used) {
            (Buf::Whole(of), MapUse::Read) => of.fence(),
            (Buf::Whole(of), _) => of.uses(),
            (Buf::Region { region, .. }, MapUse::Read) => region.fence(),
            (Buf::Region { region, .. }, _) => region.uses(),
        };
        Self { state: Mutex::new(MapState::Asked(fence)), request, buffer }
    }

    fn lock(&self) -> MutexGuard<'_, MapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ready(&self) -> Result<bool> {
        match &*self.lock() {
            MapState::Asked(Some(fence)) => Ok(fence.is_done()?),
            MapState::Asked(None) | MapState::Mapped(..) => Ok(true),
            MapState::Over => Err(over()),
        }
    }

    fn wait(&self, timeout_ms: u64) -> Result<*mut c_void> {
        let timeout = timeout(timeout_ms).unwrap_or_else(|| hub(&self.buffer).timeout());
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        if let MapState::Asked(fence) = &*state {
            fence.as_ref().map_or(Ok(()), |fence| fence.wait(timeout))?;
            // What is left of the time is for others that hold the buffer.
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            let request = Request { wait_ms: left_ms, ..self.request.clone() };
            *state = request.open(&self.buffer)?;
        }
        match &*state {
            MapState::Mapped(_, pointer) => Ok(*pointer),
            MapState::Asked(_) => {
                Err(Error::Busy { what: "the mapping has not begun".into() }.into())
            }
            MapState::Over => Err(over()),
        }
    }

    fn close(&self) -> Result<()> {
        match std::mem::replace(&mut *self.lock(), MapState::Over) {
            MapState::Mapped(guard, _) => guard.close(),
            MapState::Asked(_) => Ok(()),
            MapState::Over => Err(over()),
        }
    }
}

fn over() -> Fault {
    Fault::invalid("the mapping has already ended")
}

/// Options of a mapping. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_map_options {
    /// `sizeof(onebuf_map_options)`.
    pub size: usize,
    /// ONEBUF_READ maps for reading, ONEBUF_WRITE for writing only, ONEBUF_READ_WRITE for both. A buffer with
    /// ONEBUF_HOST_WRITE can be mapped for writing only.
    pub access: onebuf_access,
    /// Not zero, with ONEBUF_WRITE: the host writes every byte of the range. Earlier contents are not brought along, and
    /// bytes that are not written are unspecified.
    pub discard: u32,
    /// The first byte to map. `data` points at it.
    pub offset: usize,
    /// The number of bytes to map; zero: all from `offset` on. Where the host gets a copy, only these are copied. Views
    /// and other mappings of the whole buffer are excluded.
    pub bytes: usize,
    /// How long to wait until no conflicting view or mapping is held. Zero: ONEBUF_BUSY at once. After the timeout:
    /// ONEBUF_TIMEOUT.
    pub wait_ms: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_map_options {}

/// Maps a whole buffer or region: for reading with ONEBUF_READ, for writing only with ONEBUF_WRITE, otherwise for reading
/// and writing. `data` is valid, for the size of the buffer, until it is unmapped.
///
/// If the host cannot access the memory, it gets a copy, which is counted as implied; or the call fails with
/// ONEBUF_COPY_FORBIDDEN.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_map(
    buffer: onebuf_buffer,
    access: onebuf_access,
    data: Slot<'_, *mut c_void>,
    mapping: Slot<'_, onebuf_mapping>,
) -> onebuf_status {
    entry(|| {
        let (data, mapping) = (out(data, "data")?, out(mapping, "mapping")?);
        let buffer = buffer.get()?;
        let options =
            onebuf_map_options { size: 0, access, discard: 0, offset: 0, bytes: 0, wait_ms: 0 };
        let request = Request::new(&buffer, &options)?;
        let (held, pointer) = Mapping::open(buffer, request)?;
        *mapping = onebuf_mapping::put(held)?;
        *data = pointer;
        Ok(())
    })
}

/// Maps a buffer like onebuf_buffer_map(), with options: a range, for writing only, without earlier contents, waiting.
/// `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_map_with(
    buffer: onebuf_buffer,
    options: *const onebuf_map_options,
    data: Slot<'_, *mut c_void>,
    mapping: Slot<'_, onebuf_mapping>,
) -> onebuf_status {
    entry(|| {
        let (data, mapping) = (out(data, "data")?, out(mapping, "mapping")?);
        // SAFETY: guaranteed by the caller.
        let options = unsafe { input::options(options)? };
        let buffer = buffer.get()?;
        let request = Request::new(&buffer, &options)?;
        let (held, pointer) = Mapping::open(buffer, request)?;
        *mapping = onebuf_mapping::put(held)?;
        *data = pointer;
        Ok(())
    })
}

/// Asks for a mapping without waiting for the work on the buffer. onebuf_mapping_poll() says when that work is done, and
/// onebuf_mapping_wait() returns the address. Until then the buffer is not mapped, and others may use it.
/// `options.wait_ms` is ignored. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_map_async(
    buffer: onebuf_buffer,
    options: *const onebuf_map_options,
    mapping: Slot<'_, onebuf_mapping>,
) -> onebuf_status {
    entry(|| {
        let mapping = out(mapping, "mapping")?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { input::options(options)? };
        let buffer = buffer.get()?;
        let request = Request::new(&buffer, &options)?;
        *mapping = onebuf_mapping::put(Mapping::ask(buffer, request))?;
        Ok(())
    })
}

/// Whether onebuf_mapping_wait() would return without waiting for work. If the work failed, the status says how.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_mapping_poll(
    mapping: onebuf_mapping,
    ready: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        *out(ready, "ready")? = mapping.get()?.is_ready()?;
        Ok(())
    })
}

/// Waits for the work, and until no conflicting view or mapping is held; maps; and returns the address of the first mapped
/// byte. The mapping begins here. ONEBUF_TIMEOUT if that takes longer; the wait may be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_mapping_wait(
    mapping: onebuf_mapping,
    timeout_ms: u64,
    data: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let data = out(data, "data")?;
        *data = mapping.get()?.wait(timeout_ms)?;
        Ok(())
    })
}

/// Ends a mapping, also one that has not begun. Fails only if the host worked on a copy that could not be written back;
/// the mapping has ended then too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_mapping_unmap(mapping: onebuf_mapping) -> onebuf_status {
    entry(|| mapping.take()?.close())
}
