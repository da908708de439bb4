//! CUDA and HIP: one backend over two symbol tables.
//!
//! Each device is used in its primary context, the one that runtime-API code and vendor libraries use
//! too, so that their pointers and ours meet. Every entry makes it current on the calling thread and puts
//! back what was current before: any thread may call, and no embedding program notices.
//!
//! | file | what |
//! |---|---|
//! | `backend` | what the hub is given |
//! | `discover` | the library, its devices, and what each can do |
//! | `device` | the device, its context, being current |
//! | `memory`, `pins` | device memory, pinned memory, registered host pages; who pinned what |
//! | `managed` | memory of both, whose pages are moved by calls |
//! | `vmm`, `external` | memory that others import by a descriptor, and theirs |
//! | `address` | addresses that another API's kernels use, too; on AMD confirmed by `onebuf-experimental::rocr` |
//! | `peers`, `ipc` | memory of other devices, reached or copied; memory of other processes |
//! | `graphics` | buffers of OpenGL's, registered and mapped in turn |
//! | `users`, `deferred_free` | which streams use a thing, and freeing it behind them without waiting |
//! | `queue`, `event`, `transfer` | streams, events, copies |
//! | `host_signal`, `callbacks` | waiting for what the host opens; calling the host back |
//! | `semaphore` | signals to other APIs on the chip, and from them |
//! | `program`, `compile` | modules, and the compilers that make them of text |
//! | `kernel` | launching |
//! | `conv` | every number that means something else elsewhere |
//!
//! # Safety
//!
//! Every handle is owned by exactly one struct, which keeps its context alive and releases it once; so a
//! handle that can be reached is alive. What the driver may still be using is freed behind events of
//! every stream that used it.

mod address;
mod backend;
mod callbacks;
mod compile;
mod conv;
mod deferred_free;
mod device;
mod discover;
mod event;
mod external;
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
pub use discover::{Libraries, discover};
pub use onebuf_sys::cuda_like::Flavor;

/// What CUDA devices compile.
pub const CUDA_C: Language = Language("CUDA C");
/// What HIP devices compile.
pub const HIP_C: Language = Language("HIP C");
/// NVIDIA's assembly, which its driver compiles.
pub const PTX: Language = Language("PTX");
