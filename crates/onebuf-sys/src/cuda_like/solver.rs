//! LU factorisation of dense matrices: cuSOLVER and rocSOLVER.
//!
//! cuSOLVER has its own handles and needs a workspace from the caller; rocSOLVER uses a handle of rocBLAS, which has
//! its own workspace.

use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::types::{BlasHandle, CuStatus, CuStream, DevicePtr, Flavor, Refused, SolverHandle};
use super::{At, Place, find};
use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

const PLACES: [Place; 2] = [
    Place {
        api: "cusolver",
        variable: "ONEBUF_CUSOLVER_LIB",
        names: &[
            "libcusolver.so.12",
            "libcusolver.so.11",
            "libcusolver.so",
            "/usr/local/cuda/lib64/libcusolver.so.12",
            "/usr/local/cuda/lib64/libcusolver.so.11",
        ],
        hint: "it comes with the CUDA toolkit; ONEBUF_CUSOLVER_LIB names another file",
    },
    Place {
        api: "rocsolver",
        variable: "ONEBUF_ROCSOLVER_LIB",
        names: &["librocsolver.so.0", "librocsolver.so", "/opt/rocm/lib/librocsolver.so.0"],
        hint: "it comes with ROCm (on Debian or Ubuntu: apt install librocsolver0); ONEBUF_ROCSOLVER_LIB names another file",
    },
];

table! {
    /// The symbol table of cuSOLVER's dense part or of rocSOLVER. Methods with the prefix `roc_` exist only in
    /// rocSOLVER, the others only in cuSOLVER.
    pub struct Solver in PLACES;

    create = "cusolverDnCreate" | "" () -> create SolverHandle, "solver";
    destroy = "cusolverDnDestroy" | "" (handle: SolverHandle) -> release, "solver";
    set_stream = "cusolverDnSetStream" | "" (handle: SolverHandle, stream: CuStream) -> status;

    sgetrf_size = "cusolverDnSgetrf_bufferSize" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, elements: *mut i32
    ) -> status;
    dgetrf_size = "cusolverDnDgetrf_bufferSize" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, elements: *mut i32
    ) -> status;
    cgetrf_size = "cusolverDnCgetrf_bufferSize" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, elements: *mut i32
    ) -> status;
    zgetrf_size = "cusolverDnZgetrf_bufferSize" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, elements: *mut i32
    ) -> status;

    sgetrf = "cusolverDnSgetrf" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, work: DevicePtr,
        pivots: DevicePtr, info: DevicePtr
    ) -> status;
    dgetrf = "cusolverDnDgetrf" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, work: DevicePtr,
        pivots: DevicePtr, info: DevicePtr
    ) -> status;
    cgetrf = "cusolverDnCgetrf" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, work: DevicePtr,
        pivots: DevicePtr, info: DevicePtr
    ) -> status;
    zgetrf = "cusolverDnZgetrf" | "" (
        handle: SolverHandle, m: i32, n: i32, a: DevicePtr, lda: i32, work: DevicePtr,
        pivots: DevicePtr, info: DevicePtr
    ) -> status;

    sgetrs = "cusolverDnSgetrs" | "" (
        handle: SolverHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32, info: DevicePtr
    ) -> status;
    dgetrs = "cusolverDnDgetrs" | "" (
        handle: SolverHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32, info: DevicePtr
    ) -> status;
    cgetrs = "cusolverDnCgetrs" | "" (
        handle: SolverHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32, info: DevicePtr
    ) -> status;
    zgetrs = "cusolverDnZgetrs" | "" (
        handle: SolverHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32, info: DevicePtr
    ) -> status;

    roc_sgetrf = "" | "rocsolver_sgetrf" (
        handle: BlasHandle, m: i32, n: i32, a: DevicePtr, lda: i32, pivots: DevicePtr,
        info: DevicePtr
    ) -> status;
    roc_dgetrf = "" | "rocsolver_dgetrf" (
        handle: BlasHandle, m: i32, n: i32, a: DevicePtr, lda: i32, pivots: DevicePtr,
        info: DevicePtr
    ) -> status;
    roc_cgetrf = "" | "rocsolver_cgetrf" (
        handle: BlasHandle, m: i32, n: i32, a: DevicePtr, lda: i32, pivots: DevicePtr,
        info: DevicePtr
    ) -> status;
    roc_zgetrf = "" | "rocsolver_zgetrf" (
        handle: BlasHandle, m: i32, n: i32, a: DevicePtr, lda: i32, pivots: DevicePtr,
        info: DevicePtr
    ) -> status;

    roc_sgetrs = "" | "rocsolver_sgetrs" (
        handle: BlasHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32
    ) -> status;
    roc_dgetrs = "" | "rocsolver_dgetrs" (
        handle: BlasHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32
    ) -> status;
    roc_cgetrs = "" | "rocsolver_cgetrs" (
        handle: BlasHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32
    ) -> status;
    roc_zgetrs = "" | "rocsolver_zgetrs" (
        handle: BlasHandle, op: i32, n: i32, columns: i32, a: DevicePtr, lda: i32,
        pivots: DevicePtr, b: DevicePtr, ldb: i32
    ) -> status;
}

impl Solver {
    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        let at = self.set_stream.map(|call| call as *const c_void);
        library_of(at.or(self.roc_sgetrf.map(|call| call as *const c_void))?)
    }

    /// Returns the name of a status. cuSOLVER has no function for it; rocSOLVER uses the statuses of rocBLAS, which has
    /// one.
    pub fn error_name(&self, status: CuStatus) -> String {
        let cuda = match status.0 {
            1 => "CUSOLVER_STATUS_NOT_INITIALIZED",
            2 => "CUSOLVER_STATUS_ALLOC_FAILED",
            3 => "CUSOLVER_STATUS_INVALID_VALUE",
            4 => "CUSOLVER_STATUS_ARCH_MISMATCH",
            5 => "CUSOLVER_STATUS_MAPPING_ERROR",
            6 => "CUSOLVER_STATUS_EXECUTION_FAILED",
            7 => "CUSOLVER_STATUS_INTERNAL_ERROR",
            8 => "CUSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED",
            9 => "CUSOLVER_STATUS_NOT_SUPPORTED",
            _ => "unknown",
        };
        self.flavor.pick([cuda, "unknown"]).to_owned()
    }
}
