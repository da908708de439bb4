//! DLPack: arrays to and from other libraries, in place.
//!
//! An exported buffer is lent to the host until the consumer's deleter has run. Memory of the host is exported and imported; devices
//! of other types are refused with the reason.

mod abi;
mod export;
mod import;

pub(crate) use export::{Asked, export};
pub(crate) use import::import;

/// The device type and number of the host.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// Names of capsules: fresh, and consumed.
const FRESH: &std::ffi::CStr = c"dltensor";
const USED: &std::ffi::CStr = c"used_dltensor";
const FRESH_VERSIONED: &std::ffi::CStr = c"dltensor_versioned";
const USED_VERSIONED: &std::ffi::CStr = c"used_dltensor_versioned";
