//! A device that another API's runtime is built on. The device then uses the runtime's context, so that queues of both
//! can wait for each other's events.

use super::{
    device::{Context, Device},
    foreign,
};
use onebuf_hal::{self as hal, Error, Result, locks::Arc};
use onebuf_sys::opencl::ClContext;
use std::ffi::c_void;

impl Device {
    /// Uses a layered runtime's context for this device from now on.
    ///
    /// # Errors
    /// If the context has several devices, because some drivers then place coarse SVM in host memory. If this device already
    /// has a context.
    ///
    /// # Safety
    /// `context` is a live context of this device.
    pub unsafe fn settle_in(&self, context: usize) -> Result<()> {
        let driver = self.driver();
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::context(&driver.cl, context) }?;
        if facts.devices.len() != 1 || !self.is(facts.devices[0]) {
            let what = format!("the context of a runtime that is built on {}", driver.info.name);
            return Err(Error::unsupported(what, "a context of this device alone"));
        }
        let (raw, ids) = (ClContext(context as *mut c_void), Arc::default());
        // SAFETY: the caller's promise.
        let context = unsafe { Context::retained(driver.clone(), raw, ids) }?;
        match self.settle(context) {
            true => Ok(()),
            false => Err(driver.foreign("a runtime's context", None)),
        }
    }
}

impl hal::BaseDevice for Device {
    unsafe fn queue(&self, raw: usize) -> Result<Arc<dyn hal::Queue>> {
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::queue(&self.driver().cl, raw) }?;
        if !self.owns(facts.context) || !self.is(facts.device) {
            return Err(self.driver().foreign("a runtime's queue", None));
        }
        // SAFETY: as above, and of this device's context.
        unsafe { self.wrap_queue(raw, facts.spec) }
    }
}
