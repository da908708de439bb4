//! [onebuf] for programs that use [ash] 0.38.
//!
//! A program's `VkDevice` becomes a device of the hub in one line. Its `vk::Buffer`s and `vk::DeviceMemory` become buffers, its
//! `vk::Queue` a queue, points of its timeline semaphores fences; and back. Everything here translates types: onebuf itself does the
//! work, and [its documentation](onebuf::VulkanHubExt) says what is checked.
//!
//! ```no_run
//! use ash::vk;
//! use onebuf_ash::{AshBuffer, AshDevice, AshHubExt, AshQueues, AshViewExt};
//! use std::sync::{Arc, Mutex};
//! # fn run(instance: &ash::Instance, device: &ash::Device, physical: vk::PhysicalDevice, vertices: vk::Buffer,
//! #     usage: vk::BufferUsageFlags, queue: Arc<Mutex<vk::Queue>>, draw: impl Fn(vk::Buffer)) -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let told = AshDevice { instance, physical, device, family: 0, extensions: &[ash::khr::external_memory_fd::NAME] };
//! // SAFETY: live handles, which outlive the hub's use of them. Every user of the queue holds the lock.
//! let ash = unsafe { hub.ash(&told, AshQueues::Shared(queue)) }?;
//! // SAFETY: a live buffer of 4000 bytes; work on it is ordered by the queue.
//! let data = unsafe { ash.wrap::<f32>(&AshBuffer::new(vertices, 4000, usage)) }?.build()?;
//!
//! data.fill(1.0)?;                               // by onebuf
//! let owners = ash.queue()?;                     // the program's queue
//! let view = data.read_on(&owners)?;             // it waits for the fill
//! draw(view.ash_buffer()?.0);                    // the program submits, under its lock
//! drop(view);                                    // the next writer waits for that
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod device;
mod queue;
mod view;

pub use device::{Ash, AshBuffer, AshDevice, AshHubExt, AshMemory, AshQueues};
pub use view::{AshPoint, AshViewExt};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/neighbours/ash.md")]
struct ComingFrom;
