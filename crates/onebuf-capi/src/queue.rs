//! Queues
//!
//! A queue is a stream of work on a device. Kernels are launched on it: see onebuf_queue_launch().

use crate::{
    device::onebuf_device,
    entry::{entry, free},
    fault::{Fault, Result},
    fence::onebuf_fence,
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, give, options, out, timeout},
    status::onebuf_status,
    words::{self, onebuf_sync_method},
};
use onebuf::{Queue, QueueOrder, QueueSpec};
use std::ffi::c_void;

/// A queue. Free it with onebuf_queue_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_queue {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_queue, Queue, 4);

/// The order in which a queue runs its work.
pub type onebuf_queue_order = u32;
/// In order.
pub const ONEBUF_QUEUE_IN_ORDER: onebuf_queue_order = 0;
/// Out of order, as far as the buffers in use allow. ONEBUF_UNSUPPORTED if the device has no such queues.
pub const ONEBUF_QUEUE_OUT_OF_ORDER: onebuf_queue_order = 1;

/// Options of a queue. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_queue_options {
    /// `sizeof(onebuf_queue_options)`.
    pub size: usize,
    /// The order in which it runs its work.
    pub order: onebuf_queue_order,
    /// Not zero: enables profiling, so that fences of launches know when their work ran.
    pub profiling: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_queue_options {}

pub(crate) fn spec(options: onebuf_queue_options) -> Result<QueueSpec> {
    let spec = match options.order {
        ONEBUF_QUEUE_IN_ORDER => QueueSpec::default(),
        ONEBUF_QUEUE_OUT_OF_ORDER => QueueSpec::out_of_order(),
        other => return Err(Fault::invalid(format!("order {other}: choose one of 0 and 1"))),
    };
    Ok(QueueSpec { profiling: options.profiling != 0, ..spec })
}

/// Opens a queue. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_create(
    device: onebuf_device,
    options: *const onebuf_queue_options,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        // SAFETY: guaranteed by the caller.
        let spec = spec(unsafe { self::options(options)? })?;
        *queue = onebuf_queue::put(device.get()?.queue_with(spec)?)?;
        Ok(())
    })
}

/// The device's default queue, as a handle of its own: every call returns the same queue, which is opened by the first.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_default_queue(
    device: onebuf_device,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        *queue = onebuf_queue::put(device.get()?.default_queue()?)?;
        Ok(())
    })
}

/// Properties of a queue. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_queue_info {
    /// `sizeof(onebuf_queue_info)`.
    pub size: usize,
    /// The order in which it runs its work.
    pub order: onebuf_queue_order,
    /// Not zero: profiling is enabled.
    pub profiling: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_queue_info {}

/// Queries a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_query(
    queue: onebuf_queue,
    info: *mut onebuf_queue_info,
) -> onebuf_status {
    entry(|| {
        let spec = queue.get()?.spec();
        let order = match spec.order {
            QueueOrder::InOrder => ONEBUF_QUEUE_IN_ORDER,
            QueueOrder::OutOfOrder => ONEBUF_QUEUE_OUT_OF_ORDER,
        };
        let found = onebuf_queue_info { size: 0, order, profiling: spec.profiling.into() };
        // SAFETY: guaranteed by the caller.
        unsafe { give(found, info, "info") }
    })
}

/// The device of a queue. The hub owns the handle. ONEBUF_INVALID_ARGUMENT for a queue of another hub, or of a foreign context:
/// see onebuf_context_device_of().
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_device_of(
    hub: onebuf_hub,
    queue: onebuf_queue,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        let (hub, found) = (hub.get()?, queue.get()?.device());
        if !found.hub().is(&hub.hub) {
            return Err(Fault::invalid("a queue of another hub"));
        }
        *device = hub.owned(&found)?;
        Ok(())
    })
}

/// Frees a queue. Enqueued work still completes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_free(queue: onebuf_queue) -> onebuf_status {
    free(queue)
}

/// Submits the enqueued work, so that it starts without further calls.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_flush(queue: onebuf_queue) -> onebuf_status {
    entry(|| Ok(queue.get()?.flush()?))
}

/// Waits until everything enqueued so far is done.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_finish(queue: onebuf_queue, timeout_ms: u64) -> onebuf_status {
    entry(|| {
        let queue = queue.get()?;
        match timeout(timeout_ms) {
            Some(timeout) => Ok(queue.fence().wait(timeout)?),
            None => Ok(queue.finish()?),
        }
    })
}

/// A fence that everything enqueued so far will reach.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_fence(
    queue: onebuf_queue,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        *fence = onebuf_fence::put(queue.get()?.fence())?;
        Ok(())
    })
}

/// Makes work enqueued from now on wait for a fence of any queue of the hub, by the best sync method available, and
/// returns that method. `sync_method` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_wait_for(
    queue: onebuf_queue,
    fence: onebuf_fence,
    sync_method: Slot<'_, onebuf_sync_method>,
) -> onebuf_status {
    entry(|| {
        let used = queue.get()?.wait_for(&*fence.get()?)?;
        if let Some(sync_method) = sync_method {
            sync_method.write(words::sync_method_number(used));
        }
        Ok(())
    })
}

/// The native queue (`cl_command_queue`, `CUstream`, `hipStream_t` or `VkQueue`) for libraries that enqueue work themselves; NULL
/// if there is none. Work enqueued there while a view on this queue is held is ordered like work of onebuf. Valid until
/// the queue is freed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_native(
    queue: onebuf_queue,
    native: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        *out(native, "native")? = queue.get()?.raw() as *mut c_void;
        Ok(())
    })
}
