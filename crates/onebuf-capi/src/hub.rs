//! Hubs
//!
//! A hub is this process's view of the machine: the devices found, and what is known about the routes between them.
//! Several hubs can coexist. Objects made with a hub keep it alive; freeing the handle invalidates only the handle and
//! those of its devices.

use crate::{
    device::onebuf_device,
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{Options, Slot, fill, give, options, out, path_if_given, text, text_if_given},
    observer::{Functions, onebuf_observer},
    status::onebuf_status,
    string::{self, onebuf_string},
    words::{self, onebuf_copies},
};
use onebuf::{Error, ProgramCache, Verdicts, fake::FakeConfig, libs::Library, prelude::*};
use std::{ffi::c_char, sync::Arc, time::Duration};

/// A hub. Free it with onebuf_hub_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_hub {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_hub, Hub, 2);

/// Where a hub keeps the programs that it compiled.
pub type onebuf_program_cache = u32;
/// In memory, and in the cache folder for other processes.
pub const ONEBUF_PROGRAM_CACHE_DISK: onebuf_program_cache = 0;
/// In memory, for the lifetime of the hub.
pub const ONEBUF_PROGRAM_CACHE_MEMORY: onebuf_program_cache = 1;
/// Nowhere.
pub const ONEBUF_PROGRAM_CACHE_OFF: onebuf_program_cache = 2;

/// Options of a hub. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_hub_options {
    /// `sizeof(onebuf_hub_options)`.
    pub size: usize,
    /// What to do about implied copies, for every buffer of the hub.
    pub copies: onebuf_copies,
    /// Not zero: does not use OpenCL.
    pub without_opencl: u32,
    /// Timeout of waits, in milliseconds; zero: 60 seconds.
    pub timeout_ms: u64,
    /// The folder for verdicts and compiled programs; NULL: the user's cache folder.
    pub cache_folder: *const c_char,
    /// Path or soname of the OpenCL library; NULL: `ONEBUF_OPENCL_LIB`, or the system's.
    pub opencl_library: *const c_char,
    /// Where compiled programs are kept.
    pub program_cache: onebuf_program_cache,
    /// Not zero: ignores stored verdicts when planning, and keeps programs on disk only if `cache_folder` is given.
    pub without_verdicts: u32,
    /// Path or soname of the CUDA driver; NULL: `ONEBUF_CUDA_LIB`, or the system's.
    pub cuda_library: *const c_char,
    /// Path or soname of NVRTC, the compiler of CUDA C; NULL: `ONEBUF_NVRTC_LIB`, or the system's.
    pub nvrtc_library: *const c_char,
    /// Path or soname of the HIP runtime; NULL: `ONEBUF_HIP_LIB`, or the system's.
    pub hip_library: *const c_char,
    /// Path or soname of HIPRTC, the compiler of HIP C; NULL: `ONEBUF_HIPRTC_LIB`, or the system's.
    pub hiprtc_library: *const c_char,
    /// Not zero: does not use CUDA.
    pub without_cuda: u32,
    /// Not zero: does not use HIP.
    pub without_hip: u32,
    /// Not zero: allows ONEBUF_MEMORY_KIND_MANAGED; zero: the environment variable `ONEBUF_MANAGED` decides.
    pub managed_memory: u32,
    /// Not zero: does not use OpenGL.
    pub without_gl: u32,
    /// Path or soname of the EGL library; NULL: `ONEBUF_EGL_LIB`, or the system's.
    pub egl_library: *const c_char,
    /// Path or soname of the Vulkan loader; NULL: `ONEBUF_VULKAN_LIB`, or the system's.
    pub vulkan_library: *const c_char,
    /// Not zero: does not use Vulkan.
    pub without_vulkan: u32,
    /// The only APIs to use, separated by commas, such as `opencl,gl`; NULL: all. The host is always there.
    pub only: *const c_char,
    /// Not zero: records events, and keeps the newest of this number: see onebuf_trace_save().
    pub trace_events: usize,
    /// Not zero, with a trace: opens queues with profiling, so that launches are also recorded by their device's clock.
    pub trace_devices: u32,
    /// Adds this many devices for tests, such as `fake:0`: the CPU runs their native kernels, and their memory is their own.
    pub fake_devices: u32,
    /// Functions of the program that are called while the hub works; NULL: none.
    pub observer: *const onebuf_observer,
    /// Size limit of the compiled programs on disk, in bytes; zero: 256 MiB. The least recently used are removed first.
    pub program_cache_bytes: u64,
    /// Path or soname of cuBLAS, or `none`; NULL: `ONEBUF_CUBLAS_LIB`, or the system's. The others below likewise.
    pub cublas_library: *const c_char,
    /// cuFFT.
    pub cufft_library: *const c_char,
    /// cuSOLVER.
    pub cusolver_library: *const c_char,
    /// rocBLAS.
    pub rocblas_library: *const c_char,
    /// rocFFT.
    pub rocfft_library: *const c_char,
    /// rocSOLVER.
    pub rocsolver_library: *const c_char,
    /// A folder whose verdicts are used for planning, such as one that was copied; NULL: those of `cache_folder`. Programs are then
    /// kept on disk only if `cache_folder` is given. ONEBUF_CACHE if its file cannot be used.
    pub verdict_folder: *const c_char,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_hub_options {}

/// More devices for tests were not initialised.
const MOST_FAKES: u32 = 16;

/// A hub, and the handles of its devices, which are freed with it.
#[doc(hidden)]
pub struct Hub {
    pub(crate) hub: onebuf::Hub,
    pub(crate) devices: Vec<onebuf_device>,
}

impl Hub {
    fn new(hub: onebuf::Hub) -> Result<Self> {
        let mut all = Self { hub, devices: Vec::new() };
        for device in all.hub.devices() {
            all.devices.push(onebuf_device::put(device)?);
        }
        Ok(all)
    }

    /// The handle of a device that discovery found. Devices of foreign contexts are not in this list.
    pub(crate) fn handle(&self, device: &onebuf::Device) -> Option<onebuf_device> {
        self.devices.get(device.index().get()).copied()
    }

    /// The handle of a device that the hub owns.
    pub(crate) fn owned(&self, device: &onebuf::Device) -> Result<onebuf_device> {
        let id = device.id();
        let foreign =
            || format!("`{id}` belongs to a foreign context: use onebuf_context_device_at()");
        self.handle(device).ok_or_else(|| Fault::invalid(foreign()))
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.devices.iter().for_each(|device| drop(device.take()));
    }
}

/// Discovers the installed APIs and devices, and loads stored verdicts. A missing API is not an error: see
/// onebuf_hub_missing(). `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_hub_discover(
    options: *const onebuf_hub_options,
    hub: Slot<'_, onebuf_hub>,
) -> onebuf_status {
    entry(|| {
        let hub = out(hub, "hub")?;
        // SAFETY: guaranteed by the caller.
        let builder = unsafe { builder(options)? };
        crate::log::start();
        *hub = onebuf_hub::put(Hub::new(builder.build()?)?)?;
        Ok(())
    })
}

/// # Safety
/// As for [`onebuf_hub_discover`].
unsafe fn builder(given: *const onebuf_hub_options) -> Result<onebuf::HubBuilder> {
    // SAFETY: guaranteed by the caller.
    let given = unsafe { options(given)? };
    let mut builder = onebuf::builder();
    // First, because from here on the program is told when its observer is no longer used.
    // SAFETY: guaranteed by the caller.
    if let Some(observer) = unsafe { Functions::read(given.observer)? } {
        builder = builder.observer(Arc::new(observer));
    }
    // SAFETY: guaranteed by the caller, for all of these.
    let (folder, library) = unsafe {
        (path_if_given(given.cache_folder), text_if_given(given.opencl_library, "opencl_library")?)
    };
    builder = builder.copies(words::copies(given.copies)?);
    builder = builder.program_cache(program_cache(given.program_cache)?);
    if given.timeout_ms > 0 {
        builder = builder.timeout(crate::input::timeout(given.timeout_ms).unwrap_or(Duration::MAX));
    }
    if let Some(folder) = folder {
        builder = builder.cache(folder);
    }
    if let Some(library) = library {
        builder = builder.library("opencl", library);
    }
    if given.without_opencl != 0 {
        builder = builder.without(["opencl"]);
    }
    // SAFETY: guaranteed by the caller.
    builder = unsafe { apis(builder, &given)? };
    // SAFETY: guaranteed by the caller.
    if let Some(folder) = unsafe { path_if_given(given.verdict_folder) } {
        builder = builder.verdicts(Verdicts::load(folder)?);
    }
    if given.without_verdicts != 0 {
        builder = builder.verdicts(Default::default());
    }
    Ok(builder)
}

/// The libraries, and the APIs to use.
///
/// # Safety
/// As for [`onebuf_hub_discover`].
unsafe fn apis(
    mut builder: onebuf::HubBuilder,
    given: &onebuf_hub_options,
) -> Result<onebuf::HubBuilder> {
    let libraries = [
        ("cuda", given.cuda_library, "cuda_library"),
        ("nvrtc", given.nvrtc_library, "nvrtc_library"),
        ("hip", given.hip_library, "hip_library"),
        ("hiprtc", given.hiprtc_library, "hiprtc_library"),
        ("gl", given.egl_library, "egl_library"),
        ("vulkan", given.vulkan_library, "vulkan_library"),
    ];
    for (library, path, name) in libraries {
        // SAFETY: guaranteed by the caller.
        if let Some(path) = unsafe { text_if_given(path, name)? } {
            builder = builder.library(library, path);
        }
    }
    let without = [
        ("cuda", given.without_cuda),
        ("hip", given.without_hip),
        ("gl", given.without_gl),
        ("vulkan", given.without_vulkan),
    ];
    builder = builder.without(without.iter().filter(|(_, off)| *off != 0).map(|(api, _)| *api));
    // SAFETY: guaranteed by the caller.
    if let Some(only) = unsafe { text_if_given(given.only, "only")? } {
        builder = builder.only(only.split(',').map(str::trim).filter(|api| !api.is_empty()));
    }
    let maths = [
        (Library::CuBlas, given.cublas_library, "cublas_library"),
        (Library::CuFft, given.cufft_library, "cufft_library"),
        (Library::CuSolver, given.cusolver_library, "cusolver_library"),
        (Library::RocBlas, given.rocblas_library, "rocblas_library"),
        (Library::RocFft, given.rocfft_library, "rocfft_library"),
        (Library::RocSolver, given.rocsolver_library, "rocsolver_library"),
    ];
    for (library, path, name) in maths {
        // SAFETY: guaranteed by the caller.
        if let Some(path) = unsafe { text_if_given(path, name)? } {
            builder = builder.math_library(library, path);
        }
    }
    if given.trace_events > 0 {
        builder = builder.trace(given.trace_events);
    }
    if given.trace_devices != 0 {
        builder = builder.trace_devices();
    }
    if given.program_cache_bytes > 0 {
        builder = builder.program_cache_limit(given.program_cache_bytes);
    }
    if given.fake_devices > MOST_FAKES {
        let asked = given.fake_devices;
        return Err(Fault::invalid(format!("fake_devices {asked}: {MOST_FAKES} at most")));
    }
    for number in 0..given.fake_devices {
        let name = format!("fake device {number}");
        builder = builder.fake(FakeConfig { name, ..FakeConfig::default() });
    }
    Ok(if given.managed_memory == 0 { builder } else { builder.managed_memory(true) })
}

fn program_cache(number: onebuf_program_cache) -> Result<ProgramCache> {
    match number {
        ONEBUF_PROGRAM_CACHE_DISK => Ok(ProgramCache::Disk),
        ONEBUF_PROGRAM_CACHE_MEMORY => Ok(ProgramCache::Memory),
        ONEBUF_PROGRAM_CACHE_OFF => Ok(ProgramCache::Off),
        _ => Err(Error::invalid(format!("program_cache {number}: choose one of 0 to 2")).into()),
    }
}

/// Frees the hub's handle and those of its devices.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_free(hub: onebuf_hub) -> onebuf_status {
    free(hub)
}

/// Number of devices, including the host.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_device_count(
    hub: onebuf_hub,
    count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        *out(count, "count")? = hub.get()?.devices.len();
        Ok(())
    })
}

/// The device at an index of the hub's list; the host is the first. The hub owns the handle.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_device_at(
    hub: onebuf_hub,
    index: usize,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        let devices = &hub.get()?.devices;
        *device = *devices.get(index).ok_or_else(|| {
            Error::invalid(format!("device {index} of a hub that has {}", devices.len()))
        })?;
        Ok(())
    })
}

/// The first device that matches: by id (`opencl:1`), API (`opencl`), type (`cpu`, `gpu`, `accelerator`), or a part of
/// its name or platform, ignoring case. ONEBUF_UNAVAILABLE if none matches; the message lists the devices. The hub owns
/// the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_hub_device(
    hub: onebuf_hub,
    selector: *const c_char,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller.
        let found = hub.hub.device(unsafe { text(selector, "selector")? })?;
        *device = hub.owned(&found)?;
        Ok(())
    })
}

/// All devices that match, as by onebuf_hub_device(), in the order of the hub's list; also none. `count` gets their number, and
/// `devices` the first `capacity` of them; with a capacity of zero it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_hub_select(
    hub: onebuf_hub,
    selector: *const c_char,
    devices: *mut onebuf_device,
    capacity: usize,
    count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        let count = out(count, "count")?;
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller.
        let found = hub.hub.select(unsafe { text(selector, "selector")? });
        let found: Vec<onebuf_device> = found.iter().filter_map(|one| hub.handle(one)).collect();
        // SAFETY: as above.
        unsafe { fill(&found, devices, capacity, "devices")? };
        *count = found.len();
        Ok(())
    })
}

/// Properties of a hub. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_hub_info {
    /// `sizeof(onebuf_hub_info)`.
    pub size: usize,
    /// Number of devices, including the host.
    pub device_count: usize,
    /// Number of verdicts that plans use.
    pub verdict_count: usize,
    /// Timeout of waits, in milliseconds.
    pub timeout_ms: u64,
    /// What is done about implied copies.
    pub copies: onebuf_copies,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_hub_info {}

/// Queries a hub.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_hub_query(
    hub: onebuf_hub,
    info: *mut onebuf_hub_info,
) -> onebuf_status {
    entry(|| {
        let hub = hub.get()?;
        let found = onebuf_hub_info {
            size: 0,
            device_count: hub.devices.len(),
            verdict_count: hub.hub.verdicts().len(),
            timeout_ms: u64::try_from(hub.hub.timeout().as_millis()).unwrap_or(u64::MAX),
            copies: words::copies_number(hub.hub.copy_policy()),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(found, info, "info") }
    })
}

/// Describes in text which APIs are unavailable and why, and problems that did not stop the discovery; empty if there
/// are none.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_missing(
    hub: onebuf_hub,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let hub = &hub.get()?.hub;
            let missing = hub.unavailable().iter().map(|api| {
                let hint =
                    api.hint.as_deref().map_or_else(String::new, |hint| format!(" ({hint})"));
                format!("{}: {}{hint}\n", api.api, api.reason)
            });
            let notes = hub.notes().iter().map(|note| format!("{note}\n"));
            Ok(missing.chain(notes).collect::<String>().into_bytes())
        })
    })
}

/// The unavailable APIs as JSON: `[{"api","tried","loaded","code","reason","hint"}]`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_missing_json(
    hub: onebuf_hub,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let missing = serde_json::to_vec(hub.get()?.hub.unavailable());
            missing.map_err(|why| Fault::invalid(why.to_string()))
        })
    })
}
