//! A foreign `VkDevice` and its memory.

use bytemuck::Pod;
use onebuf_core::{
    Device, Fence, Hub, Queue, WrapBuilder,
    foreign::WrappedMemory,
    internals::{self, Asked, Core, ForeignMemory, Registration, Whose, Window},
};
use onebuf_hal::{AllocSpec, Error, QueueSpec, Result, locks::Arc};
use onebuf_sys::vulkan::{vk, vk::Handle};
use onebuf_vulkan::{
    self as vulkan,
    foreign::{ForeignDevice, Handles, Object, Under},
};
use std::{any::Any, ffi::c_void, fmt, ptr::NonNull};

pub use vulkan::foreign::{
    SemaphorePoint as VulkanPoint, SharedQueue as VulkanSharedQueue, Submission as VulkanSubmission,
};

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
    /// The indices of queues of that family that only onebuf uses while the device is registered. May be empty if a queue is
    /// shared: [`VulkanHubExt::foreign_vulkan_shared`].
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

    /// Whether this is the address of `vkGetInstanceProcAddr` of the loader that the hub has loaded, so that objects made with it
    /// may be passed to the hub.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the hub has no Vulkan.
    fn is_vk_loader(&self, get_instance_proc_addr: *const c_void) -> Result<bool>;

    /// Registers a foreign `VkDevice` together with a queue of its family that the application uses, too. onebuf passes
    /// work for that queue to `queue`, which excludes the application's use of it meanwhile. [`ForeignVulkan::queue`] is that
    /// queue. Queues that onebuf opens use those of [`VulkanHandles::queues`], or this one if there are none.
    ///
    /// # Errors
    /// As for [`VulkanHubExt::foreign_vulkan`].
    ///
    /// # Safety
    /// As for [`VulkanHubExt::foreign_vulkan`], except that `queue` may also be used by the application.
    unsafe fn foreign_vulkan_shared(
        &self,
        handles: &VulkanHandles<'_>,
        queue: Arc<dyn VulkanSharedQueue>,
    ) -> Result<ForeignVulkan>;

    /// Wraps a point of a timeline semaphore as a fence, which is reached when the semaphore has this value: a queue can wait
    /// for it, and a buffer can be ordered after it ([`WrapBuilder::after`],
    /// [`Buffer::written_until`](onebuf_core::Buffer::written_until)). Queues of the same `VkDevice` wait on the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for null, and for a device of another hub.
    ///
    /// # Safety
    /// A live timeline semaphore of that device, which outlives the fence and everything ordered after it. Its signal has been
    /// submitted, or comes from the host or from a queue that onebuf does not use: a queue executes its work in order, so a
    /// wait before the signal in the same queue never ends.
    unsafe fn wrap_vk_semaphore(
        &self,
        context: &ForeignVulkan,
        semaphore: u64,
        value: u64,
    ) -> Result<Fence>;

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
        // SAFETY: the caller's contract.
        unsafe { register(self, &given(handles, None)) }
    }

    fn is_vk_loader(&self, get_instance_proc_addr: *const c_void) -> Result<bool> {
        let (loader, _) = self.foreign_devices().library::<vulkan::Loader>("vulkan", "Vulkan")?;
        Ok(loader.is_entry(get_instance_proc_addr.addr()))
    }

    unsafe fn foreign_vulkan_shared(
        &self,
        handles: &VulkanHandles<'_>,
        queue: Arc<dyn VulkanSharedQueue>,
    ) -> Result<ForeignVulkan> {
        // SAFETY: the caller's contract.
        unsafe { register(self, &given(handles, Some(queue))) }
    }

    unsafe fn wrap_vk_semaphore(
        &self,
        context: &ForeignVulkan,
        semaphore: u64,
        value: u64,
    ) -> Result<Fence> {
        if !context.hub().is(self) {
            return Err(other_hub());
        }
        let queue = self.queue_beside(&Whose::ForeignDevice(context.registration.clone()))?;
        // SAFETY: the caller's contract.
        let event = unsafe { context.native()?.semaphore_point(semaphore, value) }?;
        Ok(queue.fence_at(event))
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

/// # Safety
/// As for [`Handles`].
unsafe fn register(hub: &Hub, handles: &Handles) -> Result<ForeignVulkan> {
    let registration = hub.registered(handles.device, |entries| {
        let (loader, _) = hub.foreign_devices().library::<vulkan::Loader>("vulkan", "Vulkan")?;
        // SAFETY: the caller's contract.
        unsafe { loader.enter_device(handles, entries) }
    })?;
    Ok(ForeignVulkan { hub: hub.clone(), registration })
}

fn other_hub() -> Error {
    Error::invalid("the foreign VkDevice belongs to another hub")
}

fn given(handles: &VulkanHandles<'_>, shared: Option<Arc<dyn VulkanSharedQueue>>) -> Handles {
    Handles {
        shared,
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

    /// The application's own queue, as a queue of the hub. [`Queue::fence`] covers what the application has submitted there.
    /// What it submits later comes after a view taken on this queue, and after [`Buffer::hand_to`](onebuf_core::Buffer::hand_to).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device was registered without such a queue.
    pub fn queue(&self) -> Result<Queue> {
        let native = self.native()?.shared_queue()?;
        let registration = self.registration.clone();
        let (device, spec) = (registration.first(), QueueSpec::default());
        Ok(self.hub.foreign_queue(device, native, spec, Some(registration)))
    }

    /// Keeps an object of the application alive while the device is registered.
    pub fn keep(&self, object: impl Any + Send + Sync) {
        self.registration.keep(Box::new(object));
    }

    fn native(&self) -> Result<&ForeignDevice> {
        self.registration.foreign_device::<ForeignDevice>()
    }
}

/// A timeline semaphore and its value, for the application's own submissions. The semaphore is alive while this is.
pub struct VulkanPointHandle {
    point: VulkanPoint,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl VulkanPointHandle {
    /// The semaphore and the value to wait for.
    pub fn get(&self) -> VulkanPoint {
        self.point
    }
}

impl fmt::Debug for VulkanPointHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VulkanPointHandle").field("point", &self.point).finish_non_exhaustive()
    }
}

/// Timeline semaphores of a [`Fence`].
pub trait VulkanFenceExt {
    /// The points that must be reached before this fence is, for submissions of the application to queues of that device. Empty
    /// if the fence has been reached. Keep each handle until the queue that waits for its semaphore is idle: some drivers touch the
    /// semaphore for a moment after the work that waited for it has ended.
    ///
    /// # Errors
    /// The error of the work, if it failed; [`Error::Unsupported`] if the work runs on another device, or waits for the host and was not submitted yet.
    fn vk_points(&self, context: &ForeignVulkan) -> Result<Vec<VulkanPointHandle>>;
}

impl VulkanFenceExt for Fence {
    fn vk_points(&self, context: &ForeignVulkan) -> Result<Vec<VulkanPointHandle>> {
        let events = {
            // SAFETY: their handles are given away, and nothing is enqueued.
            unsafe { internals::events(self) }
        }?;
        let (native, mut points) = (context.native()?, Vec::new());
        for event in events {
            if !event.poll()? {
                let (point, _keeper) = native.point_of(&*event)?;
                points.push(VulkanPointHandle { point, _keeper });
            }
        }
        Ok(points)
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
            return Err(other_hub());
        }
        let (bytes, have) = (buffer.bytes, asked.element.count(buffer.bytes)?);
        if bytes == 0 || asked.len.is_some_and(|len| len != have) {
            let wanted = asked.len.map_or(String::new(), |len| format!(", not {len}"));
            return Err(Error::invalid(format!("the VkBuffer has {have} elements{wanted}")));
        }
        let (registration, foreign_device) = (&context.registration, context.native()?);
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
