//! Images: memory objects that are not buffers. onebuf creates none, so its symbol table does not have the call.

use super::{ClassA, Own};
use onebuf_sys::{
    loader,
    opencl::{ClContext, ClMem},
};
use std::{ffi::c_void, ptr::null_mut};

/// `cl_image_format`: four channels of eight bits.
#[repr(C)]
struct Format {
    order: u32,
    kind: u32,
}
const RGBA: u32 = 0x10B5;
const UNORM_INT8: u32 = 0x10D2;

type CreateImage2D = unsafe extern "system" fn(
    ClContext,
    u64,
    *const Format,
    usize,
    usize,
    usize,
    *mut c_void,
    *mut i32,
) -> ClMem;

impl ClassA {
    /// Creates a small image; `None` if the driver cannot.
    pub fn image(&self) -> Option<Own<ClMem>> {
        let names = ["libOpenCL.so.1", "libOpenCL.so"];
        let library = loader::open("opencl", None, "ONEBUF_OPENCL_LIB", &names, "").ok()?;
        let at = library.symbol(c"clCreateImage2D")?.as_ptr();
        // SAFETY: the C function of that name has this prototype.
        let create = unsafe { std::mem::transmute::<*mut c_void, CreateImage2D>(at) };
        let format = Format { order: RGBA, kind: UNORM_INT8 };
        let (context, read_write, mut status) = (self.context.get(), 1, 0);
        // SAFETY: a live context, a format, no host memory.
        let made =
            unsafe { create(context, read_write, &format, 8, 8, 0, null_mut(), &mut status) };
        // SAFETY: just created, so the reference is ours.
        (status == 0 && !made.is_null()).then(|| unsafe { Own::new(made) })
    }
}
