//! A queue's timeline: the submitted and the completed value.

use super::device::Context;
use onebuf_hal::{
    DeviceKind, Result,
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
    patience,
};
use onebuf_sys::vulkan::vk;
use std::time::{Duration, Instant};

/// A timeline semaphore. Each batch of its queue raises it by one when it is done.
#[derive(Debug)]
pub(super) struct Timeline {
    pub context: Arc<Context>,
    pub raw: vk::Semaphore,
    /// The value after all submitted work.
    submitted: AtomicU64,
    /// The highest value that has been observed.
    reached: AtomicU64,
    is_foreign: bool,
}

impl Timeline {
    /// A timeline that an earlier queue has left, or a new one.
    pub fn new(context: Arc<Context>) -> Result<Timeline> {
        if let Some((raw, value)) = context.idle_timelines.take() {
            return Ok(Timeline::over(context, raw, value, false));
        }
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: a live device that has the feature.
        let raw = context.driver.check(unsafe { context.table.create_semaphore(&info) })?;
        Ok(Timeline::over(context, raw, 0, false))
    }

    /// A timeline of the application, which submits its signals itself.
    pub fn foreign(context: Arc<Context>, raw: vk::Semaphore) -> Timeline {
        let timeline = Timeline::over(context, raw, 0, true);
        timeline.note_submitted(u64::MAX);
        timeline
    }

    fn over(context: Arc<Context>, raw: vk::Semaphore, value: u64, is_foreign: bool) -> Timeline {
        let (submitted, reached) = (AtomicU64::new(value), AtomicU64::new(value));
        Timeline { context, raw, submitted, reached, is_foreign }
    }

    /// The value after all submitted work.
    pub fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Whether the driver has the work up to this value.
    pub fn is_submitted(&self, value: u64) -> bool {
        self.submitted() >= value
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

    /// Waits until the timeline has reached this value; returns false at the timeout. A chip is polled at first, like those of other
    /// APIs: the driver's wait sleeps, and waking up takes longer than most work.
    pub fn wait(&self, value: u64, timeout: Duration) -> Result<bool> {
        let start = Instant::now();
        let polls = self.context.driver.info.kind != DeviceKind::Cpu;
        loop {
            if self.has_reached(value)? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if !polls || waited >= timeout || patience::pause(waited).is_some() {
                break;
            }
            patience::breathe(waited);
        }
        let timeout = timeout.saturating_sub(start.elapsed());
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
    /// Keeps the semaphore for the next queue; batches that use it keep the timeline until they are done.
    fn drop(&mut self) {
        if self.is_foreign {
            return;
        }
        let (submitted, reached) = (*self.submitted.get_mut(), *self.reached.get_mut());
        if reached >= submitted {
            return self.context.idle_timelines.keep(self.raw, submitted);
        }
        // SAFETY: created by `new`, destroyed once; only a lost device leaves work behind.
        unsafe { self.context.table.destroy_semaphore(self.raw) };
    }
}

/// Semaphores without a queue, each with its value. They are destroyed with their device, after its queues are idle: lavapipe (Mesa
/// 22.3) still touches a semaphore for a moment after the work that waited for it is done, and crashes if it is gone.
#[derive(Debug, Default)]
pub(super) struct IdleTimelines(Mutex<Vec<(vk::Semaphore, u64)>>);

impl IdleTimelines {
    fn take(&self) -> Option<(vk::Semaphore, u64)> {
        lock(&self.0).pop()
    }

    fn keep(&self, raw: vk::Semaphore, value: u64) {
        lock(&self.0).push((raw, value));
    }

    /// All of them, at the end of their device.
    pub fn drain(&self) -> Vec<(vk::Semaphore, u64)> {
        std::mem::take(&mut *lock(&self.0))
    }
}
