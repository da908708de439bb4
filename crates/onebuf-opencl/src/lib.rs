//! OpenCL 1.1 to 3.x, through the installed loader or driver.
//!
//! One `cl_context` per device, created when it is first needed: AMD's runtime turns coarse SVM into host memory in a
//! context of several devices. Every function newer than OpenCL 1.1 is gated on the version of platform *and* device,
//! because the ICD loader exports functions that an old driver lacks (clover is 1.1) and then calls through a null pointer.
//!
//! | file | what |
//! |---|---|
//! | `backend` | the entry point for the hub |
//! | `discover` | platforms and devices, and their capabilities |
//! | `device`, `ids` | the device, its context; ids of the context's objects |
//! | `memory`, `storage` | memory and its regions; driver allocations, and how they are freed |
//! | `access_state`, `owner` | the access state; the owner that an import keeps alive |
//! | `queue`, `transfer` | work, and copies |
//! | `address` | memory by the address that kernels see, of another API and for another API |
//! | `graphics` | OpenGL buffers, in a context created for them |
//! | `base_device` | a device that another API's runtime is built on |
//! | `foreign` | foreign objects: queries, and keeping them alive |
//! | `event`, `host_signal` | completion of work; host signals that work waits for |
//! | `program`, `log`, `binaries` | compiling, the compiler's log, and its binaries |
//! | `kernel`, `slots` | launching; the `cl_kernel`s whose arguments threads set |
//! | `conv` | conversion of status codes, flags and versions |
//! | `query` | queries of the driver |
//! | `quirks` | driver bugs that need special handling |
//!
//! # Safety
//!
//! Every handle is owned by exactly one struct, which keeps its context alive and releases it once, in `Drop`; so a
//! reachable handle is alive. A callback's user data is a box that the driver returns exactly once, or that is freed if
//! registering fails.

mod access_state;
mod address;
mod arm;
mod backend;
mod base_device;
pub mod binaries;
mod conv;
mod device;
mod discover;
mod event;
pub mod foreign;
mod graphics;
mod host_signal;
mod ids;
mod kernel;
mod log;
mod memory;
mod owner;
mod program;
mod query;
mod queue;
mod quirks;
mod reflect;
mod semaphore;
mod slots;
mod storage;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;

use onebuf_hal::{Api, Language};

pub use backend::OpenClBackend;
pub use device::Device;
pub use discover::discover;
pub use foreign::Library;
pub use onebuf_sys::opencl::OpenCl;

/// The API's name in device ids.
pub const API: Api = Api("opencl");

/// The kernel language that these devices compile.
pub const OPENCL_C: Language = Language("OpenCL C");
