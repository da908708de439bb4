//! Observation: a trace of everything, and the pipeline in `onebuf top`.

use crate::{
    out::{self, Failure, Result},
    top,
};
use onebuf::{
    Hub, HubBuilder,
    live::Published,
    pipeline::Handle,
    trace::{HubBuilderTraceExt, HubTraceExt},
};
use onebuf_mpi::{LiveRanks, World};
use std::path::Path;

/// Number of events that are kept, at a few hundred bytes each.
const EVENTS: usize = 1 << 18;

pub struct Watched<'w> {
    published: Option<Published>,
    trace: Option<&'w Path>,
    hub: &'w Hub,
}

impl<'w> Watched<'w> {
    /// A hub that records, if a trace is requested.
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

    /// Shows all ranks of a job in the live view of rank 0. All ranks call it.
    pub fn ranks(&self, world: &World) -> Option<LiveRanks> {
        let shown = LiveRanks::open(world, self.published.as_ref());
        shown
            .inspect_err(|error| out::warn(format!("`onebuf top` shows this rank alone: {error}")))
            .ok()
    }

    /// Writes the requested trace.
    pub fn save(&self) -> Result<()> {
        let Some((trace, path)) = self.hub.trace().zip(self.trace) else { return Ok(()) };
        let saved = trace.save(path);
        saved.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    }
}
