//! What the drivers report about this machine, by raw calls. Tests decide by it what the hardware lacks: onebuf's own answer could be
//! the fault that a test looks for.

use crate::{
    Hardware,
    class_a::{all_devices, device_bytes},
    lacking, missing,
};
use onebuf::hal::{PciAddress, PhysicalId};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{Attribute, CudaLike},
    opencl::consts as cl,
};
use std::{env, ffi::CStr};

/// A GPU as CUDA's or HIP's driver reports it.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// `cuda` or `hip`.
    pub api: &'static str,
    /// Its UUID and its bus address.
    pub physical: PhysicalId,
    /// Other APIs and processes can have its memory by a descriptor.
    pub exports: bool,
    /// It has managed memory, whose pages move between its own memory and the host's.
    pub moves_pages: bool,
    /// Other processes can open its memory by a handle.
    pub ipc: bool,
    /// The number of other GPUs of its API whose memory it can access.
    pub peers: usize,
}

/// Returns the GPUs of CUDA and HIP. HIP's runtime is loaded only if there is such a GPU, or `ONEBUF_HIP_LIB` names a runtime.
///
/// # Panics
/// In strict mode, if a driver has none although the machine has its hardware.
pub fn gpus() -> Vec<Gpu> {
    let uses_hip = Hardware::Amd.is_here() || env::var_os("ONEBUF_HIP_LIB").is_some();
    let cuda = gpus_of(Flavor::Cuda, Hardware::Nvidia);
    let hip = if uses_hip { gpus_of(Flavor::Hip, Hardware::Amd) } else { Vec::new() };
    [cuda, hip].concat()
}

fn gpus_of(flavor: Flavor, hardware: Hardware) -> Vec<Gpu> {
    let found = match CudaLike::load(flavor, None, None) {
        Err(why) if why.reason.starts_with("switched off") => return Vec::new(),
        Err(why) => Err(why.reason),
        Ok(table) => asked(&table).map_err(|why| why.to_string()),
    };
    let (gpus, why) = match found {
        Ok(gpus) => (gpus, "its driver reports no device".to_owned()),
        Err(why) => (Vec::new(), why),
    };
    if gpus.is_empty() && hardware.is_here() {
        missing(flavor.api(), &format!("{why}, although this machine has {hardware:?}"));
    }
    gpus
}

fn asked(table: &CudaLike) -> Result<Vec<Gpu>, Refused> {
    // SAFETY: no preconditions; then ordinals below the count.
    let devices = unsafe {
        table.init(0)?;
        let all = 0..table.device_count()?;
        all.map(|ordinal| table.device(ordinal)).collect::<Result<Vec<_>, _>>()?
    };
    Ok(devices.iter().map(|device| gpu(table, *device, &devices)).collect())
}

fn gpu(table: &CudaLike, device: i32, all: &[i32]) -> Gpu {
    let flavor = table.flavor();
    let has = |what: Attribute| {
        // SAFETY: a device of this driver.
        unsafe { table.device_attribute(flavor.pick(what.0), device) }.is_ok_and(|value| value != 0)
    };
    let reaches = |other: &&i32| {
        // SAFETY: two devices of this driver.
        let can = unsafe { table.can_access_peer(device, **other) };
        **other != device && can.is_ok_and(|can| can != 0)
    };
    // SAFETY: a device of this driver.
    let uuid = unsafe { table.device_uuid(device) }.ok();
    let moves =
        table.has_alloc_managed() && (table.has_prefetch_to_location() || table.has_prefetch());
    let opens = table.has_ipc_handle() && table.has_open_ipc() && table.has_close_ipc();
    Gpu {
        api: flavor.api(),
        physical: PhysicalId { uuid, pci: pci(table, device) },
        exports: table.has_export_allocation()
            && has(Attribute::VIRTUAL_MEMORY_SUPPORTED)
            && has(Attribute::POSIX_FD_SUPPORTED),
        moves_pages: moves
            && has(Attribute::CONCURRENT_MANAGED_ACCESS)
            && !has(Attribute::INTEGRATED),
        // The other process finds the device by its UUID.
        ipc: opens && uuid.is_some(),
        peers: all.iter().filter(reaches).count(),
    }
}

/// `0000:c1:00.0`
fn pci(table: &CudaLike, device: i32) -> Option<PciAddress> {
    let mut text = [0u8; 32];
    // SAFETY: a device of this driver, and room for the text.
    unsafe { table.device_pci(text.as_mut_ptr().cast(), text.len() as i32, device) }.ok()?;
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    let mut numbers = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
    let mut next = || numbers.next().flatten();
    let domain = next()?;
    let [bus, device, function] = [next()?, next()?, next()?].map(|n| u8::try_from(n).ok());
    Some(PciAddress { domain, bus: bus?, device: device?, function: function? })
}

/// A device as OpenCL's driver reports it.
#[derive(Clone, Debug)]
pub struct OpenClDevice {
    /// The platform's name.
    pub platform: String,
    /// The driver's version.
    pub driver: String,
    /// Its UUID and its bus address.
    pub physical: PhysicalId,
    /// Its extensions, with blanks between them.
    pub extensions: String,
    /// The descriptors that it imports, by OpenCL's numbers.
    pub imports: Vec<u32>,
}

impl OpenClDevice {
    /// Whether it has this extension.
    pub fn declares(&self, extension: &str) -> bool {
        self.extensions.split_whitespace().any(|word| word == extension)
    }
}

/// Returns the devices of all OpenCL platforms.
pub fn opencl_devices() -> Vec<OpenClDevice> {
    let found = all_devices().into_iter();
    found
        .map(|(platform, device)| described(platform, &|what| device_bytes(device, what)))
        .collect()
}

fn described(platform: String, ask: &dyn Fn(u32) -> Vec<u8>) -> OpenClDevice {
    let text = |what| String::from_utf8_lossy(&ask(what)).trim_end_matches('\0').to_owned();
    let extensions = text(cl::CL_DEVICE_EXTENSIONS);
    let declares = |name: &str| extensions.split_whitespace().any(|word| word == name);
    // Without the extension drivers answer anything.
    let if_declared = |name, what| if declares(name) { ask(what) } else { Vec::new() };
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |four| u32::from_ne_bytes(*four));
    let imports = if_declared(
        "cl_khr_external_memory",
        cl::CL_DEVICE_EXTERNAL_MEMORY_IMPORT_HANDLE_TYPES_KHR,
    );
    let uuid = if_declared("cl_khr_device_uuid", cl::CL_DEVICE_UUID_KHR);
    let pci = match if_declared("cl_khr_pci_bus_info", cl::CL_DEVICE_PCI_BUS_INFO_KHR) {
        none if none.is_empty() => {
            // AMD's structure has no domain, and ends with these three.
            let bytes = if_declared("cl_amd_device_attribute_query", cl::CL_DEVICE_TOPOLOGY_AMD);
            let is_pcie = number(&bytes) == cl::CL_DEVICE_TOPOLOGY_TYPE_PCIE_AMD;
            let last = bytes.last_chunk().filter(|_| is_pcie);
            last.map(|&[bus, device, function]| PciAddress { domain: 0, bus, device, function })
        }
        bytes => {
            let all: Vec<u32> = bytes.chunks_exact(4).map(number).collect();
            all.first_chunk().map(|&[domain, bus, device, function]| {
                let [bus, device, function] = [bus, device, function].map(|n| n as u8);
                PciAddress { domain, bus, device, function }
            })
        }
    };
    OpenClDevice {
        driver: text(cl::CL_DRIVER_VERSION),
        physical: PhysicalId { uuid: uuid.first_chunk().copied(), pci },
        imports: imports.chunks_exact(4).map(number).collect(),
        platform,
        extensions,
    }
}

/// Counts the chips whose memory CUDA or HIP exports by a descriptor that an OpenCL device of the chip imports.
pub fn pairs_by_descriptor() -> usize {
    let importers = opencl_devices();
    let takes = |gpu: &Gpu, device: &OpenClDevice| {
        let kind = match gpu.api {
            "cuda" => cl::CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR,
            _ => cl::CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR,
        };
        device.imports.contains(&kind) && device.physical.same_chip(&gpu.physical)
    };
    let exporters = gpus().into_iter().filter(|gpu| gpu.exports);
    exporters.filter(|gpu| importers.iter().any(|device| takes(gpu, device))).count()
}

/// Counts the chips on which HIP and AMD's OpenCL have one address space, because both are built on ROCr.
pub fn pairs_in_one_space() -> usize {
    let devices = opencl_devices();
    let over_rocr = |device: &&OpenClDevice| {
        device.platform == "AMD Accelerated Parallel Processing" && device.driver.contains("HSA")
    };
    let on_rocr: Vec<_> = devices.iter().filter(over_rocr).collect();
    let hip = gpus().into_iter().filter(|gpu| gpu.api == "hip");
    hip.filter(|gpu| on_rocr.iter().any(|one| one.physical.same_chip(&gpu.physical))).count()
}

/// Returns whether a test of real hardware can run, of which the drivers report `drivers` and onebuf finds `found`. Prints a skip if
/// there is none; `needs` is the hardware that would have it in any case.
///
/// # Panics
/// If onebuf finds fewer than the drivers report.
pub fn reported(what: &str, needs: &[Hardware], drivers: usize, found: usize) -> bool {
    assert!(found >= drivers, "{what}: the drivers report {drivers}, and onebuf finds {found}");
    if found == 0 {
        lacking(needs, &format!("by what the drivers report: no {what}"));
    }
    found > 0
}
