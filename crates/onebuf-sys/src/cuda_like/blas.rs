//! Matrix products: cuBLAS and rocBLAS.
//!
//! Both take the same arguments, in column-major order; only [`Operation`] is numbered differently. Scalars are passed
//! by pointers to host memory, which is the default mode of both.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::types::{BlasHandle, CuStatus, CuStream, DevicePtr, Flavor, Refused};
use super::{At, Place, find, text_at};
use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

const PLACES: [Place; 2] = [
    Place {
        api: "cublas",
        variable: "ONEBUF_CUBLAS_LIB",
        names: &[
            "libcublas.so.13",
            "libcublas.so.12",
            "libcublas.so.11",
            "libcublas.so",
            "/usr/local/cuda/lib64/libcublas.so.13",
            "/usr/local/cuda/lib64/libcublas.so.12",
        ],
        hint: "it comes with the CUDA toolkit; ONEBUF_CUBLAS_LIB names another file",
    },
    Place {
        api: "rocblas",
        variable: "ONEBUF_ROCBLAS_LIB",
        names: &[
            "librocblas.so.5",
            "librocblas.so.4",
            "librocblas.so.0",
            "librocblas.so",
            "/opt/rocm/lib/librocblas.so",
        ],
        hint: "it comes with ROCm (on Debian or Ubuntu: apt install librocblas0); ONEBUF_ROCBLAS_LIB names another file",
    },
];

/// The operation applied to a matrix; the two libraries number it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(pub [i32; 2]);

#[allow(missing_docs)] // The names are the libraries' own.
impl Operation {
    pub const NONE: Self = Self([0, 111]);
    pub const TRANSPOSE: Self = Self([1, 112]);
    pub const CONJUGATE_TRANSPOSE: Self = Self([2, 113]);
}

table! {
    /// The symbol table of cuBLAS or rocBLAS.
    pub struct Blas in PLACES;

    [has_status_name]
    status_name = "cublasGetStatusName" | "rocblas_status_to_string" (status: i32)
        -> raw *const c_char;
    create = "cublasCreate_v2" | "rocblas_create_handle" () -> create BlasHandle, "blas";
    destroy = "cublasDestroy_v2" | "rocblas_destroy_handle" (
        handle: BlasHandle
    ) -> release, "blas";
    set_stream = "cublasSetStream_v2" | "rocblas_set_stream" (
        handle: BlasHandle, stream: CuStream
    ) -> status;

    sgemm = "cublasSgemm_v2" | "rocblas_sgemm" (
        handle: BlasHandle, op_a: i32, op_b: i32, m: i32, n: i32, k: i32, alpha: *const c_void,
        a: DevicePtr, lda: i32, b: DevicePtr, ldb: i32, beta: *const c_void, c: DevicePtr, ldc: i32
    ) -> status;
    dgemm = "cublasDgemm_v2" | "rocblas_dgemm" (
        handle: BlasHandle, op_a: i32, op_b: i32, m: i32, n: i32, k: i32, alpha: *const c_void,
        a: DevicePtr, lda: i32, b: DevicePtr, ldb: i32, beta: *const c_void, c: DevicePtr, ldc: i32
    ) -> status;
    cgemm = "cublasCgemm_v2" | "rocblas_cgemm" (
        handle: BlasHandle, op_a: i32, op_b: i32, m: i32, n: i32, k: i32, alpha: *const c_void,
        a: DevicePtr, lda: i32, b: DevicePtr, ldb: i32, beta: *const c_void, c: DevicePtr, ldc: i32
    ) -> status;
    zgemm = "cublasZgemm_v2" | "rocblas_zgemm" (
        handle: BlasHandle, op_a: i32, op_b: i32, m: i32, n: i32, k: i32, alpha: *const c_void,
        a: DevicePtr, lda: i32, b: DevicePtr, ldb: i32, beta: *const c_void, c: DevicePtr, ldc: i32
    ) -> status;

    scopy = "cublasScopy_v2" | "rocblas_scopy" (
        handle: BlasHandle, n: i32, x: DevicePtr, step_x: i32, y: DevicePtr, step_y: i32
    ) -> status;
    dcopy = "cublasDcopy_v2" | "rocblas_dcopy" (
        handle: BlasHandle, n: i32, x: DevicePtr, step_x: i32, y: DevicePtr, step_y: i32
    ) -> status;
    ccopy = "cublasCcopy_v2" | "rocblas_ccopy" (
        handle: BlasHandle, n: i32, x: DevicePtr, step_x: i32, y: DevicePtr, step_y: i32
    ) -> status;
    zcopy = "cublasZcopy_v2" | "rocblas_zcopy" (
        handle: BlasHandle, n: i32, x: DevicePtr, step_x: i32, y: DevicePtr, step_y: i32
    ) -> status;
}

impl Blas {
    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.create? as *const c_void)
    }

    /// The library's name of a status; `unknown` if it has none.
    pub fn error_name(&self, status: CuStatus) -> String {
        // SAFETY: any number may be queried; the library owns the string.
        self.status_name.map_or("unknown".to_owned(), |call| unsafe { text_at(call(status.0)) })
    }
}
