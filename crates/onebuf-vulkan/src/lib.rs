//! Vulkan: compute shaders on buffers, and memory that every other API of the chip can import.
//!
//! Each onebuf queue has its own timeline. Commands are recorded into a batch; the batch is submitted on request, and
//! keeps the objects that it uses alive until it is done.
//!
//! | file | what |
//! |---|---|
//! | `backend` | the entry point for the hub |
//! | `discover` | the loader, its devices, and their capabilities |
//! | `device` | the device, and its logical device |
//! | `block`, `duplicate` | one allocation: created, imported, exported, freed; descriptors that a driver did not take over |
//! | `memory` | memory and its regions |
//! | `access_state` | ownership of memory that others access by a descriptor |
//! | `foreign` | foreign logical devices and buffers |
//! | `timeline`, `batch`, `work`, `queue` | progress of a queue, commands with the objects they use, submission |
//! | `event`, `host_signal`, `transfer` | waiting, holding work back, copies |
//! | `semaphore` | semaphores for other APIs |
//! | `shared_queue` | native queues, also one that the application uses, too |
//! | `glsl`, `spirv`, `program` | compiling text to a module, parsing a module, its kernels |
//! | `kernel` | pipelines, and launching them |
//! | `conv` | conversion of status codes, versions and PCI addresses |
//!
//! # Safety
//!
//! Every handle is owned by exactly one struct, which keeps its device alive and destroys it once; so a reachable
//! handle is alive. The batch that uses an object keeps it while the driver may be using it; the batch is freed when the
//! timeline has reached its value.

mod access_state;
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
mod shared_queue;
mod spirv;
#[cfg(all(test, feature = "glsl", not(onebuf_shuttle)))]
mod tests;
mod timeline;
mod transfer;
mod work;

pub use backend::VulkanBackend;
pub use discover::{Loader, discover};

/// Counts allocations, which the tests of parsers measure.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;
