//! Handles, statuses and numbers of CUDA and HIP, both shared and different ones.

use std::ffi::c_void;
use std::fmt;

/// The API of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// NVIDIA's driver API.
    Cuda,
    /// AMD's HIP.
    Hip,
}

impl Flavor {
    /// The API's name, as in device ids.
    pub const fn api(self) -> &'static str {
        self.pick(["cuda", "hip"])
    }

    /// Returns the first value for CUDA, the second for HIP.
    pub const fn pick<T: Copy>(self, [cuda, hip]: [T; 2]) -> T {
        match self {
            Flavor::Cuda => cuda,
            Flavor::Hip => hip,
        }
    }
}

macro_rules! handles {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null object.
            pub const NULL: Self = Self(std::ptr::null_mut());

            /// Whether it is null.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }

        // SAFETY: a handle is never dereferenced here; both APIs may be called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// `CUcontext`.
    CuContext;
    /// `CUstream`, `hipStream_t`.
    CuStream;
    /// `CUevent`, `hipEvent_t`.
    CuEvent;
    /// `CUmodule`, `hipModule_t`.
    CuModule;
    /// `CUfunction`, `hipFunction_t`.
    CuFunction;
    /// `nvrtcProgram`, `hiprtcProgram`.
    RtcProgram;
    /// Host memory that the driver allocated.
    HostPtr;
    /// `CUexternalMemory`, `hipExternalMemory_t`.
    ExternalMemory;
    /// `CUexternalSemaphore`.
    ExternalSemaphore;
    /// `CUgraphicsResource`, `hipGraphicsResource_t`.
    GraphicsResource;
    /// `cublasHandle_t`, `rocblas_handle`.
    BlasHandle;
    /// `cusolverDnHandle_t`.
    SolverHandle;
    /// `rocfft_plan`.
    RocfftPlan;
    /// `rocfft_execution_info`.
    RocfftInfo;
}

/// `CUmemGenericAllocationHandle`, a number, or `hipMemGenericAllocationHandle_t`, a pointer: both are one word.
pub type AllocationHandle = DevicePtr;

/// `CUhostFn`, `hipHostFn_t`. It must not call the API.
pub type HostFunction = unsafe extern "C" fn(user: *mut c_void);

/// `CUmemAllocationProp`, `hipMemAllocationProp`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AllocationProp {
    /// Always [`consts::ALLOCATION_PINNED`].
    pub kind: i32,
    /// The handle types it can be exported as.
    pub handle_types: i32,
    /// The location of the allocation.
    pub location: Location,
    /// Windows only.
    pub win32_metadata: usize,
    /// Compression, RDMA, usage.
    pub flags: [u8; 8],
}

/// `CUmemLocation`, `hipMemLocation`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Location {
    /// [`consts::LOCATION_DEVICE`], or [`consts::LOCATION_HOST`] in calls that accept it.
    pub kind: i32,
    /// The device; zero for the host.
    pub id: i32,
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AccessDesc {
    /// The device that gets access.
    pub location: Location,
    /// Always [`consts::ACCESS_READ_WRITE`].
    pub flags: i32,
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, `hipExternalMemoryHandleDesc`. Older headers of HIP end before
/// `reserved`, which is zero.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExternalMemoryDesc {
    /// Always [`consts::EXTERNAL_OPAQUE_FD`].
    pub kind: i32,
    /// A union whose first word is the descriptor, aligned to a pointer.
    pub fd: AlignedFd,
    /// The second word of the union.
    pub unused: usize,
    /// Size of the whole allocation.
    pub bytes: u64,
    /// [`consts::EXTERNAL_DEDICATED`] or zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// A descriptor with the alignment of the pointers in its union.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub struct AlignedFd(pub i32);

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`, `hipExternalMemoryBufferDesc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExternalBufferDesc {
    /// Offset in the memory.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// `CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExternalSemaphoreDesc {
    /// Always [`consts::SEMAPHORE_OPAQUE_FD`].
    pub kind: i32,
    /// A union whose first word is the descriptor, aligned to a pointer.
    pub fd: AlignedFd,
    /// The second word of the union.
    pub unused: usize,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// `CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS` and `CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS`: the same size, and all zero for a
/// binary semaphore.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SemaphoreParams {
    /// The values of fences and keyed mutexes, and reserved words.
    pub values: [u64; 9],
    /// Zero: memory of other APIs is synchronised.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

// 32-bit processes load no table that uses these structures.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ExternalSemaphoreDesc>() == 96);
    assert!(size_of::<SemaphoreParams>() == 144);
};

/// `CUdeviceptr`, a number, or `hipDeviceptr_t`, a pointer: both are one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// Whether it is null.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// `CUipcMemHandle`, `hipIpcMemHandle_t`: another process opens memory with it. Passed by value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct IpcHandle(pub [u8; 64]);

impl Default for IpcHandle {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcHandle")
    }
}

/// `cufftHandle`: a number without a null value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CufftPlan(pub i32);

impl CufftPlan {
    /// Never null.
    pub fn is_null(self) -> bool {
        false
    }
}

/// A device's UUID.
pub type Uuid = [u8; 16];

/// A status of either API. A newtype and not an `enum`: drivers return codes that no header names. Both APIs use the
/// same numbers for the statuses named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CuStatus(pub i32);

#[allow(missing_docs)] // The names are the APIs' own.
impl CuStatus {
    /// Not from a driver: the library does not export this call.
    pub const NOT_LOADED: Self = Self(i32::MIN);
    /// Not from a driver: it reported success, but returned a null handle.
    pub const NULL_HANDLE: Self = Self(i32::MIN + 1);
    /// Not from a driver: work that a queue waits for has failed.
    pub const WAIT_FAILED: Self = Self(i32::MIN + 2);
    /// Not from a driver: this is a forked child, where no driver is called.
    pub const FORKED: Self = Self(crate::fork::FORKED);

    pub const SUCCESS: Self = Self(0);
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const INSUFFICIENT_DRIVER: Self = Self(35);
    pub const NO_DEVICE: Self = Self(100);
    pub const INVALID_IMAGE: Self = Self(200);
    pub const NO_BINARY_FOR_GPU: Self = Self(209);
    pub const ECC_UNCORRECTABLE: Self = Self(214);
    pub const INVALID_PTX: Self = Self(218);
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    pub const NOT_FOUND: Self = Self(500);
    pub const NOT_READY: Self = Self(600);
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    pub const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    pub const LAUNCH_TIMEOUT: Self = Self(702);
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub const ASSERT: Self = Self(710);
    pub const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    pub const LAUNCH_FAILED: Self = Self(719);
    pub const NOT_SUPPORTED: Self = Self(801);
    pub const SYSTEM_DRIVER_MISMATCH: Self = Self(803);

    /// Converts every status but success to an error.
    pub const fn ok(self) -> Result<(), Self> {
        if self.0 == 0 { Ok(()) } else { Err(self) }
    }

    /// Whether the context is unusable afterwards: every later call returns the same status.
    pub const fn is_fatal(self) -> bool {
        matches!(self, Self::ECC_UNCORRECTABLE | Self::ILLEGAL_ADDRESS | Self::LAUNCH_TIMEOUT)
            || matches!(self, Self::CONTEXT_IS_DESTROYED | Self::LAUNCH_FAILED | Self::ASSERT)
            // Hardware faults: stack, instruction, alignment, address space, program counter.
            || matches!(self.0, 714..=718)
    }
}

impl fmt::Display for CuStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NOT_LOADED => f.write_str("call not exported by the library"),
            Self::NULL_HANDLE => f.write_str("null handle from a call that succeeded"),
            Self::WAIT_FAILED => f.write_str("the work it waited for has failed"),
            Self::FORKED => f.write_str(crate::fork::WHY),
            Self(code) => write!(f, "status {code}"),
        }
    }
}

/// A call that failed, by its name in its own API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The name of the call.
    pub call: &'static str,
    /// Its status.
    pub status: CuStatus,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.status)
    }
}

impl std::error::Error for Refused {}

/// A device attribute; the two APIs number them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute(pub [i32; 2]);

#[allow(missing_docs)] // The names are the APIs' own.
impl Attribute {
    pub const MAX_THREADS_PER_BLOCK: Self = Self([1, 56]);
    pub const MAX_BLOCK_DIM: [Self; 3] = [Self([2, 26]), Self([3, 27]), Self([4, 28])];
    pub const MAX_GRID_DIM: [Self; 3] = [Self([5, 29]), Self([6, 30]), Self([7, 31])];
    pub const MAX_SHARED_MEMORY_PER_BLOCK: Self = Self([8, 74]);
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: Self = Self([97, 75]);
    pub const WARP_SIZE: Self = Self([10, 87]);
    pub const MULTIPROCESSOR_COUNT: Self = Self([16, 63]);
    pub const INTEGRATED: Self = Self([18, 16]);
    pub const CAN_MAP_HOST_MEMORY: Self = Self([19, 3]);
    pub const CONCURRENT_MANAGED_ACCESS: Self = Self([89, 9]);
    pub const CAN_USE_STREAM_WAIT_VALUE: Self = Self([122, 10013]);
    /// CUDA only. In HIP, support for virtual memory includes such handles.
    pub const POSIX_FD_SUPPORTED: Self = Self([103, 89]);
    pub const VIRTUAL_MEMORY_SUPPORTED: Self = Self([102, 89]);
    pub const COMPUTE_CAPABILITY: [Self; 2] = [Self([75, 23]), Self([76, 61])];
}

/// Numbers that both APIs share.
#[allow(missing_docs)] // The names are the APIs' own.
pub mod consts {
    /// Flags for memory that the driver allocates or pins: valid in every context, and mapped for kernels.
    pub const HOST_PORTABLE: u32 = 1;
    pub const HOST_DEVICE_MAP: u32 = 2;
    pub const MEM_ATTACH_GLOBAL: u32 = 1;
    pub const STREAM_NON_BLOCKING: u32 = 1;
    pub const ALLOCATION_PINNED: i32 = 1;
    pub const LOCATION_DEVICE: i32 = 1;
    pub const LOCATION_HOST: i32 = 2;
    /// `CU_DEVICE_CPU`, `hipCpuDeviceId`: the host, in a prefetch that takes a device.
    pub const DEVICE_CPU: i32 = -1;
    pub const ACCESS_READ_WRITE: i32 = 3;
    /// A file descriptor: opaque for CUDA, a dma-buf for HIP.
    pub const HANDLE_POSIX_FD: i32 = 1;
    pub const GRANULARITY_RECOMMENDED: i32 = 1;
    pub const EXTERNAL_OPAQUE_FD: i32 = 1;
    pub const EXTERNAL_DEDICATED: u32 = 1;
    pub const SEMAPHORE_OPAQUE_FD: i32 = 1;
    /// The only flag for opening handles of other processes: both APIs require it.
    pub const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
    /// Attributes of an address; CUDA and HIP number them alike.
    pub const POINTER_CONTEXT: i32 = 1;
    pub const POINTER_DEVICE_ADDRESS: i32 = 3;
    pub const POINTER_HOST_ADDRESS: i32 = 4;
    pub const POINTER_IS_MANAGED: i32 = 8;
    pub const POINTER_DEVICE: i32 = 9;
    pub const POINTER_RANGE_START: i32 = 11;
    pub const POINTER_RANGE_BYTES: i32 = 12;
    pub const POINTER_HANDLE_TYPES: i32 = 14;
    /// Older drivers of CUDA, and HIP, refuse these two.
    pub const POINTER_MAPPING_BYTES: i32 = 18;
    pub const POINTER_MAPPING_START: i32 = 19;
    /// The default stream that synchronises with others, and the default stream of each thread.
    pub const STREAM_LEGACY: usize = 1;
    pub const STREAM_PER_THREAD: usize = 2;
    /// Waits until the value is at least this one, by signed distance.
    pub const WAIT_VALUE_GEQ: u32 = 0;
    pub const EVENT_DEFAULT: u32 = 0;
    pub const EVENT_DISABLE_TIMING: u32 = 2;
    pub const FUNC_MAX_THREADS_PER_BLOCK: i32 = 0;
    pub const FUNC_SHARED_SIZE_BYTES: i32 = 1;
    /// CUDA only.
    pub const FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    pub const JIT_ERROR_LOG_BUFFER: i32 = 5;
    pub const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
    /// `NVRTC_ERROR_COMPILATION`, `HIPRTC_ERROR_COMPILATION`.
    pub const RTC_COMPILATION: i32 = 6;
    /// `NVRTC_ERROR_INVALID_OPTION`, `HIPRTC_ERROR_INVALID_OPTION`.
    pub const RTC_INVALID_OPTION: i32 = 5;
}
