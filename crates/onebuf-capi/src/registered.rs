//! A foreign OpenGL context or Vulkan device that was registered, with the handle of its one device.

use crate::{device::onebuf_device, fault::Result, handle::Noun};
use onebuf::Device;

/// A registration, and the handle of its device, which is freed with it.
#[doc(hidden)]
pub struct Registered<C> {
    pub(crate) context: C,
    pub(crate) device: onebuf_device,
}

impl<C> Registered<C> {
    pub(crate) fn new(context: C, device: Device) -> Result<Self> {
        Ok(Self { context, device: onebuf_device::put(device)? })
    }
}

impl<C> Drop for Registered<C> {
    fn drop(&mut self) {
        drop(self.device.take());
    }
}
