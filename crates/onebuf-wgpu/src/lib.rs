//! [onebuf] for programs that use [wgpu] 30, on its Vulkan and OpenGL backends.
//!
//! A program's `wgpu::Device` becomes a device of the hub in one line. Buffers of onebuf, which CUDA, OpenCL or the host share,
//! become `wgpu::Buffer`s over the same bytes; on Vulkan `wgpu::Buffer`s become buffers of onebuf, too. wgpu's submissions are
//! ordered with the other devices' work in both directions.
//!
//! ```no_run
//! use onebuf::prelude::*;
//! use onebuf_wgpu::WgpuHubExt;
//! # async fn run(adapter: &wgpu::Adapter, draw: impl Fn(&wgpu::Queue, &wgpu::Buffer)) -> Result<(), Box<dyn std::error::Error>> {
//! let (device, queue) = onebuf_wgpu::request_device(adapter, &Default::default()).await?;
//! let hub = onebuf::discover()?;
//! let gpu = hub.wgpu(&device, &queue)?;                                // such as vulkan:0@1
//! let cl = hub.device("opencl:0")?;
//! let field = hub.buffer::<f32>(1 << 20).shared_with([&cl, &gpu.device()]).build()?;
//! // SAFETY: only submissions under a turn use it.
//! let drawn = unsafe { gpu.buffer(&field, wgpu::BufferUsages::STORAGE) }?;
//!
//! // … kernels on `cl` write `field` …
//! let turn = gpu.read(&field)?;                                        // wgpu's next submissions come after them
//! draw(&queue, &drawn);                                                // an ordinary `queue.submit`
//! drop(turn);                                                          // the next kernel comes after those
//! # Ok(())
//! # }
//! ```
//!
//! # What wgpu does not know
//!
//! * wgpu thinks that it owns a shared buffer. Its contents are initialised, so wgpu never clears it.
//! * wgpu's callbacks (`map_async`, `on_submitted_work_done`) run inside any submission or poll, also one that onebuf makes. They
//!   must not use buffers of that device through onebuf.
//! * Errors of wgpu that onebuf's own submissions cause are returned by onebuf, not by wgpu's error handler.

#![deny(unsafe_code)]

mod caught;
mod gl;
mod gpu;
mod request;
mod turn;
mod usage;
mod vulkan;

pub use gpu::{Gpu, GpuBuffer, WgpuHubExt};
pub use request::request_device;
pub use turn::Turn;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/neighbours/wgpu.md")]
struct ComingFrom;
