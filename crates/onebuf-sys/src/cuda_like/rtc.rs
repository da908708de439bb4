//! The runtime compilers: NVRTC for CUDA C, HIPRTC for HIP C.
//!
//! Their functions differ only in the result: NVRTC returns PTX, and a CUBIN since 11.1; HIPRTC returns a code object.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::types::{CuStatus, Flavor, Refused, RtcProgram};
use super::{At, Place, find, text_at};
use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

const PLACES: [Place; 2] = [
    Place {
        api: "nvrtc",
        variable: "ONEBUF_NVRTC_LIB",
        names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"],
        hint: "it comes with the CUDA toolkit; a program in PTX needs no compiler",
    },
    // Before HIP 6 the compiler was part of the runtime library.
    Place {
        api: "hiprtc",
        variable: "ONEBUF_HIPRTC_LIB",
        names: &[
            "libhiprtc.so.7",
            "libhiprtc.so.6",
            "libhiprtc.so.5",
            "libhiprtc.so",
            "libamdhip64.so.6",
            "libamdhip64.so.5",
        ],
        hint: "it comes with ROCm; a program as a code object needs no compiler",
    },
];

table! {
    /// The symbol table of NVRTC or HIPRTC.
    pub struct Rtc in PLACES;

    error_string = "nvrtcGetErrorString" | "hiprtcGetErrorString" (status: i32)
        -> raw *const c_char;
    version = "nvrtcVersion" | "hiprtcVersion" (major: *mut i32, minor: *mut i32) -> status;
    create_program = "nvrtcCreateProgram" | "hiprtcCreateProgram" (
        text: *const c_char, name: *const c_char, headers: i32, texts: *const *const c_char,
        names: *const *const c_char
    ) -> create RtcProgram, "compilation";
    destroy_program = "nvrtcDestroyProgram" | "hiprtcDestroyProgram" (
        program: *mut RtcProgram
    ) -> release, "compilation";
    compile = "nvrtcCompileProgram" | "hiprtcCompileProgram" (
        program: RtcProgram, count: i32, options: *const *const c_char
    ) -> status;
    log_size = "nvrtcGetProgramLogSize" | "hiprtcGetProgramLogSize" (
        program: RtcProgram, bytes: *mut usize
    ) -> status;
    log = "nvrtcGetProgramLog" | "hiprtcGetProgramLog" (
        program: RtcProgram, log: *mut c_char
    ) -> status;
    code_size = "nvrtcGetPTXSize" | "hiprtcGetCodeSize" (
        program: RtcProgram, bytes: *mut usize
    ) -> status;
    code = "nvrtcGetPTX" | "hiprtcGetCode" (program: RtcProgram, code: *mut c_char) -> status;
    [has_binary_size]
    binary_size = "nvrtcGetCUBINSize" | "" (program: RtcProgram, bytes: *mut usize) -> status;
    [has_binary]
    binary = "nvrtcGetCUBIN" | "" (program: RtcProgram, code: *mut c_char) -> status;
}

impl Rtc {
    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.version? as *const c_void)
    }

    /// The compiler's text for a status.
    pub fn error_name(&self, status: CuStatus) -> String {
        // SAFETY: any number may be queried; the library owns the string.
        self.error_string.map_or("unknown".to_owned(), |call| unsafe { text_at(call(status.0)) })
    }
}
