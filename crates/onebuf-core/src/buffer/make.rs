//! Creates the core of a buffer: plan, memory and aliases.

use super::{
    Core, Loan,
    alias::{Alias, HOME},
    core::CoreHub,
    label::Label,
    lease::Lease,
    span::Span,
    state::CoreState,
    transition::{Pages, Rules},
};
use crate::{
    Fence, Hub,
    ledger::Cause,
    observe::{NewBuffer, What},
    plan::{Hop, Plan, Rejected, Request, plan},
    route::by_address,
    topology::{DeviceIx, Route, VerdictState},
};
use onebuf_hal::{
    Access, AccessState, AllocSpec, CopyPolicy, Device, Error, Export, FdKind, FdRange, Hint,
    HostAccess, HostRange, Memory, MemoryKind, Result, RouteKind, SyncMethod,
    locks::{Arc, AtomicU64, Condvar, Mutex},
};
use std::{any::Any, ptr::NonNull, sync::OnceLock};

/// The requested properties of a buffer, except its length and its contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sorted, without duplicates.
    pub devices: Vec<DeviceIx>,
    pub(crate) access: Access,
    pub(crate) host: HostAccess,
    pub(crate) hint: Option<Hint>,
    pub(crate) policy: CopyPolicy,
    /// In bytes: a power of two, at least the element's alignment.
    pub align: usize,
    pub(crate) memory_kind: Option<MemoryKind>,
    pub(crate) allocate_on: Option<DeviceIx>,
    pub(crate) route: Option<RouteKind>,
    pub(crate) sync: Option<SyncMethod>,
    pub(crate) trust_declared: bool,
    #[doc(hidden)]
    pub raw_addresses: bool,
    pub(crate) name: Option<Arc<str>>,
}

impl Shape {
    pub(crate) fn new(align: usize, policy: CopyPolicy) -> Self {
        Self {
            devices: Vec::new(),
            access: Access::default(),
            host: HostAccess::default(),
            hint: None,
            policy,
            align,
            memory_kind: None,
            allocate_on: None,
            route: None,
            sync: None,
            trust_declared: false,
            raw_addresses: false,
            name: None,
        }
    }

    pub(crate) fn add_device(&mut self, device: DeviceIx) {
        if let Err(place) = self.devices.binary_search(&device) {
            self.devices.insert(place, device);
        }
    }

    pub(crate) fn request(&self, hub: &Hub, bytes: usize) -> Request {
        let devices = match self.devices.is_empty() {
            true => vec![hub.host_index()],
            false => self.devices.clone(),
        };
        self.request_for(devices, bytes)
    }

    fn request_for(&self, devices: Vec<DeviceIx>, bytes: usize) -> Request {
        Request {
            devices,
            bytes: bytes as u64,
            policy: self.policy,
            hint: self.hint,
            memory_kind: self.memory_kind,
            allocate_on: self.allocate_on,
            route: self.route,
            trust_declared: self.trust_declared,
            raw_addresses: self.raw_addresses,
        }
    }

    /// Whether nothing was asked for but the devices, the alignment, the policy and the name.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { hint, memory_kind, allocate_on, route, sync, .. } = self;
        let Self { devices: _, access: _, host: _, policy: _, align: _, name: _, .. } = self;
        let forced = memory_kind.is_some() || allocate_on.is_some() || route.is_some();
        let Self { trust_declared, raw_addresses, .. } = self;
        !(forced || hint.is_some() || sync.is_some() || *trust_declared || *raw_addresses)
    }

    fn sync_method(&self, planned: SyncMethod) -> SyncMethod {
        self.sync.map_or(planned, |forced| planned.max(forced))
    }
}

/// Plans and allocates a buffer, and makes it accessible to every device. It holds `contents`, or what the
/// caller's `memory` holds, or zeroes.
pub(crate) fn make(
    hub: &Hub,
    shape: &Shape,
    bytes: usize,
    contents: Option<&[u8]>,
    memory: Option<HostRange>,
) -> Result<Core> {
    let (adopted, began) = (memory.is_some(), hub.tracer().begin(What::Copy));
    let Placed { plan, aliases, at_creation } = place(hub, shape, bytes, contents, memory)?;
    let core = assemble(hub, shape, bytes, Arc::new(plan), aliases, None);
    match contents {
        _ if adopted => {}
        None => core.clear()?,
        Some(contents) if !at_creation => core.fill_in(contents)?,
        Some(_) => began.end_at(core.plan.allocate_on, "creation", |event| {
            event.name = "creation".into();
            let (from, to) = (hub.host_index(), core.plan.allocate_on);
            core.tell_copy(event, Cause::Asked, from, to, bytes);
        }),
    }
    if contents.is_some() {
        hub.ledger().record(hub.host_index(), core.plan.allocate_on, Cause::Asked, bytes);
    }
    Ok(core)
}

/// Foreign memory to create a core around.
pub(crate) struct Lent<'a> {
    pub memory: Arc<dyn Memory>,
    /// The properties of the memory.
    pub spec: AllocSpec,
    /// The application's host pages, if the memory was created over such pages.
    pub pages: Option<NonNull<u8>>,
    /// Fences of the owner's work on the memory.
    pub after: &'a [&'a Fence],
    /// Keeps the memory's context alive, if that is a foreign context.
    pub registration: Option<Arc<dyn Any + Send + Sync>>,
    /// The owner that the memory is returned to.
    pub loan: Loan,
    /// Plans how the memory is shared with devices other than its own.
    pub plan: &'a dyn Fn(&Request) -> Result<Arc<Plan>>,
}

/// Creates a core around foreign memory. The siblings, other devices of its context, use the memory itself.
pub(crate) fn make_around(
    hub: &Hub,
    mut shape: Shape,
    lent: Lent<'_>,
    siblings: &[DeviceIx],
) -> Result<Arc<Core>> {
    let Lent { memory: home, spec, pages, after, registration, loan, plan } = lent;
    let others = std::mem::take(&mut shape.devices);
    let (shape, beside) = (&shape, shape.request_for(others, spec.bytes));
    let over_pages = pages.and_then(|pages| plan_over(hub, &beside.with_home(), pages));
    let plan = match over_pages {
        Some(plan) => Arc::new(plan),
        None => plan(&beside)?,
    };
    check_host_access(hub, shape, &plan)?;
    let maker = Maker { hub, shape, plan: &plan, came_by: None };
    if maker.maps_home() {
        // Wait for the owner's work first: a map that copies would copy the contents as they are now. The thread waits
        // for the map as well.
        after.iter().try_for_each(|fence| fence.wait_default())?;
    }
    let mut aliases = maker.home_alone(home);
    if let Err(why) = maker.add_others(&mut aliases, &spec) {
        if let Some(home) = &aliases[HOME].memory {
            take_back(hub, plan.allocate_on, &**home);
        }
        return Err(why);
    }
    for &device in siblings {
        let memory = aliases[HOME].memory.clone();
        let registration = registration.clone();
        aliases.push(Alias {
            device,
            memory,
            registration,
            sync: shape.sync_method(SyncMethod::Event),
            ..home_alias()
        });
    }
    aliases[HOME].registration = registration;
    Ok(Arc::new(assemble(hub, shape, spec.bytes, plan, aliases, Some(loan))))
}

/// Unmaps foreign memory again, after it was mapped for devices that could not import it.
fn take_back(hub: &Hub, device: DeviceIx, home: &dyn Memory) {
    let back = hub.service_queue_state(device).and_then(|queue_state| {
        queue_state.hal.reside(home, AccessState::Acquired)?;
        queue_state.note().wait(hub.timeout())
    });
    if let Err(why) = back {
        tracing::error!(
            "foreign memory could not be returned to its owner in the expected state: {why}"
        );
    }
}

/// Plans memory over ordinary host pages as if the host had allocated them: the verdicts for host pages apply if the memory's
/// own device uses the pages in place, too. Returns `None` if the plan would copy.
fn plan_over(hub: &Hub, request: &Request, pages: NonNull<u8>) -> Option<Plan> {
    let (home, host) = (request.allocate_on?, hub.host_index());
    let align = |device: &DeviceIx| hub.topology().node(*device).info.caps.align_bytes;
    let aligned = |device| pages.addr().get().is_multiple_of(align(device).max(PAGE_BYTES));
    if request.devices.len() < 2 || !request.devices.iter().all(aligned) {
        return None;
    }
    let (allocate_on, memory_kind) = (Some(host), Some(MemoryKind::HostPages));
    let as_pages = Request { allocate_on, memory_kind, ..request.clone() };
    let mut plan = plan(hub.topology(), &as_pages).ok().filter(|plan| plan.score.copies == 0)?;
    for hop in &mut plan.routes {
        match hop.to {
            to if to == home => (hop.kind, hop.sync) = (RouteKind::Same, SyncMethod::SameQueue),
            to if to == host => hop.kind = RouteKind::HostPointer,
            _ => {}
        }
    }
    (plan.allocate_on, plan.memory_kind) = (home, request.memory_kind?);
    Some(plan)
}

/// Drivers use host memory in place only if it begins at a page.
const PAGE_BYTES: usize = 4096;

/// Returns the home's alias, without its device and memory.
fn home_alias() -> Alias {
    Alias {
        device: DeviceIx(0),
        kind: RouteKind::Same,
        memory: None,
        replica: HOME,
        is_home: true,
        in_place: false,
        copies: false,
        sync: SyncMethod::SameQueue,
        only_maps: false,
        planned: true,
        lost: None,
        spare: OnceLock::new(),
        registration: None,
    }
}

/// Creates the core. Inlined, because moving the large structure costs a wrap more than creating it.
#[inline(always)]
pub(super) fn assemble(
    hub: &Hub,
    shape: &Shape,
    bytes: usize,
    plan: Arc<Plan>,
    mut aliases: Vec<Alias>,
    loan: Option<Loan>,
) -> Core {
    for alias in aliases.iter_mut().filter(|alias| alias.registration.is_none()) {
        alias.registration = hub.context_of(alias.device);
    }
    let rules = Rules {
        forbids_copies: shape.policy == CopyPolicy::Forbid,
        keeps_routes: shape.route.is_some(),
        is_foreign: loan.as_ref().is_some_and(Loan::is_foreign),
    };
    let pages = (plan.memory_kind == MemoryKind::Managed).then(Pages::default);
    let label = Label::new(shape.name.clone());
    let observers = hub.buffer_observers(|| describe(&label, bytes, &plan, &aliases));
    Core {
        hub: CoreHub(Some(hub.clone())),
        bytes,
        capacity: bytes,
        align: shape.align,
        access: shape.access,
        host: shape.host,
        state: Mutex::new(CoreState::new(&aliases, Span::whole(bytes), rules, pages)),
        lease: Lease::default(),
        dropped: Condvar::new(),
        trusts: shape.trust_declared,
        implied: AtomicU64::new(0),
        aliases,
        plan,
        policy: shape.policy,
        loan,
        claims: Mutex::default(),
        tenants: Mutex::default(),
        label,
        observers,
    }
}

/// Describes a new buffer for the observers.
#[cold]
pub(super) fn describe(label: &Label, bytes: usize, plan: &Plan, aliases: &[Alias]) -> NewBuffer {
    NewBuffer {
        name: label.to_string(),
        number: label.number,
        bytes: bytes as u64,
        home: plan.allocate_on,
        routes: aliases.iter().map(|alias| (alias.device, alias.kind)).collect(),
    }
}

/// Allocated memory with its aliases, and whether it was created with the contents.
struct Placed {
    plan: Plan,
    aliases: Vec<Alias>,
    at_creation: bool,
}

/// Allocates by the best plan. If that fails, tries the other plans in order; if all fail, returns the first
/// error.
fn place(
    hub: &Hub,
    shape: &Shape,
    bytes: usize,
    contents: Option<&[u8]>,
    memory: Option<HostRange>,
) -> Result<Placed> {
    let request = shape.request(hub, bytes);
    let best = plan(hub.topology(), &request)?;
    let attempt = |plan: Plan| {
        check_host_access(hub, shape, &plan)?;
        let at_creation = contents.filter(|_| takes_contents(plan.memory_kind));
        let maker = Maker { hub, shape, plan: &plan, came_by: None };
        let spec = maker.spec(bytes);
        let home = maker.home(&spec, at_creation, memory.clone())?;
        let aliases = maker.aliases(home, &spec)?;
        Ok(Placed { at_creation: at_creation.is_some(), aliases, plan })
    };
    let (failed, on, memory_kind) = (best.score.place, best.allocate_on, best.memory_kind);
    let first = match attempt(best) {
        Err(error) if may_go_on(&error) || matches!(error, Error::CopyForbidden { .. }) => error,
        placed => return placed,
    };
    let why = format!("allocated as {memory_kind} it failed ({first})");
    let rejected = Rejected { to: on, from: on, kind: RouteKind::Same, why };
    for plan in other_plans(hub, &request).filter(|plan| plan.score.place != failed) {
        let (on, memory_kind) =
            (hub.topology().node(plan.allocate_on).id.clone(), plan.memory_kind);
        if let Ok(mut placed) = attempt(plan) {
            tracing::warn!(%on, %memory_kind, error = %first, "no memory as planned: allocated elsewhere");
            placed.plan.rejected.push(rejected);
            return Ok(placed);
        }
    }
    Err(first)
}

/// Whether another plan or route may succeed: not if the caller's request is invalid.
fn may_go_on(error: &Error) -> bool {
    use Error::{DeviceLost, Driver, OutOfMemory, Unsupported};
    matches!(error, DeviceLost { .. } | Driver { .. } | OutOfMemory { .. } | Unsupported { .. })
}

/// Returns a plan for each device and memory kind that the request allows, the best first.
fn other_plans(hub: &Hub, request: &Request) -> impl Iterator<Item = Plan> {
    let devices = request.devices.iter().copied().chain([hub.host_index()]);
    let memory_kinds = |device: DeviceIx| {
        let memory_kinds = hub.hal(device).info().caps.memory_kinds.iter();
        memory_kinds
            .filter(|memory_kind| !memory_kind.is_asked_for())
            .map(move |&memory_kind| (device, memory_kind))
    };
    let mut plans: Vec<Plan> = devices
        .flat_map(memory_kinds)
        .filter(|&(device, memory_kind)| {
            request.allocate_on.is_none_or(|on| on == device)
                && request.memory_kind.is_none_or(|asked| asked == memory_kind)
        })
        .filter_map(|(device, memory_kind)| {
            let (allocate_on, memory_kind) = (Some(device), Some(memory_kind));
            plan(hub.topology(), &Request { allocate_on, memory_kind, ..request.clone() }).ok()
        })
        .collect();
    plans.sort_by_key(|plan| plan.score);
    plans.dedup_by_key(|plan| plan.score);
    plans.into_iter()
}

/// Allocates memory for one device only. Tries the device's least shared memory kind first.
pub(super) fn allocate_own(device: &dyn Device, spec: &AllocSpec) -> Result<Arc<dyn Memory>> {
    let memory_kinds = device.info().caps.memory_kinds.iter().rev();
    let mut outcome = Err(Error::unsupported("memory of its own", "a device that allocates"));
    for &memory_kind in memory_kinds.filter(|memory_kind| !memory_kind.is_asked_for()) {
        outcome = device.allocate(&AllocSpec { memory_kind, ..*spec }, None);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Whether memory of this kind can be created with contents; shared virtual and managed memory cannot.
fn takes_contents(memory_kind: MemoryKind) -> bool {
    !matches!(memory_kind, MemoryKind::FineSvm | MemoryKind::CoarseSvm | MemoryKind::Managed)
}

/// Checks that a buffer with restricted host access is for one device, or only uses routes that do not involve the
/// host.
fn check_host_access(hub: &Hub, shape: &Shape, plan: &Plan) -> Result<()> {
    use RouteKind::{ApiShare, DmaBuf, HostPointer, OpaqueFd, Peer, Same, SvmPointer};
    // The host maps the memory, with just that access.
    let is_map = |hop: &Hop| {
        shape.host != HostAccess::None
            && hop.to == hub.host_index()
            && matches!(hop.kind, HostPointer | SvmPointer)
    };
    let alone = |hop: &&Hop| {
        !is_map(hop) && !matches!(hop.kind, Same | OpaqueFd | DmaBuf | ApiShare | Peer)
    };
    let shared = plan.routes.iter().find(alone);
    match shared.filter(|_| shape.host != HostAccess::ReadWrite) {
        None => Ok(()),
        Some(hop) => {
            let id = &hub.topology().node(hop.to).id;
            Err(Error::unsupported(
                format!("host access `{}` on a buffer that {id} sees by {}", shape.host, hop.kind),
                "one device alone, or routes by descriptors or between peers: others map or copy the memory as the host does",
            ))
        }
    }
}

pub(super) struct Maker<'m> {
    pub hub: &'m Hub,
    pub shape: &'m Shape,
    pub plan: &'m Plan,
    /// The descriptor that the home itself was imported by.
    pub came_by: Option<&'m FdRange>,
}

impl Maker<'_> {
    /// The strictest alignment that a device or the caller requires, at least 64.
    fn alignment(&self) -> usize {
        let nodes = self.plan.routes.iter().map(|hop| hop.to).chain([self.plan.allocate_on]);
        let needed = nodes.map(|d| self.hub.topology().node(d).info.caps.align_bytes).max();
        self.shape.align.max(needed.unwrap_or(64)).max(64)
    }

    /// Whether a device other than the host imports the home, which may map it.
    fn maps_home(&self) -> bool {
        let host = self.hub.host_index();
        let aliased = |hop: &Hop| {
            !matches!(hop.kind, RouteKind::Same | RouteKind::Staged) && !self.goes_by_address(hop)
        };
        self.plan.routes.iter().any(|hop| aliased(hop) && hop.to != host)
    }

    pub fn spec(&self, bytes: usize) -> AllocSpec {
        let Shape { access, host, hint, .. } = *self.shape;
        let (align, memory_kind) = (self.alignment(), self.plan.memory_kind);
        AllocSpec { bytes, align, memory_kind, access, host, hint }
    }

    /// Allocates the home, or imports the caller's memory as the home.
    fn home(
        &self,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
        memory: Option<HostRange>,
    ) -> Result<Arc<dyn Memory>> {
        match memory {
            Some(range) => self.adopt(range, spec.align),
            None => self.hub.hal(self.plan.allocate_on).allocate(spec, contents),
        }
    }

    /// Creates the alias of every device.
    pub fn aliases(&self, home: Arc<dyn Memory>, spec: &AllocSpec) -> Result<Vec<Alias>> {
        let mut aliases = self.home_alone(home);
        self.add_others(&mut aliases, spec)?;
        Ok(aliases)
    }

    /// Creates the home's alias.
    fn home_alone(&self, home: Arc<dyn Memory>) -> Vec<Alias> {
        // Two more: the home, which may not be in the routes, and the host.
        let mut aliases = Vec::with_capacity(self.plan.routes.len() + 2);
        aliases.push(Alias {
            device: self.plan.allocate_on,
            memory: Some(home),
            sync: self.shape.sync_method(SyncMethod::SameQueue),
            ..home_alias()
        });
        aliases
    }

    /// Creates the aliases of the other devices.
    fn add_others(&self, aliases: &mut Vec<Alias>, spec: &AllocSpec) -> Result<()> {
        let home_device = self.plan.allocate_on;
        for hop in self.plan.routes.iter().filter(|hop| hop.to != home_device) {
            let replicas = aliases.iter().map(|s| s.replica).max().unwrap_or(HOME);
            let home = aliases[HOME].memory.as_ref().expect("the home has memory");
            let alias = self.alias(home, hop, replicas + 1, spec)?;
            aliases.push(alias);
        }
        self.add_host(aliases);
        Ok(())
    }

    /// Imports the caller's memory as the home. Rejects an address that a device cannot use in place: some
    /// drivers would silently copy instead. If the caller asks for copies, no device uses the address.
    fn adopt(&self, range: HostRange, align: usize) -> Result<Arc<dyn Memory>> {
        let copied = self.shape.route == Some(RouteKind::Staged);
        let align = if copied { self.shape.align } else { align };
        let at = range.pointer.addr().get();
        if !at.is_multiple_of(align) {
            return Err(Error::invalid(format!(
                "host memory at {at:#x}: the devices need it aligned to {align} bytes"
            )));
        }
        self.hub.hal(self.plan.allocate_on).import(&Export::Host(range), self.shape.access)
    }

    fn alias(
        &self,
        home: &Arc<dyn Memory>,
        hop: &Hop,
        next_replica: usize,
        spec: &AllocSpec,
    ) -> Result<Alias> {
        let device = self.hub.hal(hop.to);
        let (mut lost, mut in_place) = (None, false);
        let (memory, replica) = match hop.kind {
            RouteKind::Staged => (Some(allocate_own(device, spec)?), next_replica),
            _ if hop.to == self.hub.host_index() => (None, HOME),
            _ => match self.alias_memory(home, hop) {
                Ok(alias_memory) => {
                    in_place = self.goes_by_address(hop);
                    (Some(alias_memory), HOME)
                }
                Err(error) => {
                    self.check_next(hop, &error)?;
                    let own = allocate_own(device, spec).map_err(|_| error.clone())?;
                    lost = Some(error.to_string());
                    (Some(own), next_replica)
                }
            },
        };
        let kind = if lost.is_some() { RouteKind::Staged } else { hop.kind };
        Ok(Alias {
            device: hop.to,
            kind,
            memory,
            replica,
            is_home: false,
            in_place,
            copies: kind != RouteKind::Staged && hop.zero_copy != Some(true),
            sync: self.shape.sync_method(hop.sync),
            only_maps: hop.to == self.hub.host_index() && self.shape.host != HostAccess::ReadWrite,
            planned: true,
            lost,
            spare: OnceLock::new(),
            registration: None,
        })
    }

    /// Checks that a staged copy may replace a route that failed.
    fn check_next(&self, hop: &Hop, error: &Error) -> Result<()> {
        // Staging goes through the host, which must not access this buffer.
        let kept_away = self.shape.host != HostAccess::ReadWrite;
        if self.shape.route.is_some() || kept_away || !may_go_on(error) {
            return Err(error.clone());
        }
        let node = |device| &self.hub.topology().node(device).id;
        let (from, to, kind) = (node(self.plan.allocate_on), node(hop.to), hop.kind);
        if self.shape.policy == CopyPolicy::Forbid {
            return Err(Error::CopyForbidden {
                route: format!("{from} -> {to}"),
                why: format!("{kind} failed ({error}), and the next route is a staged copy"),
            });
        }
        tracing::warn!(%from, %to, %kind, %error, "a route failed: staged copies instead");
        Ok(())
    }

    /// Imports the home on another device.
    fn alias_memory(&self, home: &Arc<dyn Memory>, hop: &Hop) -> Result<Arc<dyn Memory>> {
        let export = match hop.kind {
            _ if self.goes_by_address(hop) => self.by_address(home, hop)?,
            RouteKind::OpaqueFd => Export::Fd(self.descriptor(home, FdKind::OpaqueFd)?),
            RouteKind::DmaBuf => Export::Fd(self.descriptor(home, FdKind::DmaBuf)?),
            RouteKind::ApiShare => Export::Object(home.export_object()?),
            RouteKind::Peer => Export::Peer(home.clone()),
            _ => home.export(&*self.hub.service_queue_state(self.plan.allocate_on)?.hal)?,
        };
        self.hub.hal(hop.to).import(&export, self.shape.access)
    }

    /// Whether the device uses the home in place, by the address that kernels of both devices use.
    fn goes_by_address(&self, hop: &Hop) -> bool {
        let info = |device| &self.hub.topology().node(device).info;
        let (home, to) = (info(self.plan.allocate_on), info(hop.to));
        self.came_by.is_none() && by_address(home, to, hop.kind)
    }

    /// Exports the home's address, or a descriptor that the other device's runtime creates for that address.
    fn by_address(&self, home: &Arc<dyn Memory>, hop: &Hop) -> Result<Export> {
        let range =
            home.export_address(&*self.hub.service_queue_state(self.plan.allocate_on)?.hal)?;
        match hop.kind {
            RouteKind::DmaBuf => Ok(Export::Fd(self.hub.hal(hop.to).descriptor(&range)?)),
            _ => Ok(Export::Address(range)),
        }
    }

    fn descriptor(&self, home: &Arc<dyn Memory>, kind: FdKind) -> Result<FdRange> {
        self.came_by.map_or_else(|| home.export_fd(kind), |from| Ok(from.clone()))
    }

    /// Adds the host's alias for host-visible memory even if the caller did not name the host, unless the host has no access.
    fn add_host(&self, aliases: &mut Vec<Alias>) {
        let (plan, host) = (self.plan, self.hub.host_index());
        let routes = self.hub.topology().between(plan.allocate_on, host);
        let refuted = |route: &Route| {
            route.memory_kind == Some(plan.memory_kind)
                && route.verdict.state == VerdictState::Refuted
        };
        let hidden = matches!(
            plan.memory_kind,
            MemoryKind::Device | MemoryKind::OnChip | MemoryKind::Exportable
        );
        let kept_away = self.shape.host == HostAccess::None;
        let blind = hidden || kept_away || routes.iter().any(refuted);
        if blind || aliases.iter().any(|alias| alias.device == host) {
            return;
        }
        let kind = match plan.memory_kind {
            MemoryKind::FineSvm | MemoryKind::CoarseSvm | MemoryKind::Managed => {
                RouteKind::SvmPointer
            }
            _ => RouteKind::HostPointer,
        };
        aliases.push(Alias {
            device: host,
            kind,
            memory: None,
            replica: HOME,
            is_home: false,
            in_place: false,
            copies: !plan.host_sees(),
            sync: self.shape.sync_method(SyncMethod::HostWait),
            only_maps: self.shape.host != HostAccess::ReadWrite,
            planned: false,
            lost: None,
            spare: OnceLock::new(),
            registration: None,
        });
    }
}
