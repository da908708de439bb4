//! Foreign objects of each API: the backend asks and holds them, core makes buffers and queues of them.
//!
//! # Safety
//! Handles are the caller's promise. Null is told, and what else the driver can tell of a wrong handle.

#![allow(unsafe_code)]

mod context;
mod event;
mod gl;
mod info;
mod memory;
mod opencl;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod vulkan;

pub use context::ForeignContext;
pub use event::{ClEventHandle, OpenClFenceExt, UserEvent};
pub use gl::{ForeignGl, ForeignGlBufferInfo, GlHubExt, GlQueue, Here};
pub use info::{ForeignBufferInfo, ForeignContextInfo, ForeignQueueInfo, Placement};
pub use opencl::OpenClHubExt;
pub use vulkan::{ForeignVulkan, VulkanBuffer, VulkanHandles, VulkanHubExt, VulkanMemory};
