//! Transfers
//!
//! Reads and writes that go on while the caller does something else. A transfer owns its host memory, so that
//! none of the caller's is ever in a driver's hands: a write's data is copied when it starts, and a read's is
//! looked at in the transfer's memory once it is done.

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

/// A transfer. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_transfer {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_transfer, Transfer, 8);

/// A transfer, and how long it is waited for when nothing is said.
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

    /// Does not wait for a thread that waits: that has its answer when this is asked again.
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

/// As many zeroes; an error where there is no memory for them.
fn zeroes(count: usize) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let lacking =
        |_| Error::OutOfMemory { device: "host".into(), asked: count as u64, limit: None };
    all.try_reserve_exact(count).map_err(lacking)?;
    all.resize(count, 0);
    Ok(all)
}

/// Starts a read of so many bytes from `offset` on. Later work on the buffer comes after it.
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

/// Starts a write of so many bytes from `offset` on. `data` is copied: it is the caller's again at once.
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
        // SAFETY: the caller's promise.
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

/// Waits for the transfer. ONEBUF_TIMEOUT when it takes longer; the wait may be repeated.
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

/// The bytes that were read (or written), valid until the transfer is freed. ONEBUF_BUSY before a wait for
/// it has succeeded. `bytes` may be NULL.
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
                let what = "this transfer is under way: wait for it first".into();
                Err(Fault::from(Error::Busy { what }))
            }
        }
    })
}

/// Frees a transfer. One that is under way is waited for, for the hub's timeout at most.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_transfer_free(transfer: onebuf_transfer) -> onebuf_status {
    free(transfer)
}
