//! Discovers platforms and devices, and their capabilities.

use super::{
    API, address, arm,
    conv::{self, Version},
    device::{Device, Driver},
    graphics, query,
    quirks::{self, Quirks},
    semaphore,
};
use bytemuck::Pod;
use onebuf_hal::{
    Api, Caps, DeviceInfo, DeviceKind, Domain, FdKind, MemoryKind, PciAddress, PhysicalId, checks,
    locks::Arc, watchdog::Post,
};
use onebuf_sys::{
    ClStatus, Missing, Probe,
    opencl::{ClDevice, ClPlatform, ClTopologyAmd, OpenCl, OpenClExt, consts as cl},
};
use std::{fs, os::unix::fs::MetadataExt, path::Path, ptr};

const NO_PLATFORM_HINT: &str = "install a driver (Debian: pocl-opencl-icd runs on any CPU), or see \
    whether /etc/OpenCL/vendors or OCL_ICD_VENDORS names one";
pub(super) const NO_DEVICE_HINT: &str = "some drivers must be enabled: RUSTICL_ENABLE=<gallium driver> for \
    rusticl, LP_CL=1 for clover; a GPU also needs access to /dev/dri or /dev/kfd";

/// Part of the vendor name of platforms whose chips have MSMC memory.
const TEXAS_INSTRUMENTS: &str = "Texas Instruments";

/// The smallest alignment used for device memory, whatever the device reports: one cache line.
const MIN_ALIGN_BYTES: usize = 64;

/// The OpenCL devices of this machine.
#[derive(Debug)]
pub struct Discovered {
    /// The function table that every driver call goes through.
    pub cl: Arc<OpenCl>,
    /// Every device of every platform, in the loader's order.
    pub devices: Vec<Arc<Device>>,
    /// Platforms and devices that were left out, and why.
    pub problems: Vec<String>,
}

/// Loads OpenCL and lists its devices. Creates no context, so it wakes no chip.
///
/// `library` is a path or soname that replaces the usual ones; `next_domain` numbers the devices' contexts. A platform or
/// device whose query fails is left out and named in `Discovered::problems`. Without a library, a platform or any device,
/// the result is [`Missing`].
pub fn discover(
    library: Option<&str>,
    probe: Option<std::sync::Arc<Probe>>,
    next_domain: &mut impl FnMut() -> Domain,
) -> Result<Discovered, Missing> {
    let cl = Arc::new(OpenCl::load(library, probe)?);
    let mut found = Discovered { cl: cl.clone(), devices: Vec::new(), problems: Vec::new() };
    for platform in platforms(&cl)? {
        if let Err(why) = add_platform(&cl, platform, next_domain, &mut found) {
            found.problems.push(why);
        }
    }
    if found.devices.is_empty() {
        let reason = match found.problems.is_empty() {
            true => "no platform has a device".to_owned(),
            false => format!("no device can be used: {}", found.problems.join("; ")),
        };
        return Err(missing(&cl, Some(ClStatus::DEVICE_NOT_FOUND.0), reason, NO_DEVICE_HINT));
    }
    Ok(found)
}

fn missing(cl: &OpenCl, code: Option<i32>, reason: String, hint: &str) -> Missing {
    let tried = vec![library_name(cl)];
    Missing { api: API.0, tried, loaded: true, code, reason, hint: hint.to_owned() }
}

fn library_name(cl: &OpenCl) -> String {
    cl.library().map_or("the OpenCL library".to_owned(), |path| path.display().to_string())
}

fn platforms(cl: &OpenCl) -> Result<Vec<ClPlatform>, Missing> {
    let none = |code, why: String| missing(cl, code, why, NO_PLATFORM_HINT);
    // SAFETY: a count and a list of that length.
    let found =
        counted(ClPlatform::NULL, |n, list, count| unsafe { cl.get_platform_ids(n, list, count) });
    match found {
        Ok(list) if list.is_empty() => Err(none(None, "no platform is installed".to_owned())),
        Ok(list) => Ok(list),
        Err(status @ ClStatus::PLATFORM_NOT_FOUND_KHR) => {
            Err(none(Some(status.0), "no platform is installed".to_owned()))
        }
        Err(status) => Err(none(Some(status.0), format!("clGetPlatformIDs: {status}"))),
    }
}

/// Queries the length of a list, then the list.
fn counted<T: Copy>(
    null: T,
    ask: impl Fn(u32, *mut T, *mut u32) -> Result<(), ClStatus>,
) -> Result<Vec<T>, ClStatus> {
    let mut count = 0;
    ask(0, ptr::null_mut(), &mut count)?;
    let mut list = vec![null; count as usize];
    if count > 0 {
        ask(count, list.as_mut_ptr(), &mut count)?;
    }
    // A device may have disappeared between the two calls; the list cannot have grown.
    list.truncate(count as usize);
    Ok(list)
}

fn add_platform(
    cl: &Arc<OpenCl>,
    raw: ClPlatform,
    next_domain: &mut impl FnMut() -> Domain,
    found: &mut Discovered,
) -> Result<(), String> {
    let platform =
        Platform::ask(cl, raw).map_err(|status| format!("clGetPlatformInfo: {status}"))?;
    // SAFETY: a live platform; a count and a list of that length.
    let devices = counted(ClDevice::NULL, |n, list, count| unsafe {
        cl.get_device_ids(raw, cl::CL_DEVICE_TYPE_ALL, n, list, count)
    });
    let devices = match devices {
        Ok(devices) => devices,
        Err(ClStatus::DEVICE_NOT_FOUND) => return Ok(()),
        Err(status) => return Err(format!("{}: clGetDeviceIDs: {status}", platform.name)),
    };
    for (index, device) in devices.into_iter().enumerate() {
        match driver(cl, raw, &platform, device, next_domain) {
            Ok(driver) => found.devices.push(Arc::new(Device::new(driver))),
            Err(why) => found.problems.push(format!("{} device {index}: {why}", platform.name)),
        }
    }
    Ok(())
}

fn driver(
    cl: &Arc<OpenCl>,
    raw: ClPlatform,
    platform: &Platform,
    device: ClDevice,
    next_domain: &mut impl FnMut() -> Domain,
) -> Result<Driver, String> {
    let (mut info, version) = DeviceQuery { cl, device, platform }.info()?;
    let external = match info.declares("cl_khr_external_memory") {
        // SAFETY: a live platform; one of its devices declares the extension.
        true => unsafe { cl.external_calls(raw) },
        false => None,
    };
    if external.is_none() {
        info.caps.imports.clear();
    }
    let arm = arm_import(cl, raw, device, &info);
    if arm.as_ref().is_some_and(|arm| arm.dma_bufs) {
        info.caps.imports.push(FdKind::DmaBuf);
        info.caps.imports_without_acquire = true;
    }
    let semaphores = semaphore_calls(cl, raw, &info);
    info.caps.imports_semaphores &= semaphores.is_some();
    let graphics = graphics::calls(cl, raw, &info);
    info.caps.shares_objects_of = graphics.iter().map(|_| Api("gl")).collect();
    let quirks = platform.quirks.of_device(&info.name, &info.version);
    info.caps.host_signals &= !quirks.waits_hang;
    let (cl, domain) = (cl.clone(), next_domain());
    Ok(Driver {
        cl,
        platform: raw,
        device,
        version,
        quirks,
        external,
        arm,
        semaphores,
        graphics,
        domain,
        post: Post::new(API.0, info.name.clone()),
        info,
    })
}

/// Arm's import, if the device has a version of it whose memory all commands can use.
fn arm_import(
    cl: &OpenCl,
    raw: ClPlatform,
    device: ClDevice,
    info: &DeviceInfo,
) -> Option<arm::Import> {
    if !arm::is_declared(info) {
        return None;
    }
    let what = cl::CL_DEVICE_EXTENSIONS_WITH_VERSION;
    // SAFETY: a live device; `query` passes a buffer of the stated length.
    let rows =
        query::list(|n, at, len| unsafe { cl.get_device_info(device, what, n, at, len) }).ok()?;
    if !rows.iter().any(arm::NameVersion::is_usable) {
        return None;
    }
    // SAFETY: a live platform, whose device declares the extension in that version.
    unsafe { arm::Import::of(cl, raw, info) }
}

/// The semaphore functions, if the device imports semaphores.
fn semaphore_calls(cl: &OpenCl, raw: ClPlatform, info: &DeviceInfo) -> Option<Arc<OpenClExt>> {
    if !info.caps.imports_semaphores {
        return None;
    }
    // SAFETY: a live platform; one of its devices declares the extension.
    let calls = unsafe { cl.extensions(raw, &[semaphore::EXTENSION]) };
    calls.has_semaphores().then(|| Arc::new(calls))
}

/// Queries a device that no platform lists: a sub-device.
pub(super) fn unlisted(
    cl: &Arc<OpenCl>,
    device: ClDevice,
    domain: Domain,
) -> Result<Driver, String> {
    let what = cl::CL_DEVICE_PLATFORM;
    // SAFETY: a live device; `query` passes a buffer of the stated length.
    let raw: Result<usize, _> =
        query::value(|n, at, len| unsafe { cl.get_device_info(device, what, n, at, len) });
    let raw = ClPlatform(raw.map_err(|status| unanswered(what, status))? as *mut _);
    let platform = Platform::ask(cl, raw).map_err(|s| format!("clGetPlatformInfo: {s}"))?;
    driver(cl, raw, &platform, device, &mut || domain)
}

struct Platform {
    name: String,
    /// Whether it is a platform of Texas Instruments, whose buffers can be placed in the chip's MSMC memory. The flag bit
    /// for that means something else on Intel's platforms.
    is_ti: bool,
    quirks: Quirks,
    version: Version,
    library: String,
}

impl Platform {
    fn ask(cl: &OpenCl, raw: ClPlatform) -> Result<Platform, ClStatus> {
        let text = |what| {
            // SAFETY: a live platform; `query` passes a buffer of the stated length.
            query::text(|n, at, len| unsafe { cl.get_platform_info(raw, what, n, at, len) })
        };
        // A version that cannot be parsed counts as the oldest.
        let (name, said) = (text(cl::CL_PLATFORM_NAME)?, text(cl::CL_PLATFORM_VERSION)?);
        let version = Version::parse(&said).unwrap_or(Version(1, 0));
        let driver = match version >= Version::V1_2 {
            // SAFETY: a live platform, whose driver has this call of 1.2.
            true => unsafe { cl.driver_identity(raw) },
            false => None,
        };
        let library = driver.or_else(|| cl.library());
        let library = library.map_or_else(String::new, |path| identity(&path));
        let quirks = Quirks::of(&name, &said);
        let vendor = text(cl::CL_PLATFORM_VENDOR).unwrap_or_default();
        let is_ti = [&name, &vendor].iter().any(|text| text.contains(TEXAS_INSTRUMENTS));
        Ok(Platform { name, is_ti, quirks, version, library })
    }
}

/// Distinguishes driver files of the same name: path, size and modification time.
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
struct DeviceQuery<'a> {
    cl: &'a OpenCl,
    device: ClDevice,
    platform: &'a Platform,
}

impl DeviceQuery<'_> {
    fn value<T: Pod>(&self, what: u32) -> Result<T, String> {
        let (cl, device) = (self.cl, self.device);
        // SAFETY: a live device; `query` passes a buffer of the stated length.
        query::value(|n, at, len| unsafe { cl.get_device_info(device, what, n, at, len) })
            .map_err(|status| unanswered(what, status))
    }

    fn text(&self, what: u32) -> Result<String, String> {
        let (cl, device) = (self.cl, self.device);
        // SAFETY: as in `value`.
        query::text(|n, at, len| unsafe { cl.get_device_info(device, what, n, at, len) })
            .map_err(|status| unanswered(what, status))
    }

    fn list<T: Pod>(&self, what: u32) -> Result<Vec<T>, String> {
        let (cl, device) = (self.cl, self.device);
        // SAFETY: as in `value`.
        query::list(|n, at, len| unsafe { cl.get_device_info(device, what, n, at, len) })
            .map_err(|status| unanswered(what, status))
    }

    fn flag(&self, what: u32) -> Result<bool, String> {
        Ok(self.value::<u32>(what)? != 0)
    }

    fn info(&self) -> Result<(DeviceInfo, Version), String> {
        if !self.flag(cl::CL_DEVICE_AVAILABLE)? {
            return Err("the driver says that it is not available".to_owned());
        }
        let version_text = self.text(cl::CL_DEVICE_VERSION)?;
        let version = Version::parse(&version_text).unwrap_or(Version(1, 0));
        let version = version.min(self.platform.version);
        let extensions = self.text(cl::CL_DEVICE_EXTENSIONS)?;
        let name = self.text(cl::CL_DEVICE_NAME)?;
        let mut caps = self.caps(version)?;
        let driver = self.text(cl::CL_DRIVER_VERSION)?;
        caps.max_loop_iterations = checks::max_loop_iterations(&name, &driver);
        let mut info = DeviceInfo {
            api: API,
            name,
            platform: self.platform.name.clone(),
            version: version_text,
            driver,
            library: self.platform.library.clone(),
            kind: conv::kind(self.value(cl::CL_DEVICE_TYPE)?),
            physical: PhysicalId::default(),
            memory_bytes: self.value(cl::CL_DEVICE_GLOBAL_MEM_SIZE)?,
            extensions: extensions.split_whitespace().map(str::to_owned).collect(),
            caps,
        };
        info.caps.unified_memory |= info.kind == DeviceKind::Cpu;
        info.caps.address_space = address::space(&info);
        info.caps.imports = self.imports(&info);
        // A CPU driver imports a descriptor by mapping the file; Mesa's also parses its header.
        info.caps.parses_fds = info.kind == DeviceKind::Cpu;
        info.caps.imports_semaphores = self.imports_semaphores(&info);
        info.caps.one_thread = quirks::wants_one_thread(&info.platform, &info.driver);
        info.caps.il_versions = self.il_versions(&info, version);
        info.physical = PhysicalId { uuid: self.uuid(&info), pci: self.pci(&info) };
        Ok((info.printable(), version))
    }

    fn caps(&self, version: Version) -> Result<Caps, String> {
        let svm = self.svm(version);
        let queue: u64 = self.value(cl::CL_DEVICE_QUEUE_PROPERTIES)?;
        let align_bits: u32 = self.value(cl::CL_DEVICE_MEM_BASE_ADDR_ALIGN)?;
        Ok(Caps {
            memory_kinds: memory_kinds(svm, self.platform.is_ti),
            imports_host_pages: true,
            exports: Vec::new(),
            imports: Vec::new(),
            align_bytes: ((align_bits / 8) as usize).next_power_of_two().max(MIN_ALIGN_BYTES),
            unified_memory: self.flag(cl::CL_DEVICE_HOST_UNIFIED_MEMORY).unwrap_or(false),
            max_alloc_bytes: self.value(cl::CL_DEVICE_MAX_MEM_ALLOC_SIZE)?,
            local_memory_bytes: self.value(cl::CL_DEVICE_LOCAL_MEM_SIZE)?,
            max_group_size: self.value(cl::CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
            max_group_sizes: self.group_sizes()?,
            max_loop_iterations: None,
            compute_units: self.value(cl::CL_DEVICE_MAX_COMPUTE_UNITS)?,
            out_of_order: queue & cl::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0,
            callbacks: !self.platform.quirks.runs_in_flush,
            host_signals: !(self.platform.quirks.runs_in_flush
                || self.platform.quirks.maps_at_once),
            wait_values: false,
            exports_semaphores: false,
            imports_semaphores: false,
            one_thread: false,
            svm_atomics: svm & cl::CL_DEVICE_SVM_ATOMICS != 0,
            svm_system: svm & cl::CL_DEVICE_SVM_FINE_GRAIN_SYSTEM != 0,
            address_space: None,
            built_on: None,
            il_versions: Vec::new(),
            shares_objects_of: Vec::new(),
            peers: Vec::new(),
            ipc: false,
            parses_fds: false,
            imports_without_acquire: false,
        })
    }

    fn group_sizes(&self) -> Result<[usize; 3], String> {
        let sizes: Vec<usize> = self.list(cl::CL_DEVICE_MAX_WORK_ITEM_SIZES)?;
        Ok(std::array::from_fn(|i| sizes.get(i).copied().unwrap_or(1)))
    }

    /// The SVM capability bits; zero before OpenCL 2.0, or if a call is missing.
    fn svm(&self, version: Version) -> u64 {
        let cl = self.cl;
        let calls = cl.has_svm_alloc()
            && cl.has_svm_free()
            && cl.has_set_kernel_arg_svm_pointer()
            && cl.has_enqueue_svm_map()
            && cl.has_enqueue_svm_unmap()
            && cl.has_enqueue_svm_memcpy()
            && cl.has_enqueue_svm_mem_fill();
        if version < Version::V2_0 || !calls {
            return 0;
        }
        self.value(cl::CL_DEVICE_SVM_CAPABILITIES).unwrap_or(0)
    }

    /// The descriptor kinds that can be imported. Queried only if the extension is declared: without it drivers return
    /// arbitrary values.
    fn imports(&self, info: &DeviceInfo) -> Vec<FdKind> {
        if !info.declares("cl_khr_external_memory") || !self.cl.has_create_buffer_with_properties()
        {
            return Vec::new();
        }
        let asked = self.list(cl::CL_DEVICE_EXTERNAL_MEMORY_IMPORT_HANDLE_TYPES_KHR);
        let numbers: Vec<u32> = asked.unwrap_or_default();
        let has = |kind: &FdKind| numbers.contains(&conv::handle_type(*kind));
        [FdKind::OpaqueFd, FdKind::DmaBuf].into_iter().filter(has).collect()
    }

    /// Whether opaque descriptors of semaphores can be imported. Queried only if the extensions are declared.
    fn imports_semaphores(&self, info: &DeviceInfo) -> bool {
        let asked = || self.list(cl::CL_DEVICE_SEMAPHORE_IMPORT_HANDLE_TYPES_KHR);
        let fd = cl::CL_SEMAPHORE_HANDLE_OPAQUE_FD_KHR;
        semaphore::is_declared(info) && asked().is_ok_and(|kinds: Vec<u32>| kinds.contains(&fd))
    }

    /// The intermediate languages that can be compiled; empty if there is no call for them. The extension's query has the
    /// same number as that of OpenCL 2.1.
    fn il_versions(&self, info: &DeviceInfo, version: Version) -> Vec<String> {
        let core = version >= Version::V2_1 && self.cl.has_create_program_with_il();
        if !core && !info.declares("cl_khr_il_program") {
            return Vec::new();
        }
        let text = self.text(cl::CL_DEVICE_IL_VERSION).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn uuid(&self, info: &DeviceInfo) -> Option<[u8; 16]> {
        info.declares("cl_khr_device_uuid").then(|| self.value(cl::CL_DEVICE_UUID_KHR).ok())?
    }

    fn pci(&self, info: &DeviceInfo) -> Option<PciAddress> {
        if info.declares("cl_khr_pci_bus_info") {
            return self.pci_khr();
        }
        info.declares("cl_amd_device_attribute_query").then(|| self.pci_amd())?
    }

    fn pci_khr(&self) -> Option<PciAddress> {
        // Four `cl_uint`, in this order (`cl_device_pci_bus_info_khr`).
        let [domain, bus, device, function]: [u32; 4] =
            self.value(cl::CL_DEVICE_PCI_BUS_INFO_KHR).ok()?;
        Some(PciAddress {
            domain,
            bus: bus.try_into().ok()?,
            device: device.try_into().ok()?,
            function: function.try_into().ok()?,
        })
    }

    /// AMD's structure has no PCI domain, so the domain is 0.
    fn pci_amd(&self) -> Option<PciAddress> {
        const SIZE: usize = size_of::<ClTopologyAmd>();
        let bytes: [u8; SIZE] = self.value(cl::CL_DEVICE_TOPOLOGY_AMD).ok()?;
        let kind = u32::from_ne_bytes(*bytes.first_chunk()?);
        let [bus, device, function] = *bytes.last_chunk()?;
        let is_pcie = kind == cl::CL_DEVICE_TOPOLOGY_TYPE_PCIE_AMD;
        is_pcie.then_some(PciAddress { domain: 0, bus, device, function })
    }
}

fn unanswered(what: u32, status: ClStatus) -> String {
    format!("clGetDeviceInfo({what:#06x}): {status}")
}

fn memory_kinds(svm: u64, on_chip: bool) -> Vec<MemoryKind> {
    let fine = svm & cl::CL_DEVICE_SVM_FINE_GRAIN_BUFFER != 0;
    // By the specification fine grain includes coarse grain, but onebuf uses only what the device declares.
    let coarse = svm & cl::CL_DEVICE_SVM_COARSE_GRAIN_BUFFER != 0;
    let known = [
        (fine, MemoryKind::FineSvm),
        (coarse, MemoryKind::CoarseSvm),
        (true, MemoryKind::MappedDevice),
        (on_chip, MemoryKind::OnChip),
        (true, MemoryKind::Device),
    ];
    known.into_iter().filter_map(|(has, memory_kind)| has.then_some(memory_kind)).collect()
}
