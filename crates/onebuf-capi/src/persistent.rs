//! Persistent maps
//!
//! For programs that keep one pointer to a buffer's memory and state whether the host or kernels use it. A buffer has
//! at most one persistent map, however many callers ask for it, and asking again costs no driver call. It ends when
//! kernels get the buffer, or when the buffer is freed.

use crate::{
    buffer::{onebuf_buffer, onebuf_buffer_read, onebuf_buffer_write, onebuf_write},
    entry::entry,
    fault::Result,
    handle::Noun,
    input::{Options, Slot, array, bytes, bytes_mut, give, out},
    kept::{Buf, Place, Turn},
    status::onebuf_status,
    words::{self, onebuf_access, onebuf_memory_kind},
};
use onebuf::{Access, MemoryKind, RouteKind};
use std::{
    ffi::c_void,
    ptr::null_mut,
    sync::atomic::{Ordering, fence},
    time::Duration,
};

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

/// Gives the buffer to the host: maps it for reading, for writing, or for both, unless it is already mapped for that. With
/// ONEBUF_WRITE the host must not read; bytes that it does not write keep their values. Waits for earlier work. `data` is
/// valid, for the size of the buffer, until onebuf_buffer_to_device(), until a map for other access replaces it, or until
/// the buffer is freed; kernels that would use the buffer fail with ONEBUF_BUSY meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_to_host(
    buffer: onebuf_buffer,
    access: onebuf_access,
    data: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let data = out(data, "data")?;
        *data = Place::to_host(&buffer.get()?, words::access(access)?)?;
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
    access: Access,
) -> Result<Option<*mut u8>> {
    let range = buffer.range(offset, bytes)?;
    // SAFETY: the range is inside the buffer, and the map covers all of it.
    Ok(turn.map(access).map(|persistent| unsafe { persistent.data.cast::<u8>().add(range.start) }))
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
        let Some(at) = reach(turn, object, offset, bytes, Access::Write)? else { return Ok(false) };
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
        let Some(at) = reach(turn, object, offset, bytes, Access::Read)? else { return Ok(false) };
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

/// Makes several writes in one hand-over: through the persistent map, or as one batch if there is none. Later writes
/// win where two overlap. If a range is not inside the buffer nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_store_many(
    buffer: onebuf_buffer,
    writes: *const onebuf_write,
    count: usize,
) -> onebuf_status {
    entry(|| {
        let kept = buffer.get()?;
        // SAFETY: guaranteed by the caller, here and below.
        let writes = unsafe { array(writes, count, "writes")? };
        let parts = writes.iter().map(|write| {
            let range = kept.range(write.offset, write.bytes)?;
            // SAFETY: guaranteed by the caller.
            Ok((range.start, unsafe { bytes(write.data, write.bytes, "data")? }))
        });
        let parts = parts.collect::<Result<Vec<(usize, &[u8])>>>()?;
        let turn = kept.persistent.lock();
        if let Some(persistent) = turn.map(Access::Write) {
            for (start, data) in parts {
                // SAFETY: the range is inside the buffer, and the map covers all of it.
                unsafe {
                    persistent.data.cast::<u8>().add(start).copy_from(data.as_ptr(), data.len())
                };
            }
            return Ok(());
        }
        drop(turn);
        match &kept.buf {
            Buf::Whole(buffer) => {
                let mut batch = buffer.batch();
                for (start, data) in parts {
                    batch.write(start, data)?;
                }
                Ok(batch.flush()?)
            }
            Buf::Region { region, .. } => parts.into_iter().try_for_each(|(start, data)| {
                Ok(region.write_range(start..start + data.len(), data)?)
            }),
        }
    })
}

/// Completes the host's stores to these bytes of the persistent map, also streaming stores, before any later store or
/// call, and flushes these bytes where the map is not coherent (OpenGL's maps for streaming): devices that access the same
/// memory see them. Devices with memory of their own see them at the next hand-over, which a launch does by itself.
/// Without a map there is nothing to do. ONEBUF_INVALID_ARGUMENT for a range outside of the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_flush(
    buffer: onebuf_buffer,
    offset: usize,
    bytes: usize,
) -> onebuf_status {
    entry(|| {
        let kept = buffer.get()?;
        // An empty range may lie anywhere inside, also at the end.
        if bytes > 0 || offset > kept.len() {
            kept.range(offset, bytes)?;
        }
        // On x86 this is a locked instruction or `mfence`, which also drains write-combining buffers.
        fence(Ordering::SeqCst);
        let turn = kept.persistent.lock();
        if turn.map(Access::Write).is_some() {
            let (whole, start) = kept.whole();
            whole.flush_stores(start + offset, bytes)?;
        }
        Ok(())
    })
}

/// How the host accesses a buffer now. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_buffer_state {
    /// `sizeof(onebuf_buffer_state)`.
    pub size: usize,
    /// Size of the buffer in bytes.
    pub bytes: usize,
    /// The address of the persistent map; NULL: there is none.
    pub data: *mut c_void,
    /// Not zero: there is a persistent map.
    pub mapped: u32,
    /// Not zero: the host may write through the map.
    pub writable: u32,
    /// The memory kind.
    pub memory_kind: onebuf_memory_kind,
    /// Not zero: the host and all devices of the buffer access the same memory, and see each other's stores without a
    /// call of the driver.
    pub coherent: u32,
}
// SAFETY: plain numbers and a pointer, the size first.
unsafe impl Options for onebuf_buffer_state {}

/// Whether all devices of the buffer access one memory that needs no driver call to become visible.
fn is_coherent(buffer: &Buf) -> bool {
    let plan = buffer.whole().0.plan();
    let memory = matches!(plan.memory_kind, MemoryKind::HostPages | MemoryKind::FineSvm);
    let same = |kind| matches!(kind, RouteKind::Same | RouteKind::SvmPointer);
    memory && plan.routes.iter().all(|hop| same(hop.kind))
}

/// Queries the persistent map of a buffer and its memory. Makes no hand-over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_get_state(
    buffer: onebuf_buffer,
    state: *mut onebuf_buffer_state,
) -> onebuf_status {
    entry(|| {
        let kept = buffer.get()?;
        let turn = kept.persistent.lock();
        let map = turn.host();
        let known = onebuf_buffer_state {
            size: size_of::<onebuf_buffer_state>(),
            bytes: kept.len(),
            data: map.map_or(null_mut(), |map| map.data),
            mapped: u32::from(map.is_some()),
            writable: u32::from(turn.map(Access::Write).is_some()),
            memory_kind: words::memory_kind_number(kept.whole().0.plan().memory_kind),
            coherent: u32::from(is_coherent(&kept)),
        };
        drop(turn);
        // SAFETY: guaranteed by the caller.
        unsafe { give(known, state, "state") }
    })
}
