//! CUDA's driver API and HIP: one table of functions with two lists of names.
//!
//! HIP is modelled on CUDA. Nearly every function that onebuf calls has the same arguments in both, so one table serves
//! both and higher levels are written once. A function that one API does not have has an empty name there and is never
//! called.
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety). Most need a current
//! context (CUDA) or device (HIP) on the calling thread.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

#[macro_use]
mod table;
mod blas;
pub mod fft;
mod native;
mod properties;
mod rtc;
mod solver;
// 32-bit processes never load the library.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests;
mod types;

pub use blas::{Blas, Operation};
pub use fft::Fft;
pub use native::NativeStream;
pub use rtc::Rtc;
pub use solver::Solver;
pub use types::{
    AccessDesc, AlignedFd, AllocationHandle, AllocationProp, Attribute, BlasHandle, CuContext,
    CuEvent, CuFunction, CuModule, CuStatus, CuStream, CufftPlan, DevicePtr, ExternalBufferDesc,
    ExternalMemory, ExternalMemoryDesc, ExternalSemaphore, ExternalSemaphoreDesc, Flavor,
    GraphicsResource, HostFunction, HostPtr, IpcHandle, Location, Refused, RocfftInfo, RocfftPlan,
    RtcProgram, SemaphoreParams, SolverHandle, Uuid, consts,
};

/// Where to look for a library; one entry for CUDA and one for HIP.
#[derive(Clone, Copy)]
struct Place {
    /// The API's name in messages about a missing library.
    api: &'static str,
    /// The environment variable that names another file.
    variable: &'static str,
    /// The usual files, best first.
    names: &'static [&'static str],
    hint: &'static str,
}

const PLACES: [Place; 2] = [
    Place {
        api: "cuda",
        variable: "ONEBUF_CUDA_LIB",
        names: &["libcuda.so.1", "libcuda.so"],
        hint: "it comes with NVIDIA's driver; a container has to be started with the GPU passed through",
    },
    Place {
        api: "hip",
        variable: "ONEBUF_HIP_LIB",
        names: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"],
        hint: "it comes with ROCm (on Debian or Ubuntu: apt install libamdhip64-5)",
    },
];

/// A function that was found, with its name.
struct At<F> {
    function: F,
    name: &'static str,
}

impl<F> At<F> {
    fn answer(&self, status: i32) -> Result<(), Refused> {
        CuStatus(status).ok().map_err(|status| Refused { call: self.name, status })
    }
}

/// Returns the address of a symbol; `None` for an empty name.
fn find(loaded: &Loaded, name: &str) -> Option<NonNull<c_void>> {
    if name.is_empty() {
        return None;
    }
    loaded.symbol(&CString::new(name).ok()?)
}

table! {
    /// The symbol table of a CUDA driver or a HIP runtime.
    pub struct CudaLike in PLACES;

    cuda_error_name = "cuGetErrorName" | "" (status: i32, name: *mut *const c_char) -> raw i32;
    hip_error_name = "" | "hipGetErrorName" (status: i32) -> raw *const c_char;

    init = "cuInit" | "hipInit" (flags: u32) -> status;
    driver_version = "cuDriverGetVersion" | "hipDriverGetVersion" () -> get i32;
    device_count = "cuDeviceGetCount" | "hipGetDeviceCount" () -> get i32;
    device = "cuDeviceGet" | "hipDeviceGet" (ordinal: i32) -> get i32;
    device_name = "cuDeviceGetName" | "hipDeviceGetName" (
        name: *mut c_char, len: i32, device: i32
    ) -> status;
    device_memory = "cuDeviceTotalMem_v2" | "hipDeviceTotalMem" (device: i32) -> get usize;
    device_attribute = "cuDeviceGetAttribute" | "hipDeviceGetAttribute" (
        attribute: i32, device: i32
    ) -> get i32;
    [has_device_uuid]
    device_uuid = "cuDeviceGetUuid" | "hipDeviceGetUuid" (device: i32) -> get Uuid;
    device_pci = "cuDeviceGetPCIBusId" | "hipDeviceGetPCIBusId" (
        text: *mut c_char, len: i32, device: i32
    ) -> status;

    // The structures differ by the functions' names: see `properties`.
    [has_properties_0600]
    properties_0600 = "" | "hipGetDevicePropertiesR0600" (to: *mut c_void, device: i32) -> status;
    [has_properties_old]
    properties_old = "" | "hipGetDeviceProperties" (to: *mut c_void, device: i32) -> status;

    retain_primary = "cuDevicePrimaryCtxRetain" | "" (device: i32) -> create CuContext, "context";
    release_primary = "cuDevicePrimaryCtxRelease_v2" | "" (device: i32) -> release, "context";
    // Only reads a variable of the thread.
    cuda_current = "cuCtxGetCurrent" | "" (context: *mut CuContext) -> raw i32;
    push_current = "cuCtxPushCurrent_v2" | "" (context: CuContext) -> status;
    pop_current = "cuCtxPopCurrent_v2" | "" (context: *mut CuContext) -> settle;
    current_device = "" | "hipGetDevice" () -> get i32;
    set_device = "" | "hipSetDevice" (device: i32) -> settle;

    alloc = "cuMemAlloc_v2" | "hipMalloc" (bytes: usize) -> create DevicePtr, "mem";
    free = "cuMemFree_v2" | "hipFree" (at: DevicePtr) -> release, "mem";
    [has_alloc_managed]
    alloc_managed = "cuMemAllocManaged" | "hipMallocManaged" (
        bytes: usize, flags: u32
    ) -> create DevicePtr, "mem";
    // CUDA's newer call takes a location structure; the older one, and HIP's, take a device or -1.
    [has_prefetch_to_location]
    prefetch_to_location = "cuMemPrefetchAsync_v2" | "" (
        at: DevicePtr, bytes: usize, to: Location, flags: u32, stream: CuStream
    ) -> status;
    [has_prefetch]
    prefetch = "cuMemPrefetchAsync" | "hipMemPrefetchAsync" (
        at: DevicePtr, bytes: usize, device: i32, stream: CuStream
    ) -> status;
    host_alloc = "cuMemHostAlloc" | "hipHostMalloc" (
        bytes: usize, flags: u32
    ) -> create HostPtr, "host";
    host_free = "cuMemFreeHost" | "hipHostFree" (at: HostPtr) -> release, "host";
    host_register = "cuMemHostRegister_v2" | "hipHostRegister" (
        at: *mut c_void, bytes: usize, flags: u32
    ) -> count, "registration";
    host_unregister = "cuMemHostUnregister" | "hipHostUnregister" (
        at: *mut c_void
    ) -> release, "registration";
    host_device_pointer = "cuMemHostGetDevicePointer_v2" | "hipHostGetDevicePointer" (
        at: *mut c_void, flags: u32
    ) -> get DevicePtr;

    [has_allocation_granularity]
    allocation_granularity = "cuMemGetAllocationGranularity" | "hipMemGetAllocationGranularity" (
        prop: *const AllocationProp, option: i32
    ) -> get usize;
    [has_create_allocation]
    create_allocation = "cuMemCreate" | "hipMemCreate" (
        bytes: usize, prop: *const AllocationProp, flags: u64
    ) -> create AllocationHandle, "allocation";
    [has_release_allocation]
    release_allocation = "cuMemRelease" | "hipMemRelease" (
        handle: AllocationHandle
    ) -> release, "allocation";
    [has_reserve_address]
    reserve_address = "cuMemAddressReserve" | "hipMemAddressReserve" (
        bytes: usize, align: usize, hint: DevicePtr, flags: u64
    ) -> create DevicePtr, "address";
    [has_free_address]
    free_address = "cuMemAddressFree" | "hipMemAddressFree" (
        at: DevicePtr, bytes: usize
    ) -> release, "address";
    [has_map_allocation]
    map_allocation = "cuMemMap" | "hipMemMap" (
        at: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64
    ) -> count, "mapping";
    [has_unmap_allocation]
    unmap_allocation = "cuMemUnmap" | "hipMemUnmap" (
        at: DevicePtr, bytes: usize
    ) -> release, "mapping";
    [has_set_access]
    set_access = "cuMemSetAccess" | "hipMemSetAccess" (
        at: DevicePtr, bytes: usize, access: *const AccessDesc, count: usize
    ) -> status;
    [has_export_allocation]
    export_allocation = "cuMemExportToShareableHandle" | "hipMemExportToShareableHandle" (
        shareable: *mut c_void, handle: AllocationHandle, kind: i32, flags: u64
    ) -> status;
    // CUDA's takes the descriptor in place of a pointer; HIP changed this parameter between releases.
    [has_import_allocation]
    import_allocation = "cuMemImportFromShareableHandle" | "" (
        shareable: *mut c_void, kind: i32
    ) -> create AllocationHandle, "allocation";
    [has_import_external]
    import_external = "cuImportExternalMemory" | "hipImportExternalMemory" (
        desc: *const ExternalMemoryDesc
    ) -> create ExternalMemory, "external";
    [has_external_buffer]
    external_buffer = "cuExternalMemoryGetMappedBuffer" | "hipExternalMemoryGetMappedBuffer" (
        memory: ExternalMemory, desc: *const ExternalBufferDesc
    ) -> create DevicePtr, "mem";
    [has_destroy_external]
    destroy_external = "cuDestroyExternalMemory" | "hipDestroyExternalMemory" (
        memory: ExternalMemory
    ) -> release, "external";
    // HIP has functions of these names that do not work on Linux, so they are never called there.
    [has_import_semaphore]
    import_semaphore = "cuImportExternalSemaphore" | "" (
        desc: *const ExternalSemaphoreDesc
    ) -> create ExternalSemaphore, "semaphore";
    [has_destroy_semaphore]
    destroy_semaphore = "cuDestroyExternalSemaphore" | "" (
        semaphore: ExternalSemaphore
    ) -> release, "semaphore";
    [has_signal_semaphores]
    signal_semaphores = "cuSignalExternalSemaphoresAsync" | "" (
        semaphores: *const ExternalSemaphore, params: *const SemaphoreParams, count: u32,
        stream: CuStream
    ) -> status;
    [has_wait_semaphores]
    wait_semaphores = "cuWaitExternalSemaphoresAsync" | "" (
        semaphores: *const ExternalSemaphore, params: *const SemaphoreParams, count: u32,
        stream: CuStream
    ) -> status;

    [has_register_gl_buffer]
    register_gl_buffer = "cuGraphicsGLRegisterBuffer" | "hipGraphicsGLRegisterBuffer" (
        buffer: u32, flags: u32
    ) -> create GraphicsResource, "resource";
    [has_unregister_resource]
    unregister_resource = "cuGraphicsUnregisterResource" | "hipGraphicsUnregisterResource" (
        resource: GraphicsResource
    ) -> release, "resource";
    [has_map_resources]
    map_resources = "cuGraphicsMapResources" | "hipGraphicsMapResources" (
        count: u32, resources: *mut GraphicsResource, stream: CuStream
    ) -> status;
    [has_unmap_resources]
    unmap_resources = "cuGraphicsUnmapResources" | "hipGraphicsUnmapResources" (
        count: u32, resources: *mut GraphicsResource, stream: CuStream
    ) -> status;
    [has_mapped_pointer]
    mapped_pointer = "cuGraphicsResourceGetMappedPointer_v2" | "hipGraphicsResourceGetMappedPointer" (
        at: *mut DevicePtr, bytes: *mut usize, resource: GraphicsResource
    ) -> status;

    // Only chipStar, a HIP runtime over OpenCL, has these; it is recognised by them.
    [has_native_handles]
    native_handles = "" | "hipGetBackendNativeHandles" (
        stream: usize, handles: *mut usize, count: *mut i32
    ) -> status;
    [has_native_event]
    native_event = "" | "hipGetNativeEventFromHipEvent" (event: CuEvent) -> raw *mut c_void;
    [has_can_access_peer]
    can_access_peer = "cuDeviceCanAccessPeer" | "hipDeviceCanAccessPeer" (
        device: i32, peer: i32
    ) -> get i32;
    [has_cuda_enable_peer]
    cuda_enable_peer = "cuCtxEnablePeerAccess" | "" (peer: CuContext, flags: u32) -> status;
    [has_hip_enable_peer]
    hip_enable_peer = "" | "hipDeviceEnablePeerAccess" (peer: i32, flags: u32) -> status;
    [has_cuda_copy_peer]
    cuda_copy_peer = "cuMemcpyPeerAsync" | "" (
        to: DevicePtr, to_context: CuContext, from: DevicePtr, from_context: CuContext,
        bytes: usize, stream: CuStream
    ) -> status;
    [has_hip_copy_peer]
    hip_copy_peer = "" | "hipMemcpyPeerAsync" (
        to: DevicePtr, to_device: i32, from: DevicePtr, from_device: i32, bytes: usize,
        stream: CuStream
    ) -> status;
    [has_address_range]
    address_range = "cuMemGetAddressRange_v2" | "hipMemGetAddressRange" (
        base: *mut DevicePtr, bytes: *mut usize, at: DevicePtr
    ) -> status;
    // Takes any address. What an address does not have stays as it was, or becomes zero.
    [has_pointer_attributes]
    pointer_attributes = "cuPointerGetAttributes" | "hipDrvPointerGetAttributes" (
        count: u32, attributes: *mut i32, values: *mut *mut c_void, at: DevicePtr
    ) -> status;
    [has_retain_allocation]
    retain_allocation = "cuMemRetainAllocationHandle" | "hipMemRetainAllocationHandle" (
        at: *mut c_void
    ) -> create AllocationHandle, "allocation";
    [has_ipc_handle]
    ipc_handle = "cuIpcGetMemHandle" | "hipIpcGetMemHandle" (at: DevicePtr) -> get IpcHandle;
    [has_open_ipc]
    open_ipc = "cuIpcOpenMemHandle_v2" | "hipIpcOpenMemHandle" (
        handle: IpcHandle, flags: u32
    ) -> create DevicePtr, "ipc";
    [has_close_ipc]
    close_ipc = "cuIpcCloseMemHandle" | "hipIpcCloseMemHandle" (at: DevicePtr) -> release, "ipc";

    write_async = "cuMemcpyHtoDAsync_v2" | "hipMemcpyHtoDAsync" (
        to: DevicePtr, from: *const c_void, bytes: usize, stream: CuStream
    ) -> status;
    read_async = "cuMemcpyDtoHAsync_v2" | "hipMemcpyDtoHAsync" (
        to: *mut c_void, from: DevicePtr, bytes: usize, stream: CuStream
    ) -> status;
    copy_async = "cuMemcpyDtoDAsync_v2" | "hipMemcpyDtoDAsync" (
        to: DevicePtr, from: DevicePtr, bytes: usize, stream: CuStream
    ) -> status;
    fill_u8_async = "cuMemsetD8Async" | "hipMemsetD8Async" (
        to: DevicePtr, value: u8, count: usize, stream: CuStream
    ) -> status;
    fill_u16_async = "cuMemsetD16Async" | "hipMemsetD16Async" (
        to: DevicePtr, value: u16, count: usize, stream: CuStream
    ) -> status;
    fill_u32_async = "cuMemsetD32Async" | "hipMemsetD32Async" (
        to: DevicePtr, value: u32, count: usize, stream: CuStream
    ) -> status;

    create_stream = "cuStreamCreate" | "hipStreamCreateWithFlags" (
        flags: u32
    ) -> create CuStream, "queue";
    destroy_stream = "cuStreamDestroy_v2" | "hipStreamDestroy" (
        stream: CuStream
    ) -> release, "queue";
    stream_wait_event = "cuStreamWaitEvent" | "hipStreamWaitEvent" (
        stream: CuStream, event: CuEvent, flags: u32
    ) -> status;
    [has_stream_context]
    stream_context = "cuStreamGetCtx" | "" (stream: CuStream, context: *mut CuContext) -> status;
    stream_query = "cuStreamQuery" | "hipStreamQuery" (stream: CuStream) -> status;
    [has_cuda_wait_value]
    cuda_wait_value = "cuStreamWaitValue32_v2" | "" (
        stream: CuStream, at: DevicePtr, value: u32, flags: u32
    ) -> status;
    [has_hip_wait_value]
    hip_wait_value = "" | "hipStreamWaitValue32" (
        stream: CuStream, at: DevicePtr, value: u32, flags: u32, mask: u32
    ) -> status;
    [has_write_value]
    write_value = "cuStreamWriteValue32_v2" | "hipStreamWriteValue32" (
        stream: CuStream, at: DevicePtr, value: u32, flags: u32
    ) -> status;
    [has_launch_host_function]
    launch_host_function = "cuLaunchHostFunc" | "hipLaunchHostFunc" (
        stream: CuStream, function: HostFunction, user: *mut c_void
    ) -> status;
    create_event = "cuEventCreate" | "hipEventCreateWithFlags" (
        flags: u32
    ) -> create CuEvent, "event";
    destroy_event = "cuEventDestroy_v2" | "hipEventDestroy" (event: CuEvent) -> release, "event";
    record_event = "cuEventRecord" | "hipEventRecord" (event: CuEvent, stream: CuStream) -> status;
    query_event = "cuEventQuery" | "hipEventQuery" (event: CuEvent) -> status;
    elapsed_ms = "cuEventElapsedTime" | "hipEventElapsedTime" (
        start: CuEvent, end: CuEvent
    ) -> get f32;

    load_module = "cuModuleLoadDataEx" | "hipModuleLoadDataEx" (
        image: *const c_void, count: u32, options: *mut i32, values: *mut *mut c_void
    ) -> create CuModule, "program";
    unload_module = "cuModuleUnload" | "hipModuleUnload" (module: CuModule) -> release, "program";
    module_function = "cuModuleGetFunction" | "hipModuleGetFunction" (
        module: CuModule, name: *const c_char
    ) -> get CuFunction;
    function_attribute = "cuFuncGetAttribute" | "hipFuncGetAttribute" (
        attribute: i32, function: CuFunction
    ) -> get i32;
    // HIP's call takes a host function; its kernels need no opt-in for large shared memory.
    set_function_attribute = "cuFuncSetAttribute" | "" (
        function: CuFunction, attribute: i32, value: i32
    ) -> status;
    [has_function_parameter]
    function_parameter = "cuFuncGetParamInfo" | "" (
        function: CuFunction, index: usize, offset: *mut usize, bytes: *mut usize
    ) -> status;
    launch = "cuLaunchKernel" | "hipModuleLaunchKernel" (
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: CuStream, parameters: *mut *mut c_void,
        extra: *mut *mut c_void
    ) -> status;
}

impl CudaLike {
    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.init? as *const c_void)
    }

    /// Whether a context is the calling thread's current one.
    #[inline]
    pub fn is_current(&self, context: CuContext) -> bool {
        let mut current = CuContext::NULL;
        // SAFETY: the pointer is that of a variable.
        self.cuda_current.is_some_and(|call| unsafe { call(&raw mut current) } == 0)
            && current == context
    }

    /// Returns the driver's name for a status; `unknown` if it has none.
    pub fn error_name(&self, status: CuStatus) -> String {
        match status {
            CuStatus::NULL_HANDLE => return "null handle".to_owned(),
            CuStatus::WAIT_FAILED | CuStatus::FORKED => return status.to_string(),
            _ => {}
        }
        let mut name = std::ptr::null();
        if let Some(call) = self.cuda_error_name {
            // SAFETY: a valid pointer for the result; the driver owns the string.
            unsafe { call(status.0, &raw mut name) };
        }
        if let Some(call) = self.hip_error_name {
            // SAFETY: any number may be queried.
            name = unsafe { call(status.0) };
        }
        // SAFETY: null, or a string that the driver owns.
        unsafe { text_at(name) }
    }
}

/// # Safety
/// `at` is null, or a NUL-terminated string.
unsafe fn text_at(at: *const c_char) -> String {
    if at.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}
