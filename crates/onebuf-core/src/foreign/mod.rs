//! Foreign objects: registered, used and released.
//!
//! A library may receive a `cl_mem`, its `cl_context` and its `cl_command_queue` from code that it does not
//! control. `wrap_buffer` makes a [`Buffer`](crate::Buffer) of the memory and `wrap_queue` a [`Queue`](crate::Queue) of the
//! queue. Both register the context: its devices become devices of the hub with ids such as `opencl:0@1`. `GlHubExt` and
//! `VulkanHubExt` do the same for OpenGL and Vulkan. `use onebuf::prelude::*` imports all of them.
//!
//! ```text
//!   owner's queue ──▶ fence ──▶ our view ──▶ our work ──▶ hand_to(owner's queue) ──▶ owner's work
//! ```
//!
//! # The owner's side
//!
//! * onebuf holds one reference to each object while it uses it, and releases exactly that one. For memory that
//!   another device accessed in place, it does so when that device's driver has released the memory, possibly a moment later.
//! * The caller must declare the work that the *owner* has enqueued: [`WrapBuilder::after`],
//!   [`Buffer::written_until`](crate::Buffer::written_until), [`Queue::wait_for`](crate::Queue::wait_for).
//! * When the last handle of a wrapped buffer has been dropped, the work that *onebuf* has enqueued is complete, and the memory
//!   is unmapped and up to date. [`Buffer::hand_to`](crate::Buffer::hand_to) orders the owner's queue
//!   after that work instead; the drop then does not wait.
//!
//! # Safety
//! The caller guarantees that handles are valid. Null is refused, as is any wrong handle that the driver detects.

#![allow(unsafe_code)]

mod context;
mod native;
mod owner;
mod queue;
mod registry;
mod wrap;

pub(crate) use context::Loaded;
#[doc(hidden)]
pub use context::{ForeignDevices, Registration, Whose};
pub use native::NativeMemory;
pub use owner::Borrowed;
pub use wrap::WrapBuilder;
#[doc(hidden)]
pub use wrap::{Asked, ElementLayout, ForeignMemory, OnDevice, WrappedMemory};
