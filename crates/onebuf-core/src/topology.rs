//! The immutable graph of devices and of the routes between them, with a verdict for each route.

use onebuf_hal::{DeviceInfo, MemoryKind, RouteKind, SyncMethod};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The index of a device in its hub's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIx(pub u16);

impl DeviceIx {
    /// The host, which is the first device of every hub.
    #[doc(hidden)]
    pub const HOST: DeviceIx = DeviceIx(0);

    /// The index as `usize`.
    pub fn get(self) -> usize {
        self.0.into()
    }
}

/// The state of a route's verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictState {
    /// An experiment on this machine has shown that it works.
    Proven,
    /// The drivers declare it.
    #[default]
    Declared,
    /// An experiment has shown that it does not work.
    Refuted,
}

/// The sizes for which a verdict was obtained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Smallest size tried.
    pub min_bytes: u64,
    /// Largest size tried.
    pub max_bytes: u64,
    /// Every size tried.
    pub sizes: Vec<u64>,
}

impl Envelope {
    /// Whether a size lies between the smallest and the largest tried.
    pub fn covers(&self, bytes: u64) -> bool {
        (self.min_bytes..=self.max_bytes).contains(&bytes)
    }
}

/// What is known about a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Proven, declared or refuted.
    pub state: VerdictState,
    /// Whether a hand-over makes no copy; `None` if it was not measured.
    pub zero_copy: Option<bool>,
    /// The reason, in a sentence.
    pub why: String,
    /// The best sync method that joins the two devices' queues over this route.
    pub sync: Option<SyncMethod>,
    /// Duration of one hand-over, in microseconds.
    pub handoff_us: Option<f64>,
    /// The receiving device's bandwidth through the route, or that of the copy.
    pub gb_per_s: Option<f64>,
    /// The sizes for which this verdict holds.
    pub envelope: Option<Envelope>,
}

impl Verdict {
    /// Whether an experiment has shown that buffers of this size work.
    pub fn proven_for(&self, bytes: u64) -> bool {
        self.state == VerdictState::Proven && self.envelope.as_ref().is_none_or(|e| e.covers(bytes))
    }
}

/// One way in which `to` accesses memory that is allocated on `from`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The device of the memory.
    pub from: DeviceIx,
    /// The device that accesses it.
    pub to: DeviceIx,
    /// The kind of route.
    pub kind: RouteKind,
    /// The memory kind that it requires on `from`; any if `None`.
    pub memory_kind: Option<MemoryKind>,
    /// What it requires, as text.
    pub needs: String,
    /// Whether the API's contract guarantees that it works, without an experiment.
    pub guaranteed: bool,
    /// Estimated cost of one hand-over if it was not measured; smaller is better.
    pub cost: u32,
    /// The verdict.
    pub verdict: Verdict,
}

/// A device of the topology.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its id, such as `opencl:0`.
    pub id: String,
    /// Its description.
    pub info: DeviceInfo,
}

/// Devices and routes. Immutable once built.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    nodes: Vec<Node>,
    routes: Vec<Route>,
    /// The start of each ordered pair's routes in `routes`, row by row, followed by the end of the last.
    starts: Vec<u32>,
}

impl Topology {
    /// Builds a topology. Sorts the routes by pair, best kind first.
    ///
    /// # Panics
    /// If a route names a device that is not in `nodes`.
    pub fn new(nodes: Vec<Node>, mut routes: Vec<Route>) -> Self {
        let n = nodes.len();
        let pair = |r: &Route| {
            assert!(
                r.from.get() < n && r.to.get() < n,
                "a route between devices that are not there"
            );
            r.from.get() * n + r.to.get()
        };
        routes.sort_by_key(|r| (pair(r), r.kind));
        let mut starts = vec![0; n * n + 1];
        for route in &routes {
            starts[pair(route) + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        Self { nodes, routes, starts }
    }

    /// The ids of all devices, and all routes with their verdicts: `{"schema":2,"devices":["host",…],
    /// "routes":[{"from","to","kind","guaranteed","state","zero_copy","why",…}]}`.
    pub fn to_json(&self) -> Value {
        let id = |device| self.node(device).id.as_str();
        let route = |route: &Route| {
            let mut row = json!({
                "from": id(route.from), "to": id(route.to), "kind": route.kind,
                "guaranteed": route.guaranteed,
            });
            let verdict = serde_json::to_value(&route.verdict).unwrap_or_default();
            if let (Some(row), Value::Object(verdict)) = (row.as_object_mut(), verdict) {
                row.extend(verdict);
            }
            row
        };
        let devices: Vec<&str> = self.nodes.iter().map(|node| node.id.as_str()).collect();
        let routes: Vec<Value> = self.routes.iter().map(route).collect();
        json!({ "schema": 2, "devices": devices, "routes": routes })
    }

    /// The devices.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One device.
    ///
    /// # Panics
    /// If the index belongs to another topology.
    pub fn node(&self, device: DeviceIx) -> &Node {
        &self.nodes[device.get()]
    }

    /// Every device's index.
    pub fn indices(&self) -> impl Iterator<Item = DeviceIx> + use<> {
        (0..self.nodes.len() as u16).map(DeviceIx)
    }

    /// Every route, by pair, best kind first.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The routes of one ordered pair, best kind first.
    pub fn between(&self, from: DeviceIx, to: DeviceIx) -> &[Route] {
        let n = self.nodes.len();
        if from.get() >= n || to.get() >= n {
            return &[];
        }
        let pair = from.get() * n + to.get();
        &self.routes[self.starts[pair] as usize..self.starts[pair + 1] as usize]
    }

    /// Whether an experiment has shown that a method joins the queues of two devices, whichever of them had the memory. Its
    /// winner was that method, or a better one that also needs proof, since the doctor times it beside the others. A guaranteed
    /// method as the winner proves nothing about others.
    pub fn proves(&self, [a, b]: [DeviceIx; 2], method: SyncMethod) -> bool {
        let seen = |route: &Route| {
            let Verdict { state, sync, .. } = &route.verdict;
            let won_by = sync.filter(|won_by| !won_by.is_guaranteed());
            *state == VerdictState::Proven && won_by.is_some_and(|won_by| won_by <= method)
        };
        self.between(a, b).iter().chain(self.between(b, a)).any(seen)
    }
}
