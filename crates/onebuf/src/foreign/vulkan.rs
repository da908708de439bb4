//! A `VkDevice` that somebody else made, and its memory.

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

/// What a `VkDevice` is made of, and which of its queues onebuf may use.
#[derive(Clone, Copy, Debug)]
pub struct VulkanHandles<'a> {
    /// The `VkInstance`, made for Vulkan 1.2 or newer.
    pub instance: *mut c_void,
    /// The `VkPhysicalDevice`.
    pub physical_device: *mut c_void,
    /// The `VkDevice`, made with the feature `timelineSemaphore`.
    pub device: *mut c_void,
    /// A family of queues that runs compute shaders.
    pub queue_family: u32,
    /// Queues of that family, by their numbers, that are onebuf's alone while the device is registered.
    pub queues: &'a [u32],
    /// The extensions that the device was made with. What is not here is not used: without `VK_EXT_external_memory_host` no
    /// host pages, without `VK_KHR_external_memory_fd` no descriptors.
    pub extensions: &'a [&'a str],
}

/// A `VkBuffer`, and which of its bytes are meant.
#[derive(Clone, Copy, Debug)]
pub struct VulkanBuffer {
    /// The `VkBuffer`; zero where one is to be made over the memory.
    pub buffer: u64,
    /// The first byte in the buffer: a multiple of the device's `align_bytes`.
    pub offset: u64,
    /// How many bytes.
    pub bytes: usize,
    /// What lies under it, where that is to be used, too: for the host's eyes, or for other APIs'.
    pub memory: Option<VulkanMemory>,
}

impl VulkanBuffer {
    /// The first bytes of a buffer, of whose memory nothing is told: the host reaches it by copies.
    pub fn new(buffer: u64, bytes: usize) -> Self {
        Self { buffer, offset: 0, bytes, memory: None }
    }
}

/// A `VkDeviceMemory`.
#[derive(Clone, Copy, Debug)]
pub struct VulkanMemory {
    /// The `VkDeviceMemory`.
    pub memory: u64,
    /// Where in it the buffer begins.
    pub offset: u64,
    /// How large the whole allocation is.
    pub bytes: u64,
    /// The number of its type.
    pub memory_type: u32,
    /// Where the host sees its first byte, if it is mapped for as long as the buffer lives. Its type is coherent, then.
    pub mapped: Option<NonNull<u8>>,
    /// Whether it was allocated for export by opaque descriptors: then other APIs on the chip can import it.
    pub exportable: bool,
}

/// A `VkDevice` that somebody else made, registered with a hub while this, or anything made in it, lives. Cheap to clone.
#[derive(Clone)]
pub struct ForeignVulkan {
    hub: Hub,
    registration: Arc<Registration>,
}

/// Vulkan devices and buffers that somebody else made, on a [`Hub`].
pub trait VulkanHubExt {
    /// Registers a `VkDevice` that somebody else made. It becomes a device of the hub, such as `vulkan:0@1`: queues, programs and
    /// buffers of ours can be made in it, and its memory wrapped. The same one again is the same registration; it is given up when
    /// everything that was made in it is gone.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a hub without Vulkan; [`Error::InvalidArgument`] for null; [`Error::Unsupported`] for a
    /// device that is too old, or queues that it has not; [`Error::Busy`] when the hub has no device entry left.
    ///
    /// # Safety
    /// Null, or live handles of one device, of the Vulkan loader that this hub has loaded, of which all is true that
    /// [`VulkanHandles`] says. They stay alive until this, and everything that was made in it, is gone.
    unsafe fn foreign_vulkan(&self, handles: &VulkanHandles<'_>) -> Result<ForeignVulkan>;

    /// A buffer over memory that somebody else made in their `VkDevice`, without a copy. Its device sees it; the host does where it is
    /// mapped; other devices see it by the routes that the planner finds, when [`WrapBuilder::shared_with`] names
    /// them: by a descriptor, where it was allocated for that.
    ///
    /// Sizes, types and offsets are checked as far as Vulkan tells of them. The same bytes again share one state with the
    /// first wrap, like wraps of one `cl_mem`. Vulkan counts no references: nothing is retained, and nothing is freed but
    /// what [`WrapBuilder::owned`] says.
    ///
    /// # Safety
    /// Live objects of that device, bound to each other as is said, that no [`Buffer`](onebuf_core::Buffer) of this hub has made; the buffer with
    /// the usages `STORAGE_BUFFER`, `TRANSFER_SRC` and `TRANSFER_DST`, for the family of the registered queues or for all. They stay
    /// alive until the buffer has been dropped, and bytes of two wraps do not overlap. Memory that is exportable belongs to
    /// `VK_QUEUE_FAMILY_EXTERNAL` whenever no work of ours uses it. The owner's own work on it is over when it is wrapped, and while
    /// a guard of the buffer is held, and until work that was enqueued under it is done, the owner does with the
    /// memory only what the guard allows.
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
            // SAFETY: the caller's promise.
            unsafe { loader.enter_device(&given(handles), entries) }
        })?;
        Ok(ForeignVulkan { hub: self.clone(), registration })
    }

    unsafe fn wrap_vk_buffer<T: Pod>(
        &self,
        context: &ForeignVulkan,
        buffer: VulkanBuffer,
    ) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, Bound { context: context.clone(), buffer })
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
    /// It, as a device of the hub.
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

/// The handle that an owner's `release` is called with.
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

/// A buffer, of which all is true that `wrap_vk_buffer` wants.
struct Bound {
    context: ForeignVulkan,
    buffer: VulkanBuffer,
}

// SAFETY: the caller of the wrap has promised the handle; the driver tells its size.
unsafe impl ForeignMemory for Bound {
    fn handle(&self) -> usize {
        handle(&self.buffer) as usize
    }

    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let Self { context, buffer } = self;
        if !context.hub().is(asked.hub) {
            return Err(Error::invalid("a foreign VkDevice of another hub"));
        }
        let (bytes, have) = (buffer.bytes, asked.element.count(buffer.bytes)?);
        if bytes == 0 || asked.len.is_some_and(|len| len != have) {
            let wanted = asked.len.map_or(String::new(), |len| format!(" instead of {len}"));
            return Err(Error::invalid(format!("a VkBuffer of {have} elements{wanted}")));
        }
        let registration = &context.registration;
        let foreign_device = registration.foreign_device::<ForeignDevice>()?;
        let place = buffer.offset.wrapping_add(buffer.memory.map_or(0, |memory| memory.offset));
        let key = registration.key(handle(buffer), place);
        let core = asked.core(key, bytes, |shape| {
            // SAFETY: the promise that was made to `wrap_vk_buffer`.
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
