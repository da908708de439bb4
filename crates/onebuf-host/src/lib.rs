//! The CPU of this machine, and ordinary pages of this process.
//!
//! Work runs at once, on the thread that enqueues it, so every event is complete when it is made and
//! nothing ever has to be handed over. Kernels are functions of this process
//! ([`NativeKernel`](onebuf_hal::NativeKernel)). Its pages are what other devices import.

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
