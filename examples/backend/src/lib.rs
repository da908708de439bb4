//! A complete backend: a device in software, with memory of its own and a thread for each queue. It is the template for new
//! backends; CONTRIBUTING.md walks through it file by file.
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
//! Memory is as long as was asked for, and is there while its owner lives, which each memory and each command holds. A command
//! stays in a range that was checked when it was made. An event is completed once, when its work and everything before it is over.
//! Nobody else uses the bytes in conflict meanwhile, and the host's memory of `read` and `write` stays: by the contracts of
//! `onebuf_hal`, both are the caller's part.

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

/// A cache line: where memory of this device begins, and regions of it.
const ALIGN_BYTES: usize = 64;
