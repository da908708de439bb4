//! The numbers that onebuf uses, under their C names and with their C types.

macro_rules! constants {
    ($(#[doc = $doc:literal] $ty:ty { $($name:ident = $value:expr;)* })*) => {
        $($(#[doc = $doc] pub const $name: $ty = $value;)*)*

        /// Every constant, for a test that compares them with the headers.
        #[cfg(test)]
        const ALL: &[(&str, i64)] = &[$($((stringify!($name), $name as i64),)*)*];
    };
}

/// The flags that buffers and shared virtual memory are created with, and their names. Bit 20 has this meaning on TI's
/// platform only.
pub const MEM_FLAG_NAMES: [(u64, &str); 12] = [
    (CL_MEM_READ_WRITE, "CL_MEM_READ_WRITE"),
    (CL_MEM_WRITE_ONLY, "CL_MEM_WRITE_ONLY"),
    (CL_MEM_READ_ONLY, "CL_MEM_READ_ONLY"),
    (CL_MEM_USE_HOST_PTR, "CL_MEM_USE_HOST_PTR"),
    (CL_MEM_ALLOC_HOST_PTR, "CL_MEM_ALLOC_HOST_PTR"),
    (CL_MEM_COPY_HOST_PTR, "CL_MEM_COPY_HOST_PTR"),
    (CL_MEM_HOST_READ_ONLY, "CL_MEM_HOST_READ_ONLY"),
    (CL_MEM_HOST_WRITE_ONLY, "CL_MEM_HOST_WRITE_ONLY"),
    (CL_MEM_HOST_NO_ACCESS, "CL_MEM_HOST_NO_ACCESS"),
    (CL_MEM_SVM_FINE_GRAIN_BUFFER, "CL_MEM_SVM_FINE_GRAIN_BUFFER"),
    (CL_MEM_SVM_ATOMICS, "CL_MEM_SVM_ATOMICS"),
    (CL_MEM_USE_MSMC_TI, "CL_MEM_USE_MSMC_TI"),
];

constants! {
    /// `cl_bool`.
    u32 {
        CL_FALSE = 0;
        CL_TRUE = 1;
    }

    /// `cl_platform_info`, for `clGetPlatformInfo`.
    u32 {
        CL_PLATFORM_PROFILE = 0x0900;
        CL_PLATFORM_VERSION = 0x0901;
        CL_PLATFORM_NAME = 0x0902;
        CL_PLATFORM_VENDOR = 0x0903;
        CL_PLATFORM_EXTENSIONS = 0x0904;
        CL_PLATFORM_NUMERIC_VERSION = 0x0906;
    }

    /// `cl_device_type`.
    u64 {
        CL_DEVICE_TYPE_DEFAULT = 1 << 0;
        CL_DEVICE_TYPE_CPU = 1 << 1;
        CL_DEVICE_TYPE_GPU = 1 << 2;
        CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
        CL_DEVICE_TYPE_CUSTOM = 1 << 4;
        CL_DEVICE_TYPE_ALL = 0xFFFF_FFFF;
    }

    /// `cl_device_info`, for `clGetDeviceInfo`.
    u32 {
        CL_DEVICE_TYPE = 0x1000;
        CL_DEVICE_VENDOR_ID = 0x1001;
        CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
        CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS = 0x1003;
        CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
        CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
        CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
        CL_DEVICE_ADDRESS_BITS = 0x100D;
        CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
        CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017;
        CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019;
        CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE = 0x101D;
        CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
        CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
        CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE = 0x1020;
        CL_DEVICE_LOCAL_MEM_TYPE = 0x1022;
        CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
        CL_DEVICE_ERROR_CORRECTION_SUPPORT = 0x1024;
        CL_DEVICE_PROFILING_TIMER_RESOLUTION = 0x1025;
        CL_DEVICE_ENDIAN_LITTLE = 0x1026;
        CL_DEVICE_AVAILABLE = 0x1027;
        CL_DEVICE_COMPILER_AVAILABLE = 0x1028;
        CL_DEVICE_QUEUE_PROPERTIES = 0x102A;
        CL_DEVICE_NAME = 0x102B;
        CL_DEVICE_VENDOR = 0x102C;
        CL_DRIVER_VERSION = 0x102D;
        CL_DEVICE_PROFILE = 0x102E;
        CL_DEVICE_VERSION = 0x102F;
        CL_DEVICE_EXTENSIONS = 0x1030;
        CL_DEVICE_PLATFORM = 0x1031;
        CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032;
        CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035;
        CL_DEVICE_OPENCL_C_VERSION = 0x103D;
        CL_DEVICE_PARENT_DEVICE = 0x1042;
        CL_DEVICE_PARTITION_MAX_SUB_DEVICES = 0x1043;
        CL_DEVICE_PREFERRED_INTEROP_USER_SYNC = 0x1048;
        CL_DEVICE_SVM_CAPABILITIES = 0x1053;
        CL_DEVICE_IL_VERSION = 0x105B;
        CL_DEVICE_NUMERIC_VERSION = 0x105E;
        CL_DEVICE_EXTENSIONS_WITH_VERSION = 0x1060;
    }

    /// `cl_device_svm_capabilities`.
    u64 {
        CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1 << 0;
        CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
        CL_DEVICE_SVM_FINE_GRAIN_SYSTEM = 1 << 2;
        CL_DEVICE_SVM_ATOMICS = 1 << 3;
    }

    /// `cl_context_properties`, for `clCreateContext`.
    isize {
        CL_CONTEXT_PLATFORM = 0x1084;
        CL_CONTEXT_INTEROP_USER_SYNC = 0x1085;
        CL_GL_CONTEXT_KHR = 0x2008;
        CL_EGL_DISPLAY_KHR = 0x2009;
    }

    /// `cl_context_info`, for `clGetContextInfo`.
    u32 {
        CL_CONTEXT_REFERENCE_COUNT = 0x1080;
        CL_CONTEXT_DEVICES = 0x1081;
        CL_CONTEXT_PROPERTIES = 0x1082;
        CL_CONTEXT_NUM_DEVICES = 0x1083;
    }

    /// `cl_gl_context_info`, for `clGetGLContextInfoKHR`.
    u32 {
        CL_CURRENT_DEVICE_FOR_GL_CONTEXT_KHR = 0x2006;
    }

    /// `cl_command_queue_properties`.
    u64 {
        CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0;
        CL_QUEUE_PROFILING_ENABLE = 1 << 1;
    }

    /// `cl_command_queue_info`; `CL_QUEUE_PROPERTIES` is a key of queue creation too.
    u32 {
        CL_QUEUE_CONTEXT = 0x1090;
        CL_QUEUE_DEVICE = 0x1091;
        CL_QUEUE_REFERENCE_COUNT = 0x1092;
        CL_QUEUE_PROPERTIES = 0x1093;
    }

    /// `cl_mem_flags` and `cl_svm_mem_flags`. Read-only and write-only refer to kernels.
    u64 {
        CL_MEM_READ_WRITE = 1 << 0;
        CL_MEM_WRITE_ONLY = 1 << 1;
        CL_MEM_READ_ONLY = 1 << 2;
        CL_MEM_USE_HOST_PTR = 1 << 3;
        CL_MEM_ALLOC_HOST_PTR = 1 << 4;
        CL_MEM_COPY_HOST_PTR = 1 << 5;
        CL_MEM_HOST_WRITE_ONLY = 1 << 7;
        CL_MEM_HOST_READ_ONLY = 1 << 8;
        CL_MEM_HOST_NO_ACCESS = 1 << 9;
        CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
        CL_MEM_SVM_ATOMICS = 1 << 11;
        CL_MEM_KERNEL_READ_AND_WRITE = 1 << 12;
    }

    /// `cl_mem_flags` of TI's platform only: on-chip memory. Other vendors use the bit differently.
    u64 {
        CL_MEM_USE_MSMC_TI = 1 << 20;
    }

    /// `cl_mem_object_type`.
    u32 {
        CL_MEM_OBJECT_BUFFER = 0x10F0;
    }

    /// `cl_mem_info`, for `clGetMemObjectInfo`.
    u32 {
        CL_MEM_TYPE = 0x1100;
        CL_MEM_FLAGS = 0x1101;
        CL_MEM_SIZE = 0x1102;
        CL_MEM_HOST_PTR = 0x1103;
        CL_MEM_MAP_COUNT = 0x1104;
        CL_MEM_REFERENCE_COUNT = 0x1105;
        CL_MEM_CONTEXT = 0x1106;
        CL_MEM_ASSOCIATED_MEMOBJECT = 0x1107;
        CL_MEM_OFFSET = 0x1108;
        CL_MEM_USES_SVM_POINTER = 0x1109;
        CL_MEM_PROPERTIES = 0x110A;
    }

    /// `cl_buffer_create_type`, for `clCreateSubBuffer`.
    u32 {
        CL_BUFFER_CREATE_TYPE_REGION = 0x1220;
    }

    /// `cl_map_flags`.
    u64 {
        CL_MAP_READ = 1 << 0;
        CL_MAP_WRITE = 1 << 1;
        CL_MAP_WRITE_INVALIDATE_REGION = 1 << 2;
    }

    /// `cl_program_info`, for `clGetProgramInfo`.
    u32 {
        CL_PROGRAM_REFERENCE_COUNT = 0x1160;
        CL_PROGRAM_CONTEXT = 0x1161;
        CL_PROGRAM_NUM_DEVICES = 0x1162;
        CL_PROGRAM_DEVICES = 0x1163;
        CL_PROGRAM_SOURCE = 0x1164;
        CL_PROGRAM_BINARY_SIZES = 0x1165;
        CL_PROGRAM_BINARIES = 0x1166;
        CL_PROGRAM_NUM_KERNELS = 0x1167;
        CL_PROGRAM_KERNEL_NAMES = 0x1168;
        CL_PROGRAM_IL = 0x1169;
    }

    /// `cl_program_build_info`, for `clGetProgramBuildInfo`.
    u32 {
        CL_PROGRAM_BUILD_STATUS = 0x1181;
        CL_PROGRAM_BUILD_OPTIONS = 0x1182;
        CL_PROGRAM_BUILD_LOG = 0x1183;
        CL_PROGRAM_BINARY_TYPE = 0x1184;
        CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE = 0x1185;
    }

    /// `cl_build_status`.
    i32 {
        CL_BUILD_SUCCESS = 0;
        CL_BUILD_NONE = -1;
        CL_BUILD_ERROR = -2;
        CL_BUILD_IN_PROGRESS = -3;
    }

    /// `cl_kernel_info`, for `clGetKernelInfo`.
    u32 {
        CL_KERNEL_FUNCTION_NAME = 0x1190;
        CL_KERNEL_NUM_ARGS = 0x1191;
        CL_KERNEL_REFERENCE_COUNT = 0x1192;
        CL_KERNEL_CONTEXT = 0x1193;
        CL_KERNEL_PROGRAM = 0x1194;
        CL_KERNEL_ATTRIBUTES = 0x1195;
    }

    /// `cl_kernel_arg_info` and its values, for `clGetKernelArgInfo`.
    u32 {
        CL_KERNEL_ARG_ADDRESS_QUALIFIER = 0x1196;
        CL_KERNEL_ARG_ACCESS_QUALIFIER = 0x1197;
        CL_KERNEL_ARG_TYPE_NAME = 0x1198;
        CL_KERNEL_ARG_TYPE_QUALIFIER = 0x1199;
        CL_KERNEL_ARG_NAME = 0x119A;
        CL_KERNEL_ARG_ADDRESS_GLOBAL = 0x119B;
        CL_KERNEL_ARG_ADDRESS_LOCAL = 0x119C;
        CL_KERNEL_ARG_ADDRESS_CONSTANT = 0x119D;
        CL_KERNEL_ARG_ADDRESS_PRIVATE = 0x119E;
    }

    /// `cl_kernel_arg_type_qualifier`.
    u64 {
        CL_KERNEL_ARG_TYPE_NONE = 0;
        CL_KERNEL_ARG_TYPE_CONST = 1 << 0;
        CL_KERNEL_ARG_TYPE_RESTRICT = 1 << 1;
        CL_KERNEL_ARG_TYPE_VOLATILE = 1 << 2;
    }

    /// `cl_kernel_work_group_info`, for `clGetKernelWorkGroupInfo`.
    u32 {
        CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
        CL_KERNEL_COMPILE_WORK_GROUP_SIZE = 0x11B1;
        CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2;
        CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x11B3;
        CL_KERNEL_PRIVATE_MEM_SIZE = 0x11B4;
    }

    /// `cl_event_info`, for `clGetEventInfo`.
    u32 {
        CL_EVENT_COMMAND_QUEUE = 0x11D0;
        CL_EVENT_COMMAND_TYPE = 0x11D1;
        CL_EVENT_REFERENCE_COUNT = 0x11D2;
        CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3;
        CL_EVENT_CONTEXT = 0x11D4;
    }

    /// An event's execution status; below zero it is an error code.
    i32 {
        CL_COMPLETE = 0;
        CL_RUNNING = 1;
        CL_SUBMITTED = 2;
        CL_QUEUED = 3;
    }

    /// `cl_profiling_info`, for `clGetEventProfilingInfo`; the values are in nanoseconds.
    u32 {
        CL_PROFILING_COMMAND_QUEUED = 0x1280;
        CL_PROFILING_COMMAND_SUBMIT = 0x1281;
        CL_PROFILING_COMMAND_START = 0x1282;
        CL_PROFILING_COMMAND_END = 0x1283;
        CL_PROFILING_COMMAND_COMPLETE = 0x1284;
    }

    /// `cl_device_info` of `cl_khr_device_uuid`.
    u32 {
        CL_DEVICE_UUID_KHR = 0x106A;
        CL_DRIVER_UUID_KHR = 0x106B;
        CL_DEVICE_LUID_VALID_KHR = 0x106C;
        CL_DEVICE_LUID_KHR = 0x106D;
        CL_DEVICE_NODE_MASK_KHR = 0x106E;
    }

    /// Length in bytes, of `cl_khr_device_uuid`.
    usize {
        CL_UUID_SIZE_KHR = 16;
        CL_LUID_SIZE_KHR = 8;
    }

    /// `cl_device_info` of `cl_khr_pci_bus_info`: a [`ClPciBusInfo`](super::ClPciBusInfo).
    u32 {
        CL_DEVICE_PCI_BUS_INFO_KHR = 0x410F;
    }

    /// `cl_device_info` of AMD; the topology is a [`ClTopologyAmd`](super::ClTopologyAmd).
    u32 {
        CL_DEVICE_PCIE_ID_AMD = 0x4034;
        CL_DEVICE_TOPOLOGY_AMD = 0x4037;
        CL_DEVICE_BOARD_NAME_AMD = 0x4038;
        CL_DEVICE_GLOBAL_FREE_MEMORY_AMD = 0x4039;
        CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043;
        CL_DEVICE_GFXIP_MAJOR_AMD = 0x404A;
        CL_DEVICE_GFXIP_MINOR_AMD = 0x404B;
    }

    /// Kind of an AMD topology.
    u32 {
        CL_DEVICE_TOPOLOGY_TYPE_PCIE_AMD = 1;
    }

    /// Queries of `cl_khr_external_memory`; each returns an array of `u32` handle types.
    u32 {
        CL_PLATFORM_EXTERNAL_MEMORY_IMPORT_HANDLE_TYPES_KHR = 0x2044;
        CL_DEVICE_EXTERNAL_MEMORY_IMPORT_HANDLE_TYPES_KHR = 0x204F;
    }

    /// `cl_mem_properties` of `cl_khr_external_memory`: the devices that get the memory.
    u64 {
        CL_MEM_DEVICE_HANDLE_LIST_KHR = 0x2051;
        CL_MEM_DEVICE_HANDLE_LIST_END_KHR = 0;
    }

    /// `cl_external_memory_handle_type_khr`; also a key of `clCreateBufferWithProperties`.
    u32 {
        CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR = 0x2060;
        CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR = 0x2067;
    }

    /// `cl_command_type`, of an event.
    u32 {
        CL_COMMAND_NDRANGE_KERNEL = 0x11F0;
        CL_COMMAND_USER = 0x1204;
        CL_COMMAND_ACQUIRE_EXTERNAL_MEM_OBJECTS_KHR = 0x2047;
        CL_COMMAND_RELEASE_EXTERNAL_MEM_OBJECTS_KHR = 0x2048;
    }

    /// Queries of `cl_khr_semaphore` and `cl_khr_external_semaphore`.
    u32 {
        CL_PLATFORM_SEMAPHORE_TYPES_KHR = 0x2036;
        CL_DEVICE_SEMAPHORE_TYPES_KHR = 0x204C;
        CL_DEVICE_SEMAPHORE_IMPORT_HANDLE_TYPES_KHR = 0x204D;
        CL_DEVICE_SEMAPHORE_EXPORT_HANDLE_TYPES_KHR = 0x204E;
    }

    /// Semaphore properties, types and handle types.
    u32 {
        CL_SEMAPHORE_TYPE_KHR = 0x203D;
        CL_SEMAPHORE_TYPE_BINARY_KHR = 1;
        CL_SEMAPHORE_HANDLE_OPAQUE_FD_KHR = 0x2055;
        CL_SEMAPHORE_HANDLE_SYNC_FD_KHR = 0x2058;
    }

    /// `cl_ext_buffer_device_address`: the property that requests an address, and the query.
    u32 {
        CL_MEM_DEVICE_PRIVATE_ADDRESS_EXT = 0x5000;
        CL_MEM_DEVICE_ADDRESS_EXT = 0x5001;
    }

    /// `cl_device_info` of `cl_intel_unified_shared_memory`.
    u32 {
        CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL = 0x4190;
        CL_DEVICE_DEVICE_MEM_CAPABILITIES_INTEL = 0x4191;
        CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL = 0x4192;
        CL_DEVICE_CROSS_DEVICE_SHARED_MEM_CAPABILITIES_INTEL = 0x4193;
        CL_DEVICE_SHARED_SYSTEM_MEM_CAPABILITIES_INTEL = 0x4194;
    }

    /// Key of `cl_arm_import_memory`, and its values.
    u32 {
        CL_IMPORT_TYPE_ARM = 0x40B2;
        CL_IMPORT_TYPE_HOST_ARM = 0x40B3;
        CL_IMPORT_TYPE_DMA_BUF_ARM = 0x40B4;
        CL_IMPORT_TYPE_PROTECTED_ARM = 0x40B5;
        CL_IMPORT_TYPE_ANDROID_HARDWARE_BUFFER_ARM = 0x41E2;
        CL_IMPORT_DMA_BUF_DATA_CONSISTENCY_WITH_HOST_ARM = 0x41E3;
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::headers;

    /// Newer than many installed headers, or in none of Khronos'.
    const OFTEN_ABSENT: [&str; 5] = [
        "CL_MEM_USE_MSMC_TI",
        "CL_MEM_DEVICE_HANDLE_LIST_KHR",
        "CL_MEM_DEVICE_HANDLE_LIST_END_KHR",
        "CL_MEM_DEVICE_PRIVATE_ADDRESS_EXT",
        "CL_MEM_DEVICE_ADDRESS_EXT",
    ];

    #[test]
    fn every_constant_is_that_of_the_headers() {
        let defines = headers::defines();
        if defines.is_empty() {
            return;
        }
        for (name, value) in ALL {
            match defines.iter().find(|(header_name, _)| header_name == name) {
                Some((_, expected)) => assert_eq!(value, expected, "{name}"),
                None => assert!(OFTEN_ABSENT.contains(name), "{name} is not in the headers"),
            }
        }
    }
}
