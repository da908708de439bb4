//! DLPack: arrays to and from other libraries, in place.
//!
//! An exported buffer is lent to the host, or to a CUDA or HIP device, until the consumer's deleter has run. Memory of these is exported and
//! imported; devices of other types are refused with the reason.

mod export;
mod import;

pub(crate) use export::{Asked, Target, export};
pub(crate) use import::import;

/// The device type and number of the host.
pub(crate) const CPU: (i32, i32) = (1, 0);
/// Device types.
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const ROCM: i32 = 10;
const ROCM_HOST: i32 = 11;
const CUDA_MANAGED: i32 = 13;

/// Names of capsules: fresh, and consumed.
const FRESH: &std::ffi::CStr = c"dltensor";
const USED: &std::ffi::CStr = c"used_dltensor";
const FRESH_VERSIONED: &std::ffi::CStr = c"dltensor_versioned";
const USED_VERSIONED: &std::ffi::CStr = c"used_dltensor_versioned";
