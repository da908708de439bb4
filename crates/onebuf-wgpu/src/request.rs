//! A wgpu device with the Vulkan extensions that sharing needs.
//!
//! # Safety
//! The device is opened by the adapter's own function, with extensions that the adapter supports.

#![allow(unsafe_code)]

use std::ffi::CStr;
use wgpu::hal::api::Vulkan;

/// What onebuf uses, if the adapter has it.
const EXTENSIONS: [&CStr; 3] = [
    ash::khr::external_memory_fd::NAME,
    ash::ext::external_memory_host::NAME,
    ash::khr::external_semaphore_fd::NAME,
];

/// Requests a device as [`wgpu::Adapter::request_device`] does. On Vulkan it also enables the extensions by which other APIs and the
/// host share memory and semaphores with it. wgpu itself enables only descriptors of memory.
///
/// # Errors
/// As for [`wgpu::Adapter::request_device`].
pub async fn request_device(
    adapter: &wgpu::Adapter,
    desc: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), wgpu::RequestDeviceError> {
    let possible = adapter.features().contains(desc.required_features)
        && desc.required_limits.check_limits(&adapter.limits());
    let opened = if possible { open(adapter, desc) } else { None };
    match opened {
        // SAFETY: opened by this adapter, with the features of `desc`.
        Some(opened) => unsafe { adapter.create_device_from_hal::<Vulkan>(opened, desc) },
        // Another backend, or an error that wgpu words.
        None => adapter.request_device(desc).await,
    }
}

/// Opens the device with the extensions; `None` on other backends, and if the driver refuses.
fn open(
    adapter: &wgpu::Adapter,
    desc: &wgpu::DeviceDescriptor<'_>,
) -> Option<wgpu::hal::OpenDevice<Vulkan>> {
    // SAFETY: the adapter is only used to open a device.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let known = hal.physical_device_capabilities();
    let has = |name: &&'static CStr| known.supports_extension(name);
    let more: Vec<&'static CStr> = EXTENSIONS.into_iter().filter(has).collect();
    let (features, limits) = (desc.required_features, &desc.required_limits);
    // SAFETY: the callback adds extensions that the adapter has, and removes nothing.
    let opened = unsafe {
        hal.open_with_callback(
            features,
            limits,
            &desc.memory_hints,
            Some(Box::new(|args| {
                let more = more.iter().filter(|name| !args.extensions.contains(name)).copied();
                let more: Vec<_> = more.collect();
                args.extensions.extend(more);
            })),
        )
    };
    opened.ok()
}
