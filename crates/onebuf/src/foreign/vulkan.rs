//! A foreign `VkDevice` and its memory.

use bytemuck::Pod;
use onebuf_core::{
    Device, Hub, WrapBuilder,
    foreign::WrappedMemory,
    internals::{Asked, Core, ForeignMemory, Registration, Whose, Window},
};
use onebuf_hal::{AllocSpec, Error, Result, locks::Arc};
use onebuf_sys::vulkan::{vk, vk::Handle};
use onebuf_vulkan::{
    self as vulkan,
    foreign::{ForeignDevice, Handles, Object, Under},
};
use std::{ffi::c_void, fmt, ptr::NonNull};

/// The handles of a `VkDevice`, and which of its queues onebuf may use.
#[derive(Clone, Copy, Debug)]
pub struct VulkanHandles<'a> {
    /// The `VkInstance`, created for Vulkan 1.2 or newer.
    pub instance: *mut c_void,
    /// The `VkPhysicalDevice`.
    pub physical_device: *mut c_void,
    /// The `VkDevice`, created with the feature `timelineSemaphore`.
    pub device: *mut c_void,
    /// A queue family that supports compute shaders.
    pub queue_family: u32,
    /// The indices of queues of that family that only onebuf uses while the device is registered.
    pub queues: &'a [u32],
    /// The extensions that the device was created with. Others are not used: without `VK_EXT_external_memory_host` there are
    /// no host pages, without `VK_KHR_external_memory_fd` no descriptors.
    pub extensions: &'a [&'a str],
}

/// A range of a `VkBuffer`.
#[derive(Clone, Copy, Debug)]
pub struct VulkanBuffer {
    /// The `VkBuffer`; zero to create one over the memory.
    pub buffer: u64,
    /// The first byte in the buffer: a multiple of the device's `align_bytes`.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// The memory that the buffer is bound to, to let the host or other APIs access it.
    pub memory: Option<VulkanMemory>,
}

impl VulkanBuffer {
    /// The first bytes of a buffer, without its memory: the host accesses it by copies.
    pub fn new(buffer: u64, bytes: usize) -> Self {
        Self { buffer, offset: 0, bytes, memory: None }
    }
}

/// A `VkDeviceMemory`.
#[derive(Clone, Copy, Debug)]
pub struct VulkanMemory {
    /// The `VkDeviceMemory`.
    pub memory: u64,
    /// The buffer's offset in the memory.
    pub offset: u64,
    /// The size of the whole allocation.
    pub bytes: u64,
    /// The index of its memory type.
    pub memory_type: u32,
    /// The host address of its first byte, if it stays mapped while the buffer lives. The memory type must then be coherent.
    pub mapped: Option<NonNull<u8>>,
    /// Whether it was allocated for export by opaque descriptors. Other APIs on the chip can then import it.
    pub exportable: bool,
}

/// A foreign `VkDevice`, registered with a hub while this, or anything created in it, lives. Cheap to clone.
#[derive(Clone)]
pub struct ForeignVulkan {
    hub: Hub,
    registration: Arc<Registration>,
}

/// Foreign Vulkan devices and buffers on a [`Hub`].
pub trait VulkanHubExt {
    /// Registers a foreign `VkDevice`. It becomes a device of the hub, such as `vulkan:0@1`: queues, programs and buffers can
    /// be created in it, and its memory can be wrapped. Registering the same device again returns the same registration. It
    /// ends when everything that was created in it is gone.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the hub has no Vulkan; [`Error::InvalidArgument`] for null; [`Error::Unsupported`] if the
    /// device is too old or does not have the queues; [`Error::Busy`] if the hub has no free device entry.
    ///
    /// # Safety
    /// The handles are null, or live handles of one device from the Vulkan loader that this hub has loaded, and fulfil what
    /// [`VulkanHandles`] documents. They stay alive until this, and everything created in it, is gone.
    unsafe fn foreign_vulkan(&self, handles: &VulkanHandles<'_>) -> Result<ForeignVulkan>;

    /// Wraps memory of a foreign `VkDevice` as a buffer, without a copy. Its device uses it; the host does if it is mapped;
    /// other devices named with [`WrapBuilder::shared_with`] use it by the routes that the planner finds: by a descriptor, if
    /// the memory was allocated for export.
    ///
    /// Sizes, types and offsets are checked as far as Vulkan reports them. Wrapping the same bytes again shares one state
    /// with the first wrap, like wraps of one `cl_mem`. Vulkan has no reference counts: nothing is retained, and nothing is
    /// freed except by [`WrapBuilder::owned`].
    ///
    /// # Safety
    /// The objects are live objects of that device, bound to each other as stated, and not created by a
    /// [`Buffer`](onebuf_core::Buffer) of this hub. The buffer has the usages `STORAGE_BUFFER`, `TRANSFER_SRC` and `TRANSFER_DST`,
    /// for the family of the registered queues or for all. They stay alive until the buffer is dropped, and the bytes of two
    /// wraps do not overlap. Exportable memory belongs to `VK_QUEUE_FAMILY_EXTERNAL` whenever no work of this library uses
    /// it. The owner's own work on it has finished when it is wrapped. While a guard of the buffer is held, and until the
    /// work enqueued under it is done, the owner does with the memory only what the guard allows.
    unsafe fn wrap_vk_buffer<T: Pod>(
        &self,
        context: &ForeignVulkan,
        buffer: VulkanBuffer,
    ) -> WrapBuilder<'_, T>;
}

impl VulkanHubExt for Hub {
    unsafe fn foreign_vulkan(&self, handles: &VulkanHandles<'_>) -> Result<ForeignVulkan> {
        let registration = self.registered(handles.device.addr(), |entries| {
            let (loader, _) =
                self.foreign_devices().library::<vulkan::Loader>("vulkan", "Vulkan")?;
            // SAFETY: the caller's contract.
            unsafe { loader.enter_device(&given(handles), entries) }
        })?;
        Ok(ForeignVulkan { hub: self.clone(), registration })
    }

    unsafe fn wrap_vk_buffer<T: Pod>(
        &self,
        context: &ForeignVulkan,
        buffer: VulkanBuffer,
    ) -> WrapBuilder<'_, T> {
        let named = handle(&buffer) as usize;
        WrapBuilder::new(self, named, Bound { context: context.clone(), buffer })
    }
}

fn given(handles: &VulkanHandles<'_>) -> Handles {
    Handles {
        instance: handles.instance.addr(),
        physical: handles.physical_device.addr(),
        device: handles.device.addr(),
        family: handles.queue_family,
        queues: handles.queues.to_vec(),
        extensions: handles.extensions.iter().map(|name| (*name).to_owned()).collect(),
    }
}

impl ForeignVulkan {
    /// The `VkDevice` as a device of the hub.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.registration.first())
    }

    /// The hub that it is registered with.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }
}

impl fmt::Debug for ForeignVulkan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignVulkan").field(&self.device()).finish()
    }
}

/// The handle that is passed to an owner's `release`.
fn handle(buffer: &VulkanBuffer) -> u64 {
    match (buffer.buffer, buffer.memory) {
        (0, Some(memory)) => memory.memory,
        (buffer, _) => buffer,
    }
}

fn object(buffer: &VulkanBuffer) -> Object {
    let under = buffer.memory.map(|memory| Under {
        memory: vk::DeviceMemory::from_raw(memory.memory),
        offset: memory.offset,
        bytes: memory.bytes,
        kind: memory.memory_type,
        mapped: memory.mapped,
        exportable: memory.exportable,
    });
    let (start, bytes) = (buffer.offset, buffer.bytes);
    Object { buffer: vk::Buffer::from_raw(buffer.buffer), start, bytes, under }
}

/// A buffer that fulfils the contract of `wrap_vk_buffer`.
struct Bound {
    context: ForeignVulkan,
    buffer: VulkanBuffer,
}

// SAFETY: the caller of `wrap_vk_buffer` guarantees the handles and the size.
unsafe impl ForeignMemory for Bound {
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let Self { context, buffer } = self;
        if !context.hub().is(asked.hub) {
            return Err(Error::invalid("the foreign VkDevice belongs to another hub"));
        }
        let (bytes, have) = (buffer.bytes, asked.element.count(buffer.bytes)?);
        if bytes == 0 || asked.len.is_some_and(|len| len != have) {
            let wanted = asked.len.map_or(String::new(), |len| format!(", not {len}"));
            return Err(Error::invalid(format!("the VkBuffer has {have} elements{wanted}")));
        }
        let registration = &context.registration;
        let foreign_device = registration.foreign_device::<ForeignDevice>()?;
        let place = buffer.offset.wrapping_add(buffer.memory.map_or(0, |memory| memory.offset));
        let key = registration.key(handle(buffer), place);
        let core = asked.core(key, bytes, |shape| {
            // SAFETY: the contract of `wrap_vk_buffer`.
            let (memory, memory_kind) = unsafe { foreign_device.wrap(&object(buffer)) }?;
            let (access, host) = Default::default();
            let spec =
                AllocSpec { bytes, align: shape.align, memory_kind, access, host, hint: None };
            Ok(WrappedMemory {
                whose: Whose::ForeignDevice(registration.clone()),
                memory,
                spec,
                pages: None,
            })
        })?;
        Ok((core, None))
    }
}
