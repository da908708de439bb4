//! [onebuf] for programs that use [opencl3] 0.12.
//!
//! A program's contexts, queues, buffers and events become onebuf's, and back. opencl3's types own their objects, so nothing here is
//! `unsafe`: onebuf adds references of its own, and a wrapped buffer is borrowed exclusively. Statuses are errors, never panics.
//!
//! ```no_run
//! use onebuf::prelude::*;
//! use onebuf_opencl3::OpenCl3HubExt;
//! use opencl3::{command_queue::CommandQueue, memory::Buffer};
//! # fn run(queue: &CommandQueue, samples: &mut Buffer<f32>) -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let owners = hub.opencl3_queue(queue)?;                          // registers its context, too
//! let other = hub.device("opencl:1")?;
//! let shared = hub.opencl3_buffer(samples, &owners.fence())?.with(|wrap| wrap.shared_with([&other])).build()?;
//! shared.fill(1.0)?;                                               // after the queue's work so far
//! shared.hand_to(&owners)?;                                        // the queue's next command comes after it
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod check;
mod hub;
mod out;

pub use hub::{BufferWrap, OpenCl3HubExt};
pub use out::{OpenCl3BufferExt, OpenCl3FenceExt, OpenCl3QueueExt, OpenCl3ViewExt};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/neighbours/opencl3.md")]
struct ComingFrom;
