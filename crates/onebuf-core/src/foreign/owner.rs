//! A wrapped buffer and its owner: for how long, in what order, and whose it is in the end.

pub(super) use crate::buffer::Claim;

use crate::{Buffer, Fence, Queue, device::Device};
use bytemuck::Pod;
use onebuf_hal::{Result, SyncMethod};
use std::{ffi::c_void, marker::PhantomData, ops::Deref};

/// A wrapped buffer that lives no longer than what its memory belongs to.
#[derive(Debug)]
pub struct Borrowed<'m, T: Pod> {
    buffer: Buffer<T>,
    owner: PhantomData<&'m ()>,
}

impl<T: Pod> Borrowed<'_, T> {
    pub(super) fn new(buffer: Buffer<T>) -> Self {
        Self { buffer, owner: PhantomData }
    }
}

impl<T: Pod> Deref for Borrowed<'_, T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Buffer<T> {
    /// Somebody else's writes to this memory end at that point: whoever uses the buffer next waits for
    /// it. For the owner of a wrapped buffer, mostly.
    ///
    /// # Errors
    /// [`Error::Busy`](onebuf_hal::Error::Busy) while a guard of the buffer is held, or while the memory is mapped or its newest contents
    /// are with another device: the owner must not have written it then. See [`Buffer::hand_to`].
    pub fn written_until(&self, fence: &Fence) -> Result<()> {
        self.note_foreign(fence, true)
    }

    /// The same for somebody else's reads: whoever *writes* the buffer next waits for them.
    ///
    /// # Errors
    /// As for [`Buffer::written_until`].
    pub fn read_until(&self, fence: &Fence) -> Result<()> {
        self.note_foreign(fence, false)
    }

    /// Makes the newest contents visible on that queue and orders it after all work on the buffer, for
    /// commands that its owner will enqueue there by itself. Says by which sync method.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`].
    pub fn hand_to(&self, queue: &Queue) -> Result<SyncMethod> {
        let view = self.write_on(queue)?;
        // An out-of-order queue waits only once its handle is given away.
        view.raw()?;
        let sync_method = view.sync_method();
        drop(view);
        queue.flush()?;
        Ok(sync_method)
    }

    /// Gives the buffer up for its `cl_mem` on that device, which then belongs to the caller: one reference,
    /// to be released. All work on it is over, the newest contents are in it, and what it lies over (host
    /// pages, another device's memory) stays until the driver destroys it. It never returns to a pool.
    ///
    /// # Errors
    /// [`Error::Unsupported`](onebuf_hal::Error::Unsupported) where the device sees the buffer as an address;
    /// [`Error::NotShared`](onebuf_hal::Error::NotShared); [`Error::Timeout`](onebuf_hal::Error::Timeout). The buffer is gone all the same: call [`Buffer::fence`] first where that matters.
    pub fn into_cl_mem(self, device: &Device) -> Result<*mut c_void> {
        let queue = Queue {
            hub: device.hub().clone(),
            queue_state: device.hub().service_queue_state(device.index())?,
        };
        let view = self.write_on(&queue)?;
        view.cl_mem()?;
        drop(view);
        queue.finish()?;
        self.detach();
        let (core, device) = (self.core(), device.index());
        let alias = core.alias_of(device).ok_or_else(|| core.not_shared(device))?;
        let raw = self.part().memory(alias)?.get().retain()?;
        Ok(raw as *mut c_void)
    }
}
