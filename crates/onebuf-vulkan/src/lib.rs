//! Vulkan: compute shaders on buffers, and memory that every other API of the chip can import.
//!
//! Each of our queues has a timeline of its own. Commands are recorded into a batch; the batch is given to
//! the driver when somebody asks for its end, and keeps what it uses until then.
//!
//! | file | what |
//! |---|---|
//! | `backend` | what the hub is given |
//! | `discover` | the loader, its devices, and what each can do |
//! | `device` | the device, and the logical device that everything is made of |
//! | `block`, `duplicate` | one allocation: made, imported, exported, freed; descriptors that a driver did not take |
//! | `memory` | memory as others know it, and parts of it |
//! | `foreign` | logical devices and buffers that somebody else made |
//! | `timeline`, `batch`, `work`, `queue` | how far a queue is, commands with what they use, handing them over |
//! | `event`, `host_signal`, `transfer` | waiting, being held back, copies |
//! | `semaphore` | what other APIs signal and wait on |
//! | `glsl`, `spirv`, `program` | a text to a module, what a module says, the kernels of it |
//! | `kernel` | pipelines, and launching them |
//! | `conv` | every number that means something else elsewhere |
//!
//! # Safety
//!
//! Every handle is owned by exactly one struct, which keeps its device alive and destroys it once; so a
//! handle that can be reached is alive. What the driver may still be using is kept by the batch that uses
//! it, which goes when the timeline has come so far.

mod backend;
mod batch;
mod block;
mod conv;
mod device;
mod discover;
mod duplicate;
mod event;
pub mod foreign;
mod glsl;
mod host_signal;
mod kernel;
mod memory;
mod program;
mod queue;
mod semaphore;
mod spirv;
#[cfg(all(test, feature = "glsl", not(onebuf_shuttle)))]
mod tests;
mod timeline;
mod transfer;
mod work;

pub use backend::VulkanBackend;
pub use discover::{Loader, discover};

/// Tests of parsers measure what they allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;
