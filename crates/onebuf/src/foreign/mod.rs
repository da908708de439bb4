//! OpenCL objects that somebody else made: asking what they are, using them, giving them back.
//!
//! A library is handed a `cl_mem`, its `cl_context` and its `cl_command_queue` by code that it does not
//! control. [`Hub::wrap_buffer`](crate::Hub::wrap_buffer) makes the first a [`Buffer`](crate::Buffer) like any other,
//! [`Hub::wrap_queue`](crate::Hub::wrap_queue) the last a [`Queue`](crate::Queue); the context is registered on the way, and its
//! devices become devices of the hub with ids such as `opencl:0@1`.
//!
//! ```text
//!   owner's queue ──▶ fence ──▶ our view ──▶ our work ──▶ hand_to(owner's queue) ──▶ owner's work
//! ```
//!
//! # The owner's side
//!
//! * onebuf holds one reference to each object while it uses it, and gives up exactly that one: for memory that
//!   another device saw in place, when that device's driver has let go of it, which may be a moment later.
//! * What the *owner* has enqueued is the caller's to tell: [`WrapBuilder::after`],
//!   [`Buffer::written_until`](crate::Buffer::written_until), [`Queue::wait_for`](crate::Queue::wait_for).
//! * What *onebuf* has enqueued is over, and the memory unmapped and up to date, when the last handle of
//!   a wrapped buffer has been dropped. [`Buffer::hand_to`](crate::Buffer::hand_to) orders the owner's queue
//!   behind it instead; then dropping waits for nothing.
//!
//! # Safety
//! Handles are the caller's promise. Null is told, and what else the driver can tell of a wrong handle.

#![allow(unsafe_code)]

mod base_device;
mod context;
mod event;
mod gl;
mod info;
mod other;
mod owner;
mod registry;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod vulkan;
mod wrap;

pub(crate) use crate::backend::opencl::foreign::retain_memory;
pub use context::ForeignContext;
pub(crate) use context::{ForeignDevices, Known, Registration};
pub use event::{ClEventHandle, UserEvent};
pub use gl::{ForeignGl, ForeignGlBufferInfo, GlQueue, Here};
pub use info::{ForeignBufferInfo, ForeignContextInfo, ForeignQueueInfo, Placement};
pub(crate) use other::Others;
pub use owner::Borrowed;
pub use vulkan::{ForeignVulkan, VulkanBuffer, VulkanHandles, VulkanMemory};
pub use wrap::WrapBuilder;
