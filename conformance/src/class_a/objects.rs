//! A reference to an OpenCL object, released when dropped, and the driver's reference count.

use super::cl;
use onebuf_sys::{
    ClStatus,
    opencl::{ClContext, ClEvent, ClKernel, ClMem, ClProgram, ClQueue, OpenCl, consts},
};
use std::ffi::c_void;

/// A reference-counted type of OpenCL object.
pub trait Handle: Copy + std::fmt::Debug {
    /// The handle as a raw pointer, as onebuf accepts it.
    fn raw(self) -> *mut c_void;

    /// Releases one reference.
    ///
    /// # Safety
    /// The caller owns the reference.
    unsafe fn release(self, cl: &OpenCl) -> Result<(), ClStatus>;

    /// Adds one reference.
    ///
    /// # Safety
    /// The object is alive.
    unsafe fn retain(self, cl: &OpenCl) -> Result<(), ClStatus>;

    /// Returns the driver's reference count, which may include the driver's own references.
    ///
    /// # Safety
    /// The object is alive.
    unsafe fn count(self, cl: &OpenCl) -> Result<u32, ClStatus>;
}

macro_rules! handles {
    ($($handle:ident: $release:ident, $retain:ident, $info:ident, $count:ident;)*) => {$(
        impl Handle for $handle {
            fn raw(self) -> *mut c_void {
                self.0
            }

            unsafe fn release(self, cl: &OpenCl) -> Result<(), ClStatus> {
                // SAFETY: the caller's guarantee.
                unsafe { cl.$release(self) }
            }

            unsafe fn retain(self, cl: &OpenCl) -> Result<(), ClStatus> {
                // SAFETY: the caller's guarantee.
                unsafe { cl.$retain(self) }
            }

            unsafe fn count(self, cl: &OpenCl) -> Result<u32, ClStatus> {
                let mut count = 0u32;
                let (size, to) = (size_of::<u32>(), (&raw mut count).cast());
                // SAFETY: the caller's guarantee; `count` has `size` bytes.
                unsafe { cl.$info(self, consts::$count, size, to, std::ptr::null_mut())? };
                Ok(count)
            }
        }
    )*};
}
handles! {
    ClContext: release_context, retain_context, get_context_info, CL_CONTEXT_REFERENCE_COUNT;
    ClQueue: release_command_queue, retain_command_queue, get_command_queue_info,
        CL_QUEUE_REFERENCE_COUNT;
    ClMem: release_mem_object, retain_mem_object, get_mem_object_info, CL_MEM_REFERENCE_COUNT;
    ClEvent: release_event, retain_event, get_event_info, CL_EVENT_REFERENCE_COUNT;
    ClProgram: release_program, retain_program, get_program_info, CL_PROGRAM_REFERENCE_COUNT;
    ClKernel: release_kernel, retain_kernel, get_kernel_info, CL_KERNEL_REFERENCE_COUNT;
}

/// An owned reference.
#[derive(Debug)]
pub struct Own<H: Handle>(H);

impl<H: Handle> Own<H> {
    /// Takes ownership of a reference.
    ///
    /// # Safety
    /// The caller owned the reference, and the object is of the library that [`cl`] loads.
    pub unsafe fn new(handle: H) -> Self {
        Self(handle)
    }

    /// The handle.
    pub fn get(&self) -> H {
        self.0
    }

    /// The handle as a raw pointer, as onebuf accepts it.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw()
    }

    /// Returns the driver's reference count.
    ///
    /// # Panics
    /// If the driver does not report it.
    #[track_caller]
    pub fn count(&self) -> u32 {
        // SAFETY: the object is alive, because we own a reference.
        unsafe { self.0.count(cl()) }.unwrap_or_else(|e| panic!("count of {:?}: {e}", self.0))
    }
}

impl<H: Handle> Clone for Own<H> {
    fn clone(&self) -> Self {
        // SAFETY: the object is alive, because we own a reference.
        unsafe { self.0.retain(cl()) }.unwrap_or_else(|e| panic!("retain {:?}: {e}", self.0));
        Self(self.0)
    }
}

impl<H: Handle> Drop for Own<H> {
    fn drop(&mut self) {
        // SAFETY: we own the reference and release it once.
        let released = unsafe { self.0.release(cl()) };
        if !std::thread::panicking() {
            released.unwrap_or_else(|e| panic!("release {:?}: {e}", self.0));
        }
    }
}
