//! The devices that a machine must have: those of its hardware, or the platforms that `./dev` installs.

use crate::{Hardware, lacking, missing};
use onebuf::{
    Device, Hub,
    hal::{DeviceInfo, DeviceKind},
};

/// The OpenCL platforms that `./dev` installs.
const INSTALLED: [&str; 3] = ["Portable Computing Language", "rusticl", "Clover"];
/// The OpenCL platforms of the vendors' drivers.
const NVIDIA: &str = "NVIDIA CUDA";
const AMD: &str = "AMD Accelerated Parallel Processing";

/// A device that belongs to hardware.
struct Expected {
    hardware: Hardware,
    api: &'static str,
    is: fn(&DeviceInfo) -> bool,
}

const EXPECTED: [Expected; 8] = [
    Expected { hardware: Hardware::Nvidia, api: "cuda", is: |_| true },
    Expected { hardware: Hardware::Nvidia, api: "opencl", is: |info| info.platform == NVIDIA },
    Expected { hardware: Hardware::Nvidia, api: "gl", is: is_nvidia },
    Expected { hardware: Hardware::Nvidia, api: "vulkan", is: is_nvidia },
    Expected { hardware: Hardware::Amd, api: "hip", is: |_| true },
    Expected { hardware: Hardware::Amd, api: "opencl", is: |info| info.platform == AMD },
    Expected { hardware: Hardware::RenderNode, api: "gl", is: is_gpu },
    Expected { hardware: Hardware::RenderNode, api: "vulkan", is: is_gpu },
];

fn is_gpu(info: &DeviceInfo) -> bool {
    info.kind == DeviceKind::Gpu
}

fn is_nvidia(info: &DeviceInfo) -> bool {
    is_gpu(info) && info.platform.starts_with("NVIDIA")
}

/// Describes the devices of this hardware that are not among the machine's, of the APIs that `uses` accepts.
pub fn missing_devices(
    hardware: &[Hardware],
    uses: impl Fn(&str) -> bool,
    devices: &[DeviceInfo],
) -> Vec<(&'static str, Hardware)> {
    let is_there =
        |one: &Expected| devices.iter().any(|info| info.api.0 == one.api && (one.is)(info));
    let expected = EXPECTED.iter().filter(|one| hardware.contains(&one.hardware) && uses(one.api));
    expected.filter(|one| !is_there(one)).map(|one| (one.api, one.hardware)).collect()
}

/// Returns the OpenCL platforms that this machine must have: those of its GPUs, otherwise those that `./dev` installs.
pub fn required_platforms() -> &'static [&'static str] {
    match [Hardware::Nvidia, Hardware::Amd].map(Hardware::is_here) {
        [true, true] => &[NVIDIA, AMD],
        [true, false] => &[NVIDIA],
        [false, true] => &[AMD],
        [false, false] => &INSTALLED,
    }
}

/// Checks that the required devices exist, of the APIs that are not switched off: those of the hardware, and without a GPU for
/// compute the platforms that `./dev` installs.
///
/// # Panics
/// If one is missing in strict mode.
pub fn require_devices(hub: &Hub) {
    let reason = |api: &str| hub.unavailable().iter().find(|u| u.api == api).map(|u| &*u.reason);
    let uses = |api: &str| !reason(api).is_some_and(|why| why.starts_with("switched off"));
    let devices: Vec<_> = hub.devices().iter().map(|device| device.info().clone()).collect();
    let all = [Hardware::Nvidia, Hardware::Amd, Hardware::RenderNode];
    let here: Vec<_> = all.into_iter().filter(|one| one.is_here()).collect();
    for (api, hardware) in missing_devices(&here, uses, &devices) {
        let why = reason(api).unwrap_or("no device of the GPU itself");
        missing(api, &format!("{why}, although this machine has {hardware:?}"));
    }
    let is_there = |name: &str| devices.iter().any(|info| info.platform == name);
    for platform in required_platforms().iter().filter(|name| uses("opencl") && !is_there(name)) {
        missing(platform, reason("opencl").unwrap_or("no device of this platform"));
    }
}

/// Returns the GPUs of CUDA and HIP; prints a skip if there is none.
///
/// # Panics
/// In strict mode, if an API has none although the machine has its hardware.
pub fn compute_gpus(hub: &Hub) -> Vec<Device> {
    let reason = |api| hub.unavailable().iter().find(|u| u.api == api).map(|u| &*u.reason);
    let why = |api| format!("{api}: {}", reason(api).unwrap_or("no device"));
    let apis = [("cuda", Hardware::Nvidia), ("hip", Hardware::Amd)];
    let gpus = apis.map(|(api, _)| hub.select(api));
    for (own, (api, hardware)) in gpus.iter().zip(apis) {
        if own.is_empty() && hardware.is_here() {
            lacking(&[hardware], &why(api));
        }
    }
    let gpus = gpus.concat();
    if gpus.is_empty() && !apis.iter().any(|(_, hardware)| hardware.is_here()) {
        lacking(
            &[],
            &format!("no GPU of CUDA or HIP: {}", apis.map(|(api, _)| why(api)).join("; ")),
        );
    }
    gpus
}
