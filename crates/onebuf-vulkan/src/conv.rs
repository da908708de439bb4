//! Conversion of status codes, versions and PCI addresses.

use onebuf_hal::{DeviceInfo, DeviceKind, Error, PciAddress, checks};
use onebuf_sys::{VkRefused, vulkan::vk};

/// Converts a refusal to an error, if the call does not give it a special meaning.
pub(super) fn refused(VkRefused { call, status }: VkRefused, device: &str) -> Error {
    let (name, code) = (format!("VK_{status:?}"), status.as_raw());
    match status {
        _ if code == onebuf_sys::fork::FORKED => Error::forked(device),
        vk::Result::ERROR_DEVICE_LOST => {
            Error::DeviceLost { device: device.to_owned(), reason: format!("{call}: {name}") }
        }
        _ => Error::Driver { api: "vulkan", call, code, name },
    }
}

/// Converts the refusal of a call that creates memory.
pub(super) fn allocation(refused: VkRefused, asked: usize, info: &DeviceInfo) -> Error {
    match refused.status {
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
            checks::out_of_memory(asked, info)
        }
        _ => self::refused(refused, &info.name),
    }
}

/// Formats a packed version, for example `1.3.230`.
pub(super) fn version(packed: u32) -> String {
    let [major, minor, patch] = [
        vk::api_version_major(packed),
        vk::api_version_minor(packed),
        vk::api_version_patch(packed),
    ];
    format!("{major}.{minor}.{patch}")
}

pub(super) fn kind(kind: vk::PhysicalDeviceType) -> DeviceKind {
    match kind {
        vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
        vk::PhysicalDeviceType::DISCRETE_GPU
        | vk::PhysicalDeviceType::INTEGRATED_GPU
        | vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Gpu,
        _ => DeviceKind::Other,
    }
}

/// Converts a PCI address; `None` if a part is out of range.
pub(super) fn pci(bus: &vk::PhysicalDevicePCIBusInfoPropertiesEXT<'_>) -> Option<PciAddress> {
    Some(PciAddress {
        domain: bus.pci_domain,
        bus: bus.pci_bus.try_into().ok()?,
        device: bus.pci_device.try_into().ok()?,
        function: bus.pci_function.try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_told_from_a_refusal() {
        let call = "vkQueueSubmit";
        let lost = refused(VkRefused { call, status: vk::Result::ERROR_DEVICE_LOST }, "chip");
        assert!(matches!(lost, Error::DeviceLost { .. }), "{lost}");
        let status = vk::Result::ERROR_FRAGMENTED_POOL;
        let said = refused(VkRefused { call, status }, "chip").to_string();
        assert!(said.contains("vkQueueSubmit returned VK_ERROR_FRAGMENTED_POOL (-12)"), "{said}");
    }

    #[test]
    fn versions_have_three_parts() {
        assert_eq!(version(vk::make_api_version(0, 1, 3, 230)), "1.3.230");
    }
}
