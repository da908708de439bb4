//! A runtime of another API that is built on one of our OpenCL devices.
//!
//! # Safety
//! A runtime that names one of our library's devices has that library too, and keeps the context that it names.

#![allow(unsafe_code)]

use super::Known;
use crate::{
    Result,
    hal::{Beneath, Ground},
    sync::Arc,
    topology::DeviceIx,
};

impl Known {
    /// Which of our devices the runtime is built on, used in the runtime's context from now on. None where it is another
    /// library's.
    pub fn ground_of(&self, beneath: &Beneath) -> Option<(DeviceIx, Result<Arc<dyn Ground>>)> {
        let at = self.devices.iter().position(|device| device.is(beneath.device))?;
        let (ix, device) = (DeviceIx((self.first + at) as u16), self.devices[at].clone());
        // SAFETY: see above.
        let settled = unsafe { device.settle_in(beneath.context) };
        Some((ix, settled.map(|()| device as _)))
    }
}
