//! Transfers
//!
//! Asynchronous reads and writes. A transfer owns its host memory, so drivers never access memory of the caller: the
//! data of a write is copied when it starts, and the data of a read is available in the transfer's memory once it is
//! done.

use crate::{
    buffer::onebuf_buffer,
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{Slot, bytes, out, timeout},
    status::onebuf_status,
};
use onebuf::{Error, Pending};
use std::{
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

/// A transfer. Free it with onebuf_transfer_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_transfer {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_transfer, Transfer, 8);

/// A transfer, and its default timeout.
#[doc(hidden)]
pub struct Transfer {
    state: Mutex<State>,
    timeout: Duration,
}

enum State {
    UnderWay(Pending<u8>),
    Done(Vec<u8>),
}

impl Transfer {
    fn new(pending: Pending<u8>, hub: &onebuf::Hub) -> Self {
        Self { state: Mutex::new(State::UnderWay(pending)), timeout: hub.timeout() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does not queue behind a thread that waits: the caller can ask again.
    fn is_done(&self) -> Result<bool> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        match &*state {
            State::UnderWay(pending) => Ok(pending.is_done()?),
            State::Done(_) => Ok(true),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let mut state = self.lock();
        if let State::UnderWay(pending) = &mut *state {
            *state = State::Done(pending.wait(timeout)?);
        }
        Ok(())
    }
}

/// A vector of zeroes; an error if memory runs out.
fn zeroes(count: usize) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let lacking =
        |_| Error::OutOfMemory { device: "host".into(), asked: count as u64, limit: None };
    all.try_reserve_exact(count).map_err(lacking)?;
    all.resize(count, 0);
    Ok(all)
}

/// Starts a read of `bytes` bytes at `offset`. Later work on the buffer is ordered after it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_read_async(
    buffer: onebuf_buffer,
    offset: usize,
    bytes: usize,
    transfer: Slot<'_, onebuf_transfer>,
) -> onebuf_status {
    entry(|| {
        let transfer = out(transfer, "transfer")?;
        let buffer = buffer.get()?;
        let (whole, range) = buffer.outer(offset, bytes)?;
        let pending = whole.read_async(range, zeroes(bytes)?)?;
        *transfer = onebuf_transfer::put(Transfer::new(pending, whole.hub()))?;
        Ok(())
    })
}

/// Starts a write of `bytes` bytes at `offset`. `data` is copied, and may be reused at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_write_async(
    buffer: onebuf_buffer,
    offset: usize,
    data: *const c_void,
    bytes: usize,
    transfer: Slot<'_, onebuf_transfer>,
) -> onebuf_status {
    entry(|| {
        let transfer = out(transfer, "transfer")?;
        let buffer = buffer.get()?;
        let (whole, range) = buffer.outer(offset, bytes)?;
        let mut own = zeroes(bytes)?;
        // SAFETY: guaranteed by the caller.
        own.copy_from_slice(unsafe { self::bytes(data, bytes, "data")? });
        let pending = whole.write_async(range, own)?;
        *transfer = onebuf_transfer::put(Transfer::new(pending, whole.hub()))?;
        Ok(())
    })
}

/// Whether the transfer is done; no while another thread waits for it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_transfer_poll(
    transfer: onebuf_transfer,
    done: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        *out(done, "done")? = transfer.get()?.is_done()?;
        Ok(())
    })
}

/// Waits for the transfer. ONEBUF_TIMEOUT if it takes longer; the wait may be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_transfer_wait(
    transfer: onebuf_transfer,
    timeout_ms: u64,
) -> onebuf_status {
    entry(|| {
        let transfer = transfer.get()?;
        transfer.wait(timeout(timeout_ms).unwrap_or(transfer.timeout))
    })
}

/// The bytes that were read (or written), valid until the transfer is freed. ONEBUF_BUSY before a wait for it has
/// succeeded. `bytes` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_transfer_data(
    transfer: onebuf_transfer,
    data: Slot<'_, *const c_void>,
    bytes: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        let data = out(data, "data")?;
        match &*transfer.get()?.lock() {
            State::Done(found) => {
                *data = found.as_ptr().cast();
                bytes.map(|bytes| bytes.write(found.len()));
                Ok(())
            }
            State::UnderWay(_) => {
                let what = "the transfer is not done: call onebuf_transfer_wait() first".into();
                Err(Fault::from(Error::Busy { what }))
            }
        }
    })
}

/// Frees a transfer. If it is still running, this waits for it, up to the hub's timeout.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_transfer_free(transfer: onebuf_transfer) -> onebuf_status {
    free(transfer)
}
