//! ash's types of views, fences and queues.

use ash::{vk, vk::Handle};
use bytemuck::Pod;
use onebuf::{ReadView, Result, VulkanPointHandle, WriteView};

/// A view as ash's handle.
pub trait AshViewExt {
    /// The `vk::Buffer`, and the byte in it at which the view begins. Both are valid until the view is dropped.
    ///
    /// # Errors
    /// [`onebuf::Error::Unsupported`] for a view on a queue of another API.
    fn ash_buffer(&self) -> Result<(vk::Buffer, vk::DeviceSize)>;
}

fn handle((buffer, offset): (u64, u64)) -> (vk::Buffer, vk::DeviceSize) {
    (vk::Buffer::from_raw(buffer), offset)
}

impl<T: Pod> AshViewExt for ReadView<'_, T> {
    fn ash_buffer(&self) -> Result<(vk::Buffer, vk::DeviceSize)> {
        self.vk_buffer().map(handle)
    }
}

impl<T: Pod> AshViewExt for WriteView<'_, T> {
    fn ash_buffer(&self) -> Result<(vk::Buffer, vk::DeviceSize)> {
        self.vk_buffer().map(handle)
    }
}

/// A point that work of onebuf reaches, for a wait of the program's own submission. The semaphore is alive while this is.
#[derive(Debug)]
pub struct AshPoint(pub(crate) VulkanPointHandle);

impl AshPoint {
    /// The timeline semaphore.
    pub fn semaphore(&self) -> vk::Semaphore {
        vk::Semaphore::from_raw(self.0.get().semaphore)
    }

    /// The value to wait for.
    pub fn value(&self) -> u64 {
        self.0.get().value.unwrap_or_default()
    }
}
