//! A runtime of another API that is built on one of our OpenCL devices.
//!
//! # Safety
//! A runtime that names one of our library's devices has that library too, and keeps the context that it names.

#![allow(unsafe_code)]

use super::Known;
use crate::{
    Result,
    hal::{BaseDevice, LayeredHandles},
    sync::Arc,
    topology::DeviceIx,
};

impl Known {
    /// Which of our devices the runtime is built on, used in the runtime's context from now on. None where it is another
    /// library's.
    pub fn base_device_of(
        &self,
        layered: &LayeredHandles,
    ) -> Option<(DeviceIx, Result<Arc<dyn BaseDevice>>)> {
        let at = self.devices.iter().position(|device| device.is(layered.device))?;
        let (ix, device) = (DeviceIx((self.first + at) as u16), self.devices[at].clone());
        // SAFETY: see above.
        let settled = unsafe { device.settle_in(layered.context) };
        Some((ix, settled.map(|()| device as _)))
    }
}
