//! Conversion of numbers that have another meaning on the other side: statuses and grids.

use onebuf_hal::{DeviceInfo, Error, Grid, checks};
use onebuf_sys::gl::{GlRefused, GlStatus};

/// A refusal as an error, where the call gives it no meaning of its own.
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

/// A refusal of a call that makes memory.
pub(super) fn allocation(refused: GlRefused, asked: usize, info: &DeviceInfo) -> Error {
    match refused.status {
        GlStatus::OUT_OF_MEMORY => checks::out_of_memory(asked, info),
        _ => self::refused(refused, &info.name),
    }
}

/// Sizes and offsets are signed on the other side; no memory is so large.
pub(super) fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

/// As in `[1024, 2] work-items in groups of [64, 1]`.
pub(super) fn grid_text(grid: &Grid, group: [usize; 3]) -> String {
    let dims = grid.dims.clamp(1, 3);
    format!("{:?} work-items in groups of {:?}", &grid.global[..dims], &group[..dims])
}
