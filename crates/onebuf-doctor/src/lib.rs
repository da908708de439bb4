//! The doctor proves each route by experiment and caches the verdict.
//!
//! Drivers declare what they support; the doctor tests it. Each route is tried in its own process, so that a driver which
//! crashes, hangs or corrupts memory refutes that route and harms nothing else. See [`Doctor::run`]. A program that acts as
//! its own helper calls [`helper_main`] at the start of `main`.

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
pub use graft::GraftVerdict;
pub use helper::{HELPER_COMMAND, helper_main};
pub use onebuf_core::{Verdicts, identity::EXPERIMENT_VERSION};

use onebuf_core::{
    Device, Hub,
    internals::GRAFT,
    route,
    topology::{Node, Route, Verdict},
};
use onebuf_hal::{Error, Result, RouteKind};
use remembered::Remembered;
use serde_json::{Value, json};
use std::{path::PathBuf, time::Duration};

/// Runs experiments through a helper program and caches their verdicts.
#[derive(Clone, Debug)]
pub struct Doctor {
    program: PathBuf,
    /// `None` uses the user's cache directory.
    cache: Option<PathBuf>,
    fresh: bool,
    silence: Duration,
    reach: u64,
}

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct ExperimentProgress {
    /// Experiments completed.
    pub done: usize,
    /// Experiments in total.
    pub total: usize,
    /// The route in progress, as `from -> to kind`.
    pub route: String,
}

/// The results of a run: one row per ordered pair of devices and kind of route.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Device ids, in the topology's order.
    pub devices: Vec<String>,
    /// Routes with their verdicts.
    pub routes: Vec<Route>,
    /// How many experiments this run made. The other verdicts came from the cache.
    pub experiments: usize,
    /// All known verdicts, and problems with the cache.
    pub cached: Cached,
}

/// The results of [`Doctor::grafts`].
#[derive(Clone, Debug)]
pub struct Grafts {
    /// One result per pair of devices.
    pub found: Vec<GraftVerdict>,
    /// All known verdicts, and problems with the cache.
    pub cached: Cached,
}

/// All known verdicts, and problems with the cache. A cache that cannot be used does not stop a run.
#[derive(Clone, Debug, Default)]
pub struct Cached {
    /// All known verdicts, whether they could be saved or not: for [`onebuf_core::HubBuilder::verdicts`].
    pub verdicts: Verdicts,
    /// Why cached verdicts were not used.
    pub not_read: Option<Error>,
    /// Why new verdicts were not saved.
    pub not_saved: Option<Error>,
}

impl Doctor {
    /// Creates a doctor whose helper is `program`: the `onebuf` command, or a program that calls [`helper_main`].
    ///
    /// # Errors
    /// None at present. If there is no cache directory, [`Cached::not_saved`] has the reason.
    pub fn new(program: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self {
            program: program.into(),
            cache: None,
            fresh: false,
            silence: Duration::from_secs(10),
            reach: DEFAULT_REACH,
        })
    }

    /// Repeats every experiment, regardless of cached verdicts.
    pub fn fresh(mut self, fresh: bool) -> Self {
        self.fresh = fresh;
        self
    }

    /// Caches verdicts in this directory instead of the user's cache.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Sets how long a helper may be silent before its route counts as hung: 10 s by default. Time in which the helper was
    /// stopped or waited for a processor does not count; see the documentation of the doctor.
    pub fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }

    /// Touches every page of buffers up to this size, so that plans up to it can rely on the verdict. The default is
    /// [`DEFAULT_REACH`]. Cached verdicts for smaller sizes are replaced.
    pub fn reach(mut self, bytes: u64) -> Self {
        self.reach = bytes;
        self
    }

    /// Tries every route between different devices of the hub that has no verdict yet, and the routes between two contexts of
    /// one OpenCL device. The latter are rows `from` a device `to` itself; they say how a buffer of another context on that
    /// device can be shared.
    ///
    /// The hub itself does not change: discover a new one to plan with the results. A cache that cannot be read or written
    /// does not stop the run; see [`Cached`].
    ///
    /// # Errors
    /// If the helper cannot be started or sees other devices.
    pub fn run(
        &self,
        hub: &Hub,
        progress: &mut dyn FnMut(&ExperimentProgress),
    ) -> Result<Diagnosis> {
        self.run_where(hub, |_| true, progress)
    }

    /// Tries only the routes that `wanted` accepts. The report contains only those.
    pub fn run_where(
        &self,
        hub: &Hub,
        wanted: impl Fn(&Route) -> bool,
        progress: &mut dyn FnMut(&ExperimentProgress),
    ) -> Result<Diagnosis> {
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
            progress(&ExperimentProgress { done, total, route: name });
            route.verdict = match remembered.verdicts.find(from, to, route.kind) {
                Some(known) if self.reaches(from, to, &known) => known,

                _ => {
                    experiments += 1;
                    let helper = self.helper(hub.libraries());
                    let verdict = helper.run(from, to, route.kind)?;
                    remembered.note(from, to, route.kind, &verdict);
                    verdict
                }
            };
        }
        progress(&ExperimentProgress { done: total, total, route: String::new() });
        let devices = topology.nodes().iter().map(|n| n.id.clone()).collect();
        Ok(Diagnosis { devices, routes, experiments, cached: remembered.close() })
    }

    /// Tries whether OpenCL programs can be grafted onto the CUDA or HIP device of the same chip, unless a verdict is cached;
    /// see [`onebuf_core::Program::graft`]. Returns one result for each such pair that `wanted` accepts.
    ///
    /// # Errors
    /// If the helper cannot be started or sees other devices.
    pub fn grafts(
        &self,
        hub: &Hub,
        wanted: impl Fn(&Device, &Device) -> bool,
        progress: &mut dyn FnMut(&ExperimentProgress),
    ) -> Result<Grafts> {
        let mut remembered = Remembered::open(self);
        let mut pairs = graft::pairs(hub);
        pairs.retain(|[from, to]| wanted(from, to));
        let (total, mut found) = (pairs.len(), Vec::new());
        for (done, [from, to]) in pairs.into_iter().enumerate() {
            progress(&ExperimentProgress { done, total, route: format!("{from} -> {to} graft") });
            let [near, far] = [&from, &to].map(|device| hub.topology().node(device.index()));
            let verdict = match remembered.verdicts.find_graft(near, far) {
                Some(known) => known,
                None => {
                    let verdict = self.helper(hub.libraries()).run(near, far, GRAFT)?;
                    remembered.note_graft(near, far, &verdict);
                    verdict
                }
            };
            found.push(GraftVerdict { from: from.index(), to: to.index(), verdict });
        }
        Ok(Grafts { found, cached: remembered.close() })
    }

    /// Whether a verdict covers the requested size, or as much as the devices can allocate. A verdict below the default reach
    /// comes from a machine that lacked memory for more, and is accepted.
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

/// The routes between two contexts of the same device.
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

impl Diagnosis {
    /// The rows in the documented JSON format.
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
