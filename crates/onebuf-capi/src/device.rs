//! Devices
//!
//! A device is one API's view of one chip. The hub owns its handle: the handle is valid until the hub's handle is
//! freed, and the same for every query of the same device. Objects made with the device stay usable afterwards. A
//! foreign context owns the handles of its devices in the same way.

use crate::{
    entry::entry,
    fault::Result,
    handle::{Noun, noun},
    input::{Options, Slot, give, out, text},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{
    Device, Error,
    hal::{DeviceInfo, DeviceKind},
};
use std::ffi::{c_char, c_void};

/// A device. Do not free it: its hub or context owns it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_device {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_device, Device, 3);

fn tell(
    device: onebuf_device,
    slot: Slot<'_, onebuf_string>,
    what: fn(&Device) -> String,
) -> onebuf_status {
    entry(|| string::give(slot, || Ok(what(&*device.get()?).into_bytes())))
}

/// The id of the device, such as `opencl:0`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_id(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.id().into())
}

/// The name of the device, as the driver reports it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_name(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().name.clone())
}

/// The API of the device, such as `host` or `opencl`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_api(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().api.0.into())
}

/// The vendor of the driver; for OpenCL the platform's name.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_platform(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().platform.clone())
}

/// The version of the driver.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_driver(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().driver.clone())
}

/// The version of the API, as the driver reports it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_version(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().version.clone())
}

/// The features of the device, separated by spaces: onebuf's own words (`host_pointer`, `svm_fine`, `out_of_order` …)
/// and the extensions that the driver declares.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_features(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| features(device.info()).collect::<Vec<_>>().join(" "))
}

fn features(info: &DeviceInfo) -> impl Iterator<Item = &str> {
    info.caps.words().into_iter().chain(info.extensions.iter().map(String::as_str))
}

/// Whether the device has a feature. Only whole words match.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_device_has(
    device: onebuf_device,
    feature: *const c_char,
    has: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        let has = out(has, "has")?;
        // SAFETY: guaranteed by the caller.
        let wanted = unsafe { text(feature, "feature")? };
        *has = features(device.get()?.info()).any(|feature| feature == wanted);
        Ok(())
    })
}

fn number<T: crate::input::Blank>(
    device: onebuf_device,
    slot: Slot<'_, T>,
    what: fn(&DeviceInfo) -> T,
) -> onebuf_status {
    entry(|| -> Result<()> {
        *out(slot, "bytes")? = what(device.get()?.info());
        Ok(())
    })
}

/// The size of the device's memory in bytes; zero if unknown.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_memory_bytes(
    device: onebuf_device,
    bytes: Slot<'_, u64>,
) -> onebuf_status {
    number(device, bytes, |info| info.memory_bytes)
}

/// The size of the largest buffer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_max_buffer_bytes(
    device: onebuf_device,
    bytes: Slot<'_, u64>,
) -> onebuf_status {
    number(device, bytes, |info| info.caps.max_alloc_bytes)
}

/// Offsets of regions must be multiples of this many bytes on this device.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_region_align(
    device: onebuf_device,
    bytes: Slot<'_, usize>,
) -> onebuf_status {
    number(device, bytes, |info| info.caps.align_bytes)
}

/// What a device is.
pub type onebuf_device_kind = u32;
/// None of the others, or unknown.
pub const ONEBUF_DEVICE_OTHER: onebuf_device_kind = 0;
/// A CPU.
pub const ONEBUF_DEVICE_CPU: onebuf_device_kind = 1;
/// A GPU.
pub const ONEBUF_DEVICE_GPU: onebuf_device_kind = 2;
/// A DSP, FPGA or similar.
pub const ONEBUF_DEVICE_ACCELERATOR: onebuf_device_kind = 3;

/// Properties of a device. Set `size`; the call fills in the rest. Numbers that the driver does not report are zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_device_info {
    /// `sizeof(onebuf_device_info)`.
    pub size: usize,
    /// What it is.
    pub kind: onebuf_device_kind,
    /// Number of compute units.
    pub compute_units: u32,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Size of the largest buffer in bytes.
    pub max_buffer_bytes: u64,
    /// Local memory of a work-group in bytes.
    pub local_memory_bytes: u64,
    /// Largest number of work-items of a work-group.
    pub max_group_size: usize,
    /// Largest number of work-items of a work-group per dimension.
    pub max_group_sizes: [usize; 3],
    /// Offsets of regions must be multiples of this many bytes.
    pub region_align: usize,
    /// Not zero: host and device use the same memory.
    pub unified_memory: u32,
    /// Not zero: it has out-of-order queues.
    pub out_of_order: u32,
    /// Not zero: `uuid` is known.
    pub has_uuid: u32,
    /// Not zero: the PCI address is known.
    pub has_pci: u32,
    /// The driver's UUID of the chip. Devices of two APIs with the same UUID are the same chip.
    pub uuid: [u8; 16],
    /// Domain, bus, device and function on the PCI bus.
    pub pci: [u32; 4],
    /// Not zero: kernels end their loops after so many iterations, because of an error in the driver.
    pub max_loop_iterations: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_device_info {}

fn describe(info: &DeviceInfo) -> onebuf_device_info {
    let (caps, physical) = (&info.caps, &info.physical);
    let kind = match info.kind {
        DeviceKind::Cpu => ONEBUF_DEVICE_CPU,
        DeviceKind::Gpu => ONEBUF_DEVICE_GPU,
        DeviceKind::Accelerator => ONEBUF_DEVICE_ACCELERATOR,
        _ => ONEBUF_DEVICE_OTHER,
    };
    let pci =
        physical.pci.map(|at| [at.domain, at.bus.into(), at.device.into(), at.function.into()]);
    onebuf_device_info {
        size: 0,
        kind,
        compute_units: caps.compute_units,
        memory_bytes: info.memory_bytes,
        max_buffer_bytes: caps.max_alloc_bytes,
        local_memory_bytes: caps.local_memory_bytes,
        max_group_size: caps.max_group_size,
        max_group_sizes: caps.max_group_sizes,
        region_align: caps.align_bytes,
        unified_memory: caps.unified_memory.into(),
        out_of_order: caps.out_of_order.into(),
        has_uuid: physical.uuid.is_some().into(),
        has_pci: pci.is_some().into(),
        uuid: physical.uuid.unwrap_or_default(),
        pci: pci.unwrap_or_default(),
        max_loop_iterations: caps.max_loop_iterations.map_or(0, u64::from),
    }
}

/// Queries the type, the identity and the limits of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_device_query(
    device: onebuf_device,
    info: *mut onebuf_device_info,
) -> onebuf_status {
    entry(|| {
        let found = describe(device.get()?.info());
        // SAFETY: guaranteed by the caller.
        unsafe { give(found, info, "info") }
    })
}

/// A native handle that the device's objects are created with, by the name of its type: `cl_platform_id`, `cl_device_id`,
/// `cl_context`; `CUdevice`, `CUcontext`; `hipDevice_t`; `VkInstance`, `VkPhysicalDevice`, `VkDevice`; `EGLDisplay`,
/// `EGLContext`. A context is created if there is none yet. Handles that are numbers (`CUdevice`) are converted to
/// pointers. Valid as long as the hub, or the registration of a foreign context, lives; no reference is added.
/// ONEBUF_UNSUPPORTED, with the names that there are, if the device has no such handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_device_native(
    device: onebuf_device,
    name: *const c_char,
    native: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let native = out(native, "native")?;
        // SAFETY: guaranteed by the caller.
        let wanted = unsafe { text(name, "name")? };
        let device = device.get()?;
        let all = device.native_handles()?;
        let found = all.iter().find(|(name, _)| *name == wanted);
        *native = found.map(|(_, handle)| *handle as *mut c_void).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            let what = format!("a handle `{wanted}` of {device}");
            Error::unsupported(what, format!("a handle that the device has: {names}"))
        })?;
        Ok(())
    })
}
