//! Pointers and streams of CUDA and HIP
//!
//! Objects that the application created with CUDA's or HIP's runtime or driver API, in the primary context of a device,
//! used like those of onebuf, without a copy. The rules for their owner are those of "Wrapping". The driver is asked for
//! the kind, the size and the device of the memory; beyond that the caller guarantees that a handle is alive.

use crate::{
    buffer::onebuf_buffer,
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    foreign::native,
    handle::Noun,
    input::{Options, Slot, give, out},
    queue::onebuf_queue,
    status::onebuf_status,
    wrap::{WrapOptions, onebuf_wrap_options},
};
use onebuf::{PointerKind, WrapBuilder, prelude::*};
use std::{ffi::c_void, ptr::null_mut};

/// The kind of memory at an address.
pub type onebuf_pointer_kind = u32;
/// Device memory: `cudaMalloc`, `cudaMallocAsync`, `cuMemMap`.
pub const ONEBUF_POINTER_DEVICE: onebuf_pointer_kind = 0;
/// Managed memory, whose pages move: `cudaMallocManaged`.
pub const ONEBUF_POINTER_MANAGED: onebuf_pointer_kind = 1;
/// Pinned host memory: `cudaMallocHost`, `cudaHostRegister`.
pub const ONEBUF_POINTER_HOST: onebuf_pointer_kind = 2;

/// Properties of a CUDA or HIP pointer. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pointer_info {
    /// `sizeof(onebuf_pointer_info)`.
    pub size: usize,
    /// The first address of its allocation.
    pub start: *mut c_void,
    /// The size of its allocation in bytes.
    pub bytes: usize,
    /// The address that the host uses; NULL: none.
    pub host: *mut c_void,
    /// The kind of memory.
    pub kind: onebuf_pointer_kind,
    /// The driver's number of the device that allocated it.
    pub device_number: i32,
    /// Not zero: other APIs can import the allocation by a descriptor.
    pub exportable: u32,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_pointer_info {}

/// Queries a pointer. ONEBUF_INVALID_ARGUMENT for memory that this driver neither allocated nor pinned;
/// ONEBUF_UNSUPPORTED if the device is no CUDA or HIP device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pointer_query(
    device: onebuf_device,
    pointer: *mut c_void,
    info: *mut onebuf_pointer_info,
) -> onebuf_status {
    entry(|| {
        let device = device.get()?;
        let found = device.hub().pointer_info(&device, native(pointer, "pointer")?)?;
        let told = onebuf_pointer_info {
            size: 0,
            start: found.start as *mut c_void,
            bytes: found.bytes,
            host: found.host.map_or(null_mut(), |host| host.as_ptr().cast()),
            kind: match found.kind {
                PointerKind::Device => ONEBUF_POINTER_DEVICE,
                PointerKind::Managed => ONEBUF_POINTER_MANAGED,
                PointerKind::Host => ONEBUF_POINTER_HOST,
            },
            device_number: found.device,
            exportable: found.exportable.into(),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(told, info, "info") }
    })
}

/// # Safety
/// As for [`onebuf_buffer_wrap_pointer`].
unsafe fn wrap(
    device: onebuf_device,
    bytes: usize,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
    builder: impl for<'h> FnOnce(&'h onebuf::Device, &'h onebuf::Hub) -> WrapBuilder<'h, u8>,
) -> Result<()> {
    let buffer = out(buffer, "buffer")?;
    let device = device.get()?;
    // SAFETY: guaranteed by the caller.
    let options = unsafe { WrapOptions::read(options) }?;
    if ![0, bytes].contains(&options.bytes()) {
        return Err(Fault::invalid("`options.bytes` differs from `bytes`"));
    }
    let hub = device.hub().clone();
    let made = options.build(builder(&device, &hub))?;
    *buffer = onebuf_buffer::put(made.into())?;
    Ok(())
}

/// Wraps `bytes` bytes of a CUDA or HIP pointer, which may lie inside an allocation. `device` accesses them in place; the
/// devices in the options by the routes that the plan finds: by a descriptor, if the memory was created for that
/// (`cuMemCreate` with a POSIX descriptor), or by the host's pages, if it is pinned. Plain `cudaMalloc` memory has no route
/// to OpenCL, Vulkan and OpenGL: graft OpenCL kernels to the device instead. `options` may be NULL.
///
/// Wraps of one pointer share one state. ONEBUF_INVALID_ARGUMENT if the allocation is smaller, or if the address is no
/// memory of the driver; ONEBUF_FOREIGN_CONTEXT for memory of another device or context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_wrap_pointer(
    device: onebuf_device,
    pointer: *mut c_void,
    bytes: usize,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let pointer = native(pointer, "pointer")?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        unsafe {
            wrap(device, bytes, options, buffer, |device, hub| {
                hub.wrap_pointer(device, pointer, bytes)
            })
        }
    })
}

/// Maps an allocation of `cuMemCreate` or `hipMemCreate` at an address of onebuf's, and adds a reference to it. `handle` is
/// the `CUmemGenericAllocationHandle` or `hipMemGenericAllocationHandle_t` as a number, `bytes` the allocation's size.
/// `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_wrap_allocation(
    device: onebuf_device,
    handle: u64,
    bytes: usize,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller, also for what the options point at.
        unsafe {
            wrap(device, bytes, options, buffer, |device, hub| {
                hub.wrap_allocation(device, handle, bytes)
            })
        }
    })
}

/// Opens memory of another process by its `cudaIpcMemHandle_t` or `hipIpcMemHandle_t`, 64 bytes: `bytes` bytes from
/// `offset` on. The other process keeps the memory until the buffer is gone. onebuf cannot order its work: the processes
/// must agree on who uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_open_ipc(
    device: onebuf_device,
    handle: *const u8,
    offset: usize,
    bytes: usize,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        let device = device.get()?;
        if handle.is_null() {
            return Err(Fault::Null("handle"));
        }
        // SAFETY: guaranteed by the caller: 64 bytes, without alignment.
        let made = unsafe {
            let handle = handle.cast::<[u8; 64]>().read_unaligned();
            device.hub().open_ipc_handle::<u8>(&device, &handle, offset, bytes)?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// Wraps a CUDA or HIP stream as a queue. Commands of its owner and of onebuf are ordered in it, and onebuf_queue_fence()
/// covers both. NULL and `cudaStreamLegacy` are the default stream that synchronises with others. `cudaStreamPerThread` is
/// the default stream of the calling thread; the queue is refused on other threads. A program that is compiled for
/// per-thread default streams passes `cudaStreamPerThread`, not NULL.
///
/// The stream must outlive the queue. ONEBUF_FOREIGN_CONTEXT for a stream of another device or context (CUDA only).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_wrap_stream(
    device: onebuf_device,
    stream: *mut c_void,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        let device = device.get()?;
        // SAFETY: guaranteed by the caller.
        *queue = onebuf_queue::put(unsafe { device.hub().wrap_stream(&device, stream) }?)?;
        Ok(())
    })
}

/// Wraps a CUDA or HIP event as a fence. The event must outlive the fence, and everything ordered after it, and must not
/// be recorded again meanwhile. An event that was never recorded is a fence that is reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_fence_wrap_stream_event(
    device: onebuf_device,
    event: *mut c_void,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        let device = device.get()?;
        let event = native(event, "event")?;
        // SAFETY: guaranteed by the caller.
        *fence = onebuf_fence::put(unsafe { device.hub().wrap_stream_event(&device, event) }?)?;
        Ok(())
    })
}
