//! The immutable graph over devices: which routes there are, and what is known of each.

use onebuf_hal::{DeviceInfo, MemoryKind, RouteKind, SyncMethod};
use serde::{Deserialize, Serialize};

/// A device's place in its hub's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIx(pub u16);

impl DeviceIx {
    /// The host is the first of every hub's devices.
    #[doc(hidden)]
    pub const HOST: DeviceIx = DeviceIx(0);

    /// As an index.
    pub fn get(self) -> usize {
        self.0.into()
    }
}

/// What is known of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// An experiment on this machine has shown that it works.
    Proven,
    /// The drivers say that they have it.
    #[default]
    Declared,
    /// An experiment has shown that it does not work.
    Refuted,
}

/// For which buffers a verdict speaks.
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

/// What experiments, or the lack of them, say of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Proven, declared or refuted.
    pub state: State,
    /// Whether handing over copies nothing; `None` when it was not measured.
    pub zero_copy: Option<bool>,
    /// The reason, in a sentence.
    pub why: String,
    /// The best sync method that joins the two devices' queues over this route.
    pub sync: Option<SyncMethod>,
    /// One hand-over, in microseconds.
    pub handoff_us: Option<f64>,
    /// What the receiving device reads and writes through the route, or what the copy moves.
    pub gb_per_s: Option<f64>,
    /// For which sizes this holds.
    pub envelope: Option<Envelope>,
}

impl Verdict {
    /// Whether an experiment has shown that buffers of this size work.
    pub fn proven_for(&self, bytes: u64) -> bool {
        self.state == State::Proven && self.envelope.as_ref().is_none_or(|e| e.covers(bytes))
    }
}

/// One way in which memory that lives on `from` is seen on `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Where the memory lives.
    pub from: DeviceIx,
    /// Who sees it.
    pub to: DeviceIx,
    /// How.
    pub kind: RouteKind,
    /// The form the memory must have on `from`; any when `None`.
    pub memory_kind: Option<MemoryKind>,
    /// What has to be there for it to work, in words.
    pub needs: String,
    /// Whether the API's contract guarantees that data arrives, experiment or not.
    pub guaranteed: bool,
    /// Relative cost of one hand-over where nothing was measured; smaller is better.
    pub cost: u32,
    /// What is known.
    pub verdict: Verdict,
}

/// A device as the planner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its id, such as `opencl:0`.
    pub id: String,
    /// What it is.
    pub info: DeviceInfo,
}

/// Devices and routes. Built once, never changed.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    nodes: Vec<Node>,
    routes: Vec<Route>,
    /// Start of each ordered pair's routes in `routes`, row by row, and the end of the last.
    starts: Vec<u32>,
}

impl Topology {
    /// Sorts the routes by pair, best kind first.
    ///
    /// # Panics
    /// When a route names a device that is not there: routes are made from the same list.
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

    /// The devices.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One device.
    ///
    /// # Panics
    /// When the index is of another topology.
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

    /// Whether an experiment has seen a method join the queues of two devices, whichever the memory was on: one that was won by
    /// that method, or by a better one that needs proof too, which was timed beside the others. Methods that an API guarantees
    /// prove nothing of others.
    pub fn proves(&self, [a, b]: [DeviceIx; 2], method: SyncMethod) -> bool {
        let seen = |route: &Route| {
            let Verdict { state, sync, .. } = &route.verdict;
            let won_by = sync.filter(|won_by| !won_by.is_guaranteed());
            *state == State::Proven && won_by.is_some_and(|won_by| won_by <= method)
        };
        self.between(a, b).iter().chain(self.between(b, a)).any(seen)
    }
}
