//! Discovers the library, its devices, and their capabilities.

use super::{
    address::Under,
    compile::Compiler,
    conv,
    device::{Device, Driver, Limits},
    external, graphics, host_signal, ipc, managed, peers,
    pins::Pins,
    semaphore, vmm,
};
use onebuf_experimental::rocr::Rocr;
use onebuf_hal::{
    Api, Caps, DeviceInfo, DeviceKind, Domain, FdKind, LayeredHandles, LayeredRuntime, MemoryKind,
    PhysicalId, locks::Arc, watchdog::Post,
};
use onebuf_sys::{
    Flavor, Missing, Probe, Refused,
    cuda_like::{Attribute, CuStatus, CudaLike},
};
use std::{ffi::c_char, fs, os::unix::fs::MetadataExt, path::Path};

const NO_DEVICE_HINTS: [&str; 2] = [
    "is there an NVIDIA GPU, and may this process use /dev/nvidia*? CUDA_VISIBLE_DEVICES may hide it",
    "is there an AMD GPU, and may this process use /dev/kfd and /dev/dri? HIP_VISIBLE_DEVICES may hide it",
];

/// Alignment of CUDA's memory. HIP aligns at least as well.
const ALIGN_BYTES: usize = 256;

/// The libraries to load instead of the usual ones: paths or sonames, or `none`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Libraries<'a> {
    /// The driver or runtime.
    pub driver: Option<&'a str>,
    /// NVRTC or HIPRTC, loaded when a program's text is first compiled.
    pub compiler: Option<&'a str>,
    /// ROCr, the layer below HIP.
    pub hsa: Option<&'a str>,
    /// Whether managed memory, whose pages move, was requested.
    pub managed: bool,
}

/// The devices of one API.
#[derive(Debug)]
pub struct Discovered {
    /// In the driver's order.
    pub devices: Vec<Arc<Device>>,
    /// Devices that were left out or lack what was requested, and why.
    pub problems: Vec<String>,
}

/// Loads the API and lists its devices. Creates no context, so it wakes no chip; a runtime built on OpenCL creates its
/// own context when queried for its base device.
///
/// `find_base_device` looks up the device that a runtime is built on. `next_domain` numbers the devices' contexts. A
/// device that cannot be queried is left out and named in `Discovered::problems`; [`Missing`] means no library, a
/// driver that refuses, or no device.
pub fn discover(
    flavor: Flavor,
    libraries: Libraries<'_>,
    probe: Option<std::sync::Arc<Probe>>,
    next_domain: &mut impl FnMut() -> Domain,
    find_base_device: &dyn Fn(&LayeredHandles) -> Option<LayeredRuntime>,
) -> Result<Discovered, Missing> {
    let table = Arc::new(CudaLike::load(flavor, libraries.driver, probe.clone())?);
    let count = count(&table).map_err(|refused| none(&table, refused))?;
    let library = Library {
        identity: table.library().map_or_else(String::new, |path| identity(&path)),
        // SAFETY: initialised by `count`.
        version: unsafe { table.driver_version() }.unwrap_or(0),
        pins: Arc::default(),
        under: under(&table, libraries.hsa, probe.clone()),
        managed: libraries.managed,
        compiler: Arc::new(Compiler::new(flavor, libraries.compiler, probe)),
        table,
    };
    let mut found = Discovered { devices: Vec::new(), problems: Vec::new() };
    for ordinal in 0..count {
        match library.driver(ordinal, next_domain, find_base_device) {
            Ok(driver) => {
                let missing = library.missing(&driver.info.caps);
                let told = missing.map(|why| format!("{} device {ordinal}: {why}", flavor.api()));
                found.problems.extend(told);
                found.devices.push(Arc::new(Device::new(driver)));
            }
            Err(refused) => found.problems.push(format!(
                "{} device {ordinal}: {} ({})",
                flavor.api(),
                refused,
                library.table.error_name(refused.status)
            )),
        }
    }
    if found.devices.is_empty() {
        let reason = format!("no device can be used: {}", found.problems.join("; "));
        let refused = Refused { call: "", status: CuStatus::NO_DEVICE };
        return Err(Missing { reason, ..none(&library.table, refused) });
    }
    Ok(found)
}

/// Returns the layer under the library. HIP has already started ROCr, so querying it wakes nothing.
fn under(table: &CudaLike, hsa: Option<&str>, probe: Option<std::sync::Arc<Probe>>) -> Under {
    match table.flavor() {
        Flavor::Cuda => Under::Own,
        // The runtime does not report whether it runs on the CPU. If it shares no addresses, the experiments refute the
        // route.
        Flavor::Hip if table.has_native_handles() => Under::Process,
        Flavor::Hip => Under::Rocr(Rocr::open(hsa, probe).map(Arc::new)),
    }
}

/// Returns the number of devices. No device is a refusal, even if the driver reports success.
fn count(table: &CudaLike) -> Result<i32, Refused> {
    // SAFETY: `init` needs no earlier call, and `device_count` needs only `init`.
    let count = unsafe { table.init(0).and_then(|()| table.device_count()) }?;
    let call = table.flavor().pick(["cuDeviceGetCount", "hipGetDeviceCount"]);
    if count > 0 { Ok(count) } else { Err(Refused { call, status: CuStatus::NO_DEVICE }) }
}

fn none(table: &CudaLike, refused: Refused) -> Missing {
    let path = table.library().map_or("the library".to_owned(), |path| path.display().to_string());
    let name = table.error_name(refused.status);
    let hint = match refused.status {
        CuStatus::SYSTEM_DRIVER_MISMATCH | CuStatus::INSUFFICIENT_DRIVER => {
            "the kernel's driver and this library are of different releases: update or reboot"
        }
        _ => table.flavor().pick(NO_DEVICE_HINTS),
    };
    Missing {
        api: table.flavor().api(),
        tried: vec![path],
        loaded: true,
        code: Some(refused.status.0),
        reason: format!("{} says {name}", refused.call),
        hint: hint.to_owned(),
    }
}

/// Identifies a driver file by path, size and modification time.
fn identity(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&path) {
        Ok(file) => {
            format!("{} {} {}.{:09}", path.display(), file.size(), file.mtime(), file.mtime_nsec())
        }
        Err(_) => path.display().to_string(),
    }
}

/// State shared by all devices of a library.
struct Library {
    table: Arc<CudaLike>,
    identity: String,
    version: i32,
    pins: Arc<Pins>,
    compiler: Arc<Compiler>,
    under: Under,
    managed: bool,
}

impl Library {
    /// Why managed memory is unavailable, if it was requested.
    fn missing(&self, caps: &Caps) -> Option<&'static str> {
        let there = caps.memory_kinds.contains(&MemoryKind::Managed);
        let why = match caps.unified_memory {
            true => "no managed memory: chip and host share one memory; use `fine_svm`",
            false => {
                "no managed memory: the driver has no concurrent managed access, or no call that moves pages"
            }
        };
        (self.managed && !there).then_some(why)
    }

    fn driver(
        &self,
        ordinal: i32,
        next_domain: &mut impl FnMut() -> Domain,
        find_base_device: &dyn Fn(&LayeredHandles) -> Option<LayeredRuntime>,
    ) -> Result<Driver, Refused> {
        // SAFETY: an ordinal below the count.
        let device = unsafe { self.table.device(ordinal)? };
        let asked = Asked { table: &self.table, device };
        let capability = asked.all(Attribute::COMPUTE_CAPABILITY)?;
        let limits = Limits {
            groups: asked.all(Attribute::MAX_GRID_DIM)?.map(size),
            warp: size(asked.attribute(Attribute::WARP_SIZE)?).max(1),
            capability,
            plain_shared_bytes: asked.attribute(Attribute::MAX_SHARED_MEMORY_PER_BLOCK)? as u64,
        };
        let mut info = self.info(&asked, &limits)?;
        let layered_on = asked.layered().as_ref().and_then(find_base_device);
        info.caps.built_on = layered_on.as_ref().map(|layered_on| layered_on.on.clone());
        Ok(Driver {
            post: Post::new(self.table.flavor().api(), info.name.clone()),
            info,
            table: self.table.clone(),
            device,
            domain: next_domain(),
            limits,
            pins: self.pins.clone(),
            compiler: self.compiler.clone(),
            under: self.under.clone(),
            layered_on,
        })
    }

    fn info(&self, asked: &Asked<'_>, limits: &Limits) -> Result<DeviceInfo, Refused> {
        let flavor = self.table.flavor();
        // SAFETY: a device of this driver.
        let memory_bytes = unsafe { self.table.device_memory(asked.device)? } as u64;
        let [major, minor] = limits.capability;
        Ok(DeviceInfo {
            api: Api(flavor.api()),
            name: asked.text(|at, len| {
                // SAFETY: `text` passes a buffer and its length.
                unsafe { self.table.device_name(at, len, asked.device) }
            })?,
            platform: flavor.pick(["NVIDIA CUDA", "AMD HIP"]).to_owned(),
            version: flavor.pick(["CUDA", "HIP"]).to_owned() + " " + &conv::version(self.version),
            driver: conv::version(self.version),
            library: self.identity.clone(),
            kind: DeviceKind::Gpu,
            physical: PhysicalId { uuid: asked.uuid(), pci: asked.pci() },
            memory_bytes,
            extensions: vec![format!("compute_{major}.{minor}")],
            caps: self.caps(asked, memory_bytes)?,
        }
        .printable())
    }

    fn caps(&self, asked: &Asked<'_>, memory_bytes: u64) -> Result<Caps, Refused> {
        let maps = asked.attribute(Attribute::CAN_MAP_HOST_MEMORY)? != 0;
        let shared = asked.attribute(Attribute::MAX_SHARED_MEMORY_PER_BLOCK)?;
        // The larger limit is opt-in, and not every device reports it.
        let optin = asked.attribute(Attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).unwrap_or(0);
        let exports = vmm::is_there(&self.table)
            && [Attribute::VIRTUAL_MEMORY_SUPPORTED, Attribute::POSIX_FD_SUPPORTED]
                .iter()
                .all(|what| asked.attribute(*what).is_ok_and(|has| has != 0));
        // HIP's opaque descriptors are dma-bufs.
        let fd = self.table.flavor().pick([FdKind::OpaqueFd, FdKind::DmaBuf]);
        let by_rocr = self.under.rocr().is_some_and(|rocr| rocr.has_dmabuf());
        let waits_for_values = host_signal::is_there(&self.table)
            && asked.attribute(Attribute::CAN_USE_STREAM_WAIT_VALUE).is_ok_and(|has| has != 0);
        let unified = asked.attribute(Attribute::INTEGRATED)? != 0;
        let concurrent =
            asked.attribute(Attribute::CONCURRENT_MANAGED_ACCESS).is_ok_and(|has| has != 0);
        // If the chip has its own memory, managed pages move: opt-in, and moved only by calls.
        let fine = unified && concurrent && self.table.has_alloc_managed();
        let moves = self.managed && !unified && concurrent && managed::is_there(&self.table);
        let memory_kinds = [
            (fine, MemoryKind::FineSvm),
            (moves, MemoryKind::Managed),
            (maps, MemoryKind::MappedDevice),
            (exports, MemoryKind::Exportable),
            (true, MemoryKind::Device),
        ];
        Ok(Caps {
            memory_kinds: memory_kinds
                .into_iter()
                .filter_map(|(has, memory_kind)| has.then_some(memory_kind))
                .collect(),
            imports_host_pages: maps && self.under.pins_in_place(),
            exports: (exports || by_rocr).then_some(fd).into_iter().collect(),
            shares_objects_of: graphics::shared(&self.table),
            peers: self.peers(asked),
            // The other process finds its device by the UUID. chipStar exports the calls, without support and without a UUID.
            ipc: ipc::is_there(&self.table) && asked.uuid().is_some(),
            parses_fds: false,
            imports_without_acquire: false,
            imports: external::is_there(&self.table).then_some(fd).into_iter().collect(),
            align_bytes: ALIGN_BYTES,
            unified_memory: unified,
            max_alloc_bytes: memory_bytes,
            local_memory_bytes: shared.max(optin) as u64,
            max_group_size: size(asked.attribute(Attribute::MAX_THREADS_PER_BLOCK)?),
            max_group_sizes: asked.all(Attribute::MAX_BLOCK_DIM)?.map(size),
            max_loop_iterations: None,
            compute_units: asked.attribute(Attribute::MULTIPROCESSOR_COUNT)? as u32,
            out_of_order: false,
            callbacks: self.table.has_launch_host_function(),
            host_signals: waits_for_values && maps,
            wait_values: waits_for_values,
            exports_semaphores: false,
            imports_semaphores: semaphore::is_there(&self.table),
            one_thread: false,
            svm_atomics: false,
            svm_system: false,
            address_space: self.under.space(),
            built_on: None,
            il_versions: Vec::new(),
        })
    }
}

impl Library {
    /// The chips that the driver reports as reachable from this device.
    fn peers(&self, asked: &Asked<'_>) -> Vec<PhysicalId> {
        if !peers::is_there(&self.table) {
            return Vec::new();
        }
        // SAFETY: initialised, and ordinals below the count.
        let others = unsafe {
            let all = 0..self.table.device_count().unwrap_or(0);
            all.filter_map(|ordinal| self.table.device(ordinal).ok()).collect::<Vec<_>>()
        };
        let reached = |other: &i32| {
            // SAFETY: two devices of this driver.
            let can = unsafe { self.table.can_access_peer(asked.device, *other) };
            *other != asked.device && can.is_ok_and(|can| can != 0)
        };
        let identity = |device| {
            let asked = Asked { table: &self.table, device };
            PhysicalId { uuid: asked.uuid(), pci: asked.pci() }
        };
        others.into_iter().filter(reached).map(identity).collect()
    }
}

fn size(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// A device to query.
pub(super) struct Asked<'a> {
    pub table: &'a CudaLike,
    pub device: i32,
}

impl Asked<'_> {
    fn attribute(&self, Attribute(numbers): Attribute) -> Result<i32, Refused> {
        // SAFETY: a device of this driver; unknown attribute numbers are refused.
        unsafe { self.table.device_attribute(self.table.flavor().pick(numbers), self.device) }
    }

    fn all<const N: usize>(&self, what: [Attribute; N]) -> Result<[i32; N], Refused> {
        let mut answers = [0; N];
        for (answer, what) in answers.iter_mut().zip(what) {
            *answer = self.attribute(what)?;
        }
        Ok(answers)
    }

    fn text(
        &self,
        ask: impl FnOnce(*mut c_char, i32) -> Result<(), Refused>,
    ) -> Result<String, Refused> {
        let mut bytes = [0u8; 256];
        ask(bytes.as_mut_ptr().cast(), 255)?;
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        Ok(String::from_utf8_lossy(&bytes[..len]).trim().to_owned())
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        if !self.table.has_device_uuid() {
            return None;
        }
        // SAFETY: a device of this driver.
        let uuid = unsafe { self.table.device_uuid(self.device) }.ok()?;
        // HIP returns zeros for some devices.
        (uuid != [0; 16]).then_some(uuid)
    }

    fn pci(&self) -> Option<onebuf_hal::PciAddress> {
        let text = self.text(|at, len| {
            // SAFETY: `text` passes a buffer and its length.
            unsafe { self.table.device_pci(at, len, self.device) }
        });
        conv::pci(&text.ok()?)
    }
}
