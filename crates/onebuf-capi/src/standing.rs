//! Standing maps
//!
//! For programs that keep one pointer to a buffer's memory and say whose turn it is: the host's, or the
//! kernels'. A buffer has one standing map at most, whoever asks for it, and asking again costs no driver
//! call. It ends when the kernels' turn comes, or with the buffer.

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

/// Does something with the standing map; `None` when there is none that it can be done with.
fn entry_found(
    buffer: onebuf_buffer,
    body: impl FnOnce(&Turn, &Buf) -> Result<bool>,
) -> Option<onebuf_status> {
    let mut done = false;
    let status = entry(|| {
        // A handle that names nothing is told by who does it otherwise.
        let Ok(kept) = buffer.get() else { return Ok(()) };
        let turn = kept.standing.lock();
        if matches!(*turn, Turn::Host(_)) {
            done = true;
            done = body(&turn, &kept)?;
        }
        Ok(())
    });
    done.then_some(status)
}

/// Gives the host its turn: maps the buffer, for reading with ONEBUF_READ, else for reading and writing,
/// unless it is mapped so already. Waits for the work before. `data` is valid, for as many bytes as the buffer
/// has, until onebuf_buffer_to_device() or the buffer's end; kernels that would use it are ONEBUF_BUSY
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

/// Gives the kernels their turn: ends the standing map, where there is one. Fails only where the host worked
/// on a copy that could not be written back; the map is over then too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_to_device(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| buffer.get()?.standing.to_device())
}

/// Where so many bytes of the standing map are, if there is one that allows it; the lock is held with it.
fn reach(
    turn: &Turn,
    buffer: &Buf,
    offset: usize,
    bytes: usize,
    writes: bool,
) -> Result<Option<*mut u8>> {
    let range = buffer.range(offset, bytes)?;
    // SAFETY: the range is inside the buffer, and the map has all of it.
    Ok(turn.map(writes).map(|standing| unsafe { standing.data.cast::<u8>().add(range.start) }))
}

/// Writes so many bytes from `offset` on: through the standing map, as the caller's own stores would, and as
/// onebuf_buffer_write() where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_store(
    buffer: onebuf_buffer,
    offset: usize,
    data: *const c_void,
    bytes: usize,
) -> onebuf_status {
    let through_map = entry_found(buffer, |turn, object| {
        let Some(at) = reach(turn, object, offset, bytes, true)? else { return Ok(false) };
        // SAFETY: the caller's promise; a map's bytes are nobody else's. The data may lie among them.
        unsafe { at.copy_from(self::bytes(data, bytes, "data")?.as_ptr(), bytes) };
        Ok(true)
    });
    // SAFETY: the caller's promise.
    through_map.unwrap_or_else(|| unsafe { onebuf_buffer_write(buffer, offset, data, bytes) })
}

/// Reads so many bytes from `offset` on: through the standing map, as the caller's own loads would, and as
/// onebuf_buffer_read() where there is none.
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
    // SAFETY: the caller's promise.
    through_map.unwrap_or_else(|| unsafe { onebuf_buffer_read(buffer, offset, data, bytes) })
}

/// Waits until the host may read the buffer (ONEBUF_READ), or write it: until kernels no longer write, or no
/// longer use it. ONEBUF_TIMEOUT when that takes longer; the work goes on.
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
