//! Fourier transforms: cuFFT and rocFFT, whose interfaces differ.

use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::types::{CuStatus, CuStream, CufftPlan, DevicePtr, Flavor, Refused};
use super::types::{RocfftInfo, RocfftPlan};
use super::{At, Place, find};
use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

const PLACES: [Place; 2] = [
    Place {
        api: "cufft",
        variable: "ONEBUF_CUFFT_LIB",
        names: &[
            "libcufft.so.12",
            "libcufft.so.11",
            "libcufft.so.10",
            "libcufft.so",
            "/usr/local/cuda/lib64/libcufft.so.12",
            "/usr/local/cuda/lib64/libcufft.so.11",
        ],
        hint: "it comes with the CUDA toolkit; ONEBUF_CUFFT_LIB names another file",
    },
    Place {
        api: "rocfft",
        variable: "ONEBUF_ROCFFT_LIB",
        names: &["librocfft.so.0", "librocfft.so", "/opt/rocm/lib/librocfft.so.0"],
        hint: "it comes with ROCm (on Debian or Ubuntu: apt install librocfft0); ONEBUF_ROCFFT_LIB names another file",
    },
];

/// Constants of cuFFT.
#[allow(missing_docs)] // The names are the library's own.
pub mod cufft {
    pub const C2C: i32 = 0x29;
    pub const Z2Z: i32 = 0x69;
    pub const FORWARD: i32 = -1;
    pub const INVERSE: i32 = 1;
}

/// Constants of rocFFT.
#[allow(missing_docs)] // The names are the library's own.
pub mod rocfft {
    pub const PLACEMENT_INPLACE: i32 = 0;
    pub const COMPLEX_FORWARD: i32 = 0;
    pub const COMPLEX_INVERSE: i32 = 1;
    pub const PRECISION_SINGLE: i32 = 0;
    pub const PRECISION_DOUBLE: i32 = 1;
}

table! {
    /// The symbol table of cuFFT or rocFFT. Methods with the prefix `roc_` exist only in rocFFT, the others only in
    /// cuFFT.
    pub struct Fft in PLACES;

    create = "cufftCreate" | "" () -> create CufftPlan, "fft";
    destroy = "cufftDestroy" | "" (plan: CufftPlan) -> release, "fft";
    set_stream = "cufftSetStream" | "" (plan: CufftPlan, stream: CuStream) -> status;
    make_plan_many = "cufftMakePlanMany" | "" (
        plan: CufftPlan, rank: i32, n: *mut i32, in_embed: *mut i32, in_stride: i32, in_dist: i32,
        out_embed: *mut i32, out_stride: i32, out_dist: i32, kind: i32, batch: i32,
        work_bytes: *mut usize
    ) -> status;
    exec_c2c = "cufftExecC2C" | "" (
        plan: CufftPlan, from: DevicePtr, to: DevicePtr, direction: i32
    ) -> status;
    exec_z2z = "cufftExecZ2Z" | "" (
        plan: CufftPlan, from: DevicePtr, to: DevicePtr, direction: i32
    ) -> status;

    roc_setup = "" | "rocfft_setup" () -> status;
    roc_plan_create = "" | "rocfft_plan_create" (
        placement: i32, kind: i32, precision: i32, dimensions: usize, lengths: *const usize,
        transforms: usize, description: *const c_void
    ) -> create RocfftPlan, "fft";
    roc_plan_destroy = "" | "rocfft_plan_destroy" (plan: RocfftPlan) -> release, "fft";
    roc_work_bytes = "" | "rocfft_plan_get_work_buffer_size" (
        plan: RocfftPlan, bytes: *mut usize
    ) -> status;
    roc_info_create = "" | "rocfft_execution_info_create" () -> create RocfftInfo, "fft info";
    roc_info_destroy = "" | "rocfft_execution_info_destroy" (
        info: RocfftInfo
    ) -> release, "fft info";
    roc_info_set_stream = "" | "rocfft_execution_info_set_stream" (
        info: RocfftInfo, stream: CuStream
    ) -> status;
    roc_info_set_work = "" | "rocfft_execution_info_set_work_buffer" (
        info: RocfftInfo, at: DevicePtr, bytes: usize
    ) -> status;
    roc_execute = "" | "rocfft_execute" (
        plan: RocfftPlan, from: *mut DevicePtr, to: *mut DevicePtr, info: RocfftInfo
    ) -> status;
}

impl Fft {
    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        let at = self.set_stream.map(|call| call as *const c_void);
        library_of(at.or(self.roc_setup.map(|call| call as *const c_void))?)
    }

    /// Returns the name of a status; neither library has a function for it.
    pub fn error_name(&self, status: CuStatus) -> String {
        let names = match status.0 {
            1 => ["CUFFT_INVALID_PLAN", "rocfft_status_failure"],
            2 => ["CUFFT_ALLOC_FAILED", "rocfft_status_invalid_arg_value"],
            3 => ["CUFFT_INVALID_TYPE", "rocfft_status_invalid_dimensions"],
            4 => ["CUFFT_INVALID_VALUE", "rocfft_status_invalid_array_type"],
            5 => ["CUFFT_INTERNAL_ERROR", "rocfft_status_invalid_strides"],
            6 => ["CUFFT_EXEC_FAILED", "rocfft_status_invalid_distance"],
            7 => ["CUFFT_SETUP_FAILED", "rocfft_status_invalid_offset"],
            8 => ["CUFFT_INVALID_SIZE", "rocfft_status_invalid_work_buffer"],
            9 => ["CUFFT_UNALIGNED_DATA", "unknown"],
            11 => ["CUFFT_INVALID_DEVICE", "unknown"],
            13 => ["CUFFT_NO_WORKSPACE", "unknown"],
            14 => ["CUFFT_NOT_IMPLEMENTED", "unknown"],
            16 => ["CUFFT_NOT_SUPPORTED", "unknown"],
            _ => ["unknown"; 2],
        };
        self.flavor.pick(names).to_owned()
    }
}
