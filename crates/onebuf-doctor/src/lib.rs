//! The doctor: proves each route by experiment, and remembers the verdict.
//!
//! Drivers say what they support; this finds out. Each route is tried in a process of its own, so that
//! a driver which crashes, hangs or corrupts refutes that route and harms nothing else. See
//! [`Doctor::run`]; a program that wants to be its own helper calls [`helper_main`] first thing.

#![deny(unsafe_code)]

/// Tests of parsers measure what they allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;

mod cost;
mod experiment;
mod graft;
mod helper;
mod patience;
mod remembered;
mod subject;

pub use experiment::{DEFAULT_REACH, SIZES};
pub use graft::Graft;
pub use helper::{HELPER_COMMAND, helper_main};
pub use onebuf_core::{Verdicts, identity::EXPERIMENT_VERSION};

use onebuf_core::{
    Device, Hub,
    internals::GRAFT,
    route,
    topology::{Node, Route, State, Verdict},
};
use onebuf_hal::{Error, Result, RouteKind};
use remembered::Remembered;
use serde_json::{Value, json};
use std::{path::PathBuf, time::Duration};

/// Runs experiments through a helper program, and keeps their verdicts.
#[derive(Clone, Debug)]
pub struct Doctor {
    program: PathBuf,
    /// The user's cache folder where none was named.
    cache: Option<PathBuf>,
    fresh: bool,
    silence: Duration,
    reach: u64,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Experiments done.
    pub done: usize,
    /// Experiments there are.
    pub total: usize,
    /// The route that is being tried, as `from -> to kind`.
    pub route: String,
}

/// What a run found: one row per ordered pair of devices and kind of route.
#[derive(Clone, Debug)]
pub struct Report {
    /// Device ids, in the topology's order.
    pub devices: Vec<String>,
    /// Routes with their verdicts.
    pub routes: Vec<Route>,
    /// How many experiments were made now; the other verdicts were remembered.
    pub experiments: usize,
    /// What is known beyond this run, and what was wrong with the cache.
    pub cached: Cached,
}

/// What [`Doctor::grafts`] found.
#[derive(Clone, Debug)]
pub struct Grafts {
    /// One for each pair of devices.
    pub found: Vec<Graft>,
    /// What is known beyond this run, and what was wrong with the cache.
    pub cached: Cached,
}

/// What a run knows, and whether the next one will. A cache that cannot be used stops no run.
#[derive(Clone, Debug, Default)]
pub struct Cached {
    /// Everything that is known now, whether it could be saved or not: for [`onebuf_core::HubBuilder::verdicts`].
    pub verdicts: Verdicts,
    /// Why remembered verdicts were not used.
    pub not_read: Option<Error>,
    /// Why what was found now is not remembered.
    pub not_saved: Option<Error>,
}

impl Doctor {
    /// A doctor whose helper is `program`: the `onebuf` command, or one that calls [`helper_main`].
    ///
    /// # Errors
    /// None today: a machine without a cache folder is told of in [`Cached::not_saved`].
    pub fn new(program: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self {
            program: program.into(),
            cache: None,
            fresh: false,
            silence: Duration::from_secs(10),
            reach: DEFAULT_REACH,
        })
    }

    /// Makes every experiment again, whatever is remembered.
    pub fn fresh(mut self, fresh: bool) -> Self {
        self.fresh = fresh;
        self
    }

    /// Keeps verdicts in this folder instead of the user's cache.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// How long a helper may say nothing before its route counts as hung; 10 s otherwise. Time in which the
    /// helper was stopped or had to wait for the processor does not count: see the page on the doctor.
    pub fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }

    /// Touches every page of buffers up to this size, so that plans up to it can rest on the verdict;
    /// [`DEFAULT_REACH`] otherwise. Verdicts that reach less far are made again.
    pub fn reach(mut self, bytes: u64) -> Self {
        self.reach = bytes;
        self
    }

    /// Tries every route between different devices of the hub that has no verdict yet, and those between
    /// two contexts of one OpenCL device: rows `from` a device `to` itself, which say by what way a buffer of
    /// somebody else's context on it can be shared.
    ///
    /// The hub itself is immutable: discover a new one to plan with what was found. A cache that cannot be read or
    /// written stops nothing: [`Cached`] tells.
    ///
    /// # Errors
    /// Of a helper that cannot be started, or sees other devices.
    pub fn run(&self, hub: &Hub, progress: &mut dyn FnMut(&Progress)) -> Result<Report> {
        self.run_where(hub, |_| true, progress)
    }

    /// Tries only the routes that `wanted` accepts; the report holds only those.
    pub fn run_where(
        &self,
        hub: &Hub,
        wanted: impl Fn(&Route) -> bool,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Report> {
        let topology = hub.topology();
        let mut remembered = Remembered::open(self);
        let found = hub.devices().len();
        let of_hub = |r: &&Route| r.from != r.to && r.from.get().max(r.to.get()) < found;
        let apart = topology.routes().iter().filter(of_hub).cloned();
        let mut routes: Vec<Route> = apart.chain(between_contexts(hub)).filter(wanted).collect();
        let total = routes.len();
        let mut experiments = 0;
        for (done, route) in routes.iter_mut().enumerate() {
            let (from, to) = (topology.node(route.from), topology.node(route.to));
            let name = format!("{} -> {} {}", from.id, to.id, route.kind);
            progress(&Progress { done, total, route: name });
            route.verdict = match remembered.verdicts.find(from, to, route.kind) {
                Some(known) if self.reaches(from, to, &known) => known,

                _ => {
                    experiments += 1;
                    let helper = self.helper(hub.libraries());
                    let verdict = helper.run(from, to, route.kind)?;
                    if verdict.state != State::Declared {
                        remembered.verdicts.insert(from, to, route.kind, verdict.clone());
                        remembered.save();
                    }
                    verdict
                }
            };
        }
        progress(&Progress { done: total, total, route: String::new() });
        let devices = topology.nodes().iter().map(|n| n.id.clone()).collect();
        Ok(Report { devices, routes, experiments, cached: remembered.close() })
    }

    /// Tries, where it is not known yet, whether programs of OpenCL's can be grafted on CUDA's or HIP's device of the same
    /// chip; see [`onebuf_core::Program::graft`]. One for each such pair of devices that `wanted` accepts.
    ///
    /// # Errors
    /// Of a helper that cannot be started, or sees other devices.
    pub fn grafts(
        &self,
        hub: &Hub,
        wanted: impl Fn(&Device, &Device) -> bool,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Grafts> {
        let mut remembered = Remembered::open(self);
        let mut pairs = graft::pairs(hub);
        pairs.retain(|[from, to]| wanted(from, to));
        let (total, mut found) = (pairs.len(), Vec::new());
        for (done, [from, to]) in pairs.into_iter().enumerate() {
            progress(&Progress { done, total, route: format!("{from} -> {to} graft") });
            let [near, far] = [&from, &to].map(|device| hub.topology().node(device.index()));
            let verdict = match remembered.verdicts.find_graft(near, far) {
                Some(known) => known,
                None => {
                    let verdict = self.helper(hub.libraries()).run(near, far, GRAFT)?;
                    if verdict.state != State::Declared {
                        remembered.verdicts.insert_graft(near, far, verdict.clone());
                        remembered.save();
                    }
                    verdict
                }
            };
            found.push(Graft { from: from.index(), to: to.index(), verdict });
        }
        Ok(Grafts { found, cached: remembered.close() })
    }

    /// Whether a verdict speaks of sizes as large as asked for, or as large as the devices can. One that
    /// reaches less far than the default met a machine without memory for more.
    fn reaches(&self, from: &Node, to: &Node, known: &Verdict) -> bool {
        let limit = from.info.caps.max_alloc_bytes.min(to.info.caps.max_alloc_bytes);
        let far = |max_bytes: u64| max_bytes >= self.reach.min(limit) / 4096 * 4096;
        self.reach <= DEFAULT_REACH || known.envelope.as_ref().is_none_or(|e| far(e.max_bytes))
    }

    fn helper<'d>(&'d self, libraries: &'d [(&'static str, String)]) -> helper::Helper<'d> {
        let Self { program, silence, reach, .. } = self;
        helper::Helper { program, silence: *silence, reach: *reach, libraries }
    }
}

/// How memory of one context can be seen in another one of the same device.
fn between_contexts(hub: &Hub) -> Vec<Route> {
    let devices = hub.select("opencl");
    let pair = |device: &Device| {
        let node = hub.topology().node(device.index());
        let routes = route::candidates(&[node.clone(), node.clone()]).into_iter();
        let ix = device.index();
        routes
            .filter(|r| (r.from.get(), r.to.get()) == (0, 1) && r.kind != RouteKind::Staged)
            .map(move |r| Route { from: ix, to: ix, ..r })
            .collect::<Vec<_>>()
    };
    devices.iter().flat_map(pair).collect()
}

impl Report {
    /// The rows as the JSON contract has them.
    pub fn to_json(&self) -> Value {
        self.routes.iter().map(|route| self.row(route)).collect()
    }

    fn row(&self, route: &Route) -> Value {
        let verdict = &route.verdict;
        json!({
            "from": self.devices[route.from.get()],
            "to": self.devices[route.to.get()],
            "kind": route.kind,
            "state": verdict.state,
            "zero_copy": verdict.zero_copy,
            "why": verdict.why,
            "sync": verdict.sync,
            "handoff_us": verdict.handoff_us,
            "gb_per_s": verdict.gb_per_s,
            "envelope": verdict.envelope,
        })
    }
}
