//! Foreign logical devices, and their buffers.

pub use super::shared_queue::{SemaphorePoint, SharedQueue, Submission};

use super::{
    block::{Block, HostAddress, Theirs, Trouble, needs_of},
    device::{Context, Device, Driver},
    discover::Loader,
    event::Event,
    memory::Memory,
    queue::Queue,
    timeline::Timeline,
};
use onebuf_hal::{
    self as hal, DeviceEntries, Domain, Error, KnownAs, MemoryKind, Result, locks::Arc,
};
use onebuf_sys::vulkan::{vk, vk::Handle};
use std::{any::Any, ffi::c_void, ptr::NonNull};

/// The handles of a foreign device. They are live handles of the loaded loader, and outlive everything created from them. No
/// other code submits work to the queues that are named by their indices meanwhile. The extensions are those that the device was created with, and its
/// features include timeline semaphores.
#[derive(Clone, Debug)]
pub struct Handles {
    /// `VkInstance`.
    pub instance: usize,
    /// `VkPhysicalDevice`.
    pub physical: usize,
    /// `VkDevice`.
    pub device: usize,
    /// The index of the queues' family.
    pub family: u32,
    /// The indices of the queues that only onebuf uses.
    pub queues: Vec<u32>,
    /// A queue of that family that the application uses, too.
    pub shared: Option<Arc<dyn SharedQueue>>,
    /// The extensions that the device was created with.
    pub extensions: Vec<String>,
}

/// A foreign logical device in use. Keeps the objects that onebuf created for it.
#[derive(Debug)]
pub struct ForeignDevice(Arc<Context>);

impl hal::Library for Loader {}

impl Loader {
    /// Whether this is the address of the loaded loader's `vkGetInstanceProcAddr`.
    pub fn is_entry(&self, at: usize) -> bool {
        self.vulkan.is_entry(at as *const c_void)
    }

    /// Uses that logical device from now on, as long as the returned value lives.
    ///
    /// # Safety
    /// As for [`Handles`].
    pub unsafe fn enter_device(
        &self,
        handles: &Handles,
        entries: &mut dyn DeviceEntries,
    ) -> Result<Arc<dyn Any + Send + Sync>> {
        // SAFETY: the caller's promise.
        let (device, foreign_device) = unsafe { self.adopt(handles, entries.new_domain()) }?;
        let device = Arc::new(device);
        let same = |left: &dyn hal::Device| {
            let left = left.as_any().downcast_ref::<Device>();
            left.is_some_and(|left| hal::Device::info(left) == hal::Device::info(&*device))
        };
        let entry_device = entries.entry(device.clone(), KnownAs::Like, &same)?;
        let entry_device = entry_device.as_any().downcast_ref::<Device>();
        entry_device
            .ok_or_else(|| Error::invalid("a device entry of another API"))?
            .host_foreign_device(&foreign_device);
        Ok(Arc::new(foreign_device))
    }

    /// Wraps that logical device, and creates a device that can use foreign logical devices.
    ///
    /// # Safety
    /// As for [`Handles`].
    unsafe fn adopt(&self, handles: &Handles, domain: Domain) -> Result<(Device, ForeignDevice)> {
        if [handles.instance, handles.physical, handles.device].contains(&0) {
            return Err(Error::invalid("a VkInstance, VkPhysicalDevice or VkDevice: null"));
        }
        // SAFETY: the caller's promise.
        let driver = unsafe { self.driver_of(handles, domain) };
        let unfit =
            |why| Error::unsupported("a foreign VkDevice", format!("a suitable device: {why}"));
        let driver = Arc::new(driver.map_err(unfit)?);
        // SAFETY: the caller's promise.
        let context = unsafe {
            let table = driver.root.0.adopt_device(vk::Device::from_raw(handles.device as u64));
            let (queues, shared) = (handles.queues.iter().copied(), handles.shared.clone());
            Context::over(driver.clone(), table, queues, shared)
        };
        Ok((Device::entry(driver), ForeignDevice(Arc::new(context))))
    }
}

impl Device {
    /// Uses a foreign logical device from now on, as long as `foreign_device` lives.
    pub fn host_foreign_device(&self, foreign_device: &ForeignDevice) {
        self.admit(&foreign_device.0);
    }
}

/// Foreign memory.
#[derive(Clone, Copy, Debug)]
pub struct Under {
    /// Its handle.
    pub memory: vk::DeviceMemory,
    /// The buffer's offset in it.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// The index of its memory type.
    pub kind: u32,
    /// The host address of its first byte, if it is mapped.
    pub mapped: Option<NonNull<u8>>,
    /// Whether others can import it by an opaque descriptor.
    pub exportable: bool,
}

impl Under {
    /// Checks that a buffer with these requirements can be bound there, as far as type, offset and size show.
    pub(super) fn check(&self, driver: &Driver, needs: &vk::MemoryRequirements) -> Result<()> {
        let Under { offset, bytes, kind, .. } = *self;
        let wrong = |why: String| {
            Err(Error::invalid(format!("a VkBuffer in memory of type {kind}: {why}")))
        };
        let types = driver.memory.memory_types_as_slice();
        let Some(is) = types.get(kind as usize).map(|one| one.property_flags) else {
            return wrong(format!("the device has {} types", types.len()));
        };
        let coherent =
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        if needs.memory_type_bits >> kind & 1 == 0 {
            return wrong(format!("it takes the types {:#b}", needs.memory_type_bits));
        }
        if !offset.is_multiple_of(needs.alignment) {
            return wrong(format!("at byte {offset}, where it is aligned to {}", needs.alignment));
        }
        if offset.checked_add(needs.size).is_none_or(|end| end > bytes) {
            let size = needs.size;
            return wrong(format!("{size} bytes at byte {offset} of an allocation of {bytes}"));
        }
        if self.mapped.is_some() && !is.contains(coherent) {
            return wrong("its mapping is not coherent; pass no host address".to_owned());
        }
        Ok(())
    }

    /// The host address of the buffer's first byte.
    pub(super) fn buffer_address(&self) -> Option<HostAddress> {
        // SAFETY: inside the mapped range, by the checks above and the caller's promise about the address.
        self.mapped.map(|at| HostAddress(unsafe { at.add(self.offset as usize) }))
    }

    fn memory_kind(&self) -> MemoryKind {
        match (self.exportable, self.mapped) {
            (true, _) => MemoryKind::Exportable,
            (false, Some(_)) => MemoryKind::MappedDevice,
            (false, None) => MemoryKind::Device,
        }
    }
}

/// A foreign buffer, its memory if known, and the range of its bytes to use.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The buffer; null to create one over `under`.
    pub buffer: vk::Buffer,
    /// The offset of the range in the buffer.
    pub start: u64,
    /// The size of the range.
    pub bytes: usize,
    /// The buffer's memory, if known.
    pub under: Option<Under>,
}

impl ForeignDevice {
    /// Wraps foreign memory, which is not freed here. Also returns its memory kind.
    ///
    /// # Safety
    /// The objects are live objects of this device, bound to each other as stated, with the usages of storage buffers and copies.
    /// They outlive the memory and its work, and belong to onebuf's queue family or to all families.
    pub unsafe fn wrap(&self, object: &Object) -> Result<(Arc<dyn hal::Memory>, MemoryKind)> {
        let (context, driver) = (&self.0, &self.0.driver);
        let Object { buffer, start, bytes, under } = *object;
        let align = driver.info.caps.align_bytes;
        if !start.is_multiple_of(align as u64) {
            let why =
                format!("bytes from {start} of a VkBuffer: the device wants multiples of {align}");
            return Err(Error::invalid(why));
        }
        let memory_kind = under.map_or(MemoryKind::Device, |under| under.memory_kind());
        if !driver.info.caps.memory_kinds.contains(&memory_kind) {
            let what = format!("exportable memory of {}", driver.info.name);
            return Err(Error::unsupported(what, "VK_KHR_external_memory_fd among its extensions"));
        }
        let end =
            start.checked_add(bytes as u64).ok_or_else(|| Error::invalid("the range overflows"))?;
        let block = match under {
            _ if !buffer.is_null() => self.around(buffer, end, under.as_ref())?,
            Some(under) => {
                let exportable = memory_kind == MemoryKind::Exportable;
                let made = Block::over(&context.table, driver, end as usize, exportable, &under);
                made.map_err(|trouble: Trouble| trouble.error(driver, bytes))?
            }
            None => return Err(Error::invalid("a VkBuffer: null, and no memory to make one over")),
        };
        let memory = Memory::lent(context.clone(), block, start as usize, bytes, memory_kind);
        Ok((Arc::new(memory), memory_kind))
    }

    /// The queue that the application uses, too. Its events cover what the application has submitted.
    pub fn shared_queue(&self) -> Result<Arc<dyn hal::Queue>> {
        let lane = self.0.shared_lane().ok_or_else(|| {
            let needs = "a VkDevice that was registered with a queue to share";
            Error::unsupported("the application's own VkQueue", needs)
        })?;
        Ok(Arc::new(Queue::on_lane(self.0.clone(), lane)?))
    }

    /// An event that completes when a foreign timeline semaphore reaches a value.
    ///
    /// # Safety
    /// A live timeline semaphore of this device, which outlives the event and all work that waits for it. Its value only grows.
    pub unsafe fn semaphore_point(
        &self,
        semaphore: u64,
        value: u64,
    ) -> Result<Arc<dyn hal::Event>> {
        if semaphore == 0 {
            return Err(Error::invalid("a VkSemaphore: null"));
        }
        let semaphore = vk::Semaphore::from_raw(semaphore);
        let timeline = Arc::new(Timeline::foreign(self.0.clone(), semaphore));
        Ok(Arc::new(Event::of_timeline(timeline, value)))
    }

    /// The timeline semaphore and the value that stand for an event of this device, with what keeps the semaphore alive.
    pub fn point_of(
        &self,
        event: &dyn hal::Event,
    ) -> Result<(SemaphorePoint, Arc<dyn Any + Send + Sync>)> {
        let own = event.as_any().downcast_ref::<Event>();
        let own = own.filter(|event| hal::Event::domain(*event) == self.0.driver.domain);
        let event = own.ok_or_else(|| {
            Error::unsupported("a VkSemaphore of this fence", "a fence of a queue of this VkDevice")
        })?;
        event.semaphore_point()
    }

    /// Wraps a foreign buffer. Vulkan does not report a buffer's size; its memory requirements are at least as large.
    fn around(&self, buffer: vk::Buffer, end: u64, under: Option<&Under>) -> Result<Block> {
        let needs = needs_of(&self.0.table, buffer);
        if end > needs.size {
            let size = needs.size;
            return Err(Error::invalid(format!(
                "bytes up to {end} of a VkBuffer of {size} at most"
            )));
        }
        under.map_or(Ok(()), |under| under.check(&self.0.driver, &needs))?;
        Ok(Block {
            buffer,
            memory: under.map_or(vk::DeviceMemory::null(), |under| under.memory),
            host: under.and_then(Under::buffer_address),
            bytes: end,
            allocation_bytes: under.map_or(0, |under| under.bytes),
            offset: under.map_or(0, |under| under.offset),
            kind: under.map(|under| under.kind),
            theirs: Theirs { buffer: true, memory: true },
        })
    }
}
