//! Foreign objects of each API: the backend queries and retains them, and the core makes buffers and queues of them.
//!
//! # Safety
//! The caller guarantees that handles are valid. Null is refused, as is any wrong handle that the driver detects.

#![allow(unsafe_code)]

mod context;
mod cuda;
mod event;
mod gl;
mod info;
mod memory;
mod opencl;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod vulkan;

pub use context::ForeignContext;
pub use cuda::{CudaHubExt, ForeignPointerInfo, PointerKind};
pub use event::{ClEventHandle, OpenClFenceExt, UserEvent};
pub use gl::{ForeignGl, ForeignGlBufferInfo, GlHubExt, GlQueue, Here};
pub use info::{ForeignBufferInfo, ForeignContextInfo, ForeignQueueInfo, Placement};
pub use opencl::OpenClHubExt;
pub use vulkan::{
    ForeignVulkan, VulkanBuffer, VulkanFenceExt, VulkanHandles, VulkanHubExt, VulkanMemory,
    VulkanPoint, VulkanPointHandle, VulkanSharedQueue, VulkanSubmission,
};
