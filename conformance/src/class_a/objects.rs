//! One reference to an OpenCL object, given back when dropped, and the driver's count of all of them.

use super::cl;
use onebuf_sys::{
    ClStatus,
    opencl::{ClContext, ClEvent, ClKernel, ClMem, ClProgram, ClQueue, OpenCl, consts},
};
use std::ffi::c_void;

/// A kind of object that drivers count the references of.
pub trait Handle: Copy + std::fmt::Debug {
    /// The handle as onebuf takes it.
    fn raw(self) -> *mut c_void;

    /// One reference less.
    ///
    /// # Safety
    /// The caller had it.
    unsafe fn release(self, cl: &OpenCl) -> Result<(), ClStatus>;

    /// One reference more.
    ///
    /// # Safety
    /// The object is alive.
    unsafe fn retain(self, cl: &OpenCl) -> Result<(), ClStatus>;

    /// The references that the driver counts. Some drivers count their own as well.
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
                // SAFETY: the caller's promise.
                unsafe { cl.$release(self) }
            }

            unsafe fn retain(self, cl: &OpenCl) -> Result<(), ClStatus> {
                // SAFETY: the caller's promise.
                unsafe { cl.$retain(self) }
            }

            unsafe fn count(self, cl: &OpenCl) -> Result<u32, ClStatus> {
                let mut count = 0u32;
                let (size, to) = (size_of::<u32>(), (&raw mut count).cast());
                // SAFETY: the caller's promise; `count` has the room that `size` says.
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

/// One reference, which is this value's.
#[derive(Debug)]
pub struct Own<H: Handle>(H);

impl<H: Handle> Own<H> {
    /// Takes a reference over.
    ///
    /// # Safety
    /// The caller had it, and the object is of the library that [`cl`] loads.
    pub unsafe fn new(handle: H) -> Self {
        Self(handle)
    }

    /// The handle.
    pub fn get(&self) -> H {
        self.0
    }

    /// The handle as onebuf takes it.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw()
    }

    /// The references that the driver counts.
    ///
    /// # Panics
    /// When the driver does not say.
    #[track_caller]
    pub fn count(&self) -> u32 {
        // SAFETY: alive, since one reference is ours.
        unsafe { self.0.count(cl()) }.unwrap_or_else(|e| panic!("count of {:?}: {e}", self.0))
    }
}

impl<H: Handle> Clone for Own<H> {
    fn clone(&self) -> Self {
        // SAFETY: alive, since one reference is ours.
        unsafe { self.0.retain(cl()) }.unwrap_or_else(|e| panic!("retain {:?}: {e}", self.0));
        Self(self.0)
    }
}

impl<H: Handle> Drop for Own<H> {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and given back once.
        let released = unsafe { self.0.release(cl()) };
        if !std::thread::panicking() {
            released.unwrap_or_else(|e| panic!("release {:?}: {e}", self.0));
        }
    }
}
