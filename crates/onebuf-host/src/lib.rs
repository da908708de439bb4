//! The CPU of this machine, and ordinary pages of this process.
//!
//! Work runs immediately on the thread that enqueues it, so every event is complete when it is created, and no
//! hand-over is needed. Kernels are functions of this process ([`NativeKernel`](onebuf_hal::NativeKernel)). Other
//! devices can import its pages.

mod backend;
mod device;
mod event;
mod memory;
mod pages;
mod program;
mod queue;

pub use backend::HostBackend;
pub use device::HostDevice;
pub use memory::HostMemory;
pub use pages::HostPages;

use onebuf_hal::Api;

/// The name of this backend in device ids.
pub const API: Api = Api("host");

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
