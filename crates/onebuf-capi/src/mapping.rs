//! Mappings
//!
//! A mapping gives the host a pointer to a buffer's memory. Mapping waits for earlier work. Until the mapping is
//! unmapped, nothing else may write the buffer; while the host may write it, nothing else may use it.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{self, Options, Slot, out},
    kept::{Guard, Kept},
    status::onebuf_status,
    wait::{Blocked, when_free},
    words::{self, onebuf_access},
};
use onebuf::Access;
use std::{
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
};

/// A mapping. End it with onebuf_mapping_unmap().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_mapping {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_mapping, Mapping, 6);

/// A guard, and the buffer that it belongs to. The guard is dropped first.
#[doc(hidden)]
pub struct Mapping {
    guard: Mutex<Option<Guard>>,
    _buffer: Arc<Kept>,
}

impl Mapping {
    /// A mapping, and the address of its bytes.
    fn open(buffer: Arc<Kept>, writes: bool) -> Result<(Self, *mut c_void)> {
        let mut guard = Guard::take(&buffer, writes)?;
        let pointer = guard.pointer();
        Ok((Self { guard: Mutex::new(Some(guard)), _buffer: buffer }, pointer))
    }

    fn close(&self) -> Result<()> {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
        guard.ok_or_else(|| Fault::invalid("the mapping has already ended"))?.close()
    }
}

/// Maps a whole buffer or region: for reading with ONEBUF_READ, otherwise for reading and writing. `data` is valid, for
/// the size of the buffer, until it is unmapped.
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
        let writes = words::access(access)? != Access::Read;
        let (held, pointer) = Mapping::open(buffer.get()?, writes)?;
        *mapping = onebuf_mapping::put(held)?;
        *data = pointer;
        Ok(())
    })
}

/// Options of a mapping. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_map_options {
    /// `sizeof(onebuf_map_options)`.
    pub size: usize,
    /// ONEBUF_READ maps for reading, any other value for reading and writing.
    pub access: onebuf_access,
    /// How long to wait until no conflicting view or mapping is held. Zero: ONEBUF_BUSY at once. After the timeout:
    /// ONEBUF_TIMEOUT.
    pub wait_ms: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_map_options {}

/// Maps a buffer like onebuf_buffer_map(), with options. `options` may be NULL.
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
        let (buffer, writes) = (buffer.get()?, words::access(options.access)? != Access::Read);
        let open = || Mapping::open(buffer.clone(), writes);
        let (held, pointer) = match options.wait_ms {
            0 => open()?,
            wait_ms => when_free(wait_ms, buffer.whole().0.hub(), || {
                open().map_err(|fault| Blocked::on(&buffer, fault))
            })?,
        };
        *mapping = onebuf_mapping::put(held)?;
        *data = pointer;
        Ok(())
    })
}

/// Ends a mapping. Fails only if the host worked on a copy that could not be written back; the mapping has ended then
/// too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_mapping_unmap(mapping: onebuf_mapping) -> onebuf_status {
    entry(|| mapping.take()?.close())
}
