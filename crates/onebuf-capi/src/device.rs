//! Devices
//!
//! A device is one API's view of one chip. Its handle is the hub's: it is valid until the hub's is freed,
//! and the same whenever the same device is asked for. What was made with it stays usable after that. Handles
//! of the devices of a foreign context are that context's in the same way.

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

/// A device. Not to be freed: it goes with its hub or context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_device {
    /// Zero names nothing.
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

/// Its id, such as `opencl:0`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_id(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.id().into())
}

/// Its own name.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_name(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().name.clone())
}

/// Its API: `host`, `opencl`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_api(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().api.0.into())
}

/// Who makes the driver; for OpenCL, the platform's name.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_platform(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().platform.clone())
}

/// The driver's version.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_driver(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().driver.clone())
}

/// The API's version, as the driver gives it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_version(
    device: onebuf_device,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    tell(device, text, |device| device.info().version.clone())
}

/// What it can do: words of onebuf's (`host_pointer`, `svm_fine`, `out_of_order` …) and the extensions it
/// declares, with spaces between.
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

/// Whether it has a feature, by the whole word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_device_has(
    device: onebuf_device,
    feature: *const c_char,
    has: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        let has = out(has, "has")?;
        // SAFETY: the caller's promise.
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

/// Its memory in bytes; zero where it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_memory_bytes(
    device: onebuf_device,
    bytes: Slot<'_, u64>,
) -> onebuf_status {
    number(device, bytes, |info| info.memory_bytes)
}

/// The largest buffer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_max_buffer_bytes(
    device: onebuf_device,
    bytes: Slot<'_, u64>,
) -> onebuf_status {
    number(device, bytes, |info| info.caps.max_alloc_bytes)
}

/// Regions of a buffer that this device sees begin at multiples of so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_device_region_align(
    device: onebuf_device,
    bytes: Slot<'_, usize>,
) -> onebuf_status {
    number(device, bytes, |info| info.caps.align_bytes)
}
