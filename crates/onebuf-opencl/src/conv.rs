//! Conversion of status codes, flags and versions.

use super::API;
use onebuf_hal::{
    Access, AccessState, DeviceInfo, DeviceKind, Error, FdKind, Grid, HostAccess, MemoryKind,
    checks,
};
use onebuf_sys::{ClStatus, opencl::consts as cl};

/// NVIDIA's code for an illegal access by a kernel, which is in no header. The context is lost afterwards.
const NVIDIA_ILLEGAL_ACCESS: ClStatus = ClStatus(-9999);

/// The status of a host signal that failed or was dropped unopened. Any negative number would do.
pub(super) const HOST_SIGNAL_FAILED: i32 = ClStatus::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST.0;

/// A version of the API. Platform and device have one each; the older one applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub u16, pub u16);

impl Version {
    /// Fill; markers and barriers with wait lists; extension calls by platform.
    pub const V1_2: Version = Version(1, 2);
    /// Shared virtual memory; queues by property list.
    pub const V2_0: Version = Version(2, 0);
    /// Programs in an intermediate language.
    pub const V2_1: Version = Version(2, 1);

    /// Parses `OpenCL <major>.<minor> <anything>`.
    pub fn parse(text: &str) -> Option<Version> {
        let number = text.strip_prefix("OpenCL ")?.split_whitespace().next()?;
        let (major, minor) = number.split_once('.')?;
        Some(Version(major.parse().ok()?, minor.parse().ok()?))
    }
}

/// Converts a status to an error, if the call does not give it a special meaning.
pub(super) fn status(call: &'static str, status: ClStatus, device: &str) -> Error {
    match status {
        ClStatus::NOT_LOADED => Error::unsupported(call, "an OpenCL library that exports it"),
        ClStatus::FORKED => Error::forked(device),
        ClStatus::DEVICE_NOT_AVAILABLE
        | ClStatus::CONTEXT_TERMINATED_KHR
        | NVIDIA_ILLEGAL_ACCESS => {
            Error::DeviceLost { device: device.to_owned(), reason: format!("{call}: {status}") }
        }
        _ => Error::Driver { api: API.0, call, code: status.0, name: name(status) },
    }
}

fn name(status: ClStatus) -> String {
    match status {
        ClStatus::NULL_HANDLE => "null handle".to_owned(),
        _ => status.name().unwrap_or("unknown").to_owned(),
    }
}

/// Converts the status of a call that creates memory.
pub(super) fn allocation(
    call: &'static str,
    status: ClStatus,
    asked: usize,
    info: &DeviceInfo,
) -> Error {
    match status {
        ClStatus::MEM_OBJECT_ALLOCATION_FAILURE
        | ClStatus::OUT_OF_RESOURCES
        | ClStatus::OUT_OF_HOST_MEMORY
        | ClStatus::INVALID_BUFFER_SIZE => checks::out_of_memory(asked, info),
        _ => self::status(call, status, &info.name),
    }
}

/// Converts the status of a call that sets a kernel argument.
pub(super) fn argument(call: &'static str, status: ClStatus, which: &str, device: &str) -> Error {
    match status {
        ClStatus::INVALID_ARG_INDEX
        | ClStatus::INVALID_ARG_VALUE
        | ClStatus::INVALID_ARG_SIZE
        | ClStatus::INVALID_MEM_OBJECT => Error::invalid(format!("{which} was refused: {status}")),
        _ => self::status(call, status, device),
    }
}

/// Converts the status of a launch.
#[cold]
pub(super) fn launch(status: ClStatus, kernel: &str, grid: &Grid, device: &str) -> Error {
    match status {
        ClStatus::INVALID_KERNEL_ARGS
        | ClStatus::INVALID_WORK_DIMENSION
        | ClStatus::INVALID_WORK_GROUP_SIZE
        | ClStatus::INVALID_WORK_ITEM_SIZE
        | ClStatus::INVALID_GLOBAL_OFFSET
        | ClStatus::INVALID_GLOBAL_WORK_SIZE => {
            let grid = grid_text(grid);
            Error::invalid(format!("kernel `{kernel}` over {grid} was refused: {status}"))
        }
        _ => self::status("clEnqueueNDRangeKernel", status, device),
    }
}

/// Describes a grid, for example `[1024, 2] work-items in groups of [64, 1]`.
pub(super) fn grid_text(grid: &Grid) -> String {
    let dims = grid.dims.min(3);
    let groups = match grid.local {
        Some(local) => format!("groups of {:?}", &local[..dims]),
        None => "groups of the driver's choice".to_owned(),
    };
    let from = match grid.offset[..dims].iter().all(|n| *n == 0) {
        true => String::new(),
        false => format!(" from {:?}", &grid.offset[..dims]),
    };
    format!("{:?} work-items{from} in {groups}", &grid.global[..dims])
}

/// The flag for access by *kernels*; the host may initialise and read the memory with any of them.
pub(super) fn access(access: Access) -> u64 {
    match access {
        Access::Read => cl::CL_MEM_READ_ONLY,
        Access::Write => cl::CL_MEM_WRITE_ONLY,
        Access::ReadWrite => cl::CL_MEM_READ_WRITE,
    }
}

/// The flag for access by the *host*, since OpenCL 1.2.
pub(super) fn host_access(host: HostAccess) -> u64 {
    match host {
        HostAccess::ReadWrite => 0,
        HostAccess::Read => cl::CL_MEM_HOST_READ_ONLY,
        HostAccess::Write => cl::CL_MEM_HOST_WRITE_ONLY,
        HostAccess::None => cl::CL_MEM_HOST_NO_ACCESS,
    }
}

/// The map flags that a host with this access may use.
pub(super) fn maps_allowed(host: HostAccess) -> u64 {
    let reads = if host.reads() { cl::CL_MAP_READ } else { 0 };
    reads | if host.writes() { cl::CL_MAP_WRITE } else { 0 }
}

/// Describes a memory: its flags by name, and what they mean for copies.
pub(super) fn memory_text(memory_kind: MemoryKind, flags: u64, access: Access) -> String {
    let names =
        cl::MEM_FLAG_NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name);
    let names = names.collect::<Vec<_>>().join(" | ");
    let kernels = match access {
        Access::Read => "kernels read",
        Access::Write => "kernels write",
        Access::ReadWrite => "kernels read and write",
    };
    let what = match memory_kind {
        MemoryKind::HostPages => "the host's own pages",
        MemoryKind::FineSvm => "fine-grained SVM, which the host uses at the same time",
        MemoryKind::CoarseSvm => "coarse-grained SVM, which the host maps in turn",
        MemoryKind::Managed => "managed memory, which OpenCL does not have",
        MemoryKind::MappedDevice => "the driver's memory, which it maps for the host",
        MemoryKind::Exportable => "memory of another API, imported by a descriptor",
        MemoryKind::OnChip => "memory on the chip, which is never mapped",
        MemoryKind::Device => "device memory, which the host reaches by copies",
    };
    let filled = match flags & cl::CL_MEM_COPY_HOST_PTR {
        0 => "",
        _ => "; filled by one copy when it was made",
    };
    format!("{names}: {kernels} {what}{filled}")
}

/// The flags of the map in an access state; `None` if the memory is not mapped.
pub(super) fn map_flags(access_state: AccessState) -> Option<u64> {
    match access_state {
        AccessState::Acquired => None,
        AccessState::SharedRead => Some(cl::CL_MAP_READ),
        AccessState::Released => Some(cl::CL_MAP_READ | cl::CL_MAP_WRITE),
    }
}

/// `cl_external_memory_handle_type_khr`.
pub(super) fn handle_type(kind: FdKind) -> u32 {
    match kind {
        FdKind::OpaqueFd => cl::CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR,
        FdKind::DmaBuf => cl::CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR,
    }
}

/// Converts `cl_device_type`, a set of bits.
pub(super) fn kind(bits: u64) -> DeviceKind {
    let known = [
        (cl::CL_DEVICE_TYPE_GPU, DeviceKind::Gpu),
        (cl::CL_DEVICE_TYPE_CPU, DeviceKind::Cpu),
        (cl::CL_DEVICE_TYPE_ACCELERATOR, DeviceKind::Accelerator),
    ];
    let found = known.into_iter().find(|(bit, _)| bits & bit != 0);
    found.map_or(DeviceKind::Other, |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(Version::parse("OpenCL 3.0 PoCL 3.1+debian  Linux"), Some(Version(3, 0)));
        assert_eq!(Version::parse("OpenCL 1.1 Mesa 22.3.6"), Some(Version(1, 1)));
        assert_eq!(Version::parse("OpenCL 1.2"), Some(Version::V1_2));
        for wrong in ["", "OpenCL", "OpenCL 3", "OpenCL x.y z", "3.0"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
        assert!(Version(3, 0) > Version::V2_0 && Version(1, 10) > Version::V1_2);
    }

    #[test]
    fn statuses_have_names() {
        let error = status("clFlush", ClStatus(-36), "d");
        assert_eq!(error.to_string(), "opencl: clFlush returned CL_INVALID_COMMAND_QUEUE (-36)");
        let error = status("clFlush", ClStatus(-77777), "d");
        assert_eq!(error.to_string(), "opencl: clFlush returned unknown (-77777)");
        assert!(matches!(status("x", ClStatus(-9999), "d"), Error::DeviceLost { .. }));
        assert!(matches!(status("x", ClStatus::NOT_LOADED, "d"), Error::Unsupported { .. }));
    }

    #[test]
    fn a_refused_launch_says_its_sizes() {
        let grid = Grid { dims: 2, global: [100, 7, 1], local: Some([64, 1, 1]), offset: [0; 3] };
        let error = launch(ClStatus::INVALID_WORK_GROUP_SIZE, "fft", &grid, "d").to_string();
        assert_eq!(
            error,
            "invalid argument: kernel `fft` over [100, 7] work-items in groups of [64, 1] was \
             refused: CL_INVALID_WORK_GROUP_SIZE (-54)"
        );
    }
}
