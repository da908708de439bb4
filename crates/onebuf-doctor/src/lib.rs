//! The doctor proves each route by experiment and caches the verdict.
//!
//! Drivers declare what they support; the doctor tests it. Routes are tried in helper processes, so that a driver which
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
mod large;
mod life;
mod patience;
mod progress;
mod reach;
mod remembered;
mod request;
mod schedule;
mod session;
mod subject;

pub use experiment::SIZES;
pub use graft::GraftVerdict;
pub use helper::{HELPER_COMMAND, helper_main};
pub use large::{LARGE_SIZES, LargeVerdict, check_large};
pub use onebuf_core::{Verdicts, identity::EXPERIMENT_VERSION};
pub use progress::ExperimentProgress;
pub use reach::DEFAULT_REACH;

use onebuf_core::{
    Device, Hub, route,
    topology::{Node, Route, Verdict, VerdictState},
};
use onebuf_hal::{Error, Result, RouteKind};
use progress::Meter;
use remembered::Remembered;
use request::What;
use schedule::{Schedule, Stage, Task};
use serde_json::{Value, json};
use session::Helper;
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
        let nodes = |route: &Route| [topology.node(route.from), topology.node(route.to)];
        let mut meter = Meter::new(routes.len(), progress);
        let mut unknown = Vec::new();
        for (index, route) in routes.iter_mut().enumerate() {
            let [from, to] = nodes(route);
            meter.begins(from, to, route.kind);
            match remembered.verdicts.find(from, to, route.kind) {
                Some(known) if self.reaches(from, to, &known) => {
                    route.verdict = known;
                    meter.knows();
                }
                _ => unknown.push(index),
            }
        }
        let task = |index: &usize| {
            let (route, [from, to]) = (&routes[*index], nodes(&routes[*index]));
            Task { from, to, kind: route.kind }
        };
        let tasks: Vec<Task<'_>> = unknown.iter().map(task).collect();
        let schedule = Schedule::new(self.helper(hub.libraries()), self.reach, hub.topology());
        meter.tries(tasks.len());
        let mut verdicts = Vec::new();
        schedule.run(&tasks, &mut |step| match step {
            Stage::Begins(task) => meter.begins(tasks[task].from, tasks[task].to, tasks[task].kind),
            Stage::Shares => meter.shares(),
            Stage::Ends(task, verdict) => {
                let Task { from, to, kind } = tasks[task];
                remembered.note(from, to, kind, &verdict);
                verdicts.push((unknown[task], verdict));
                meter.ends();
            }
        })?;
        meter.close();
        let experiments = tasks.len();
        for (index, verdict) in verdicts {
            routes[index].verdict = verdict;
        }
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
            let route = format!("{from} -> {to} graft");
            progress(&ExperimentProgress { done, total, route, left: None });
            let [near, far] = [&from, &to].map(|device| hub.topology().node(device.index()));
            let verdict = match remembered.verdicts.find_graft(near, far) {
                Some(known) => known,
                None => {
                    let verdict = self.graft(hub, near, far)?;
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

    /// Computes and checks every element of large buffers, each on one device that `wanted` accepts: of those of
    /// [`LARGE_SIZES`] that the doctor [reaches](Self::reach). Nothing of it is cached. A size for which there is not enough
    /// memory stays declared.
    ///
    /// # Errors
    /// If the helper cannot be started or sees other devices.
    pub fn large(
        &self,
        hub: &Hub,
        wanted: impl Fn(&Device) -> bool,
        progress: &mut dyn FnMut(&ExperimentProgress),
    ) -> Result<Vec<LargeVerdict>> {
        let devices = hub.devices().into_iter().filter(wanted);
        let sizes = large::sizes_within(self.reach);
        let all: Vec<(Device, u64)> = devices
            .flat_map(|device| sizes.iter().map(move |bytes| (device.clone(), *bytes)))
            .collect();
        // One kernel computes all elements, which on a processor takes seconds.
        let helper = self.helper(hub.libraries());
        let helper = Helper { silence: helper.silence * large::PATIENCE, ..helper };
        let (mut kept, mut found) = (None, Vec::new());
        for (done, (device, bytes)) in all.iter().enumerate() {
            let route = format!("{device} with {bytes} bytes");
            progress(&ExperimentProgress { done, total: all.len(), route, left: None });
            let node = hub.topology().node(device.index());
            let verdict = match large::too_large(device, *bytes, schedule::available()) {
                Some(why) => Verdict { why, ..Verdict::default() },
                None => helper.tried(&mut kept, node, node, What::Large(*bytes))?,
            };
            found.push(LargeVerdict { device: device.index(), bytes: *bytes, verdict });
        }
        Ok(found)
    }

    /// Tries one pair in a fresh helper. A failure must happen twice. A device that fails by itself runs no other API's kernels.
    fn graft(&self, hub: &Hub, from: &Node, to: &Node) -> Result<Verdict> {
        let helper = self.helper(hub.libraries());
        if let Some(broken) = helper.broken(to)? {
            return Ok(broken);
        }
        let first = helper.run(from, to, What::Graft)?;
        match first.state {
            VerdictState::Proven => Ok(first),
            _ => helper.run(from, to, What::Graft),
        }
    }

    fn helper<'d>(&'d self, libraries: &'d [(&'static str, String)]) -> Helper<'d> {
        let Self { program, silence, .. } = self;
        Helper { program, silence: *silence, libraries, apis: Vec::new() }
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
