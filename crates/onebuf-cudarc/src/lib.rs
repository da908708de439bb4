//! [onebuf] for programs that use [cudarc] 0.19.
//!
//! A program's `CudaStream` becomes a queue of the hub, its `CudaSlice` a buffer that OpenCL, Vulkan or the host can share, and
//! onebuf's buffers become `CudaView`s for cudarc's kernels and libraries. cudarc's own events order the rest of its work.
//!
//! ```no_run
//! use cudarc::driver::{CudaContext, CudaSlice};
//! use onebuf_cudarc::CudarcHubExt;
//! # fn run(samples: &mut CudaSlice<f32>) -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let hub = onebuf::discover()?;
//! let stream = hub.cudarc_stream(&context.default_stream())?;      // the stream that the program has
//!
//! stream.wrap(samples)?.run(|shared| {                             // the same memory, while the function runs
//!     shared.fill(1.0)                                             // after cudarc's work on it
//! })?;                                                             // cudarc's next work comes after ours
//!
//! let mut ours = hub.buffer::<f32>(1024).shared_with([&stream.device()]).build()?;
//! let mut view = stream.write(&ours)?;                             // a `CudaViewMut` of onebuf's memory
//! stream.cudarc().memset_zeros(&mut view.as_view_mut())?;
//! # drop(view); ours.fill(0.0)?;
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod lent;
mod module;
mod read;
mod stream;
mod wrap;

pub use lent::{CudarcRead, CudarcWrite};
pub use module::{CudarcDeviceExt, ptx_source};
pub use read::ReadBuffer;
pub use stream::{CudarcHubExt, CudarcStream};
pub use wrap::{CudarcLent, CudarcMemory, CudarcReadable, SliceWrap};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/neighbours/cudarc.md")]
struct ComingFrom;
