//! Foreign Vulkan devices
//!
//! A `VkDevice` that the application created becomes a device of the hub, such as `vulkan:0@1`, and its memory can be
//! wrapped. Dispatchable handles are `void *` here and other handles are numbers, so that no Vulkan header is needed.
//! Vulkan has no reference counts and few queries: the caller guarantees that handles are alive until everything made
//! with them is gone, of the loader that the hub has loaded (`onebuf_hub_options.vulkan_library`), and as described.

use crate::{
    buffer::onebuf_buffer,
    device::onebuf_device,
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, array, options, out, text},
    registered::Registered,
    status::onebuf_status,
    wrap::{WrapOptions, onebuf_wrap_options},
};
use onebuf::{ForeignVulkan, VulkanBuffer, VulkanHandles, VulkanMemory, prelude::*};
use std::{
    ffi::{c_char, c_void},
    ptr::NonNull,
};

/// A `VkDevice` of the application. Free it with onebuf_vk_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_vk {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_vk, Registered<ForeignVulkan>, 22);

/// The handles of a `VkDevice`, and which of its queues onebuf may use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_vk_handles {
    /// `sizeof(onebuf_vk_handles)`.
    pub size: usize,
    /// The `VkInstance`, created for Vulkan 1.2 or newer.
    pub instance: *mut c_void,
    /// The `VkPhysicalDevice`.
    pub physical_device: *mut c_void,
    /// The `VkDevice`, created with the feature `timelineSemaphore`.
    pub device: *mut c_void,
    /// The indices of queues of `queue_family` that only onebuf uses while the device is registered.
    pub queues: *const u32,
    /// Number of queues.
    pub queue_count: usize,
    /// The names of the extensions that the device was created with. Others are not used.
    pub extensions: *const *const c_char,
    /// Number of extensions.
    pub extension_count: usize,
    /// A queue family that supports compute shaders.
    pub queue_family: u32,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_vk_handles {}

/// A range of a `VkBuffer`, and the memory that it is bound to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_vk_buffer {
    /// `sizeof(onebuf_vk_buffer)`.
    pub size: usize,
    /// The `VkBuffer`, with the usages `STORAGE_BUFFER`, `TRANSFER_SRC` and `TRANSFER_DST`; zero: onebuf creates one over
    /// `memory`.
    pub buffer: u64,
    /// The first byte in the buffer.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// The `VkDeviceMemory` that the buffer is bound to; zero: not stated, and the host accesses the buffer by copies.
    pub memory: u64,
    /// The buffer's offset in the memory.
    pub memory_offset: u64,
    /// The size of the whole allocation.
    pub memory_bytes: u64,
    /// The host address of the memory's first byte, if it stays mapped while the buffer lives; NULL: not mapped. The
    /// memory type must then be coherent.
    pub mapped: *mut c_void,
    /// The index of the memory's type.
    pub memory_type: u32,
    /// Not zero: the memory was allocated for export by opaque descriptors. Other APIs on the chip can then import it, and
    /// it belongs to `VK_QUEUE_FAMILY_EXTERNAL` whenever no work of onebuf uses it.
    pub exportable: u32,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_vk_buffer {}

impl onebuf_vk_buffer {
    fn told(&self) -> VulkanBuffer {
        let memory = (self.memory != 0).then_some(VulkanMemory {
            memory: self.memory,
            offset: self.memory_offset,
            bytes: self.memory_bytes,
            memory_type: self.memory_type,
            mapped: NonNull::new(self.mapped.cast()),
            exportable: self.exportable != 0,
        });
        VulkanBuffer { buffer: self.buffer, offset: self.offset, bytes: self.bytes, memory }
    }
}

/// Registers a `VkDevice` of the application. Registering the same device again returns the same registration.
/// ONEBUF_INVALID_ARGUMENT for null handles; ONEBUF_UNSUPPORTED if the device is too old or lacks the queues;
/// ONEBUF_UNAVAILABLE for a hub without Vulkan; ONEBUF_BUSY if the hub has no room for another device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_vk_wrap(
    hub: onebuf_hub,
    handles: *const onebuf_vk_handles,
    vk: Slot<'_, onebuf_vk>,
) -> onebuf_status {
    entry(|| {
        let vk = out(vk, "vk")?;
        let hub = hub.get()?;
        if handles.is_null() {
            return Err(Fault::Null("handles"));
        }
        // SAFETY: guaranteed by the caller, for all of these.
        let found = unsafe {
            let given = options(handles)?;
            let names = array(given.extensions, given.extension_count, "extensions")?;
            let names = names.iter().map(|name| text(*name, "extensions"));
            hub.hub.foreign_vulkan(&VulkanHandles {
                instance: given.instance,
                physical_device: given.physical_device,
                device: given.device,
                queue_family: given.queue_family,
                queues: array(given.queues, given.queue_count, "queues")?,
                extensions: &names.collect::<Result<Vec<_>>>()?,
            })?
        };
        let device = found.device();
        *vk = onebuf_vk::put(Registered::new(found, device)?)?;
        Ok(())
    })
}

/// The `VkDevice` as a device of the hub. The handle ends with `vk`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_vk_device(
    vk: onebuf_vk,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        *device = vk.get()?.device;
        Ok(())
    })
}

/// Wraps memory of the device, without a copy. `options` may be NULL. The application's work on it is done
/// (`vkWaitForFences`); onebuf's work is done when the last wrap was freed, or when a fence says so. Sizes, types and
/// offsets are checked as far as Vulkan reports them. `options.release` gets the buffer (or the memory, without a buffer)
/// as a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_wrap_vk(
    vk: onebuf_vk,
    memory: *const onebuf_vk_buffer,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        let context = &vk.get()?.context;
        if memory.is_null() {
            return Err(Fault::Null("memory"));
        }
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let made = unsafe {
            let told = self::options(memory)?.told();
            let options = WrapOptions::read(options)?;
            options.build(context.hub().wrap_vk_buffer(context, told))?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// Frees a registration and the handle of its device. Objects made with it stay usable; the `VkDevice` itself is not
/// touched.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_vk_free(vk: onebuf_vk) -> onebuf_status {
    free(vk)
}
