//! A queue that the program and onebuf use in turn, under one lock.
//!
//! # Safety
//! The caller of `AshHubExt::ash` guarantees that the queue belongs to the device, and that every user holds the lock.

#![allow(unsafe_code)]

use ash::{vk, vk::Handle};
use onebuf::{Error, Result, VulkanPoint, VulkanSharedQueue, VulkanSubmission};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The program's queue and the functions of its device.
pub(crate) struct LockedQueue {
    pub device: ash::Device,
    pub queue: Arc<Mutex<vk::Queue>>,
}

impl LockedQueue {
    /// A panic of the program under the lock leaves the handle as it was.
    fn lock(&self) -> MutexGuard<'_, vk::Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LockedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockedQueue").field(&self.queue).finish()
    }
}

// SAFETY: one `vkQueueSubmit` under the lock, which is all or nothing. The caller of `AshHubExt::ash` keeps the device alive.
unsafe impl VulkanSharedQueue for LockedQueue {
    fn submit(&self, work: &VulkanSubmission<'_>) -> Result<()> {
        let (waits, wait_values) = split(work.waits);
        let (signals, signal_values) = split(work.signals);
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let commands: Vec<_> =
            work.commands.iter().map(|one| vk::CommandBuffer::from_raw(*one as u64)).collect();
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages)
            .command_buffers(&commands)
            .signal_semaphores(&signals)
            .push_next(&mut values);
        let queue = self.lock();
        // SAFETY: onebuf passes recorded commands and live semaphores of this device; the lock excludes other users.
        let submitted = unsafe { self.device.queue_submit(*queue, &[info], vk::Fence::null()) };
        submitted.map_err(|status| refused("vkQueueSubmit", status))
    }

    fn raw(&self) -> usize {
        self.lock().as_raw() as usize
    }
}

/// Semaphores and their values; the driver ignores the value of a binary semaphore.
fn split(points: &[VulkanPoint]) -> (Vec<vk::Semaphore>, Vec<u64>) {
    let one = |point: &VulkanPoint| {
        (vk::Semaphore::from_raw(point.semaphore), point.value.unwrap_or_default())
    };
    points.iter().map(one).unzip()
}

/// A driver's status as an error.
pub(crate) fn refused(call: &'static str, status: vk::Result) -> Error {
    let (code, name) = (status.as_raw(), format!("{status:?}"));
    match status {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost {
            device: "the application's VkDevice".to_owned(),
            reason: format!("{call} returned {name}"),
        },
        _ => Error::Driver { api: "vulkan", call, code, name },
    }
}
