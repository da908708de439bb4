//! Standing maps
//!
//! For programs that keep one pointer to a buffer's memory and say whose turn it is: the host's, or the
//! kernels'. A buffer has one standing map at most, whoever asks for it, and asking again costs no driver
//! call. It ends when the kernels' turn comes, or with the buffer.

use crate::{
    buffer::{Buf, onebuf_buffer},
    entry::{Result, entry},
    handle::Noun,
    input::{Slot, out},
    mapping::Mapping,
    status::onebuf_status,
    words::{self, onebuf_access},
};
use onebuf::Access;
use std::{
    collections::BTreeMap,
    ffi::c_void,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The map of one buffer. Each has a lock of its own, since mapping waits for kernels.
type Place = Arc<Mutex<Option<Standing>>>;

static PLACES: Mutex<BTreeMap<u64, Place>> = Mutex::new(BTreeMap::new());

struct Standing {
    mapping: Mapping,
    data: *mut c_void,
    writes: bool,
}

// SAFETY: the pointer is only handed out; the mapping is sent from thread to thread as any handle's is.
unsafe impl Send for Standing {}

impl Standing {
    fn open(buffer: Arc<Buf>, writes: bool) -> Result<Self> {
        let (mapping, data) = Mapping::open(buffer, writes)?;
        Ok(Self { mapping, data, writes })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the standing map of a buffer that is freed.
pub(crate) fn forget(buffer: onebuf_buffer) {
    // Dropped when the lock is gone: unmapping may take long.
    let place = lock(&PLACES).remove(&buffer.id);
    drop(place);
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
        let object = buffer.get()?;
        let place = lock(&PLACES).entry(buffer.id).or_default().clone();
        let mut held = lock(&place);
        if let Some(standing) = held.as_ref().filter(|standing| standing.writes || !writes) {
            *data = standing.data;
            return Ok(());
        }
        // A map for reading ends before one for writing begins.
        if let Some(standing) = held.take() {
            standing.mapping.close()?;
        }
        *data = held.insert(Standing::open(object, writes)?).data;
        Ok(())
    })
}

/// Gives the kernels their turn: ends the standing map, where there is one. Fails only where the host worked
/// on a copy that could not be written back; the map is over then too.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_to_device(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| {
        buffer.get()?;
        let Some(place) = lock(&PLACES).get(&buffer.id).cloned() else { return Ok(()) };
        let standing = lock(&place).take();
        standing.map_or(Ok(()), |standing| standing.mapping.close())
    })
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
        let fence = match (&*object, words::access(access)?) {
            (Buf::Whole(buffer), Access::Read) => buffer.fence(),
            (Buf::Whole(buffer), _) => buffer.uses(),
            (Buf::Region { region, .. }, Access::Read) => region.fence(),
            (Buf::Region { region, .. }, _) => region.uses(),
        };
        Ok(fence.map_or(Ok(()), |fence| fence.wait(Duration::from_nanos(timeout_ns)))?)
    })
}
