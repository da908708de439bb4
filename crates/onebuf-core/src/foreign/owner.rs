//! A wrapped buffer and its owner: lifetime, ordering, and transfer of ownership.

pub(super) use crate::buffer::Claim;

use crate::{Buffer, Fence, Queue, device::Device};
use bytemuck::Pod;
use onebuf_hal::{Result, SyncMethod};
use std::{ffi::c_void, marker::PhantomData, ops::Deref};

/// A wrapped buffer that cannot outlive the owner of its memory.
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
    /// Declares that writes to this memory from outside onebuf end at `fence`. The next user of the buffer waits for it. Meant
    /// mainly for the owner of wrapped memory.
    ///
    /// # Errors
    /// [`Error::Busy`](onebuf_hal::Error::Busy) while a guard of the buffer is held, while the memory is mapped, or while another
    /// device has the newest contents: the owner must not have written the memory then. See [`Buffer::hand_to`].
    pub fn written_until(&self, fence: &Fence) -> Result<()> {
        self.note_foreign(fence, true)
    }

    /// Declares that reads of this memory from outside onebuf end at `fence`. The next *writer* of the buffer waits for it.
    ///
    /// # Errors
    /// As for [`Buffer::written_until`].
    pub fn read_until(&self, fence: &Fence) -> Result<()> {
        self.note_foreign(fence, false)
    }

    /// Makes the newest contents visible on `queue` and orders it after all work on the buffer, for commands that the queue's
    /// owner enqueues there itself. Returns the sync method used.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`].
    pub fn hand_to(&self, queue: &Queue) -> Result<SyncMethod> {
        let view = self.write_on(queue)?;
        // On an out-of-order queue, taking the raw handle is what enqueues the wait.
        view.raw()?;
        let sync_method = view.sync_method();
        drop(view);
        queue.flush()?;
        Ok(sync_method)
    }

    /// Converts the buffer into its `cl_mem` on that device. The caller owns one reference and must release it. All work on the
    /// memory has completed, and it has the newest contents. The memory under it (host pages, another device's memory) stays
    /// allocated until the driver destroys the `cl_mem`. It never returns to a pool.
    ///
    /// # Errors
    /// [`Error::Unsupported`](onebuf_hal::Error::Unsupported) if the device accesses the buffer by an address;
    /// [`Error::NotShared`](onebuf_hal::Error::NotShared); [`Error::Timeout`](onebuf_hal::Error::Timeout). The buffer is consumed
    /// even on an error; call [`Buffer::fence`] first if that matters.
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
