//! Chooses where a buffer lives and how each device accesses it: a pure function of the topology and the request.
//!
//! Every way to build the buffer (an allocating device, a memory kind, a route per device) has a [`Score`]; the plan is the way
//! with the lowest. Each route is judged independently and a score only adds up its routes' values, so an additional route, or
//! a better verdict on an existing one, can never make the plan worse.

use crate::{
    route::{are_apart, is_host, serves, zero_copy_by_contract},
    sync,
    topology::{DeviceIx, Route, Topology, VerdictState},
};
use onebuf_hal::{
    AddressSpace, CopyPolicy, DeviceInfo, DeviceKind, Error, Hint, MemoryKind, Result, RouteKind,
    SyncMethod,
};
use std::borrow::Cow;

mod explain;
use explain::Bar;

/// The requirements of a buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The devices that use it: at least one, each once, in any order. May contain the host.
    pub devices: Vec<DeviceIx>,
    /// Size in bytes; not zero.
    pub bytes: u64,
    /// What to do about implied copies.
    pub policy: CopyPolicy,
    /// The expected use.
    pub hint: Option<Hint>,
    /// The required memory kind, if any.
    pub memory_kind: Option<MemoryKind>,
    /// The device that must allocate it; it need not be one of `devices`.
    pub allocate_on: Option<DeviceIx>,
    /// The kind of route that every device except the allocating one must get.
    pub route: Option<RouteKind>,
    /// Whether the caller vouches for routes that are only declared, and for routes whose copies were not measured.
    pub trust_declared: bool,
    /// Whether addresses that were read in kernels may be used where they are proven ([`RouteKind::RawAddress`]). Requesting
    /// that kind in `route` permits them, too.
    pub raw_addresses: bool,
}

impl Request {
    /// The same request, with the device that allocates it added to `devices`.
    pub(crate) fn with_home(&self) -> Request {
        let mut all = self.clone();
        let home = self.allocate_on.filter(|home| !self.devices.contains(home));
        all.devices.extend(home);
        all
    }
}

/// The placement of a buffer, and how each device accesses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The device that allocates it.
    pub allocate_on: DeviceIx,
    /// The memory kind.
    pub memory_kind: MemoryKind,
    /// The route of each requested device, in the order of their indices.
    pub routes: Vec<Hop>,
    /// Better routes from the allocating device that could not be used.
    pub rejected: Vec<Rejected>,
    /// The score by which this plan was chosen.
    pub score: Score,
}

impl Plan {
    /// Whether the host accesses the memory without a copy, even if the host was not requested.
    pub fn host_sees(&self) -> bool {
        !self.score.host_blind_late
    }
}

/// How one device accesses the buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// The device.
    pub to: DeviceIx,
    /// The kind of route.
    pub kind: RouteKind,
    /// The sync method between its queues and the allocating device's.
    pub sync: SyncMethod,
    /// Whether a hand-over makes no copy; `None` if unknown.
    pub zero_copy: Option<bool>,
    /// Why the route can be used.
    pub why: Cow<'static, str>,
}

/// A better route that could not be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected {
    /// The device that would have accessed the memory.
    pub to: DeviceIx,
    /// The device that would have allocated it.
    pub from: DeviceIx,
    /// The kind of route.
    pub kind: RouteKind,
    /// Why it was rejected, and what to do about it.
    pub why: String,
}

/// The rank of a plan. Fields are compared in this order; lower is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Number of devices whose route copies, or may copy.
    pub copies: u64,
    /// Number of devices whose route only the caller vouches for.
    pub on_trust: u64,
    /// The distance of the memory kind from the hint.
    pub off_hint: u8,
    /// Whether the host cannot access the memory without a copy. Always false if device memory takes precedence: with the hint
    /// `GpuPreferred`, and without a hint if a device has memory of its own.
    pub host_blind: bool,
    /// Number of devices with memory of their own that would access the buffer over the bus.
    pub over_bus: u64,
    /// The sum of the routes' positions in [`RouteKind::ALL`]; a route that copies counts as `Staged`.
    pub kinds: u64,
    /// The sum of one hand-over to each device, measured or else estimated.
    pub handoff_ns: u64,
    /// Like `host_blind`, always counted. It breaks ties if device memory takes precedence.
    pub host_blind_late: bool,
    /// The distance of the memory kind from the device's preferred one.
    pub off_memory_kind: u8,
    /// The allocating device and the memory kind, so that no two plans tie.
    pub place: Option<(DeviceIx, MemoryKind)>,
}

/// Chooses a plan. The same topology and request give the same plan, whatever the order of the devices.
///
/// # Errors
/// - [`Error::InvalidArgument`]: no devices, a device that is unknown or named twice, or no bytes.
/// - [`Error::OutOfMemory`]: the buffer exceeds a device's limit.
/// - [`Error::CopyForbidden`]: every plan needs a copy, or may need one.
/// - [`Error::Unsupported`]: what the request requires is unavailable, or no route joins the devices.
pub fn plan(topology: &Topology, request: &Request) -> Result<Plan> {
    check(topology, request)?;
    let planner = Planner { topology, request };
    if let Some(place) = planner.only_place() {
        planner.fits(place.on)?;
        return Ok(planner.alone(place));
    }
    let drafts = planner.places()?.into_iter().map(|place| planner.draft(place));
    // `Ok` orders before `Err`: any plan is better than any obstacle.
    let key = |draft: &Result<Plan, Obstacle<'_>>| {
        draft.as_ref().map(|plan| plan.score).map_err(|obstacle| obstacle.rank())
    };
    let best = drafts.min_by_key(key).ok_or_else(|| planner.no_place())?;
    best.map_err(|obstacle| planner.refuse(&obstacle))
}

fn check(topology: &Topology, request: &Request) -> Result<()> {
    let devices = &request.devices;
    let mut later = devices.iter().enumerate().map(|(at, device)| (device, &devices[at + 1..]));
    let known = |device: &DeviceIx| device.get() < topology.nodes().len();
    let rules = [
        (!devices.is_empty(), "devices: at least one is needed"),
        (later.all(|(device, rest)| !rest.contains(device)), "devices: each may be named once"),
        (devices.iter().all(known), "devices: one of them is not in this topology"),
        (request.allocate_on.iter().all(known), "allocate_on: not in this topology"),
        (request.bytes > 0, "bytes: a buffer is not empty"),
    ];
    let broken = rules.into_iter().find(|(kept, _)| !kept);
    broken.map_or(Ok(()), |(_, rule)| Err(Error::invalid(rule)))
}

/// A device and memory kind that could hold the buffer.
#[derive(Clone, Copy)]
struct Home {
    on: DeviceIx,
    memory_kind: MemoryKind,
}

/// A usable way for one device to access the memory.
struct Way<'t> {
    kind: RouteKind,
    route: Option<&'t Route>,
    zero_copy: Option<bool>,
    copies: bool,
    on_trust: bool,
    handoff_ns: u64,
}

impl Way<'_> {
    const SAME: Self = {
        let (kind, zero_copy) = (RouteKind::Same, Some(true));
        Way { kind, route: None, zero_copy, copies: false, on_trust: false, handoff_ns: 0 }
    };

    /// The order of [`Score`], so that the best way of each device gives the best sum.
    fn rank(&self) -> (bool, bool, u64, u64) {
        (self.copies, self.on_trust, self.kind_rank(), self.handoff_ns)
    }

    /// The kind does not matter for routes that copy: the faster is better.
    fn kind_rank(&self) -> u64 {
        if self.copies { RouteKind::Staged as u64 } else { self.kind as u64 }
    }
}

/// Why one place gives no plan: the first device that could not access the memory.
struct Obstacle<'t> {
    from: DeviceIx,
    to: DeviceIx,
    missing: usize,
    bar: Option<(Bar, &'t Route)>,
}

impl Obstacle<'_> {
    /// Lowest for places whose obstacle can be removed at all, then for the fewest devices without access, then for the
    /// obstacle that is easiest to remove.
    fn rank(&self) -> (bool, usize, bool, Bar, RouteKind) {
        let (bar, kind) = self.bar.map_or((Bar::OtherKind, RouteKind::Staged), |b| (b.0, b.1.kind));
        (bar >= Bar::WrongMemoryKind, self.missing, kind == RouteKind::Staged, bar, kind)
    }
}

struct Planner<'t> {
    topology: &'t Topology,
    request: &'t Request,
}

impl<'t> Planner<'t> {
    /// The place if there is no choice: one device, which allocates, and a memory kind that it has.
    fn only_place(&self) -> Option<Home> {
        let (on, memory_kind) = (self.request.allocate_on?, self.request.memory_kind?);
        let has_it =
            self.request.devices == [on] && self.info(on).caps.memory_kinds.contains(&memory_kind);
        has_it.then_some(Home { on, memory_kind })
    }

    /// The result of [`Self::draft`] for such a place, without the lists: a caller that wraps memory waits for this.
    fn alone(&self, place: Home) -> Plan {
        Plan {
            allocate_on: place.on,
            memory_kind: place.memory_kind,
            routes: vec![self.hop(place.on, place.on, &Way::SAME)],
            rejected: Vec::new(),
            score: self.score(place, &[(place.on, Way::SAME)]),
        }
    }

    fn places(&self) -> Result<Vec<Home>> {
        let memory_kinds = |on| {
            self.info(on).caps.memory_kinds.iter().map(move |&memory_kind| Home { on, memory_kind })
        };
        // On-chip memory is scarce, and managed memory moves: both must be requested.
        let wanted = |place: &Home| match self.request.memory_kind {
            Some(memory_kind) => memory_kind == place.memory_kind,
            None => !place.memory_kind.is_asked_for(),
        };
        Ok(self.allocators()?.into_iter().flat_map(memory_kinds).filter(wanted).collect())
    }

    /// The devices that may allocate. The host may even if it was not requested, because most devices can access its pages.
    fn allocators(&self) -> Result<Vec<DeviceIx>> {
        let mut must_fit = self.devices().chain(self.request.allocate_on);
        must_fit.try_for_each(|device| self.fits(device))?;
        if let Some(forced) = self.request.allocate_on {
            return Ok(vec![forced]);
        }
        let asked = |device| self.request.devices.contains(&device);
        let host = |device| is_host(self.info(device)) && self.fits(device).is_ok();
        Ok(self.topology.indices().filter(|&device| asked(device) || host(device)).collect())
    }

    /// Checks the device's limit. A device that accesses a buffer holds it in one piece, whether allocated, imported or staged.
    fn fits(&self, device: DeviceIx) -> Result<()> {
        let node = self.topology.node(device);
        let (asked, limit) = (self.request.bytes, node.info.caps.max_alloc_bytes);
        if asked <= limit {
            return Ok(());
        }
        Err(Error::OutOfMemory { device: node.id.clone(), asked, limit: Some(limit) })
    }

    fn no_place(&self) -> Error {
        let on = self.request.allocate_on.map_or("any of the devices", |device| self.id(device));
        let memory_kind =
            self.request.memory_kind.map_or("any".into(), |memory_kind| memory_kind.to_string());
        let what = format!("{memory_kind} memory on {on}");
        let needs = match self.request.memory_kind {
            Some(MemoryKind::OnChip) => "the MSMC memory of a Texas Instruments platform",
            Some(MemoryKind::Managed) => {
                "a hub with `managed_memory(true)` or ONEBUF_MANAGED=1, and a CUDA or HIP device with memory of its own whose \
                 driver has concurrent managed access (`Hub::notes` says what is missing)"
            }
            _ => "a device that allocates this kind of memory",
        };
        Error::unsupported(what, needs)
    }

    fn draft(&self, place: Home) -> Result<Plan, Obstacle<'t>> {
        let best = |to| self.best(place, to).map(|way| (to, way)).ok_or(to);
        let ways: Result<Vec<_>, _> = self.devices().map(best).collect();
        let ways = ways.map_err(|to| self.obstacle(place, to))?;
        Ok(Plan {
            allocate_on: place.on,
            memory_kind: place.memory_kind,
            routes: ways.iter().map(|(to, way)| self.hop(place.on, *to, way)).collect(),
            rejected: ways.iter().flat_map(|(to, way)| self.rejected(place, *to, way)).collect(),
            score: self.score(place, &ways),
        })
    }

    fn best(&self, place: Home, to: DeviceIx) -> Option<Way<'t>> {
        if place.on == to {
            return Some(Way::SAME);
        }
        let routes = self.topology.between(place.on, to).iter();
        routes.filter_map(|route| self.judge(place, route).ok()).min_by_key(Way::rank)
    }

    fn judge(&self, place: Home, route: &'t Route) -> Result<Way<'t>, Bar> {
        if self.request.route.is_some_and(|kind| kind != route.kind) {
            return Err(Bar::OtherKind);
        }
        self.assess(place, route)
    }

    fn assess(&self, place: Home, route: &'t Route) -> Result<Way<'t>, Bar> {
        if !serves(route, place.memory_kind) {
            return Err(Bar::WrongMemoryKind);
        }
        let raw = route.kind == RouteKind::RawAddress && self.request.route.is_none();
        if raw && !self.request.raw_addresses {
            return Err(Bar::NotAskedFor);
        }
        self.believe(route)?;
        let way = self.way(route);
        let forbidden = way.copies && self.request.policy == CopyPolicy::Forbid;
        if forbidden { Err(Bar::Copies) } else { Ok(way) }
    }

    /// Whether a route may be used: it needs proof, an API's contract, or the caller's word.
    fn believe(&self, route: &Route) -> Result<(), Bar> {
        let proven = route.verdict.proven_for(self.request.bytes);
        let vouched = proven || route.guaranteed || self.request.trust_declared;
        match route.verdict.state {
            VerdictState::Refuted => Err(Bar::Refuted),
            _ if vouched => Ok(()),
            VerdictState::Proven => Err(Bar::UnprovenSize),
            VerdictState::Declared => Err(Bar::Unproven),
        }
    }

    fn way(&self, route: &'t Route) -> Way<'t> {
        let zero_copy = zero_copy(route, self.request.bytes);
        let hoped = zero_copy.is_none() && self.request.trust_declared;
        let proven = route.verdict.proven_for(self.request.bytes);
        Way {
            kind: route.kind,
            route: Some(route),
            zero_copy,
            copies: zero_copy != Some(true) && !hoped,
            on_trust: hoped || !(proven || route.guaranteed),
            handoff_ns: handoff_ns(route),
        }
    }

    fn score(&self, place: Home, ways: &[(DeviceIx, Way<'_>)]) -> Score {
        let sum = |part: fn(&Way<'_>) -> u64| {
            ways.iter().map(|(_, way)| part(way)).fold(0, u64::saturating_add)
        };
        let host_blind = !self.host_sees(place);
        let device_first = self.device_first();
        Score {
            copies: sum(|way| way.copies.into()),
            on_trust: sum(|way| way.on_trust.into()),
            off_hint: self.off_hint(place, host_blind),
            host_blind: host_blind && !device_first,
            over_bus: self.over_bus(place),
            kinds: sum(|way| way.kind_rank()),
            handoff_ns: sum(|way| way.handoff_ns),
            host_blind_late: host_blind,
            off_memory_kind: self.off_memory_kind(place),
            place: Some((place.on, place.memory_kind)),
        }
    }

    /// Whether device memory takes precedence over access from the host: host pages would cost a chip with its own memory its
    /// bandwidth.
    fn device_first(&self) -> bool {
        match self.request.hint {
            Some(hint) => hint == Hint::GpuPreferred,
            None => self.devices().any(|device| self.is_apart(device)),
        }
    }

    /// Whether the device is a chip with its own memory.
    fn is_apart(&self, device: DeviceIx) -> bool {
        let info = self.info(device);
        !is_host(info) && info.kind != DeviceKind::Cpu && !info.caps.unified_memory
    }

    /// The number of devices with their own memory that would use host memory; zero unless device memory takes precedence.
    /// Coarse-grained SVM that others use in place is host memory too: they import it as host pages.
    fn over_bus(&self, place: Home) -> u64 {
        use MemoryKind::{CoarseSvm, FineSvm, HostPages, MappedDevice};
        // If a runtime has an address space for its chips, its SVM is device memory.
        let space = self.info(place.on).caps.address_space;
        let own = matches!((place.memory_kind, space), (CoarseSvm, Some(AddressSpace::Runtime(_))));
        let host = matches!(place.memory_kind, HostPages | MappedDevice | FineSvm | CoarseSvm);
        let in_host_memory = host && !own;
        let apart = self.devices().filter(|&device| self.is_apart(device)).count();
        if in_host_memory && self.device_first() { apart as u64 } else { 0 }
    }

    /// Whether the host accesses the memory without a copy. Host pages are the same whichever device allocated them, so for
    /// those a route in either direction counts. `Request::route` does not apply: it concerns the requested devices.
    fn host_sees(&self, place: Home) -> bool {
        let plain = place.memory_kind == MemoryKind::HostPages;
        let mut hosts = self.topology.indices().filter(|&device| is_host(self.info(device)));
        let back = |on| plain && self.sees(Home { on, ..place }, place.on);
        hosts.any(|on| self.sees(place, on) || back(on))
    }

    fn sees(&self, place: Home, to: DeviceIx) -> bool {
        let free = |route| self.assess(place, route).is_ok_and(|way| !way.copies);
        place.on == to || self.topology.between(place.on, to).iter().any(free)
    }

    fn off_hint(&self, place: Home, host_blind: bool) -> u8 {
        use MemoryKind::{FineSvm, HostPages, MappedDevice};
        let (memory_kind, gpu) = (place.memory_kind, self.info(place.on).kind == DeviceKind::Gpu);
        match (self.request.hint, memory_kind) {
            (None, _) => 0,
            (Some(Hint::CpuPreferred), _) => (memory_kind != HostPages && host_blind).into(),
            (Some(Hint::GpuPreferred), HostPages | FineSvm) => 1,
            (Some(Hint::GpuPreferred), _) => (!gpu).into(),
            (Some(Hint::Coherent), FineSvm) => 0,
            (Some(Hint::Coherent), HostPages) => 1,
            (Some(Hint::Coherent), _) => 2,
            (Some(Hint::Streaming), _) => (!matches!(memory_kind, MappedDevice | HostPages)).into(),
        }
    }

    /// A chip with its own memory prefers that memory; a unified one loses nothing by mapped memory.
    fn off_memory_kind(&self, place: Home) -> u8 {
        let unified = self.info(place.on).caps.unified_memory;
        match place.memory_kind {
            MemoryKind::MappedDevice => (!unified).into(),
            MemoryKind::Device | MemoryKind::OnChip => unified.into(),
            MemoryKind::Exportable => 1 + u8::from(unified),
            MemoryKind::CoarseSvm => 2,
            MemoryKind::FineSvm => 3,
            MemoryKind::HostPages => 4,
            MemoryKind::Managed => 5,
        }
    }

    fn hop(&self, from: DeviceIx, to: DeviceIx, way: &Way<'_>) -> Hop {
        let sync =
            way.route.map_or(SyncMethod::SameQueue, |route| self.sync_method(from, to, route));
        let why = way.route.map_or("one device".into(), |route| self.basis(route).into());
        Hop { to, kind: way.kind, sync, zero_copy: way.zero_copy, why }
    }

    /// The best sync method that joins the two, in either direction.
    fn sync_method(&self, from: DeviceIx, to: DeviceIx, route: &Route) -> SyncMethod {
        sync::planned(self.topology, [from, to], Some(route), self.request.trust_declared)
    }

    /// What the use of a route rests on.
    fn basis(&self, route: &Route) -> String {
        let basis = match route {
            _ if route.verdict.proven_for(self.request.bytes) => "proven",
            _ if route.guaranteed => "by contract",
            _ => "on the caller's word",
        };
        format!("{basis}: {}", route.verdict.why)
    }

    fn rejected(&self, place: Home, to: DeviceIx, taken: &Way<'_>) -> Vec<Rejected> {
        let routes = self.topology.between(place.on, to).iter();
        let better = routes.filter(|route| route.kind < taken.kind);
        better.map(|route| self.rejection(place, route)).collect()
    }

    /// The reason for a rejection. A better kind that is usable and yet was not taken copies, or lacks proof.
    fn rejection(&self, place: Home, route: &'t Route) -> Rejected {
        let bar = match self.judge(place, route) {
            Ok(way) if way.copies => Bar::Copies,
            Ok(_) => Bar::Unproven,
            Err(bar) => bar,
        };
        let why = bar.why(self.topology, route, self.request);
        Rejected { to: route.to, from: route.from, kind: route.kind, why }
    }

    fn obstacle(&self, place: Home, to: DeviceIx) -> Obstacle<'t> {
        let routes = self.topology.between(place.on, to).iter();
        let barred = routes.filter_map(|r| self.judge(place, r).err().map(|bar| (bar, r)));
        let barred = barred.filter(|(bar, _)| *bar != Bar::OtherKind);
        // A staged copy is always available and explains the least, so it comes last; except between separate chips.
        let apart = are_apart(self.info(place.on), self.info(to));
        let last = |r: &Route| r.kind == RouteKind::Staged && !apart;
        let bar = barred.min_by_key(|(bar, r)| (last(r), *bar, r.kind));
        let missing = self.devices().filter(|&to| self.best(place, to).is_none()).count();
        Obstacle { from: place.on, to, missing, bar }
    }

    fn refuse(&self, obstacle: &Obstacle<'_>) -> Error {
        let route = format!("{} -> {}", self.id(obstacle.from), self.id(obstacle.to));
        let why = obstacle.bar.map_or("no route is known".into(), |(bar, route)| {
            format!("{}: {}", route.kind, bar.why(self.topology, route, self.request))
        });
        let copies = matches!(obstacle.bar, Some((Bar::Copies, _)));
        if copies || (self.request.policy == CopyPolicy::Forbid && self.request.route.is_none()) {
            return Error::CopyForbidden { route, why };
        }
        let kind = self.request.route.map_or("sharing".into(), |kind| kind.to_string());
        Error::unsupported(format!("{kind} for {route}"), format!("a usable route ({why})"))
    }

    /// The requested devices by index, so that their order in the request does not matter.
    fn devices(&self) -> impl Iterator<Item = DeviceIx> {
        self.topology.indices().filter(|device| self.request.devices.contains(device))
    }

    fn info(&self, device: DeviceIx) -> &'t DeviceInfo {
        &self.topology.node(device).info
    }

    fn id(&self, device: DeviceIx) -> &'t str {
        &self.topology.node(device).id
    }
}

/// Whether the route makes no copy at this size. A measured `true` does not apply to other sizes; a measured `false` does.
fn zero_copy(route: &Route, bytes: u64) -> Option<bool> {
    let verdict = &route.verdict;
    let beyond = verdict.state == VerdictState::Proven && !verdict.proven_for(bytes);
    match verdict.zero_copy {
        // A copy that the contract implies overrides any measurement.
        _ if zero_copy_by_contract(route) == Some(false) => Some(false),
        Some(true) if beyond => zero_copy_by_contract(route),
        known => known,
    }
}

/// The duration of a hand-over: measured, or else the route's cost in microseconds.
fn handoff_ns(route: &Route) -> u64 {
    let measured = route.verdict.handoff_us.filter(|us| us.is_finite());
    measured.map_or(u64::from(route.cost) * 1000, |us| (us * 1000.0) as u64)
}
