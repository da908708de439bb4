//! The traits that add methods to [`Hub`](onebuf_core::Hub), [`Device`](onebuf_core::Device), [`Program`](onebuf_core::Program)
//! and [`Fence`](onebuf_core::Fence), for `use onebuf::prelude::*`.

pub use crate::{
    foreign::{CudaHubExt, GlHubExt, OpenClFenceExt, OpenClHubExt, VulkanFenceExt, VulkanHubExt},
    typed::{DeviceKernelExt, ProgramKernelExt},
};
pub use onebuf_libs::HubBuilderLibs;
pub use onebuf_observe::{
    live::HubLiveExt,
    trace::{HubBuilderTraceExt, HubTraceExt},
};
