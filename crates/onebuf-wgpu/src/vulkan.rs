//! wgpu's Vulkan backend: its queue as one that onebuf shares, and buffers over `VkBuffer`s.
//!
//! Commands of onebuf are executed by command buffers of wgpu, and submitted by wgpu, which excludes other threads. Semaphores are
//! added to wgpu's next submission. Submissions of wgpu run one after the other, so a wait that another thread's submission takes
//! along is early, never missed. A signal is added after its commands were submitted: whatever submission takes it along comes
//! after them.
//!
//! # Safety
//! wgpu's handles are live while its objects are, and each object here keeps the `wgpu::Device`.

#![allow(unsafe_code)]

use crate::caught::caught;
use ash::{vk, vk::Handle};
use bytemuck::Pod;
use onebuf::{
    Error, ForeignVulkan, Hub, NativeMemory, Result, VulkanBuffer, VulkanHandles, VulkanPoint,
    VulkanSharedQueue, VulkanSubmission, WrapBuilder, prelude::*,
};
use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use wgpu::hal::{api::Vulkan, vulkan};

/// wgpu's queue. It does not keep the queue: wgpu's queue keeps buffers that its submissions use, and those keep this.
struct WgpuQueue {
    device: wgpu::Device,
    queue: Weak<wgpu::Queue>,
    raw: usize,
    /// One submission of onebuf at a time.
    turn: Mutex<Stage>,
}

/// What onebuf may do with wgpu's queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// It submits nothing any more.
    Closed,
    /// It submits nothing any more, and what it has submitted is done.
    Finished,
}

impl fmt::Debug for WgpuQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuQueue").field("device", &self.device).finish_non_exhaustive()
    }
}

fn lost() -> Error {
    Error::DeviceLost {
        device: "the wgpu::Device".to_owned(),
        reason: "it was lost or destroyed".to_owned(),
    }
}

/// How long dropping a [`Gpu`](crate::Gpu) waits for wgpu's queue.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// Ends onebuf's use of wgpu's queue when it is dropped. The context is dropped later: wgpu may free buffers meanwhile, inside of
/// calls in which none of its functions can be called.
pub(crate) struct Closer(Arc<WgpuQueue>);

impl Drop for Closer {
    fn drop(&mut self) {
        *self.0.turn() = Stage::Closed;
        match self.0.finish() {
            Ok(()) => *self.0.turn() = Stage::Finished,
            Err(why) => tracing::warn!("wgpu's queue may still be at work: {why}"),
        }
    }
}

fn dropped() -> Error {
    Error::Unavailable {
        what: "the wgpu::Queue".to_owned(),
        tried: Vec::new(),
        reason: "the `Gpu` was dropped; keep it while onebuf works on its device".to_owned(),
    }
}

impl WgpuQueue {
    fn turn(&self) -> MutexGuard<'_, Stage> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> Result<Arc<wgpu::Queue>> {
        self.queue.upgrade().ok_or_else(dropped)
    }

    /// Waits until the driver no longer touches semaphores of onebuf. The first submission takes along waits that none has taken
    /// yet; the second has none, and ends after the driver has let go of the first. A destroyed device takes no more: its
    /// last submission is waited for.
    fn finish(&self) -> Result<()> {
        let queue = self.queue()?;
        let submit = || {
            queue.submit([]);
            queue.submit([])
        };
        let submission_index = match self.execute(&queue, &[]) {
            Err(Error::DeviceLost { .. }) => None,
            checked => {
                checked?;
                Some(caught(&self.device, "Queue::submit", submit)?)
            }
        };
        let wait = wgpu::PollType::Wait { submission_index, timeout: Some(CLOSE_WAIT) };
        let failed = |why: wgpu::PollError| {
            let (call, name) = ("Device::poll", why.to_string());
            Error::Driver { api: "wgpu", call, code: 0, name }
        };
        self.device.poll(wait).map(drop).map_err(failed)
    }

    /// Submits commands by a command buffer of wgpu's. Without commands only the device is checked: wgpu reports a lost one
    /// by a callback of the application alone.
    fn execute(&self, queue: &wgpu::Queue, commands: &[usize]) -> Result<()> {
        let commands: Vec<_> =
            commands.iter().map(|one| vk::CommandBuffer::from_raw(*one as u64)).collect();
        caught(&self.device, "Queue::submit", || {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            // SAFETY: a command buffer that is being recorded, outside of a pass. onebuf passes recorded secondary ones of this
            // device, and keeps them until they have run.
            let recorded = unsafe {
                encoder.as_hal_mut::<Vulkan, _, _>(|encoder| {
                    let encoder = encoder?;
                    if !commands.is_empty() {
                        let device = self.device.as_hal::<Vulkan>()?;
                        let into = encoder.raw_handle();
                        device.raw_device().cmd_execute_commands(into, &commands);
                    }
                    Some(())
                })
            };
            recorded.ok_or_else(lost)?;
            if !commands.is_empty() {
                queue.submit([encoder.finish()]);
            }
            Ok(())
        })?
    }
}

fn semaphore(point: &VulkanPoint) -> vk::Semaphore {
    vk::Semaphore::from_raw(point.semaphore)
}

// SAFETY: wgpu submits to its own queue under its own lock, in the order of the calls. A failed first submission leaves nothing
// behind: its waits are taken back. The device is kept.
unsafe impl VulkanSharedQueue for WgpuQueue {
    fn submit(&self, work: &VulkanSubmission<'_>) -> Result<()> {
        let (queue, stage) = (self.queue()?, self.turn());
        if *stage != Stage::Open {
            return Err(dropped());
        }
        // SAFETY: only semaphores are added and removed, which onebuf keeps alive.
        let hal = || unsafe { queue.as_hal::<Vulkan>() }.ok_or_else(lost);
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        for wait in work.waits {
            hal()?.add_wait_semaphore(semaphore(wait), wait.value, all);
        }
        if work.commands.is_empty() && work.signals.is_empty() {
            return Ok(());
        }
        if let Err(why) = self.execute(&queue, work.commands) {
            for wait in work.waits {
                hal()?.remove_wait_semaphore(semaphore(wait));
            }
            return Err(why);
        }
        for signal in work.signals {
            hal()?.add_signal_semaphore(semaphore(signal), signal.value);
        }
        // The commands have been submitted, so this must not fail: the signals go with the next submission, whichever that is.
        if let Err(why) = caught(&self.device, "Queue::submit", || queue.submit([])) {
            tracing::warn!("a signal is late: {why}");
        }
        Ok(())
    }

    fn takes_secondary(&self) -> bool {
        true
    }

    fn is_finished(&self) -> bool {
        *self.turn() == Stage::Finished
    }

    fn raw(&self) -> usize {
        self.raw
    }
}

/// Registers a wgpu device; `None` if it is none of Vulkan.
pub(crate) fn register(
    hub: &Hub,
    device: &wgpu::Device,
    queue: &Arc<wgpu::Queue>,
) -> Result<Option<(ForeignVulkan, Closer)>> {
    // SAFETY: handles are read, which the objects keep alive.
    let (hal, hal_queue) = unsafe { (device.as_hal::<Vulkan>(), queue.as_hal::<Vulkan>()) };
    let (Some(hal), Some(hal_queue)) = (hal, hal_queue) else { return Ok(None) };
    if hal.raw_device().handle() != hal_queue.raw_device().handle() {
        return Err(Error::invalid("the wgpu::Queue belongs to another wgpu::Device"));
    }
    let instance = hal.shared_instance();
    let entry = instance.entry().static_fn().get_instance_proc_addr as *const c_void;
    if !hub.is_vk_loader(entry)? {
        return Err(Error::ForeignContext {
            have: "a wgpu::Device of another Vulkan loader".to_owned(),
            want: "one of the loader that the hub has loaded".to_owned(),
        });
    }
    let names: Vec<_> =
        hal.enabled_device_extensions().iter().map(|name| name.to_string_lossy()).collect();
    let extensions: Vec<_> = names.iter().map(|name| &**name).collect();
    let at = |handle: u64| handle as *mut c_void;
    let handles = VulkanHandles {
        instance: at(instance.raw_instance().handle().as_raw()),
        physical_device: at(hal.raw_physical_device().as_raw()),
        device: at(hal.raw_device().handle().as_raw()),
        queue_family: hal.queue_family_index(),
        queues: &[],
        extensions: &extensions,
    };
    let shared = Arc::new(WgpuQueue {
        device: device.clone(),
        queue: Arc::downgrade(queue),
        raw: hal_queue.as_raw().as_raw() as usize,
        turn: Mutex::new(Stage::Open),
    });
    // SAFETY: live handles of the hub's loader, which the shared queue keeps. wgpu enables timeline semaphores wherever it
    // runs on Vulkan 1.2, and its queue family runs compute shaders.
    let context = unsafe { hub.foreign_vulkan_shared(&handles, shared.clone()) }?;
    Ok(Some((context, Closer(shared))))
}

/// A buffer of wgpu over this memory, which it keeps.
///
/// # Safety
/// The memory belongs to the device. Only submissions that are ordered with its other users use it.
pub(crate) unsafe fn make(
    device: &wgpu::Device,
    memory: &NativeMemory,
    desc: &wgpu::BufferDescriptor<'_>,
) -> Result<wgpu::Buffer> {
    let raw = vk::Buffer::from_raw(memory.object("vulkan")?);
    let kept = memory.clone();
    let callback: wgpu::hal::DropCallback = Box::new(move || drop(kept));
    // SAFETY: the memory keeps the handle, which has the usages of every buffer of onebuf.
    let hal = unsafe { vulkan::Buffer::from_raw_externally_owned(raw, callback) };
    caught(device, "Device::create_buffer_from_hal", || {
        // SAFETY: a buffer of this device, of that size at least, whose contents are initialised.
        unsafe { device.create_buffer_from_hal::<Vulkan>(hal, desc) }
    })
}

/// Wraps a buffer of wgpu.
///
/// # Safety
/// As for [`Gpu::wrap`](crate::Gpu::wrap).
pub(crate) unsafe fn wrap<'h, T: Pod>(
    context: &'h ForeignVulkan,
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    buffer: &wgpu::Buffer,
) -> Result<WrapBuilder<'h, T>> {
    initialise(device, queue, buffer)?;
    // SAFETY: the handle is read, which the clone below keeps alive.
    let raw = unsafe {
        let hal = buffer.as_hal::<Vulkan>().ok_or_else(|| {
            Error::invalid("the wgpu::Buffer was destroyed, or belongs to another backend")
        })?;
        hal.raw_handle().as_raw()
    };
    let bytes = usize::try_from(buffer.size())
        .map_err(|_| Error::invalid("the wgpu::Buffer is larger than an address can be"))?;
    let kept = buffer.clone();
    // SAFETY: a live buffer of this device with the usages that were checked; the clone lives until the last wrap is dropped.
    let wrap = unsafe { context.hub().wrap_vk_buffer(context, VulkanBuffer::new(raw, bytes)) };
    Ok(wrap.owned(move |_| drop(kept)))
}

/// How many bytes are read at once.
const PIECE_BYTES: u64 = 4 << 20;

/// Makes wgpu clear what it has not initialised yet: it would do so when it first reads the buffer, over what onebuf wrote. wgpu
/// does it before a copy from the buffer. The submission also shows whether the buffer belongs to the device, and can be used:
/// wgpu reports another device's as an error, and panics at one of another `wgpu::Instance`.
fn initialise(device: &wgpu::Device, queue: &wgpu::Queue, buffer: &wgpu::Buffer) -> Result<()> {
    let read = || caught(device, "Queue::submit", || read_all(device, queue, buffer));
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(Error::invalid("the wgpu::Buffer belongs to another wgpu::Instance, or wgpu panicked"))
    })
}

fn read_all(device: &wgpu::Device, queue: &wgpu::Queue, buffer: &wgpu::Buffer) {
    let bytes = buffer.size() & !(wgpu::COPY_BUFFER_ALIGNMENT - 1);
    let scratch = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("onebuf"),
        size: bytes.clamp(wgpu::COPY_BUFFER_ALIGNMENT, PIECE_BYTES),
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    for at in (0..bytes).step_by(PIECE_BYTES as usize) {
        let piece = PIECE_BYTES.min(bytes - at);
        encoder.copy_buffer_to_buffer(buffer, at, &scratch, 0, Some(piece));
    }
    queue.submit([encoder.finish()]);
}
