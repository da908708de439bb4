//! Native queues that work is submitted to: onebuf's own, and one that the application uses, too.

use super::device::Driver;
use onebuf_hal::{
    Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::vulkan::{Device, vk, vk::Handle};
use std::fmt;

/// A semaphore that a submission waits for or signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemaphorePoint {
    /// The `VkSemaphore`.
    pub semaphore: u64,
    /// The value of a timeline semaphore; `None` for a binary one.
    pub value: Option<u64>,
}

impl SemaphorePoint {
    pub(super) fn timeline(semaphore: vk::Semaphore, value: u64) -> Self {
        Self { semaphore: semaphore.as_raw(), value: Some(value) }
    }

    pub(super) fn binary(semaphore: vk::Semaphore) -> Self {
        Self { semaphore: semaphore.as_raw(), value: None }
    }
}

/// Work for a queue. Without commands and signals, only the queue's later work waits.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// What all commands from here on wait for, at every pipeline stage.
    pub waits: &'a [SemaphorePoint],
    /// The `VkCommandBuffer`s, if there are any.
    pub commands: &'a [usize],
    /// What is signalled when these commands, and all work that the queue got before, are done.
    pub signals: &'a [SemaphorePoint],
}

/// A `VkQueue` that the application uses, too. onebuf passes its work to this instead of calling `vkQueueSubmit`, so that the
/// application can exclude its own use of the queue meanwhile.
///
/// # Safety
/// - [`SharedQueue::submit`] submits the work to the one queue that it stands for, after everything that was submitted before,
///   and before it returns. If it returns an error, the commands were not submitted and nothing will be signalled.
/// - No two threads use the queue at the same time.
/// - The queue's device stays alive while this does.
pub unsafe trait SharedQueue: Send + Sync + fmt::Debug {
    /// Submits the work. It must not call onebuf.
    ///
    /// # Errors
    /// Why the work could not be submitted. It is submitted again later.
    fn submit(&self, work: &Submission<'_>) -> Result<()>;

    /// Whether the commands are executed by a primary command buffer of the application (`vkCmdExecuteCommands`), so that they
    /// must be secondary ones.
    fn takes_secondary(&self) -> bool {
        false
    }

    /// Whether the queue takes no more work from onebuf, and is known to be idle since. onebuf destroys its semaphores only
    /// once the queue no longer touches them.
    fn is_finished(&self) -> bool {
        false
    }

    /// The `VkQueue`.
    fn raw(&self) -> usize;
}

/// A native queue.
#[derive(Debug)]
pub(super) enum Lane {
    /// Only onebuf submits to it; the lock lets one thread at a time do so.
    Own(Mutex<vk::Queue>),
    Shared(Arc<dyn SharedQueue>),
}

impl Lane {
    pub fn own(queue: vk::Queue) -> Lane {
        Lane::Own(Mutex::new(queue))
    }

    pub fn is_shared(&self) -> bool {
        matches!(self, Lane::Shared(_))
    }

    pub fn raw(&self) -> usize {
        match self {
            Lane::Own(queue) => lock(queue).as_raw() as usize,
            Lane::Shared(queue) => queue.raw(),
        }
    }

    /// The level of the command buffers that it takes.
    pub fn level(&self) -> vk::CommandBufferLevel {
        match self {
            Lane::Shared(queue) if queue.takes_secondary() => vk::CommandBufferLevel::SECONDARY,
            _ => vk::CommandBufferLevel::PRIMARY,
        }
    }

    /// Submits work, while no other thread does.
    ///
    /// # Safety
    /// Recorded commands that are not pending, and live semaphores, all of this device.
    pub unsafe fn submit(
        &self,
        table: &Device,
        driver: &Driver,
        work: &Submission<'_>,
    ) -> Result<()> {
        driver.post.watch("vkQueueSubmit", || match self {
            Lane::Shared(queue) => queue.submit(work),
            Lane::Own(queue) => {
                let queue = lock(queue);
                // SAFETY: the caller's promise; the lock excludes other threads.
                unsafe { submit_to(table, driver, *queue, work) }
            }
        })
    }

    /// Waits until the driver no longer touches the semaphores of work that onebuf has submitted here. That is later than the
    /// end of the work: lavapipe (Mesa 22.3) lets go of them after it has signalled that. `marker` is an unused timeline and its
    /// value.
    pub fn wait_idle(
        &self,
        table: &Device,
        driver: &Driver,
        marker: (vk::Semaphore, u64),
    ) -> Result<()> {
        match self {
            Lane::Own(queue) => {
                let queue = lock(queue);
                // SAFETY: a live queue, which the lock keeps other threads from; all its work is known to be done.
                let wait = || unsafe { table.queue_wait_idle(*queue) };
                let watched = || driver.post.watch("vkQueueWaitIdle", wait);
                driver.check(watched().or_else(|_| watched()))
            }
            Lane::Shared(queue) if queue.is_finished() => Ok(()),
            Lane::Shared(_) => self.pass_markers(table, driver, marker),
        }
    }

    /// Waits for work of onebuf behind everything else in the application's queue. The application's work may take long, or wait
    /// for the application: `vkQueueWaitIdle` would have no timeout, and would keep the queue's lock. The first marker takes
    /// along waits that the application has not submitted yet; after the second the driver has let go of them.
    fn pass_markers(
        &self,
        table: &Device,
        driver: &Driver,
        (marker, value): (vk::Semaphore, u64),
    ) -> Result<()> {
        for value in [value + 1, value + 2] {
            let signals = [SemaphorePoint::timeline(marker, value)];
            let work = Submission { waits: &[], commands: &[], signals: &signals };
            // SAFETY: a live semaphore of this device, and no commands.
            unsafe { self.submit(table, driver, &work) }?;
        }
        let (raw, values, limit) = ([marker], [value + 2], driver.post.limit());
        let info = vk::SemaphoreWaitInfo::default().semaphores(&raw).values(&values);
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).min(i64::MAX as u64);
        // SAFETY: a live semaphore of this device.
        driver.check(unsafe { table.wait_semaphores(&info, ns) })
    }
}

/// # Safety
/// As for [`Lane::submit`]; no other thread uses the queue.
unsafe fn submit_to(
    table: &Device,
    driver: &Driver,
    queue: vk::Queue,
    work: &Submission<'_>,
) -> Result<()> {
    let semaphore = |point: &SemaphorePoint| vk::Semaphore::from_raw(point.semaphore);
    // The driver ignores the value of a binary semaphore.
    let value = |point: &SemaphorePoint| point.value.unwrap_or(0);
    let split = |points: &[SemaphorePoint]| -> (Vec<_>, Vec<_>) {
        points.iter().map(|point| (semaphore(point), value(point))).unzip()
    };
    let ((waits, wait_values), (ends, end_values)) = (split(work.waits), split(work.signals));
    let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
    let commands: Vec<_> =
        work.commands.iter().map(|one| vk::CommandBuffer::from_raw(*one as u64)).collect();
    let mut times = vk::TimelineSemaphoreSubmitInfo::default()
        .wait_semaphore_values(&wait_values)
        .signal_semaphore_values(&end_values);
    let work = vk::SubmitInfo::default()
        .wait_semaphores(&waits)
        .wait_dst_stage_mask(&stages)
        .command_buffers(&commands)
        .signal_semaphores(&ends)
        .push_next(&mut times);
    // SAFETY: the caller's promise.
    driver.check(unsafe { table.queue_submit(queue, &[work], vk::Fence::null()) })
}
