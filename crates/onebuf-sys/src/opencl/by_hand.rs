//! Functions that fit no kind of the table: those without a status, with two results, or with special counting.
//!
//! # Safety
//!
//! As for the table: each method has the contract of the C function it names.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use super::{ClContext, ClEvent, ClMem, ClPlatform, ClQueue, ClStatus, OpenCl, SvmFreeNotify};

const SVM: &str = "svm";

/// `clEnqueueAcquireExternalMemObjectsKHR` and its counterpart.
type ExternalObjects =
    unsafe extern "system" fn(ClQueue, u32, *const ClMem, u32, *const ClEvent, *mut ClEvent) -> i32;

/// The calls of `cl_khr_external_memory`, which belong to one platform.
#[derive(Clone, Copy, Debug)]
pub struct ExternalCalls {
    acquire: ExternalObjects,
    release: ExternalObjects,
}

#[allow(clippy::too_many_arguments)]
impl OpenCl {
    /// `clGetExtensionFunctionAddress`, the deprecated form from before OpenCL 1.2.
    ///
    /// # Safety
    ///
    /// The contract of the C function. The address is non-null also for calls that the platform does not support.
    pub unsafe fn get_extension_function_address(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let call = self.get_extension_function_address?;
        self.enter("clGetExtensionFunctionAddress").ok()?;
        // SAFETY: the caller keeps the C function's contract.
        NonNull::new(unsafe { call(name.as_ptr()) })
    }

    /// `clGetExtensionFunctionAddressForPlatform`.
    ///
    /// # Safety
    ///
    /// The contract of the C function. PoCL and rusticl return non-null also for calls that they do not support: look
    /// up only functions of declared extensions.
    pub unsafe fn get_extension_function_address_for_platform(
        &self,
        platform: ClPlatform,
        name: &CStr,
    ) -> Option<NonNull<c_void>> {
        let call = self.get_extension_function_address_for_platform?;
        self.enter("clGetExtensionFunctionAddressForPlatform").ok()?;
        // SAFETY: the caller keeps the C function's contract.
        NonNull::new(unsafe { call(platform, name.as_ptr()) })
    }

    /// Returns the functions of `cl_khr_external_memory`; `None` if the platform lacks one.
    ///
    /// # Safety
    ///
    /// `platform` is a live platform that declares the extension.
    pub unsafe fn external_calls(&self, platform: ClPlatform) -> Option<ExternalCalls> {
        let find = |name: &CStr| {
            // SAFETY: guaranteed by the caller.
            unsafe { self.get_extension_function_address_for_platform(platform, name) }
        };
        let acquire = find(c"clEnqueueAcquireExternalMemObjectsKHR")?;
        let release = find(c"clEnqueueReleaseExternalMemObjectsKHR")?;
        // SAFETY: a platform that declares the extension has functions of this prototype there.
        let [acquire, release] = [acquire, release]
            .map(|at| unsafe { std::mem::transmute::<NonNull<c_void>, ExternalObjects>(at) });
        Some(ExternalCalls { acquire, release })
    }

    /// `clEnqueueAcquireExternalMemObjectsKHR` for one object, without an event.
    ///
    /// # Safety
    ///
    /// The contract of the C function; `calls` belong to the queue's platform.
    pub unsafe fn enqueue_acquire_external(
        &self,
        calls: &ExternalCalls,
        queue: ClQueue,
        mem: ClMem,
    ) -> Result<(), ClStatus> {
        self.enter("clEnqueueAcquireExternalMemObjectsKHR")?;
        let (none, no) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: the caller keeps the C function's contract.
        ClStatus(unsafe { (calls.acquire)(queue, 1, &raw const mem, 0, none, no) }).ok()
    }

    /// `clEnqueueReleaseExternalMemObjectsKHR` for one object, without an event.
    ///
    /// # Safety
    ///
    /// The contract of the C function; `calls` belong to the queue's platform.
    pub unsafe fn enqueue_release_external(
        &self,
        calls: &ExternalCalls,
        queue: ClQueue,
        mem: ClMem,
    ) -> Result<(), ClStatus> {
        self.enter("clEnqueueReleaseExternalMemObjectsKHR")?;
        let (none, no) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: the caller keeps the C function's contract.
        ClStatus(unsafe { (calls.release)(queue, 1, &raw const mem, 0, none, no) }).ok()
    }

    /// `clEnqueueMapBuffer`.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn enqueue_map_buffer(
        &self,
        queue: ClQueue,
        mem: ClMem,
        blocking: u32,
        flags: u64,
        offset: usize,
        size: usize,
        wait_count: u32,
        wait_list: *const ClEvent,
        event: *mut ClEvent,
    ) -> Result<NonNull<c_void>, ClStatus> {
        let call = self.enqueue_map_buffer.ok_or(ClStatus::NOT_LOADED)?;
        self.enter("clEnqueueMapBuffer")?;
        let mut code = 0;
        // SAFETY: the caller keeps the C function's contract.
        let mapped = unsafe {
            call(queue, mem, blocking, flags, offset, size, wait_count, wait_list, event, &mut code)
        };
        ClStatus(code).ok()?;
        self.count_event(event);
        NonNull::new(mapped).ok_or(ClStatus::NULL_HANDLE)
    }

    /// `clEnqueueMarker`: deprecated, but the only marker in OpenCL 1.1.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn enqueue_marker(
        &self,
        queue: ClQueue,
        event: *mut ClEvent,
    ) -> Result<(), ClStatus> {
        let call = self.enqueue_marker.ok_or(ClStatus::NOT_LOADED)?;
        self.enter("clEnqueueMarker")?;
        // SAFETY: the caller keeps the C function's contract.
        ClStatus(unsafe { call(queue, event) }).ok()?;
        self.count_event(event);
        Ok(())
    }

    /// `clSVMAlloc`. It reports no status: every failure is `None`.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn svm_alloc(
        &self,
        context: ClContext,
        flags: u64,
        size: usize,
        align: u32,
    ) -> Option<NonNull<c_void>> {
        let call = self.svm_alloc?;
        self.enter("clSVMAlloc").ok()?;
        // SAFETY: the caller keeps the C function's contract.
        let made = NonNull::new(unsafe { call(context, flags, size, align) })?;
        self.count(SVM, 1);
        Some(made)
    }

    /// `clSVMFree`. A driver cannot refuse: an error means that the function is not loaded, or was injected *after* the
    /// memory was freed.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn svm_free(
        &self,
        context: ClContext,
        pointer: *mut c_void,
    ) -> Result<(), ClStatus> {
        let call = self.svm_free.ok_or(ClStatus::NOT_LOADED)?;
        let chosen = self.enter("clSVMFree");
        if chosen == Err(ClStatus::FORKED) {
            return chosen;
        }
        // SAFETY: the caller keeps the C function's contract.
        unsafe { call(context, pointer) };
        if !pointer.is_null() {
            self.count(SVM, -1);
        }
        chosen
    }

    /// `clEnqueueSVMFree`. Without `notify`, the memory is counted as freed once it is enqueued.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn enqueue_svm_free(
        &self,
        queue: ClQueue,
        count: u32,
        pointers: *mut *mut c_void,
        notify: Option<SvmFreeNotify>,
        user: *mut c_void,
        wait_count: u32,
        wait_list: *const ClEvent,
        event: *mut ClEvent,
    ) -> Result<(), ClStatus> {
        let call = self.enqueue_svm_free.ok_or(ClStatus::NOT_LOADED)?;
        self.enter("clEnqueueSVMFree")?;
        // SAFETY: the caller keeps the C function's contract.
        let code =
            unsafe { call(queue, count, pointers, notify, user, wait_count, wait_list, event) };
        ClStatus(code).ok()?;
        if notify.is_none() {
            self.count(SVM, -i64::from(count));
        }
        self.count_event(event);
        Ok(())
    }
}
