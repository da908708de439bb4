//! Devices
//!
//! A device is one API's view of one chip. The hub owns its handle: the handle is valid until the hub's handle is
//! freed, and the same for every query of the same device. Objects made with the device stay usable afterwards. A
//! foreign context owns the handles of its devices in the same way.

use crate::{
    entry::entry,
    fault::Result,
    handle::{Noun, noun},
    input::{Slot, out, text},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{Device, hal::DeviceInfo};
use std::ffi::c_char;

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
