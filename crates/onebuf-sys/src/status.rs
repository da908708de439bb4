//! OpenCL's status codes as numbers.

use std::fmt;

/// An OpenCL status. A newtype and not an `enum`: drivers return codes that no header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ClStatus(pub i32);

impl ClStatus {
    /// Not from a driver: the library does not export this optional call.
    pub const NOT_LOADED: Self = Self(i32::MIN);
    /// Not from a driver: it reported success, but returned a null handle.
    pub const NULL_HANDLE: Self = Self(i32::MIN + 1);
    /// Not from a driver: this is a forked child, where no driver is called.
    pub const FORKED: Self = Self(crate::fork::FORKED);

    /// Whether it is `CL_SUCCESS`. (An event's execution status may also be above zero.)
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// Converts every status but `CL_SUCCESS` to an error.
    pub const fn ok(self) -> Result<(), Self> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for ClStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.name()) {
            (Self::NOT_LOADED, _) => f.write_str("call not exported by the OpenCL library"),
            (Self::NULL_HANDLE, _) => f.write_str("null handle from a call that succeeded"),
            (Self::FORKED, _) => f.write_str(crate::fork::WHY),
            (Self(code), Some(name)) => write!(f, "{name} ({code})"),
            (Self(code), None) => write!(f, "status {code}"),
        }
    }
}

impl std::error::Error for ClStatus {}

macro_rules! codes {
    ($($name:ident = $code:literal;)*) => {
        impl ClStatus {
            $(
                #[doc = concat!("`CL_", stringify!($name), "`")]
                pub const $name: Self = Self($code);
            )*

            /// The name in Khronos' headers; if two extensions share a code, the `KHR` one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(concat!("CL_", stringify!($name))),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0;
    DEVICE_NOT_FOUND = -1;
    DEVICE_NOT_AVAILABLE = -2;
    COMPILER_NOT_AVAILABLE = -3;
    MEM_OBJECT_ALLOCATION_FAILURE = -4;
    OUT_OF_RESOURCES = -5;
    OUT_OF_HOST_MEMORY = -6;
    PROFILING_INFO_NOT_AVAILABLE = -7;
    MEM_COPY_OVERLAP = -8;
    IMAGE_FORMAT_MISMATCH = -9;
    IMAGE_FORMAT_NOT_SUPPORTED = -10;
    BUILD_PROGRAM_FAILURE = -11;
    MAP_FAILURE = -12;
    MISALIGNED_SUB_BUFFER_OFFSET = -13;
    EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST = -14;
    COMPILE_PROGRAM_FAILURE = -15;
    LINKER_NOT_AVAILABLE = -16;
    LINK_PROGRAM_FAILURE = -17;
    DEVICE_PARTITION_FAILED = -18;
    KERNEL_ARG_INFO_NOT_AVAILABLE = -19;
    INVALID_VALUE = -30;
    INVALID_DEVICE_TYPE = -31;
    INVALID_PLATFORM = -32;
    INVALID_DEVICE = -33;
    INVALID_CONTEXT = -34;
    INVALID_QUEUE_PROPERTIES = -35;
    INVALID_COMMAND_QUEUE = -36;
    INVALID_HOST_PTR = -37;
    INVALID_MEM_OBJECT = -38;
    INVALID_IMAGE_FORMAT_DESCRIPTOR = -39;
    INVALID_IMAGE_SIZE = -40;
    INVALID_SAMPLER = -41;
    INVALID_BINARY = -42;
    INVALID_BUILD_OPTIONS = -43;
    INVALID_PROGRAM = -44;
    INVALID_PROGRAM_EXECUTABLE = -45;
    INVALID_KERNEL_NAME = -46;
    INVALID_KERNEL_DEFINITION = -47;
    INVALID_KERNEL = -48;
    INVALID_ARG_INDEX = -49;
    INVALID_ARG_VALUE = -50;
    INVALID_ARG_SIZE = -51;
    INVALID_KERNEL_ARGS = -52;
    INVALID_WORK_DIMENSION = -53;
    INVALID_WORK_GROUP_SIZE = -54;
    INVALID_WORK_ITEM_SIZE = -55;
    INVALID_GLOBAL_OFFSET = -56;
    INVALID_EVENT_WAIT_LIST = -57;
    INVALID_EVENT = -58;
    INVALID_OPERATION = -59;
    INVALID_GL_OBJECT = -60;
    INVALID_BUFFER_SIZE = -61;
    INVALID_MIP_LEVEL = -62;
    INVALID_GLOBAL_WORK_SIZE = -63;
    INVALID_PROPERTY = -64;
    INVALID_IMAGE_DESCRIPTOR = -65;
    INVALID_COMPILER_OPTIONS = -66;
    INVALID_LINKER_OPTIONS = -67;
    INVALID_DEVICE_PARTITION_COUNT = -68;
    INVALID_PIPE_SIZE = -69;
    INVALID_DEVICE_QUEUE = -70;
    INVALID_SPEC_ID = -71;
    MAX_SIZE_RESTRICTION_EXCEEDED = -72;
    INVALID_GL_SHAREGROUP_REFERENCE_KHR = -1000;
    PLATFORM_NOT_FOUND_KHR = -1001;
    INVALID_D3D10_DEVICE_KHR = -1002;
    INVALID_D3D10_RESOURCE_KHR = -1003;
    D3D10_RESOURCE_ALREADY_ACQUIRED_KHR = -1004;
    D3D10_RESOURCE_NOT_ACQUIRED_KHR = -1005;
    INVALID_D3D11_DEVICE_KHR = -1006;
    INVALID_D3D11_RESOURCE_KHR = -1007;
    D3D11_RESOURCE_ALREADY_ACQUIRED_KHR = -1008;
    D3D11_RESOURCE_NOT_ACQUIRED_KHR = -1009;
    INVALID_DX9_MEDIA_ADAPTER_KHR = -1010;
    INVALID_DX9_MEDIA_SURFACE_KHR = -1011;
    DX9_MEDIA_SURFACE_ALREADY_ACQUIRED_KHR = -1012;
    DX9_MEDIA_SURFACE_NOT_ACQUIRED_KHR = -1013;
    DEVICE_PARTITION_FAILED_EXT = -1057;
    INVALID_PARTITION_COUNT_EXT = -1058;
    INVALID_PARTITION_NAME_EXT = -1059;
    EGL_RESOURCE_NOT_ACQUIRED_KHR = -1092;
    INVALID_EGL_OBJECT_KHR = -1093;
    INVALID_ACCELERATOR_INTEL = -1094;
    INVALID_ACCELERATOR_TYPE_INTEL = -1095;
    INVALID_ACCELERATOR_DESCRIPTOR_INTEL = -1096;
    ACCELERATOR_TYPE_NOT_SUPPORTED_INTEL = -1097;
    INVALID_VA_API_MEDIA_ADAPTER_INTEL = -1098;
    INVALID_VA_API_MEDIA_SURFACE_INTEL = -1099;
    VA_API_MEDIA_SURFACE_ALREADY_ACQUIRED_INTEL = -1100;
    VA_API_MEDIA_SURFACE_NOT_ACQUIRED_INTEL = -1101;
    COMMAND_TERMINATED_ITSELF_WITH_FAILURE_ARM = -1108;
    CONTEXT_TERMINATED_KHR = -1121;
    CANCELLED_IMG = -1126;
    PAGE_FAULT_IMG = -1127;
    SAFETY_FAULT_IMG = -1128;
    GENERAL_FAULT_IMG = -1129;
    ECC_UNRECOVERED_IMG = -1130;
    INVALID_COMMAND_BUFFER_KHR = -1138;
    INVALID_SYNC_POINT_WAIT_LIST_KHR = -1139;
    INCOMPATIBLE_COMMAND_QUEUE_KHR = -1140;
    INVALID_MUTABLE_COMMAND_KHR = -1141;
    INVALID_SEMAPHORE_KHR = -1142;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers;

    #[test]
    fn displays() {
        assert_eq!(ClStatus::OUT_OF_RESOURCES.to_string(), "CL_OUT_OF_RESOURCES (-5)");
        assert_eq!(ClStatus(-9999).to_string(), "status -9999");
        assert_eq!(ClStatus::NOT_LOADED.to_string(), "call not exported by the OpenCL library");
        assert_eq!(ClStatus::SUCCESS.ok(), Ok(()));
        assert_eq!(ClStatus(-1).ok(), Err(ClStatus::DEVICE_NOT_FOUND));
    }

    #[test]
    fn every_code_of_the_headers_has_its_name() {
        let defines = headers::defines();
        let is_status = |name: &str| !name.starts_with("CL_BUILD_") || name.ends_with("_FAILURE");
        let codes: Vec<_> =
            defines.iter().filter(|(name, value)| *value < 0 && is_status(name)).collect();
        for (header_name, code) in &codes {
            let status = ClStatus(i32::try_from(*code).unwrap());
            let name =
                status.name().unwrap_or_else(|| panic!("{header_name} = {code} has no name"));
            assert!(codes.iter().any(|(n, c)| n == name && c == code), "{code} is not {name}");
        }
        assert!(defines.is_empty() || codes.len() > 80, "only {} codes found", codes.len());
    }
}
