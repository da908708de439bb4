//! Persistent maps
//!
//! For programs that keep one pointer to a buffer's memory and state whether the host or kernels use it. A buffer has
//! at most one persistent map, however many callers ask for it, and asking again costs no driver call. It ends when
//! kernels get the buffer, or when the buffer is freed.

use crate::{
    buffer::{onebuf_buffer, onebuf_buffer_read, onebuf_buffer_write},
    entry::entry,
    fault::Result,
    handle::Noun,
    input::{Slot, bytes, bytes_mut, out},
    kept::{Buf, Place, Turn},
    status::onebuf_status,
    words::{self, onebuf_access},
};
use onebuf::Access;
use std::{ffi::c_void, time::Duration};

/// Does something with the persistent map; `None` if there is none that allows it.
fn entry_found(
    buffer: onebuf_buffer,
    body: impl FnOnce(&Turn, &Buf) -> Result<bool>,
) -> Option<onebuf_status> {
    let mut done = false;
    let status = entry(|| {
        // An invalid handle is reported by the call that is made instead.
        let Ok(kept) = buffer.get() else { return Ok(()) };
        let turn = kept.persistent.lock();
        if matches!(*turn, Turn::Host(_)) {
            done = true;
            done = body(&turn, &kept)?;
        }
        Ok(())
    });
    done.then_some(status)
}

/// Gives the buffer to the host: maps it, for reading with ONEBUF_READ, otherwise for reading and writing, unless it is
/// already mapped that way. Waits for earlier work. `data` is valid, for the size of the buffer, until
/// onebuf_buffer_to_device() or until the buffer is freed; kernels that would use the buffer fail with ONEBUF_BUSY
/// meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_to_host(
    buffer: onebuf_buffer,
    access: onebuf_access,
    data: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let data = out(data, "data")?;
        let writes = words::access(access)? != Access::Read;
        *data = Place::to_host(&buffer.get()?, writes)?;
        Ok(())
    })
}

/// Gives the buffer to kernels: ends the persistent map, if there is one. Fails only if the host worked on a copy that
/// could not be written back; the map has ended then too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_to_device(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| buffer.get()?.persistent.to_device())
}

/// The address of a range of the persistent map, if there is one that allows the access, with its lock held.
fn reach(
    turn: &Turn,
    buffer: &Buf,
    offset: usize,
    bytes: usize,
    writes: bool,
) -> Result<Option<*mut u8>> {
    let range = buffer.range(offset, bytes)?;
    // SAFETY: the range is inside the buffer, and the map covers all of it.
    Ok(turn.map(writes).map(|persistent| unsafe { persistent.data.cast::<u8>().add(range.start) }))
}

/// Writes `bytes` bytes at `offset`: through the persistent map, like stores of the caller, or like onebuf_buffer_write()
/// if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_store(
    buffer: onebuf_buffer,
    offset: usize,
    data: *const c_void,
    bytes: usize,
) -> onebuf_status {
    let through_map = entry_found(buffer, |turn, object| {
        let Some(at) = reach(turn, object, offset, bytes, true)? else { return Ok(false) };
        // SAFETY: guaranteed by the caller; nothing else uses a map's bytes. The data may lie among them.
        unsafe { at.copy_from(self::bytes(data, bytes, "data")?.as_ptr(), bytes) };
        Ok(true)
    });
    // SAFETY: guaranteed by the caller.
    through_map.unwrap_or_else(|| unsafe { onebuf_buffer_write(buffer, offset, data, bytes) })
}

/// Reads `bytes` bytes at `offset`: through the persistent map, like loads of the caller, or like onebuf_buffer_read() if
/// there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_load(
    buffer: onebuf_buffer,
    offset: usize,
    data: *mut c_void,
    bytes: usize,
) -> onebuf_status {
    let through_map = entry_found(buffer, |turn, object| {
        let Some(at) = reach(turn, object, offset, bytes, false)? else { return Ok(false) };
        // SAFETY: as above.
        unsafe { at.copy_to(bytes_mut(data, bytes, "data")?.as_mut_ptr(), bytes) };
        Ok(true)
    });
    // SAFETY: guaranteed by the caller.
    through_map.unwrap_or_else(|| unsafe { onebuf_buffer_read(buffer, offset, data, bytes) })
}

/// Waits until the host may read the buffer (ONEBUF_READ) or write it: until kernels no longer write it, or no longer
/// use it. ONEBUF_TIMEOUT if that takes longer; the work continues.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_wait_ns(
    buffer: onebuf_buffer,
    access: onebuf_access,
    timeout_ns: u64,
) -> onebuf_status {
    entry(|| {
        let object = buffer.get()?;
        let fence = match (&object.buf, words::access(access)?) {
            (Buf::Whole(buffer), Access::Read) => buffer.fence(),
            (Buf::Whole(buffer), _) => buffer.uses(),
            (Buf::Region { region, .. }, Access::Read) => region.fence(),
            (Buf::Region { region, .. }, _) => region.uses(),
        };
        Ok(fence.map_or(Ok(()), |fence| fence.wait(Duration::from_nanos(timeout_ns)))?)
    })
}
