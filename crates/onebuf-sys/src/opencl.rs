//! OpenCL 1.1 to 3.0: only the functions that onebuf calls.
//!
//! The functions of 1.1 are required. The rest is optional, including those that 1.2 deprecated: if the library does
//! not export a function, `has_…` is false and the call returns [`ClStatus::NOT_LOADED`]. **A loader exports more than
//! a driver has**: its `clSVMAlloc` also accepts a context of a 1.2 platform, and calls whatever that driver has in its
//! place. Check the platform's version before each optional call as well.
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety).

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::loader::{self, Missing, as_function, library_of};
use crate::probe::Probe;
use crate::status::ClStatus;

mod by_hand;
pub use by_hand::ExternalCalls;
pub mod consts;
#[macro_use]
mod table;
#[cfg(test)]
mod tests;
mod types;

use types::Counted;
pub use types::{
    BuildNotify, ClBufferRegion, ClContext, ClDevice, ClEvent, ClKernel, ClMem, ClPciBusInfo,
    ClPlatform, ClProgram, ClQueue, ClSemaphore, ClTopologyAmd, ContextNotify, EventNotify,
    MemNotify, SvmFreeNotify,
};

const API: &str = "opencl";
const ENV_VAR: &str = "ONEBUF_OPENCL_LIB";
const SONAMES: [&str; 2] = ["libOpenCL.so.1", "libOpenCL.so"];
const HINT: &str = "on Debian or Ubuntu: apt install ocl-icd-libopencl1 pocl-opencl-icd";

table! {
    /// The symbol table of an OpenCL library: usually the ICD loader, which serves all platforms.
    pub struct OpenCl;

    get_platform_ids = clGetPlatformIDs(
        entries: u32, platforms: *mut ClPlatform, count: *mut u32
    ) -> status;
    get_platform_info = clGetPlatformInfo(platform: ClPlatform, name: u32) -> info;
    get_device_ids = clGetDeviceIDs(
        platform: ClPlatform, kind: u64, entries: u32, devices: *mut ClDevice, count: *mut u32
    ) -> status;
    get_device_info = clGetDeviceInfo(device: ClDevice, name: u32) -> info;
    [has_get_extension_function_address]
    get_extension_function_address = clGetExtensionFunctionAddress(
        name: *const c_char
    ) -> raw *mut c_void;
    [has_get_extension_function_address_for_platform]
    get_extension_function_address_for_platform = clGetExtensionFunctionAddressForPlatform(
        platform: ClPlatform, name: *const c_char
    ) -> raw *mut c_void;

    create_context = clCreateContext(
        properties: *const isize, count: u32, devices: *const ClDevice,
        notify: Option<ContextNotify>, user: *mut c_void
    ) -> create ClContext;
    retain_context = clRetainContext(context: ClContext) -> retain;
    release_context = clReleaseContext(context: ClContext) -> release;
    get_context_info = clGetContextInfo(context: ClContext, name: u32) -> info;

    [has_create_command_queue]
    create_command_queue = clCreateCommandQueue(
        context: ClContext, device: ClDevice, properties: u64
    ) -> create ClQueue;
    [has_create_command_queue_with_properties]
    create_command_queue_with_properties = clCreateCommandQueueWithProperties(
        context: ClContext, device: ClDevice, properties: *const u64
    ) -> create ClQueue;
    retain_command_queue = clRetainCommandQueue(queue: ClQueue) -> retain;
    release_command_queue = clReleaseCommandQueue(queue: ClQueue) -> release;
    get_command_queue_info = clGetCommandQueueInfo(queue: ClQueue, name: u32) -> info;
    flush = clFlush(queue: ClQueue) -> status;
    finish = clFinish(queue: ClQueue) -> status;

    create_buffer = clCreateBuffer(
        context: ClContext, flags: u64, size: usize, host_ptr: *mut c_void
    ) -> create ClMem;
    [has_create_buffer_with_properties]
    create_buffer_with_properties = clCreateBufferWithProperties(
        context: ClContext, properties: *const u64, flags: u64, size: usize, host_ptr: *mut c_void
    ) -> create ClMem;
    create_sub_buffer = clCreateSubBuffer(
        mem: ClMem, flags: u64, kind: u32, region: *const ClBufferRegion
    ) -> create ClMem;
    retain_mem_object = clRetainMemObject(mem: ClMem) -> retain;
    release_mem_object = clReleaseMemObject(mem: ClMem) -> release;
    get_mem_object_info = clGetMemObjectInfo(mem: ClMem, name: u32) -> info;
    set_mem_object_destructor_callback = clSetMemObjectDestructorCallback(
        mem: ClMem, notify: Option<MemNotify>, user: *mut c_void
    ) -> status;
    enqueue_read_buffer = clEnqueueReadBuffer(
        queue: ClQueue, mem: ClMem, blocking: u32, offset: usize, size: usize, to: *mut c_void
    ) -> enqueue;
    enqueue_write_buffer = clEnqueueWriteBuffer(
        queue: ClQueue, mem: ClMem, blocking: u32, offset: usize, size: usize, from: *const c_void
    ) -> enqueue;
    enqueue_copy_buffer = clEnqueueCopyBuffer(
        queue: ClQueue, from: ClMem, to: ClMem, from_offset: usize, to_offset: usize, size: usize
    ) -> enqueue;
    [has_enqueue_fill_buffer]
    enqueue_fill_buffer = clEnqueueFillBuffer(
        queue: ClQueue, mem: ClMem, pattern: *const c_void, pattern_size: usize, offset: usize,
        size: usize
    ) -> enqueue;
    enqueue_map_buffer = clEnqueueMapBuffer(
        queue: ClQueue, mem: ClMem, blocking: u32, flags: u64, offset: usize, size: usize,
        wait_count: u32, wait_list: *const ClEvent, event: *mut ClEvent, errcode_ret: *mut i32
    ) -> raw *mut c_void;
    enqueue_unmap_mem_object = clEnqueueUnmapMemObject(
        queue: ClQueue, mem: ClMem, mapped: *mut c_void
    ) -> enqueue;

    [has_create_from_gl_buffer]
    create_from_gl_buffer = clCreateFromGLBuffer(
        context: ClContext, flags: u64, name: u32
    ) -> create ClMem;
    [has_enqueue_acquire_gl_objects]
    enqueue_acquire_gl_objects = clEnqueueAcquireGLObjects(
        queue: ClQueue, count: u32, mems: *const ClMem
    ) -> enqueue;
    [has_enqueue_release_gl_objects]
    enqueue_release_gl_objects = clEnqueueReleaseGLObjects(
        queue: ClQueue, count: u32, mems: *const ClMem
    ) -> enqueue;

    create_program_with_source = clCreateProgramWithSource(
        context: ClContext, count: u32, strings: *const *const c_char, lengths: *const usize
    ) -> create ClProgram;
    create_program_with_binary = clCreateProgramWithBinary(
        context: ClContext, count: u32, devices: *const ClDevice, lengths: *const usize,
        binaries: *const *const u8, binary_status: *mut i32
    ) -> create ClProgram;
    [has_create_program_with_il]
    create_program_with_il = clCreateProgramWithIL(
        context: ClContext, il: *const c_void, length: usize
    ) -> create ClProgram;
    build_program = clBuildProgram(
        program: ClProgram, count: u32, devices: *const ClDevice, options: *const c_char,
        notify: Option<BuildNotify>, user: *mut c_void
    ) -> status;
    get_program_build_info = clGetProgramBuildInfo(
        program: ClProgram, device: ClDevice, name: u32
    ) -> info;
    get_program_info = clGetProgramInfo(program: ClProgram, name: u32) -> info;
    retain_program = clRetainProgram(program: ClProgram) -> retain;
    release_program = clReleaseProgram(program: ClProgram) -> release;

    create_kernel = clCreateKernel(program: ClProgram, name: *const c_char) -> create ClKernel;
    retain_kernel = clRetainKernel(kernel: ClKernel) -> retain;
    release_kernel = clReleaseKernel(kernel: ClKernel) -> release;
    set_kernel_arg = clSetKernelArg(
        kernel: ClKernel, index: u32, size: usize, value: *const c_void
    ) -> status;
    [has_set_kernel_arg_svm_pointer]
    set_kernel_arg_svm_pointer = clSetKernelArgSVMPointer(
        kernel: ClKernel, index: u32, pointer: *const c_void
    ) -> status;
    get_kernel_info = clGetKernelInfo(kernel: ClKernel, name: u32) -> info;
    [has_get_kernel_arg_info]
    get_kernel_arg_info = clGetKernelArgInfo(kernel: ClKernel, index: u32, name: u32) -> info;
    get_kernel_work_group_info = clGetKernelWorkGroupInfo(
        kernel: ClKernel, device: ClDevice, name: u32
    ) -> info;
    enqueue_nd_range_kernel = clEnqueueNDRangeKernel(
        queue: ClQueue, kernel: ClKernel, dims: u32, offset: *const usize, global: *const usize,
        local: *const usize
    ) -> enqueue;

    [has_enqueue_marker]
    enqueue_marker = clEnqueueMarker(queue: ClQueue, event: *mut ClEvent) -> raw i32;
    [has_enqueue_marker_with_wait_list]
    enqueue_marker_with_wait_list = clEnqueueMarkerWithWaitList(queue: ClQueue) -> enqueue;
    [has_enqueue_wait_for_events]
    enqueue_wait_for_events = clEnqueueWaitForEvents(
        queue: ClQueue, count: u32, events: *const ClEvent
    ) -> status;
    [has_enqueue_barrier_with_wait_list]
    enqueue_barrier_with_wait_list = clEnqueueBarrierWithWaitList(queue: ClQueue) -> enqueue;
    create_user_event = clCreateUserEvent(context: ClContext) -> create ClEvent;
    set_user_event_status = clSetUserEventStatus(event: ClEvent, status: i32) -> settle;
    wait_for_events = clWaitForEvents(count: u32, events: *const ClEvent) -> status;
    get_event_info = clGetEventInfo(event: ClEvent, name: u32) -> info;
    get_event_profiling_info = clGetEventProfilingInfo(event: ClEvent, name: u32) -> info;
    set_event_callback = clSetEventCallback(
        event: ClEvent, status: i32, notify: Option<EventNotify>, user: *mut c_void
    ) -> status;
    retain_event = clRetainEvent(event: ClEvent) -> retain;
    release_event = clReleaseEvent(event: ClEvent) -> release;

    [has_svm_alloc]
    svm_alloc = clSVMAlloc(
        context: ClContext, flags: u64, size: usize, align: u32
    ) -> raw *mut c_void;
    [has_svm_free]
    svm_free = clSVMFree(context: ClContext, pointer: *mut c_void) -> raw ();
    [has_enqueue_svm_map]
    enqueue_svm_map = clEnqueueSVMMap(
        queue: ClQueue, blocking: u32, flags: u64, pointer: *mut c_void, size: usize
    ) -> enqueue;
    [has_enqueue_svm_unmap]
    enqueue_svm_unmap = clEnqueueSVMUnmap(queue: ClQueue, pointer: *mut c_void) -> enqueue;
    [has_enqueue_svm_memcpy]
    enqueue_svm_memcpy = clEnqueueSVMMemcpy(
        queue: ClQueue, blocking: u32, to: *mut c_void, from: *const c_void, size: usize
    ) -> enqueue;
    [has_enqueue_svm_mem_fill]
    enqueue_svm_mem_fill = clEnqueueSVMMemFill(
        queue: ClQueue, pointer: *mut c_void, pattern: *const c_void, pattern_size: usize,
        size: usize
    ) -> enqueue;
    [has_enqueue_svm_free]
    enqueue_svm_free = clEnqueueSVMFree(
        queue: ClQueue, count: u32, pointers: *mut *mut c_void, notify: Option<SvmFreeNotify>,
        user: *mut c_void, wait_count: u32, wait_list: *const ClEvent, event: *mut ClEvent
    ) -> raw i32;
}

impl OpenCl {
    /// Opens the OpenCL library and looks up its symbols.
    ///
    /// `library` is a path, a soname, or `none`. Without it the environment variable `ONEBUF_OPENCL_LIB` applies, and
    /// then the usual names are tried. Every call goes through `probe`, if there is one.
    pub fn load(library: Option<&str>, probe: Option<Arc<Probe>>) -> Result<Self, Missing> {
        let loaded = loader::open(API, library, ENV_VAR, &SONAMES, HINT)?;
        // SAFETY: the symbols belong to a library that is never closed, and have Khronos' names.
        let table = unsafe { Self::resolve(probe, |name| loaded.symbol(name)) };
        let lacking = table.lacking();
        if lacking.is_empty() {
            return Ok(table);
        }
        Err(Missing {
            api: API,
            reason: format!("{} lacks {}", loaded.name, lacking.join(", ")),
            tried: vec![loaded.name],
            loaded: true,
            code: None,
            hint: HINT.into(),
        })
    }

    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.get_platform_ids? as *const c_void)
    }

    /// The probe that the table was loaded with.
    pub fn probe(&self) -> Option<&Arc<Probe>> {
        self.probe.as_ref()
    }

    /// The file of `platform`'s driver, if it is an ICD. It identifies the driver even if two platforms have the same
    /// name.
    ///
    /// # Safety
    ///
    /// `platform` belongs to this library.
    pub unsafe fn driver_identity(&self, platform: ClPlatform) -> Option<PathBuf> {
        // Every ICD must answer for this name, and no loader implements it itself.
        let name = c"clIcdGetPlatformIDsKHR";
        // SAFETY: the caller guarantees `platform`; the address is not called.
        let at = unsafe { self.get_extension_function_address_for_platform(platform, name) }?;
        library_of(at.as_ptr())
    }

    /// Returns the functions of `platform` whose extensions are in `declared`.
    ///
    /// `declared` are whole names from `CL_PLATFORM_EXTENSIONS` or `CL_DEVICE_EXTENSIONS`. Nothing else is looked up,
    /// because an address proves nothing: PoCL and rusticl return one regardless.
    ///
    /// # Safety
    ///
    /// `platform` belongs to this library, and declares the extensions in `declared`.
    pub unsafe fn extensions(&self, platform: ClPlatform, declared: &[&str]) -> OpenClExt {
        let find = |name: &'static CStr| {
            let extension = extension_of(name.to_str().ok()?)?;
            if !declared.contains(&extension) {
                return None;
            }
            // SAFETY: the caller guarantees `platform`.
            unsafe { self.get_extension_function_address_for_platform(platform, name) }
        };
        // SAFETY: a platform has the functions of the extensions it declares; libraries are never closed.
        unsafe { OpenClExt::resolve(self.probe.clone(), find) }
    }
}

impl fmt::Debug for OpenCl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCl").field("library", &self.library()).finish_non_exhaustive()
    }
}

table! {
    /// The extension functions of one platform, returned by [`OpenCl::extensions`].
    pub struct OpenClExt;

    [has_enqueue_acquire_external_mem_objects]
    enqueue_acquire_external_mem_objects = clEnqueueAcquireExternalMemObjectsKHR(
        queue: ClQueue, count: u32, mems: *const ClMem
    ) -> enqueue;
    [has_enqueue_release_external_mem_objects]
    enqueue_release_external_mem_objects = clEnqueueReleaseExternalMemObjectsKHR(
        queue: ClQueue, count: u32, mems: *const ClMem
    ) -> enqueue;
    [has_create_program_with_il]
    create_program_with_il = clCreateProgramWithILKHR(
        context: ClContext, il: *const c_void, length: usize
    ) -> create ClProgram;

    [has_import_memory_arm]
    import_memory_arm = clImportMemoryARM(
        context: ClContext, flags: u64, properties: *const isize, memory: *mut c_void, bytes: usize
    ) -> create ClMem;

    [has_get_gl_context_info]
    get_gl_context_info = clGetGLContextInfoKHR(properties: *const isize, name: u32) -> info;

    [has_create_semaphore]
    create_semaphore = clCreateSemaphoreWithPropertiesKHR(
        context: ClContext, properties: *const u64
    ) -> create ClSemaphore;
    [has_release_semaphore]
    release_semaphore = clReleaseSemaphoreKHR(semaphore: ClSemaphore) -> release;
    [has_enqueue_wait_semaphores]
    enqueue_wait_semaphores = clEnqueueWaitSemaphoresKHR(
        queue: ClQueue, count: u32, semaphores: *const ClSemaphore, payloads: *const u64
    ) -> enqueue;
    [has_enqueue_signal_semaphores]
    enqueue_signal_semaphores = clEnqueueSignalSemaphoresKHR(
        queue: ClQueue, count: u32, semaphores: *const ClSemaphore, payloads: *const u64
    ) -> enqueue;
}

/// The extension that a function of [`OpenClExt`] belongs to.
fn extension_of(symbol: &str) -> Option<&'static str> {
    match symbol {
        "clEnqueueAcquireExternalMemObjectsKHR" | "clEnqueueReleaseExternalMemObjectsKHR" => {
            Some("cl_khr_external_memory")
        }
        "clCreateProgramWithILKHR" => Some("cl_khr_il_program"),
        "clGetGLContextInfoKHR" => Some("cl_khr_gl_sharing"),
        "clImportMemoryARM" => Some("cl_arm_import_memory"),
        "clCreateSemaphoreWithPropertiesKHR"
        | "clReleaseSemaphoreKHR"
        | "clEnqueueWaitSemaphoresKHR"
        | "clEnqueueSignalSemaphoresKHR" => Some("cl_khr_semaphore"),
        _ => None,
    }
}

impl OpenClExt {
    /// Whether every function of `cl_khr_semaphore` in the table was found.
    pub fn has_semaphores(&self) -> bool {
        self.has_create_semaphore()
            && self.has_release_semaphore()
            && self.has_enqueue_wait_semaphores()
            && self.has_enqueue_signal_semaphores()
    }
}

impl fmt::Debug for OpenClExt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let external_memory = self.has_enqueue_acquire_external_mem_objects();
        f.debug_struct("OpenClExt")
            .field("external_memory", &external_memory)
            .field("gl_sharing", &self.has_get_gl_context_info())
            .field("arm_import", &self.has_import_memory_arm())
            .field("semaphores", &self.has_semaphores())
            .finish_non_exhaustive()
    }
}
