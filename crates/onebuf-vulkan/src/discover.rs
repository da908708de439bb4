//! Discovers the loader, its devices, and their capabilities.

use super::{
    conv,
    device::{Device, Driver, Family, Limits},
    foreign::Handles,
    semaphore,
};
use onebuf_hal::{
    Api, Caps, DeviceInfo, DeviceKind, Domain, FdKind, MemoryKind, PhysicalId, checks, locks::Arc,
    watchdog::Post,
};
use onebuf_sys::{
    Missing, Probe, VkRefused,
    vulkan::{Instance, Vulkan, vk, vk::Handle},
};
use std::{ffi::CStr, fs, os::unix::fs::MetadataExt, path::Path};

/// The oldest supported version: the first with timeline semaphores.
const LEAST: u32 = vk::API_VERSION_1_2;
/// The smallest alignment of regions, whatever the device reports.
const ALIGN_BYTES: u64 = 16;

const NO_DEVICE_HINT: &str = "install a driver (on Debian or Ubuntu: apt install \
    mesa-vulkan-drivers); VK_DRIVER_FILES or VK_ICD_FILENAMES may hide it";

/// The devices that were found.
#[derive(Debug)]
pub struct Discovered {
    /// The loader, which can also adopt foreign devices.
    pub loader: Loader,
    /// The devices, in the loader's order.
    pub devices: Vec<Arc<Device>>,
    /// Devices that were left out, and why.
    pub problems: Vec<String>,
}

/// The loader, and the identity of its file.
#[derive(Debug)]
pub struct Loader {
    pub(super) vulkan: Vulkan,
    identity: String,
}

impl Loader {
    /// Queries a foreign device, with only the extensions that it was created with.
    ///
    /// # Safety
    /// As for [`Handles`](super::foreign::Handles).
    pub(super) unsafe fn driver_of(
        &self,
        handles: &Handles,
        domain: Domain,
    ) -> Result<Driver, String> {
        let (instance, physical) = (handles.instance as u64, handles.physical as u64);
        // SAFETY: the caller's promise.
        let instance = unsafe { self.vulkan.adopt_instance(vk::Instance::from_raw(instance)) };
        let root = Arc::new(Root(instance));
        let mut asked = Asked::new(&root.0, vk::PhysicalDevice::from_raw(physical))?;
        asked.extensions.retain(|name| handles.extensions.contains(name));
        asked.check()?;
        let family = asked.family_at(handles.family, &handles.queues, handles.shared.is_some())?;
        Ok(asked.driver(&root, family, &self.identity, domain))
    }
}

/// An instance, destroyed once. Its devices keep it alive.
#[derive(Debug)]
pub(super) struct Root(pub Instance);

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: everything created from it kept this alive, and is gone.
        unsafe { self.0.destroy() };
    }
}

/// Loads Vulkan and lists its devices. Creates no logical device, so it wakes no chip.
///
/// `next_domain` numbers the devices. A device that cannot be used is left out and named in `Discovered::problems`. Without
/// a loader, after a call that the loader refuses, or without any device, the result is [`Missing`].
pub fn discover(
    library: Option<&str>,
    probe: Option<std::sync::Arc<Probe>>,
    next_domain: &mut impl FnMut() -> Domain,
) -> Result<Discovered, Missing> {
    let vulkan = Vulkan::load(library, probe)?;
    let path = vulkan.library().unwrap_or_default();
    let (root, all) = list(&vulkan).map_err(|why| none(&path, Some(why), &why.to_string()))?;
    let loader = Loader { vulkan, identity: identity(&path) };
    let mut found = Discovered { loader, devices: Vec::new(), problems: Vec::new() };
    for (number, physical) in all.into_iter().enumerate() {
        let asked = Asked::new(&root.0, physical);
        let identity = &found.loader.identity;
        match asked.and_then(|asked| asked.found(&root, identity, next_domain)) {
            Ok(driver) => found.devices.push(Arc::new(Device::new(driver))),
            Err(why) => found.problems.push(format!("Vulkan device {number}: {why}")),
        }
    }
    if found.devices.is_empty() {
        let reason = match &found.problems[..] {
            [] => "the loader knows of no device".to_owned(),
            problems => format!("no device can be used: {}", problems.join("; ")),
        };
        return Err(none(&path, None, &reason));
    }
    Ok(found)
}

/// Creates an instance and lists its devices.
fn list(vulkan: &Vulkan) -> Result<(Arc<Root>, Vec<vk::PhysicalDevice>), VkRefused> {
    // A 1.0 loader refuses a newer version; it has no usable device either.
    let newest = vulkan.version()?.max(LEAST);
    let application = vk::ApplicationInfo::default()
        .application_name(c"onebuf")
        .engine_name(c"onebuf")
        .api_version(newest);
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    // SAFETY: a complete description, which the call copies.
    let root = Arc::new(Root(unsafe { vulkan.create_instance(&info)? }));
    // SAFETY: a live instance.
    let all = unsafe { root.0.physical_devices()? };
    Ok((root, all))
}

fn none(path: &Path, refused: Option<VkRefused>, reason: &str) -> Missing {
    Missing {
        api: "vulkan",
        tried: vec![path.display().to_string()],
        loaded: true,
        code: refused.map(|refused| refused.status.as_raw()),
        reason: reason.to_owned(),
        hint: NO_DEVICE_HINT.to_owned(),
    }
}

/// Distinguishes loader files of the same name: path, size and modification time.
fn identity(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&path) {
        Ok(file) => {
            format!("{} {} {}.{:09}", path.display(), file.size(), file.mtime(), file.mtime_nsec())
        }
        Err(_) => path.display().to_string(),
    }
}

/// A device, for queries during discovery.
struct Asked<'a> {
    instance: &'a Instance,
    physical: vk::PhysicalDevice,
    extensions: Vec<String>,
    plain: vk::PhysicalDeviceProperties,
    memory: vk::PhysicalDeviceMemoryProperties,
}

/// Properties that only newer devices report.
struct More {
    uuid: [u8; 16],
    driver_uuid: [u8; 16],
    driver_name: String,
    is_lavapipe: bool,
    driver_info: String,
    max_alloc_bytes: u64,
    pci: Option<onebuf_hal::PciAddress>,
    host_page: u64,
}

impl<'a> Asked<'a> {
    fn new(instance: &'a Instance, physical: vk::PhysicalDevice) -> Result<Self, String> {
        // SAFETY: a device of this live instance, here and below.
        let extensions = unsafe { instance.extensions(physical) }.map_err(|why| why.to_string())?;
        // SAFETY: as above.
        let plain = unsafe { instance.raw().get_physical_device_properties(physical) };
        // SAFETY: as above.
        let memory = unsafe { instance.raw().get_physical_device_memory_properties(physical) };
        Ok(Asked { instance, physical, extensions, plain, memory })
    }

    fn found(
        &self,
        root: &Arc<Root>,
        identity: &str,
        next_domain: &mut impl FnMut() -> Domain,
    ) -> Result<Driver, String> {
        self.check()?;
        let family = self.family().ok_or_else(|| self.lacks("a queue for compute shaders"))?;
        Ok(self.driver(root, family, identity, next_domain()))
    }

    fn driver(&self, root: &Arc<Root>, family: Family, identity: &str, domain: Domain) -> Driver {
        let more = self.more();
        let info = self.info(&more, identity);
        Driver {
            root: root.clone(),
            physical: self.physical,
            domain,
            family,
            limits: self.limits(&more),
            memory: self.memory,
            post: Post::new("vulkan", info.name.clone()),
            info,
        }
    }

    /// The family of a foreign device, with these of its queues.
    fn family_at(&self, index: u32, queues: &[u32], shared: bool) -> Result<Family, String> {
        let ask = self.instance.raw();
        // SAFETY: a device of this live instance.
        let all = unsafe { ask.get_physical_device_queue_family_properties(self.physical) };
        let computes =
            |one: &&vk::QueueFamilyProperties| one.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let one = all.get(index as usize).filter(computes);
        let one =
            one.ok_or_else(|| format!("queue family {index} does not run compute shaders"))?;
        match queues.iter().find(|queue| **queue >= one.queue_count) {
            Some(queue) => {
                Err(format!("queue {queue} of family {index}, which has {}", one.queue_count))
            }
            None if queues.is_empty() && !shared => Err("no queue was given".to_owned()),
            None => {
                let (queues, clock_bits) = (queues.len() as u32, one.timestamp_valid_bits);
                Ok(Family { index, queues, clock_bits })
            }
        }
    }

    fn lacks(&self, what: &str) -> String {
        format!("{} does not have {what}", self.name())
    }

    fn name(&self) -> String {
        text(self.plain.device_name_as_c_str())
    }

    fn has(&self, name: &CStr) -> bool {
        self.extensions.iter().any(|known| known.as_bytes() == name.to_bytes())
    }

    /// Checks the version and timeline semaphores.
    fn check(&self) -> Result<(), String> {
        if self.plain.api_version < LEAST {
            let has = conv::version(self.plain.api_version);
            return Err(format!("{} has Vulkan {has}, and 1.2 is needed", self.name()));
        }
        let mut newer = vk::PhysicalDeviceVulkan12Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut newer);
        // SAFETY: a device of this live instance, of version 1.2.
        unsafe { self.instance.raw().get_physical_device_features2(self.physical, &mut features) };
        match newer.timeline_semaphore {
            vk::TRUE => Ok(()),
            _ => Err(self.lacks("timeline semaphores")),
        }
    }

    /// The queue family for compute shaders; one without graphics if there is any.
    fn family(&self) -> Option<Family> {
        let ask = self.instance.raw();
        // SAFETY: a device of this live instance.
        let all = unsafe { ask.get_physical_device_queue_family_properties(self.physical) };
        let rank = |family: &vk::QueueFamilyProperties| {
            let flags = family.queue_flags;
            (flags.contains(vk::QueueFlags::COMPUTE) && family.queue_count > 0)
                .then(|| u32::from(!flags.contains(vk::QueueFlags::GRAPHICS)))
        };
        let ranked = (0..).zip(&all).filter_map(|(index, one)| Some((rank(one)?, index, one)));
        // The first of the best, by index.
        let (_, index, best) = ranked.max_by_key(|(rank, index, _)| (*rank, !*index))?;
        let (queues, clock_bits) = (best.queue_count, best.timestamp_valid_bits);
        Some(Family { index, queues, clock_bits })
    }

    fn more(&self) -> More {
        let mut ids = vk::PhysicalDeviceVulkan11Properties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut bus = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut all =
            vk::PhysicalDeviceProperties2::default().push_next(&mut ids).push_next(&mut driver);
        let (has_bus, has_host) =
            (self.has(vk::EXT_PCI_BUS_INFO_NAME), self.has(vk::EXT_EXTERNAL_MEMORY_HOST_NAME));
        if has_bus {
            all = all.push_next(&mut bus);
        }
        if has_host {
            all = all.push_next(&mut host);
        }
        // SAFETY: a device of this live instance; every structure is of its version or its extensions.
        unsafe { self.instance.raw().get_physical_device_properties2(self.physical, &mut all) };
        More {
            uuid: ids.device_uuid,
            driver_uuid: ids.driver_uuid,
            max_alloc_bytes: ids.max_memory_allocation_size,
            driver_name: text(driver.driver_name_as_c_str()),
            is_lavapipe: driver.driver_id == vk::DriverId::MESA_LLVMPIPE,
            driver_info: text(driver.driver_info_as_c_str()),
            pci: has_bus.then(|| conv::pci(&bus)).flatten(),
            host_page: host.min_imported_host_pointer_alignment,
        }
    }

    fn limits(&self, more: &More) -> Limits {
        let limits = &self.plain.limits;
        Limits {
            api: self.plain.api_version,
            groups: limits.max_compute_work_group_count.map(|n| n as usize),
            storage_bytes: u64::from(limits.max_storage_buffer_range),
            uniform_bytes: u64::from(limits.max_uniform_buffer_range),
            uniform_align: limits.min_uniform_buffer_offset_alignment.max(16) as usize,
            storages: limits.max_per_stage_descriptor_storage_buffers as usize,
            host_page: more.host_page.max(1) as usize,
            clock_ns: f64::from(limits.timestamp_period),
        }
    }

    fn info(&self, more: &More, identity: &str) -> DeviceInfo {
        let hex: String = more.driver_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let known = |id: [u8; 16]| (id != [0; 16]).then_some(id);
        DeviceInfo {
            api: Api("vulkan"),
            name: self.name(),
            platform: more.driver_name.clone(),
            version: format!("Vulkan {}", conv::version(self.plain.api_version)),
            driver: more.driver_info.clone(),
            // The loader does not report a driver's file; the driver's UUID identifies its build.
            library: format!("{identity} {hex}"),
            kind: conv::kind(self.plain.device_type),
            physical: PhysicalId { uuid: known(more.uuid), pci: more.pci },
            memory_bytes: self.memory_bytes(),
            extensions: self.extensions.clone(),
            caps: self.caps(more),
        }
        .printable()
    }

    /// The size of the largest device-local heap.
    fn memory_bytes(&self) -> u64 {
        let heaps = self.memory.memory_heaps_as_slice().iter();
        let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        own.map(|heap| heap.size).max().unwrap_or(0)
    }

    fn caps(&self, more: &More) -> Caps {
        let limits = &self.plain.limits;
        let kind = self.plain.device_type;
        let unified =
            conv::kind(kind) == DeviceKind::Cpu || kind == vk::PhysicalDeviceType::INTEGRATED_GPU;
        let features = self.fd_features();
        let fd = |feature| features.contains(feature).then_some(FdKind::OpaqueFd);
        let exports: Vec<_> = fd(vk::ExternalMemoryFeatureFlags::EXPORTABLE).into_iter().collect();
        let memory_kinds = [
            (true, MemoryKind::MappedDevice),
            (!exports.is_empty(), MemoryKind::Exportable),
            (true, MemoryKind::Device),
        ];
        Caps {
            memory_kinds: memory_kinds
                .into_iter()
                .filter_map(|(has, memory_kind)| has.then_some(memory_kind))
                .collect(),
            imports_host_pages: self.imports_pages(),
            exports,
            imports: fd(vk::ExternalMemoryFeatureFlags::IMPORTABLE).into_iter().collect(),
            align_bytes: limits.min_storage_buffer_offset_alignment.max(ALIGN_BYTES) as usize,
            unified_memory: unified,
            // A buffer that no shader could bind as a whole is refused at allocation.
            max_alloc_bytes: more
                .max_alloc_bytes
                .min(self.memory_bytes())
                .min(u64::from(limits.max_storage_buffer_range)),
            local_memory_bytes: u64::from(limits.max_compute_shared_memory_size),
            max_group_size: limits.max_compute_work_group_invocations as usize,
            max_group_sizes: limits.max_compute_work_group_size.map(|n| n as usize),
            max_loop_iterations: checks::max_loop_iterations(&self.name(), &more.driver_info),
            // The API does not report it.
            compute_units: 1,
            out_of_order: false,
            callbacks: false,
            host_signals: true,
            wait_values: false,
            exports_semaphores: self.exports_semaphores(),
            imports_semaphores: self.exports_semaphores(),
            one_thread: false,
            svm_atomics: false,
            svm_system: false,
            address_space: None,
            shares_objects_of: Vec::new(),
            built_on: None,
            peers: Vec::new(),
            ipc: false,
            // lavapipe reads sizes and offsets from a header in the file; other CPU drivers map the file.
            parses_fds: more.is_lavapipe || conv::kind(kind) == DeviceKind::Cpu,
            imports_without_acquire: false,
            il_versions: vec![format!("SPIR-V_{}", self.spirv())],
        }
    }

    /// The newest SPIR-V version that the device must accept.
    fn spirv(&self) -> &'static str {
        if self.plain.api_version >= vk::API_VERSION_1_3 { "1.6" } else { "1.5" }
    }

    /// Whether the driver creates storage buffers over imported host pages.
    fn imports_pages(&self) -> bool {
        let pages = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let features = || self.external(pages);
        self.has(vk::EXT_EXTERNAL_MEMORY_HOST_NAME)
            && features().contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
    }

    /// The driver's features for buffers over external memory of one handle type.
    fn external(&self, kind: vk::ExternalMemoryHandleTypeFlags) -> vk::ExternalMemoryFeatureFlags {
        let info = vk::PhysicalDeviceExternalBufferInfo::default()
            .usage(super::block::USAGE)
            .handle_type(kind);
        let mut found = vk::ExternalBufferProperties::default();
        let ask = self.instance.raw();
        // SAFETY: a device of this live instance, of version 1.1 or newer.
        unsafe {
            ask.get_physical_device_external_buffer_properties(self.physical, &info, &mut found);
        }
        found.external_memory_properties.external_memory_features
    }

    /// Whether the driver creates semaphores that other APIs can import.
    fn exports_semaphores(&self) -> bool {
        let (question, ask) = (semaphore::question(), self.instance.raw());
        let mut found = vk::ExternalSemaphoreProperties::default();
        // SAFETY: a device of this live instance, of version 1.1 or newer.
        unsafe {
            let physical = self.physical;
            ask.get_physical_device_external_semaphore_properties(physical, &question, &mut found);
        }
        self.has(vk::KHR_EXTERNAL_SEMAPHORE_FD_NAME) && semaphore::is_exportable(&found)
    }

    /// The driver's features for buffers over opaque descriptors. Empty if the memory must be dedicated to one buffer, because
    /// onebuf cannot pass that requirement on to importers.
    fn fd_features(&self) -> vk::ExternalMemoryFeatureFlags {
        if !self.has(vk::KHR_EXTERNAL_MEMORY_FD_NAME) {
            return vk::ExternalMemoryFeatureFlags::empty();
        }
        let features = self.external(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        if features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY) {
            return vk::ExternalMemoryFeatureFlags::empty();
        }
        features
    }
}

fn text<E>(name: Result<&CStr, E>) -> String {
    name.map_or_else(|_| String::new(), |name| name.to_string_lossy().trim().to_owned())
}
