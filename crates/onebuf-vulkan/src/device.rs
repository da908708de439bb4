//! A device, and the logical device that owns all objects created for it.

use super::{
    VulkanBackend, conv,
    discover::Root,
    memory::{Inner, Memory},
    program::Program,
    queue::{Queue, RawQueue},
    semaphore::Semaphore,
    shared_queue::{Lane, SharedQueue},
    timeline::IdleTimelines,
};
use onebuf_hal::{
    Access, AllocSpec, DeviceInfo, Domain, Error, FdRange, HostRange, QueueSpec, Result, Source,
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
    mapped::MappedMemories,
    typed::TypedDevice,
    watchdog::Post,
};
use onebuf_sys::{
    VkRefused,
    vulkan::{self, vk},
};
use std::{ffi::CStr, fmt, os::fd::OwnedFd, sync::Weak};

/// The maximum number of native queues used of one device; more do not help.
const MOST_LANES: u32 = 8;

/// The queue family that work is submitted to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub index: u32,
    pub queues: u32,
    /// The number of valid bits of its timestamps; zero without timestamps.
    pub clock_bits: u32,
}

/// Limits for launches and imports that are not part of the device's capabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The version of the API, packed.
    pub api: u32,
    /// Maximum number of groups in each dimension.
    pub groups: [usize; 3],
    /// Maximum size of one buffer binding of a shader.
    pub storage_bytes: u64,
    /// Maximum size of the values.
    pub uniform_bytes: u64,
    pub uniform_align: usize,
    /// Maximum number of buffers of one shader.
    pub storages: usize,
    /// The alignment of imported host pages.
    pub host_page: usize,
    /// Nanoseconds per tick of the clock.
    pub clock_ns: f64,
}

/// A device's properties. Nothing here needs releasing.
pub(super) struct Driver {
    pub root: Arc<Root>,
    pub physical: vk::PhysicalDevice,
    pub domain: Domain,
    pub family: Family,
    pub limits: Limits,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub info: DeviceInfo,
    /// The watchdog of calls that may block.
    pub post: Arc<Post>,
}

impl Driver {
    /// Converts a driver's refusal to an error that names the device.
    #[inline]
    pub fn check<T>(&self, answer: Result<T, VkRefused>) -> Result<T> {
        answer.map_err(|refused| conv::refused(refused, &self.info.name))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("device", &self.info.name)
            .field("domain", &self.domain)
            .finish()
    }
}

/// The logical device. Every object created from it keeps it alive.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    pub table: vulkan::Device,
    /// The native queues. One that the application uses, too, is the last.
    lanes: Vec<Lane>,
    next_lane: AtomicU64,
    /// onebuf's queues, so that work which becomes ready can be submitted on all of them.
    queues: Mutex<Vec<Weak<RawQueue>>>,
    pub idle_timelines: IdleTimelines,
    /// Memory that the host sees, which copies use in place.
    pub mapped: MappedMemories<Inner>,
}

impl Context {
    fn new(driver: &Arc<Driver>) -> Result<Context> {
        let (family, count) = (driver.family, driver.family.queues.min(MOST_LANES));
        let priorities = vec![1.0; count as usize];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family.index)
            .queue_priorities(&priorities)];
        let extensions: Vec<_> = wanted(&driver.info).map(CStr::as_ptr).collect();
        let mut features = Features::of(driver);
        let Features { plain, v11, v12 } = &mut features;
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .enabled_features(plain)
            .push_next(v11)
            .push_next(v12);
        // SAFETY: a device of this live instance; it declared every requested extension and feature.
        let make = || unsafe { driver.root.0.create_device(driver.physical, &info) };
        let made = driver.post.watch("vkCreateDevice", make);
        let table = driver.check(made)?;
        // SAFETY: created above, with this many queues of that family.
        Ok(unsafe { Context::over(driver.clone(), table, 0..count, None) })
    }

    /// # Safety
    /// `table` is a live device with these queues of the driver's family, and no other code submits to them. `shared` is a queue
    /// of that family, too.
    pub unsafe fn over(
        driver: Arc<Driver>,
        table: vulkan::Device,
        queues: impl IntoIterator<Item = u32>,
        shared: Option<Arc<dyn SharedQueue>>,
    ) -> Context {
        let lane = |n| {
            // SAFETY: the caller's promise.
            Lane::own(unsafe { table.raw().get_device_queue(driver.family.index, n) })
        };
        let lanes = queues.into_iter().map(lane).chain(shared.map(Lane::Shared)).collect();
        let (next_lane, queues) = (AtomicU64::new(0), Mutex::default());
        let (idle_timelines, mapped) = (IdleTimelines::default(), MappedMemories::default());
        Context { driver, table, lanes, next_lane, queues, idle_timelines, mapped }
    }

    /// The index of the native queue for the next queue; queues share native queues if there are too few. The application's is
    /// used only if there is no other.
    pub fn next_lane(&self) -> usize {
        let own = self.lanes.len() - usize::from(self.shared_lane().is_some());
        self.next_lane.fetch_add(1, Ordering::Relaxed) as usize % own.max(1)
    }

    pub fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane]
    }

    /// The index of the native queue that the application uses, too.
    pub fn shared_lane(&self) -> Option<usize> {
        self.lanes.iter().rposition(Lane::is_shared)
    }

    pub fn enlist(&self, queue: &Arc<RawQueue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    fn queues(&self) -> Vec<Arc<RawQueue>> {
        lock(&self.queues).iter().filter_map(Weak::upgrade).collect()
    }

    /// Submits every batch that nothing holds back any longer.
    pub fn pump(&self) {
        let queues = self.queues();
        while queues.iter().any(|queue| queue.pump()) {}
    }

    /// Completes finished batches of all queues.
    pub fn sweep(&self) {
        self.queues().iter().for_each(|queue| queue.sweep());
    }

    /// Destroys the semaphores that queues have left, once no native queue can touch them.
    fn destroy_timelines(&self) {
        let idle = self.idle_timelines.drain();
        let Some(&marker) = idle.first() else { return };
        if onebuf_sys::fork::is_child() {
            return;
        }
        // Of a lost device nothing uses them. The application's queue may be out of reach: then they stay.
        let is_idle = |lane: &Lane| match lane.wait_idle(&self.table, &self.driver, marker) {
            Ok(()) | Err(Error::DeviceLost { .. }) => true,
            Err(why) => {
                tracing::warn!(device = %self.driver.info.name, "semaphores are kept: {why}");
                false
            }
        };
        if !self.lanes.iter().all(is_idle) {
            return;
        }
        // SAFETY: created by `Timeline::new`, destroyed once, and no work uses them.
        idle.into_iter().for_each(|(raw, _)| unsafe { self.table.destroy_semaphore(raw) });
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.destroy_timelines();
        // SAFETY: everything created from it kept this alive, and is gone.
        unsafe { self.table.destroy() };
    }
}

/// The extensions that onebuf uses, if the device has them.
fn wanted(info: &DeviceInfo) -> impl Iterator<Item = &'static CStr> {
    let wanted = [
        vk::KHR_EXTERNAL_MEMORY_FD_NAME,
        vk::EXT_EXTERNAL_MEMORY_HOST_NAME,
        vk::KHR_EXTERNAL_SEMAPHORE_FD_NAME,
    ];
    wanted.into_iter().filter(|name| name.to_str().is_ok_and(|name| info.declares(name)))
}

/// The optional features that shaders may use.
struct Features {
    plain: vk::PhysicalDeviceFeatures,
    v11: vk::PhysicalDeviceVulkan11Features<'static>,
    v12: vk::PhysicalDeviceVulkan12Features<'static>,
}

impl Features {
    /// The features for types and memory that the device has. Others stay off, because they cost time when enabled.
    fn of(driver: &Driver) -> Features {
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut all =
            vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12);
        let ask = driver.root.0.raw();
        // SAFETY: a device of this live instance, of version 1.2.
        unsafe { ask.get_physical_device_features2(driver.physical, &mut all) };
        let plain = vk::PhysicalDeviceFeatures {
            shader_int16: all.features.shader_int16,
            shader_int64: all.features.shader_int64,
            shader_float64: all.features.shader_float64,
            ..Default::default()
        };
        let v11 = vk::PhysicalDeviceVulkan11Features {
            storage_buffer16_bit_access: v11.storage_buffer16_bit_access,
            uniform_and_storage_buffer16_bit_access: v11.uniform_and_storage_buffer16_bit_access,
            variable_pointers: v11.variable_pointers,
            variable_pointers_storage_buffer: v11.variable_pointers_storage_buffer,
            ..Default::default()
        };
        let v12 = vk::PhysicalDeviceVulkan12Features {
            timeline_semaphore: vk::TRUE,
            shader_int8: v12.shader_int8,
            shader_float16: v12.shader_float16,
            storage_buffer8_bit_access: v12.storage_buffer8_bit_access,
            uniform_and_storage_buffer8_bit_access: v12.uniform_and_storage_buffer8_bit_access,
            scalar_block_layout: v12.scalar_block_layout,
            vulkan_memory_model: v12.vulkan_memory_model,
            vulkan_memory_model_device_scope: v12.vulkan_memory_model_device_scope,
            ..Default::default()
        };
        Features { plain, v11, v12 }
    }
}

/// One Vulkan device.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    context: Mutex<Which>,
}

/// The logical device in use.
#[derive(Debug)]
enum Which {
    /// Created by the first call that needs it: that starts threads and wakes the chip.
    Own(Option<Arc<Context>>),
    /// A foreign logical device, kept alive by its `ForeignDevice`.
    ForeignDevice(Weak<Context>),
}

impl Device {
    pub(super) fn new(driver: Driver) -> Device {
        Device { driver: Arc::new(driver), context: Mutex::new(Which::Own(None)) }
    }

    /// A device for foreign logical devices, which has none yet.
    pub(super) fn entry(driver: Arc<Driver>) -> Device {
        Device { driver, context: Mutex::new(Which::ForeignDevice(Weak::new())) }
    }

    /// Uses this foreign logical device from now on.
    pub(super) fn admit(&self, context: &Arc<Context>) {
        *lock(&self.context) = Which::ForeignDevice(Arc::downgrade(context));
    }

    #[cfg(all(test, feature = "glsl", not(onebuf_shuttle)))]
    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the logical device. A failure is not stored, so that the next call tries again.
    pub(super) fn context(&self) -> Result<Arc<Context>> {
        match &mut *lock(&self.context) {
            Which::Own(Some(context)) => Ok(context.clone()),
            Which::Own(slot) => Ok(slot.insert(Arc::new(Context::new(&self.driver)?)).clone()),
            Which::ForeignDevice(context) => context.upgrade().ok_or_else(|| Error::Unavailable {
                what: format!("a foreign device on {}", self.driver.info.name),
                tried: Vec::new(),
                reason: "its `ForeignVulkan` was dropped; keep it alive".to_owned(),
            }),
        }
    }
}

// SAFETY: every object created from it keeps the logical device; an import keeps its owner together with the block.
unsafe impl TypedDevice for Device {
    type Types = VulkanBackend;

    fn info(&self) -> &DeviceInfo {
        &self.driver.info
    }

    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        let context = self.context()?;
        let Driver { root, physical, .. } = &*context.driver;
        let handles = [
            ("VkInstance", vk::Handle::as_raw(root.0.raw().handle())),
            ("VkPhysicalDevice", vk::Handle::as_raw(*physical)),
            ("VkDevice", vk::Handle::as_raw(context.table.raw().handle())),
        ];
        Ok(handles.map(|(name, handle)| (name, handle as usize)).into())
    }

    fn post(&self) -> Option<&Arc<Post>> {
        Some(&self.driver.post)
    }

    unsafe fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Memory> {
        Memory::allocate(self.context()?, spec, contents)
    }

    unsafe fn import_host(&self, pages: &HostRange, access: Access) -> Result<Memory> {
        Memory::import(self.context()?, pages, access)
    }

    fn host_pages_need(&self) -> &'static str {
        "a driver with VK_EXT_external_memory_host"
    }

    unsafe fn import_fd(&self, range: &FdRange, access: Access) -> Result<Memory> {
        Memory::import_fd(self.context()?, range, access)
    }

    fn semaphore(&self) -> Result<(Semaphore, OwnedFd)> {
        Semaphore::shared(self.context()?)
    }

    fn queue(&self, spec: QueueSpec) -> Result<Queue> {
        Queue::new(self.context()?, spec.profiling)
    }

    fn build(&self, source: &Source) -> Result<Program> {
        Program::build(self.context()?, source)
    }

    fn compiles(&self) -> bool {
        true
    }
}
