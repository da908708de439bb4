//! A complete backend: a software device with its own memory and one thread for each queue. It is the template for new
//! backends; CONTRIBUTING.md explains it file by file.
//!
//! ```
//! // SAFETY: the backend keeps to the contract of `onebuf_hal::Backend`.
//! let hub = unsafe { onebuf::builder().only(["host"]).backend(Box::new(onebuf_toy::ToyBackend)) }.build()?;
//! let (host, toy) = (hub.host(), hub.device("toy:0")?);
//! let buffer = hub.buffer::<f32>(99).shared_with([&host, &toy]).init(vec![1.5; 99]).build()?;
//! drop(buffer.write_on(&toy.queue()?)?); // handed over to the toy, then back to the host
//! assert!(buffer.map()?.iter().all(|x| *x == 1.5));
//! # Ok::<(), onebuf::Error>(())
//! ```
//!
//! # Safety
//! Memory has the requested size and exists while its owner lives; each memory and each command holds the owner. A command
//! stays within a range that was checked when it was created. An event is completed once, after its work and all earlier work
//! has ended. By the contracts of `onebuf_hal`, the caller prevents conflicting use of the bytes, and keeps the host memory of
//! `read` and `write` alive, until then.

#![deny(unsafe_code)]

mod backend;
mod device;
mod event;
mod memory;
mod program;
mod queue;

pub use backend::ToyBackend;

/// The name of this backend in device ids: `toy:0`.
pub const API: onebuf_hal::Api = onebuf_hal::Api("toy");

/// A cache line: the alignment of this device's memory and of its sub-buffers.
const ALIGN_BYTES: usize = 64;
