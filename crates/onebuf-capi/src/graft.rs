//! Grafting by hand
//!
//! Rewrites a program that OpenCL compiled so that CUDA or HIP can load it: text or bytes in, text or bytes out, without a device.
//! onebuf_program_graft() does this for a program of a hub. ONEBUF_UNSUPPORTED, with the place, for anything that is not known to
//! have the same meaning in the other API.

use crate::{
    entry::entry,
    input::{Slot, bytes, text},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use std::ffi::{c_char, c_void};

/// Rewrites PTX of NVIDIA's OpenCL compiler for CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_graft_ptx(
    ptx: *const c_char,
    result: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(result, || {
            // SAFETY: guaranteed by the caller.
            Ok(onebuf::graft::rewrite(unsafe { text(ptx, "ptx")? })?.into_bytes())
        })
    })
}

/// Rewrites a code object of AMD's OpenCL compiler for HIP. The size of the result is onebuf_string_size().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_graft_code_object(
    object: *const c_void,
    object_bytes: usize,
    result: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(result, || {
            // SAFETY: guaranteed by the caller.
            let object = unsafe { bytes(object, object_bytes, "object")? };
            Ok(onebuf::graft::rewrite_code_object(object)?)
        })
    })
}

/// Rewrites SPIR-V of kernels for a HIP runtime that is built on OpenCL. The size of the result is onebuf_string_size().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_graft_spirv(
    module: *const c_void,
    module_bytes: usize,
    result: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(result, || {
            // SAFETY: guaranteed by the caller.
            let module = unsafe { bytes(module, module_bytes, "module")? };
            Ok(onebuf::graft::rewrite_spirv(module)?)
        })
    })
}
