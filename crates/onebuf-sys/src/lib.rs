//! Driver functions, loaded at run time.
//!
//! One symbol table per API with only the functions that onebuf calls; a loader that turns a missing library into a
//! value ([`Missing`]) instead of a failed start; status codes as integer newtypes, since a driver may return a number
//! that no header names; and a [`Probe`] that makes a chosen call fail on a real driver. This crate has no logic:
//! higher levels interpret the results.
//!
//! ```
//! use onebuf_sys::opencl::OpenCl;
//!
//! match OpenCl::load(None, None) {
//!     Ok(cl) => println!("OpenCL from {:?}", cl.library()),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```
//!
//! # Safety
//!
//! Each call of a table is an `unsafe fn` whose contract is that of the C function it names: handles are alive and of
//! one platform, pointers are valid for the lengths passed with them, and memory given to a command stays in place
//! until that command has finished. This crate itself guarantees:
//!
//! - a symbol has the C prototype that the table states; a test compares the size of every argument
//!   with the installed headers, and every constant with its `#define`;
//! - code stays mapped forever: a library that was opened is never closed;
//! - an unknown status is a number, never an invalid `enum`.

pub mod cuda_like;
pub mod fork;
pub mod gl;
pub mod hsa;
pub mod loader;
pub mod mpi;
pub mod opencl;
pub mod probe;
pub mod status;
pub mod system_memory;
pub mod vulkan;

// Some parts are for tables that only 64-bit processes load.
#[cfg(test)]
#[cfg_attr(target_pointer_width = "32", allow(dead_code))]
mod headers;

pub use cuda_like::{CuStatus, Flavor, Refused};
pub use gl::{GlRefused, GlStatus};
pub use loader::{Loaded, Missing, library_of};
pub use mpi::{MpiRefused, MpiStatus};
pub use probe::Probe;
pub use status::ClStatus;
pub use vulkan::VkRefused;
