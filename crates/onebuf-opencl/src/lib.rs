//! OpenCL 1.1 to 3.x, through whatever loader or driver is installed.
//!
//! One `cl_context` per device, made when it is first needed: AMD's runtime turns coarse SVM into host
//! memory in a context of several devices. Every call that is younger than OpenCL 1.1 is gated on the
//! version of platform *and* device, because the ICD loader exports calls that an old driver lacks
//! (clover is 1.1) and then jumps through null.
//!
//! | file | what |
//! |---|---|
//! | `backend` | what the hub is given |
//! | `discover` | platforms and devices, and what each can do |
//! | `device`, `ids` | the device, its context; what the context's objects are known by |
//! | `memory`, `storage` | memory and its parts; what the driver makes, and how it is freed |
//! | `access_state`, `owner` | who may use memory now; what an import keeps alive |
//! | `queue`, `transfer` | work, and copies |
//! | `address` | memory by the address that kernels see: another API's, and ours for that |
//! | `graphics` | buffers of OpenGL's, in a context that is made for that |
//! | `base_device` | being what another API's runtime is built on |
//! | `foreign` | objects that somebody else made: what they are, and holding on to them |
//! | `event`, `host_signal` | how far the work is, and what it waits for |
//! | `program`, `log`, `binaries` | compiling, the compiler's log, and what it made |
//! | `kernel`, `slots` | launching; the `cl_kernel`s that threads set arguments of |
//! | `conv` | every number that means something else elsewhere |
//! | `query` | the one way to ask the driver for a value |
//! | `quirks` | drivers that must be handled with care |
//!
//! # Safety
//!
//! Every handle is owned by exactly one struct, which keeps its context alive and releases it once, in
//! `Drop`; so a handle that can be reached is alive. A callback's user data is a box that the driver
//! gives back exactly once, or that is taken back when registering fails.

mod access_state;
mod address;
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
