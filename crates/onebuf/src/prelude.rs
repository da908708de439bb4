//! Methods that capabilities add to the types of the core, for `use onebuf::prelude::*`.

pub use crate::{
    libs::HubBuilderLibs,
    live::HubLiveExt,
    trace::{HubBuilderTraceExt, HubTraceExt},
};
