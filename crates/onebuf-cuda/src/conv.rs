//! Conversion of driver statuses, versions, PCI addresses and grids.

use onebuf_hal::{DeviceInfo, Error, Grid, PciAddress, checks};
use onebuf_sys::{
    Refused,
    cuda_like::{CuStatus, CudaLike},
};

/// Converts a driver's refusal to the general error for its status.
pub(super) fn refused(table: &CudaLike, Refused { call, status }: Refused, device: &str) -> Error {
    if status == CuStatus::NOT_LOADED {
        return Error::unsupported(call, "a driver that exports it");
    }
    if status == CuStatus::FORKED {
        return Error::forked(device);
    }
    let name = table.error_name(status);
    if status.is_fatal() {
        let reason = format!("{call}: {name} ({})", status.0);
        return Error::DeviceLost { device: device.to_owned(), reason };
    }
    Error::Driver { api: table.flavor().api(), call, code: status.0, name }
}

/// Converts the refusal of a call that allocates memory.
pub(super) fn allocation(
    table: &CudaLike,
    refused: Refused,
    asked: usize,
    info: &DeviceInfo,
) -> Error {
    match refused.status {
        CuStatus::OUT_OF_MEMORY => checks::out_of_memory(asked, info),
        _ => self::refused(table, refused, &info.name),
    }
}

/// Formats a driver version: 12040 is CUDA 12.4, 50221153 is HIP 5.2.21153.
pub(super) fn version(number: i32) -> String {
    match number {
        ..1_000_000 => format!("{}.{}", number / 1000, number % 1000 / 10),
        _ => {
            let (major, rest) = (number / 10_000_000, number % 10_000_000);
            format!("{major}.{}.{}", rest / 100_000, rest % 100_000)
        }
    }
}

/// Parses `0000:c1:00.0`, the format of both APIs.
pub(super) fn pci(text: &str) -> Option<PciAddress> {
    let mut parts = text.trim().split([':', '.']);
    let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, device) = (next()?, next()?, next()?);
    let function = next().unwrap_or(0);
    Some(PciAddress {
        domain,
        bus: bus.try_into().ok()?,
        device: device.try_into().ok()?,
        function: function.try_into().ok()?,
    })
}

/// Formats a grid as `[1024, 2] work-items in groups of [64, 1]`.
pub(super) fn grid_text(grid: &Grid, group: [usize; 3]) -> String {
    let dims = grid.dims.clamp(1, 3);
    format!("{:?} work-items in groups of {:?}", &grid.global[..dims], &group[..dims])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version(13000), "13.0");
        assert_eq!(version(12040), "12.4");
        assert_eq!(version(50221153), "5.2.21153");
    }

    #[test]
    fn addresses() {
        let address = pci("0000:c1:00.0").unwrap();
        assert_eq!(
            (address.domain, address.bus, address.device, address.function),
            (0, 0xc1, 0, 0)
        );
        assert_eq!(pci("00000001:0A:1F.3").unwrap().to_string(), "0001:0a:1f.3");
        for wrong in ["", "0000", "0000:zz:00.0", "0000:100:00.0"] {
            assert_eq!(pci(wrong), None, "{wrong}");
        }
    }
}
