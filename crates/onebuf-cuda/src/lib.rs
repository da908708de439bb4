//! CUDA and HIP: one backend over two symbol tables.
//!
//! Each device is used in its primary context, which runtime-API code and vendor libraries use too, so pointers can be
//! exchanged. Every entry point makes this context current on the calling thread and restores the previous one, so any
//! thread may call, and an embedding program is not affected.
//!
//! | file | what |
//! |---|---|
//! | `backend` | the entry point for the hub |
//! | `discover` | the library, its devices, and their capabilities |
//! | `device` | the device, its context, making it current |
//! | `memory`, `pins` | device memory, pinned memory, registered host pages; the record of pinned pages |
//! | `aligned` | allocations that begin at a requested alignment |
//! | `managed` | managed memory, whose pages driver calls move |
//! | `vmm`, `external` | exportable memory, and imported memory, by descriptors |
//! | `address` | addresses that kernels of another API use too; on AMD confirmed by `onebuf-experimental::rocr` |
//! | `peers`, `ipc` | memory of other devices, accessed or copied; memory of other processes |
//! | `graphics` | OpenGL buffers, registered once and mapped while in use |
//! | `foreign` | the application's pointers, allocation handles, streams and events |
//! | `users`, `deferred_free` | which streams use an object, and freeing it after them without waiting |
//! | `queue`, `event`, `transfer` | streams, events, copies |
//! | `host_signal`, `callbacks` | waiting for the host; calling the host back |
//! | `semaphore` | semaphores shared with other APIs on the chip |
//! | `program`, `compile` | modules, and the compilers that make them from text |
//! | `kernel` | launching |
//! | `conv` | conversion of statuses, versions, PCI addresses and grids |
//!
//! # Safety
//!
//! Every handle is owned by exactly one struct, which keeps its context alive and releases the handle once; so a
//! reachable handle is alive. Objects that the driver may still be using are freed after events of every stream that
//! used them.

mod address;
mod aligned;
mod backend;
mod callbacks;
mod compile;
mod conv;
mod deferred_free;
mod device;
mod discover;
mod event;
mod external;
pub mod foreign;
mod graphics;
mod host_signal;
mod ipc;
mod kernel;
mod layered;
mod managed;
mod memory;
mod peers;
mod pins;
mod program;
mod queue;
mod semaphore;
mod target;
#[cfg(all(any(test, feature = "testing"), not(onebuf_shuttle)))]
#[doc(hidden)]
pub mod testing;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod transfer;
mod users;
mod vmm;

use onebuf_hal::Language;

pub use backend::CudaLikeBackend;
pub use device::Device;
pub use discover::{Libraries, discover};
pub use onebuf_sys::cuda_like::Flavor;
pub use queue::Queue;

/// The language that CUDA devices compile.
pub const CUDA_C: Language = Language("CUDA C");
/// The language that HIP devices compile.
pub const HIP_C: Language = Language("HIP C");
/// NVIDIA's PTX assembly, which the CUDA driver compiles.
pub const PTX: Language = Language("PTX");
