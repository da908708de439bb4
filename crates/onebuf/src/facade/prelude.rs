//! The traits that add methods to [`Hub`](crate::Hub) and [`Fence`](crate::Fence), for `use onebuf::prelude::*`.

pub use super::foreign::{GlHubExt, OpenClFenceExt, OpenClHubExt, VulkanHubExt};
pub use crate::{
    libs::HubBuilderLibs,
    live::HubLiveExt,
    trace::{HubBuilderTraceExt, HubTraceExt},
};
