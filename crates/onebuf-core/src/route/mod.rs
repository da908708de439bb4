//! The possible routes between devices, derived from the devices' capabilities.
//!
//! Nothing is tested here. A candidate starts as declared, with what the APIs' contracts guarantee; experiments replace that by
//! a verdict.

mod address;
mod by_many;
pub(crate) mod copy_pool;
mod feed;
pub(crate) mod means;
pub(crate) mod ring;
pub(crate) mod staged;
pub(crate) mod staging_pool;
mod streaming;
mod tuning;

pub(crate) use address::by_address;
pub use tuning::CopyTuning;

use crate::topology::{DeviceIx, Node, Route, Topology, Verdict};
use onebuf_hal::{Api, DeviceInfo, DeviceKind, FdKind, MemoryKind, RouteKind};

/// Whether the device is the host itself: plain CPU code without a driver.
pub fn is_host(info: &DeviceInfo) -> bool {
    info.api == Api("host")
}

/// Whether a hand-over copies, if the contract alone determines it.
///
/// Memory on one device stays in place; host and device use fine-grained SVM at one
/// address; a descriptor is the memory itself. Staging copies, and so does migrating pages. For every other route the
/// APIs leave it to the driver.
pub fn zero_copy_by_contract(route: &Route) -> Option<bool> {
    match (route.kind, route.memory_kind) {
        (RouteKind::Same, _) => Some(true),
        (RouteKind::OpaqueFd | RouteKind::DmaBuf, _) if route.guaranteed => Some(true),
        (RouteKind::Staged, _) | (_, Some(MemoryKind::Managed)) => Some(false),
        (RouteKind::SvmPointer, Some(MemoryKind::FineSvm)) if route.guaranteed => Some(true),
        _ => None,
    }
}

/// Whether a route accepts memory of that kind. A peer can access both kinds that a device allocates for itself.
pub fn serves(route: &Route, memory_kind: MemoryKind) -> bool {
    match (route.kind, route.memory_kind) {
        (RouteKind::Peer, None) => {
            matches!(memory_kind, MemoryKind::Device | MemoryKind::Exportable)
        }
        (_, only) => only.is_none_or(|only| only == memory_kind),
    }
}

/// Whether kernels of `b` can access memory of `a` in place, according to the capabilities of `b`.
fn reaches(a: &DeviceInfo, b: &DeviceInfo) -> bool {
    a.api == b.api && b.caps.peers.iter().any(|chip| chip.same_chip(&a.physical))
}

/// Whether these are two GPUs of one API of which the second cannot access the first's memory.
pub fn are_apart(a: &DeviceInfo, b: &DeviceInfo) -> bool {
    let gpus = [a, b].iter().all(|info| info.kind == DeviceKind::Gpu);
    gpus && a.api == b.api && !a.physical.same_chip(&b.physical) && !reaches(a, b)
}

impl Topology {
    /// Creates a topology of all routes that the devices' capabilities allow, untested.
    pub fn declared(nodes: Vec<Node>) -> Self {
        let routes = candidates(&nodes);
        Self::new(nodes, routes)
    }
}

/// Every candidate route, at most one for each ordered pair and kind.
pub fn candidates(nodes: &[Node]) -> Vec<Route> {
    let ends = || nodes.iter().enumerate().map(|(i, n)| (DeviceIx(i as u16), &n.info));
    ends().flat_map(|a| ends().flat_map(move |b| RouteEnds { a, b }.routes())).collect()
}

/// Replaces declared verdicts by those that `lookup` has from experiments.
pub fn with_verdicts(routes: Vec<Route>, lookup: impl Fn(&Route) -> Option<Verdict>) -> Vec<Route> {
    let judged = |route: Route| match lookup(&route) {
        Some(verdict) => Route { verdict, ..route },
        None => route,
    };
    routes.into_iter().map(judged).collect()
}

/// The device that has the memory, and the device that accesses it.
struct RouteEnds<'n> {
    a: (DeviceIx, &'n DeviceInfo),
    b: (DeviceIx, &'n DeviceInfo),
}

impl RouteEnds<'_> {
    fn routes(&self) -> Vec<Route> {
        if self.a.0 == self.b.0 {
            return vec![self.same()];
        }
        let shared = self.host_pointer().into_iter().chain(self.svm_pointer()).chain(self.by_fd());
        let shared = shared.chain(self.raw_address()).chain(self.by_dma_buf());
        let shared = shared.chain(self.by_sharing_call());
        shared.chain(self.peer()).chain([self.staged()]).collect()
    }

    fn same(&self) -> Route {
        self.promised(RouteKind::Same, None, 0, "nothing", "one device")
    }

    /// The host gets mapped memory if there is a choice: mapping is a contract between one API and the host, and the host can
    /// allocate plain pages itself.
    fn host_pointer(&self) -> Option<Route> {
        let (pages, mapped) = (MemoryKind::HostPages, MemoryKind::MappedDevice);
        if self.to_host() && self.offers(mapped) {
            return Some(self.mapped_for_host());
        }
        let memory_kind =
            [pages, mapped].into_iter().find(|&memory_kind| self.offers(memory_kind))?;
        let why = "two APIs over one host pointer is undefined by the specifications";
        self.imports().then(|| self.hoped(RouteKind::HostPointer, memory_kind, why))
    }

    fn mapped_for_host(&self) -> Route {
        let why = "mapping and unmapping is the API's own contract with the host";
        let memory_kind = Some(MemoryKind::MappedDevice);
        self.promised(RouteKind::HostPointer, memory_kind, 10, "a driver that maps the memory", why)
    }

    fn svm_pointer(&self) -> Option<Route> {
        if self.one_space() {
            return self.one_address();
        }
        let memory_kinds = [MemoryKind::FineSvm, MemoryKind::CoarseSvm];
        let Some(memory_kind) =
            memory_kinds.into_iter().find(|&memory_kind| self.offers(memory_kind))
        else {
            return self.managed_for_host();
        };
        if self.to_host() {
            return Some(self.svm_for_host(memory_kind));
        }
        let why = "no specification speaks of one API's shared virtual memory in another";
        self.imports().then(|| self.hoped(RouteKind::SvmPointer, memory_kind, why))
    }

    /// Coarse-grained SVM is mapped and unmapped alternately, so its hand-over costs calls; fine-grained SVM costs none.
    fn svm_for_host(&self, memory_kind: MemoryKind) -> Route {
        let cost = if memory_kind == MemoryKind::FineSvm { 1 } else { 10 };
        let why = "shared virtual memory is the API's own contract with the host";
        self.promised(
            RouteKind::SvmPointer,
            Some(memory_kind),
            cost,
            "a driver with this form of SVM",
            why,
        )
    }

    /// Managed memory is for the host and its own device: other devices would import pages that move.
    fn managed_for_host(&self) -> Option<Route> {
        let memory_kind = MemoryKind::Managed;
        let needs = "a driver with concurrent managed access";
        let why = "one address by the API's own contract with the host; pages move at every hand-over, and are counted";
        let there = self.to_host() && self.offers(memory_kind);
        there.then(|| self.promised(RouteKind::SvmPointer, Some(memory_kind), 500, needs, why))
    }

    /// By a descriptor that one API exports and the other imports: the APIs guarantee the same memory if both refer to one chip.
    fn by_fd(&self) -> impl Iterator<Item = Route> + use<'_> {
        let (a, b) = (self.a.1, self.b.1);
        let same_chip = a.physical.same_chip(&b.physical);
        let both = move |kind: &&FdKind| same_chip && b.caps.imports.contains(kind);
        a.caps.exports.iter().filter(both).map(|kind| {
            let why = "an imported descriptor is the same memory by both APIs' contracts";
            let needs = "one chip, and drivers that export and import the descriptor";
            let memory_kind = MemoryKind::Exportable;
            let memory_kind =
                if self.offers(memory_kind) { memory_kind } else { MemoryKind::Device };
            match b.caps.imports_without_acquire {
                true => {
                    let why = "the import has no acquire and release";
                    let hoped = self.hoped(kind.route(), memory_kind, why);
                    Route { needs: needs.into(), ..hoped }
                }
                false => self.promised(kind.route(), Some(memory_kind), 20, needs, why),
            }
        })
    }

    /// By sharing calls that one API has for objects of the other. They guarantee that the bytes arrive, but not that none are
    /// copied.
    fn by_sharing_call(&self) -> Option<Route> {
        let (a, b) = (self.a.1, self.b.1);
        let there = b.caps.shares_objects_of.contains(&a.api)
            && a.physical.same_chip(&b.physical)
            && self.offers(MemoryKind::Device);
        let needs = "one chip, and a driver with sharing calls for the other API's objects";
        let why = "sharing calls guarantee the contents, but may copy";
        let hoped = |route: Route| Route { guaranteed: false, ..route };
        let memory_kind = Some(MemoryKind::Device);
        there.then(|| hoped(self.promised(RouteKind::ApiShare, memory_kind, 25, needs, why)))
    }

    /// Peer links have been observed to lose writes silently, so only an experiment can prove them.
    fn peer(&self) -> Option<Route> {
        let needs = "two chips of one API, with peer access";
        let why = "the driver reports peer access";
        let hoped = |route: Route| Route { guaranteed: false, ..route };
        reaches(self.a.1, self.b.1)
            .then(|| hoped(self.promised(RouteKind::Peer, None, 30, needs, why)))
    }

    fn staged(&self) -> Route {
        let why = match are_apart(self.a.1, self.b.1) {
            true => "no peer access: copies, always counted",
            false => "copies through the host, always counted",
        };
        let needs = "room for a second copy of the bytes";
        self.promised(RouteKind::Staged, None, 1000, needs, why)
    }

    /// A route that the contract guarantees.
    fn promised(
        &self,
        kind: RouteKind,
        memory_kind: Option<MemoryKind>,
        cost: u32,
        needs: &str,
        why: &str,
    ) -> Route {
        let (from, to) = (self.a.0, self.b.0);
        let verdict = Verdict { why: why.into(), ..Verdict::default() };
        let needs = needs.into();
        let mut route =
            Route { from, to, kind, memory_kind, needs, guaranteed: true, cost, verdict };
        route.verdict.zero_copy = zero_copy_by_contract(&route);
        route
    }

    /// A route through imported host pages, which only an experiment can prove.
    fn hoped(&self, kind: RouteKind, memory_kind: MemoryKind, why: &str) -> Route {
        let needs = "a driver that uses the pages it imports in place";
        let mut route = self.promised(kind, Some(memory_kind), 20, needs, why);
        route.guaranteed = false;
        route.verdict.zero_copy = None;
        route
    }

    fn offers(&self, memory_kind: MemoryKind) -> bool {
        self.a.1.caps.memory_kinds.contains(&memory_kind)
    }

    fn imports(&self) -> bool {
        self.b.1.caps.imports_host_pages
    }

    fn to_host(&self) -> bool {
        is_host(self.b.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_says_of_few_routes_whether_they_copy() {
        use MemoryKind::{CoarseSvm, Device, FineSvm, Managed};
        let says = |kind, memory_kind, guaranteed| {
            let (from, to, memory_kind) = (DeviceIx(0), DeviceIx(1), Some(memory_kind));
            let (needs, verdict) = Default::default();
            let route = Route { from, to, kind, memory_kind, needs, guaranteed, cost: 1, verdict };
            zero_copy_by_contract(&route)
        };
        for promised in [false, true] {
            assert_eq!(says(RouteKind::Same, Device, promised), Some(true));
            assert_eq!(says(RouteKind::Staged, Device, promised), Some(false));
            assert_eq!(says(RouteKind::HostPointer, Managed, promised), Some(false));
            assert_eq!(says(RouteKind::SvmPointer, CoarseSvm, promised), None);
            let word = promised.then_some(true);
            assert_eq!(says(RouteKind::SvmPointer, FineSvm, promised), word);
            assert_eq!(says(RouteKind::OpaqueFd, Device, promised), word);
            assert_eq!(says(RouteKind::DmaBuf, Device, promised), word);
        }
    }
}
