//! A queue's timeline: the submitted and the completed value.

use super::device::Context;
use onebuf_hal::{
    Result,
    locks::{Arc, AtomicU64, Ordering},
};
use onebuf_sys::vulkan::vk;
use std::time::Duration;

/// A timeline semaphore. Each batch raises it by one when it is done.
#[derive(Debug)]
pub(super) struct Timeline {
    pub context: Arc<Context>,
    pub raw: vk::Semaphore,
    /// The value after all submitted work.
    submitted: AtomicU64,
    /// The highest value that has been observed.
    reached: AtomicU64,
}

impl Timeline {
    pub fn new(context: Arc<Context>) -> Result<Timeline> {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: a live device that has the feature.
        let raw = context.driver.check(unsafe { context.table.create_semaphore(&info) })?;
        let (submitted, reached) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Timeline { context, raw, submitted, reached })
    }

    /// Whether the driver has the work up to this value.
    pub fn is_submitted(&self, value: u64) -> bool {
        self.submitted.load(Ordering::Acquire) >= value
    }

    pub fn note_submitted(&self, value: u64) {
        self.submitted.store(value, Ordering::Release);
    }

    /// Whether the timeline has reached this value.
    pub fn has_reached(&self, value: u64) -> Result<bool> {
        if self.reached.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        let Context { driver, table, .. } = &*self.context;
        // SAFETY: a live semaphore of this device.
        let now = driver.check(unsafe { table.get_semaphore_counter_value(self.raw) })?;
        self.reached.fetch_max(now, Ordering::AcqRel);
        Ok(now >= value)
    }

    /// Waits until the timeline has reached this value; returns false at the timeout.
    pub fn wait(&self, value: u64, timeout: Duration) -> Result<bool> {
        if self.has_reached(value)? {
            return Ok(true);
        }
        let (raw, values) = ([self.raw], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&raw).values(&values);
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(i64::MAX as u64);
        let Context { driver, table, .. } = &*self.context;
        // SAFETY: a live semaphore of this device; waiting for a value that is not submitted yet is allowed.
        match unsafe { table.wait_semaphores(&info, ns) } {
            Err(refused) if refused.status == vk::Result::TIMEOUT => Ok(false),
            waited => {
                driver.check(waited)?;
                self.reached.fetch_max(value, Ordering::AcqRel);
                Ok(true)
            }
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once; batches that use it keep it until they are done.
        unsafe { self.context.table.destroy_semaphore(self.raw) };
    }
}
