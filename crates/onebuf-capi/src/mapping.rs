//! Mappings
//!
//! A mapping lets the host use a buffer in place, through a pointer. It waits for the work before; nobody
//! else writes the buffer (or, while the host writes, uses it) until it is unmapped.

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

/// A mapping. Unmap it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_mapping {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_mapping, Mapping, 6);

/// A guard, and what it is a guard of. The guard goes first.
#[doc(hidden)]
pub struct Mapping {
    guard: Mutex<Option<Guard>>,
    _buffer: Arc<Kept>,
}

impl Mapping {
    /// A mapping, and where its bytes are.
    fn open(buffer: Arc<Kept>, writes: bool) -> Result<(Self, *mut c_void)> {
        let mut guard = Guard::take(&buffer, writes)?;
        let pointer = guard.pointer();
        Ok((Self { guard: Mutex::new(Some(guard)), _buffer: buffer }, pointer))
    }

    fn close(&self) -> Result<()> {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
        guard.ok_or_else(|| Fault::invalid("a mapping that is over"))?.close()
    }
}

/// Maps a buffer or region as a whole: for reading with ONEBUF_READ, else for reading and writing. `data`
/// is valid, for as many bytes as the buffer has, until it is unmapped.
///
/// Where the host cannot see the memory it gets a copy, which is counted as implied; or
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

/// Ends a mapping. Fails only where the host worked on a copy that could not be written back; the mapping
/// is over then too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_mapping_unmap(mapping: onebuf_mapping) -> onebuf_status {
    entry(|| mapping.take()?.close())
}
