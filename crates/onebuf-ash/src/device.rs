//! A program's `VkDevice`, its memory and its semaphores.
//!
//! # Safety
//! The callers guarantee that handles are live, belong to each other and are what they are declared to be.

#![allow(unsafe_code)]

use super::{
    queue::{LockedQueue, refused},
    view::AshPoint,
};
use ash::{vk, vk::Handle};
use bytemuck::Pod;
use onebuf::{
    Error, Fence, ForeignVulkan, Hub, Queue, Result, VulkanBuffer, VulkanHandles, VulkanMemory,
    WrapBuilder, prelude::*,
};
use std::{
    ffi::{CStr, c_void},
    fmt,
    ops::Deref,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

/// The usages that onebuf's own commands need.
const NEEDED: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// A program's `VkDevice`.
#[derive(Clone, Copy)]
pub struct AshDevice<'a> {
    /// The instance, created for Vulkan 1.2 or newer.
    pub instance: &'a ash::Instance,
    /// The physical device.
    pub physical: vk::PhysicalDevice,
    /// The device, created with the feature `timelineSemaphore`.
    pub device: &'a ash::Device,
    /// The family of the queues: one that supports compute shaders.
    pub family: u32,
    /// The extensions that the device was created with. Without `VK_EXT_external_memory_host` there are no host pages, without
    /// `VK_KHR_external_memory_fd` no descriptors, without `VK_KHR_external_semaphore_fd` no semaphores for other APIs.
    pub extensions: &'a [&'a CStr],
}

impl fmt::Debug for AshDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AshDevice")
            .field("device", &self.device.handle())
            .field("family", &self.family)
            .field("extensions", &self.extensions)
            .finish_non_exhaustive()
    }
}

/// The queues that onebuf may use.
#[derive(Clone, Debug)]
pub enum AshQueues<'a> {
    /// The indices of queues of the family that only onebuf uses.
    Own(&'a [u32]),
    /// A queue of the family that the program uses, too. Every user holds the lock meanwhile.
    Shared(Arc<Mutex<vk::Queue>>),
}

/// A program's buffer.
#[derive(Clone, Copy, Debug)]
pub struct AshBuffer {
    /// The buffer; null to create one over the memory.
    pub buffer: vk::Buffer,
    /// The first byte in the buffer.
    pub offset: vk::DeviceSize,
    /// The number of bytes.
    pub bytes: usize,
    /// The usages that the buffer was created with.
    pub usage: vk::BufferUsageFlags,
    /// The memory that the buffer is bound to, to let the host or other APIs access it in place.
    pub memory: Option<AshMemory>,
}

impl AshBuffer {
    /// The first bytes of a buffer, without its memory: the host accesses it by copies.
    pub fn new(buffer: vk::Buffer, bytes: usize, usage: vk::BufferUsageFlags) -> Self {
        Self { buffer, offset: 0, bytes, usage, memory: None }
    }
}

/// A program's memory.
#[derive(Clone, Copy, Debug)]
pub struct AshMemory {
    /// The memory.
    pub memory: vk::DeviceMemory,
    /// The buffer's offset in the memory.
    pub offset: vk::DeviceSize,
    /// The size of the whole allocation.
    pub bytes: vk::DeviceSize,
    /// The index of its memory type.
    pub memory_type: u32,
    /// The host address of its first byte, if it stays mapped while the buffer lives. The memory type must then be coherent.
    pub mapped: Option<NonNull<u8>>,
    /// Whether it was allocated for export by opaque descriptors.
    pub exportable: bool,
}

/// A program's `VkDevice`, registered with a hub. It dereferences to [`ForeignVulkan`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ash(ForeignVulkan);

/// Objects of ash on a [`Hub`].
pub trait AshHubExt {
    /// Registers a program's `VkDevice`: it becomes a device of the hub, such as `vulkan:0@1`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the instance does not have the physical device, or that does not have an extension; and
    /// those of [`VulkanHubExt::foreign_vulkan`].
    ///
    /// # Safety
    /// Live handles of one device from the Vulkan loader that this hub has loaded, which fulfil what [`AshDevice`] and
    /// [`AshQueues`] document. They stay alive until the result, and everything created in it, is gone.
    unsafe fn ash(&self, device: &AshDevice<'_>, queues: AshQueues<'_>) -> Result<Ash>;
}

impl AshHubExt for Hub {
    unsafe fn ash(&self, told: &AshDevice<'_>, queues: AshQueues<'_>) -> Result<Ash> {
        // SAFETY: the caller's contract.
        unsafe { check(told) }?;
        let names: Vec<_> = told.extensions.iter().map(|name| name.to_string_lossy()).collect();
        let extensions: Vec<_> = names.iter().map(|name| &**name).collect();
        let at = |handle: u64| handle as *mut c_void;
        let own = if let AshQueues::Own(own) = queues { own } else { &[] };
        let handles = VulkanHandles {
            instance: at(told.instance.handle().as_raw()),
            physical_device: at(told.physical.as_raw()),
            device: at(told.device.handle().as_raw()),
            queue_family: told.family,
            queues: own,
            extensions: &extensions,
        };
        // SAFETY: the caller's contract.
        let registered = unsafe {
            match queues {
                AshQueues::Own(_) => self.foreign_vulkan(&handles),
                AshQueues::Shared(queue) => {
                    let queue = LockedQueue { device: told.device.clone(), queue };
                    self.foreign_vulkan_shared(&handles, Arc::new(queue))
                }
            }
        };
        registered.map(Ash)
    }
}

/// Checks what the instance knows of the device.
///
/// # Safety
/// A live instance.
unsafe fn check(told: &AshDevice<'_>) -> Result<()> {
    // SAFETY: the caller's contract.
    let devices = unsafe { told.instance.enumerate_physical_devices() }
        .map_err(|status| refused("vkEnumeratePhysicalDevices", status))?;
    if !devices.contains(&told.physical) {
        return Err(Error::invalid("the instance does not have this VkPhysicalDevice"));
    }
    // SAFETY: a physical device of this live instance.
    let known = unsafe { told.instance.enumerate_device_extension_properties(told.physical) }
        .map_err(|status| refused("vkEnumerateDeviceExtensionProperties", status))?;
    let has = |name: &CStr| known.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
    match told.extensions.iter().find(|name| !has(name)) {
        Some(name) => Err(Error::invalid(format!("the VkPhysicalDevice does not have {name:?}"))),
        None => Ok(()),
    }
}

impl Ash {
    /// The program's queue as a queue of the hub: see [`ForeignVulkan::queue`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless the device was registered with [`AshQueues::Shared`].
    pub fn queue(&self) -> Result<Queue> {
        self.0.queue()
    }

    /// Wraps a buffer of the program, without a copy: see [`VulkanHubExt::wrap_vk_buffer`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the buffer lacks one of the usages `STORAGE_BUFFER`, `TRANSFER_SRC` and `TRANSFER_DST`.
    /// `build` checks the rest.
    ///
    /// # Safety
    /// As for [`VulkanHubExt::wrap_vk_buffer`].
    pub unsafe fn wrap<T: Pod>(&self, buffer: &AshBuffer) -> Result<WrapBuilder<'_, T>> {
        let lacks = NEEDED & !buffer.usage;
        if !buffer.buffer.is_null() && !lacks.is_empty() {
            return Err(Error::invalid(format!("the vk::Buffer was created without {lacks:?}")));
        }
        // SAFETY: the caller's contract.
        Ok(unsafe { self.hub().wrap_vk_buffer(&self.0, plain(buffer)) })
    }

    /// A point of a timeline semaphore of the program as a fence: see [`VulkanHubExt::wrap_vk_semaphore`].
    ///
    /// # Errors
    /// As for [`VulkanHubExt::wrap_vk_semaphore`].
    ///
    /// # Safety
    /// As for [`VulkanHubExt::wrap_vk_semaphore`].
    pub unsafe fn fence(&self, semaphore: vk::Semaphore, value: u64) -> Result<Fence> {
        // SAFETY: the caller's contract.
        unsafe { self.hub().wrap_vk_semaphore(&self.0, semaphore.as_raw(), value) }
    }

    /// The points that a submission of the program waits for to come after the fence. Empty if it has been reached.
    ///
    /// # Errors
    /// As for [`VulkanFenceExt::vk_points`].
    pub fn points(&self, fence: &Fence) -> Result<Vec<AshPoint>> {
        Ok(fence.vk_points(&self.0)?.into_iter().map(AshPoint).collect())
    }
}

impl Deref for Ash {
    type Target = ForeignVulkan;

    fn deref(&self) -> &ForeignVulkan {
        &self.0
    }
}

fn plain(told: &AshBuffer) -> VulkanBuffer {
    let memory = told.memory.map(|memory| VulkanMemory {
        memory: memory.memory.as_raw(),
        offset: memory.offset,
        bytes: memory.bytes,
        memory_type: memory.memory_type,
        mapped: memory.mapped,
        exportable: memory.exportable,
    });
    let (buffer, offset, bytes) = (told.buffer.as_raw(), told.offset, told.bytes);
    VulkanBuffer { buffer, offset, bytes, memory }
}
