//! Conversion of statuses, sizes and grids.

use onebuf_hal::{DeviceInfo, Error, Grid, checks};
use onebuf_sys::gl::{GlRefused, GlStatus};

/// Converts a driver's refusal to the general error for its status.
pub(super) fn refused(GlRefused { call, status }: GlRefused, device: &str) -> Error {
    if status == GlStatus::NOT_LOADED {
        return Error::unsupported(call, "a driver that offers it");
    }
    if status == GlStatus::FORKED {
        return Error::forked(device);
    }
    if status.is_fatal() {
        return Error::DeviceLost {
            device: device.to_owned(),
            reason: format!("{call}: {status}"),
        };
    }
    let name = status.name().unwrap_or("unknown").to_owned();
    Error::Driver { api: "gl", call, code: status.0, name }
}

/// Converts the refusal of a call that allocates memory.
pub(super) fn allocation(refused: GlRefused, asked: usize, info: &DeviceInfo) -> Error {
    match refused.status {
        GlStatus::OUT_OF_MEMORY => checks::out_of_memory(asked, info),
        _ => self::refused(refused, &info.name),
    }
}

/// Converts a size or offset to OpenGL's signed type; no memory is too large for it.
pub(super) fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

/// Formats a grid as `[1024, 2] work-items in groups of [64, 1]`.
pub(super) fn grid_text(grid: &Grid, group: [usize; 3]) -> String {
    let dims = grid.dims.clamp(1, 3);
    format!("{:?} work-items in groups of {:?}", &grid.global[..dims], &group[..dims])
}
