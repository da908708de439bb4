//! Mappings
//!
//! A mapping gives the host a pointer to a buffer's memory. Mapping waits for earlier work. Until the mapping is
//! unmapped, nothing else may write the buffer; while the host may write it, nothing else may use it.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{Slot, out},
    kept::{Guard, Kept},
    status::onebuf_status,
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

/// Ends a mapping. Fails only if the host worked on a copy that could not be written back; the mapping has ended then
/// too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_mapping_unmap(mapping: onebuf_mapping) -> onebuf_status {
    entry(|| mapping.take()?.close())
}
