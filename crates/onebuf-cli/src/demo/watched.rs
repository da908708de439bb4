//! Being watched: everything recorded in a trace, and the pipeline seen by `onebuf top`.

use crate::{
    out::{Failure, Result},
    top,
};
use onebuf::{
    Hub, HubBuilder,
    live::Published,
    pipeline::Handle,
    trace::{HubBuilderTraceExt, HubTraceExt},
};
use std::path::Path;

/// Events that are kept: a few hundred bytes each.
const EVENTS: usize = 1 << 18;

pub struct Watched<'w> {
    published: Option<Published>,
    trace: Option<&'w Path>,
    hub: &'w Hub,
}

impl<'w> Watched<'w> {
    /// A hub that records, where a trace is wanted.
    pub fn recording(builder: HubBuilder, trace: Option<&Path>) -> HubBuilder {
        match trace {
            Some(_) => builder.trace(EVENTS).trace_devices(),
            None => builder,
        }
    }

    pub fn open(hub: &'w Hub, trace: Option<&'w Path>) -> Self {
        Self { published: top::publish(hub, "demo"), trace, hub }
    }

    pub fn pipeline(&self, handle: Handle) {
        if let Some(published) = &self.published {
            published.pipeline("demo", handle);
        }
    }

    /// Writes the trace that was wanted.
    pub fn save(&self) -> Result<()> {
        let Some((trace, path)) = self.hub.trace().zip(self.trace) else { return Ok(()) };
        let saved = trace.save(path);
        saved.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    }
}
