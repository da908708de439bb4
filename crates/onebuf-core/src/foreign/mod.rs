//! Objects that somebody else made: registered, used, given back.
//!
//! A library is handed a `cl_mem`, its `cl_context` and its `cl_command_queue` by code that it does not
//! control. `wrap_buffer` makes the first a [`Buffer`](crate::Buffer) like any other,
//! `wrap_queue` the last a [`Queue`](crate::Queue); the context is registered on the way, and its
//! devices become devices of the hub with ids such as `opencl:0@1`. `GlHubExt` and `VulkanHubExt`
//! do so for OpenGL and Vulkan. `use onebuf::prelude::*` brings all of them.
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

mod context;
mod owner;
mod queue;
mod registry;
mod wrap;

pub(crate) use context::Loaded;
#[doc(hidden)]
pub use context::{ForeignDevices, Registration, Whose};
pub use owner::Borrowed;
pub use wrap::WrapBuilder;
#[doc(hidden)]
pub use wrap::{Asked, ElementLayout, ForeignMemory, WrappedMemory};
