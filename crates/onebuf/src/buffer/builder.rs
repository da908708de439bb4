//! Building buffers: from wishes to a plan to memory.

use super::{
    Buffer, Core,
    core::{HOME, Site},
    state::State as BufferState,
};
use crate::{
    Access, CopyPolicy, Error, Hint, Hub, Result, RouteKind, Rung, Strategy,
    device::Device,
    hal::{AllocSpec, HostAccess, Memory},
    plan::{Hop, Plan, Request, plan},
    sync::{Arc, Mutex},
    topology::{DeviceIx, Route, State},
};
use bytemuck::Pod;
use std::{borrow::Cow, collections::BTreeSet, marker::PhantomData};

/// What a buffer shall be. Made by [`Hub::buffer`].
#[derive(Clone)]
#[must_use = "nothing is allocated until `build`"]
pub struct BufferBuilder<'i, T: Pod> {
    hub: Hub,
    len: usize,
    access: Access,
    hint: Option<Hint>,
    devices: Vec<Device>,
    policy: Option<CopyPolicy>,
    align: Option<usize>,
    strategy: Option<Strategy>,
    allocate_on: Option<Device>,
    route: Option<RouteKind>,
    sync: Option<Rung>,
    trust_declared: bool,
    initial: Option<Cow<'i, [T]>>,
    element: PhantomData<T>,
}

impl<'i, T: Pod> BufferBuilder<'i, T> {
    pub(crate) fn new(hub: &Hub, len: usize) -> Self {
        Self {
            hub: hub.clone(),
            len,
            access: Access::default(),
            hint: None,
            devices: Vec::new(),
            policy: None,
            align: None,
            strategy: None,
            allocate_on: None,
            route: None,
            sync: None,
            trust_declared: false,
            initial: None,
            element: PhantomData,
        }
    }

    /// The devices that use it. The host need not be named: reads, writes and maps always work, and
    /// naming it asks for memory that it sees without a copy.
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        self.devices.extend(devices.into_iter().cloned());
        self
    }

    /// What kernels do with it; both by default.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// What its life will be like.
    pub fn hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// What to do about implied copies; the hub's policy by default. The stricter of the two holds.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Alignment in bytes, a power of two. The default is the strictest of the devices', at least 64.
    pub fn align(mut self, bytes: usize) -> Self {
        self.align = Some(bytes);
        self
    }

    /// Forces the form of the memory.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Forces where the memory lives.
    pub fn allocate_on(mut self, device: &Device) -> Self {
        self.allocate_on = Some(device.clone());
        self
    }

    /// Forces how the other devices see it, such as [`RouteKind::Staged`] for comparison.
    pub fn route(mut self, kind: RouteKind) -> Self {
        self.route = Some(kind);
        self
    }

    /// Forces a rung of the sync ladder, or a lower one, between different APIs.
    pub fn sync(mut self, rung: Rung) -> Self {
        self.sync = Some(rung);
        self
    }

    /// Uses routes that drivers declare although no experiment on this machine has proven them. The
    /// doctor does; so may a caller who knows the machine.
    pub fn trust_declared(mut self, trust: bool) -> Self {
        self.trust_declared = trust;
        self
    }

    /// What it holds at first; zeroes otherwise. Counted as a write that was asked for.
    pub fn init(mut self, contents: impl Into<Cow<'i, [T]>>) -> Self {
        self.initial = Some(contents.into());
        self
    }

    /// What `build` would do, without doing it.
    pub fn plan(&self) -> Result<Plan> {
        plan(self.hub.topology(), &self.request()?)
    }

    /// Allocates, and makes the memory visible to every device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length of zero or one that overflows, a bad alignment, contents
    /// of another length or a device of another hub; [`Error::CopyForbidden`] when the policy rules
    /// every plan out; [`Error::OutOfMemory`].
    pub fn build(self) -> Result<Buffer<T>> {
        let request = self.request()?;
        if self.initial.as_ref().is_some_and(|initial| initial.len() != self.len) {
            return Err(Error::invalid(format!(
                "initial contents of {} elements for a buffer of {}",
                self.initial.as_ref().map_or(0, |i| i.len()),
                self.len
            )));
        }
        let plan = plan(self.hub.topology(), &request)?;
        let policy = request.policy;
        let sites = self.sites(&plan, request.bytes as usize)?;
        let state = Mutex::new(BufferState::new(&sites));
        let bytes = request.bytes as usize;
        let align = self.align.unwrap_or(1).max(align_of::<T>());
        let buffer = Buffer::new(Core {
            hub: self.hub,
            bytes,
            align,
            access: self.access,
            sites,
            plan,
            policy,
            state,
        });
        match self.initial {
            Some(initial) => buffer.write(&initial)?,
            None => buffer.core.clear()?,
        }
        Ok(buffer)
    }

    fn request(&self) -> Result<Request> {
        let bytes = self.len.checked_mul(size_of::<T>()).filter(|&b| b <= isize::MAX as usize);
        let bytes =
            bytes.ok_or_else(|| Error::invalid(format!("{} elements overflow", self.len)))?;
        if bytes == 0 {
            return Err(Error::invalid("a buffer of zero bytes: give at least one element"));
        }
        for device in self.devices.iter().chain(&self.allocate_on) {
            if !device.hub().is(&self.hub) {
                return Err(Error::invalid(format!("device {device} belongs to another hub")));
            }
        }
        let named: BTreeSet<DeviceIx> = self.devices.iter().map(Device::index).collect();
        let devices = match named.is_empty() {
            true => vec![self.hub.host_index()],
            false => named.into_iter().collect(),
        };
        Ok(Request {
            devices,
            bytes: bytes as u64,
            policy: stricter(self.policy.unwrap_or_default(), self.hub.copy_policy()),
            hint: self.hint,
            strategy: self.strategy,
            allocate_on: self.allocate_on.as_ref().map(Device::index),
            route: self.route,
            trust_declared: self.trust_declared,
        })
    }

    /// The strictest alignment that any device asks for, or the caller's if it is stricter.
    fn alignment(&self, plan: &Plan) -> Result<usize> {
        let asked = self.align.unwrap_or(1);
        if !asked.is_power_of_two() || asked > 1 << 30 {
            return Err(Error::invalid(format!(
                "alignment {asked}: give a power of two up to 1 GiB"
            )));
        }
        let nodes = plan.routes.iter().map(|hop| hop.to).chain([plan.allocate_on]);
        let needed = nodes.map(|d| self.hub.topology().node(d).info.caps.align_bytes).max();
        Ok(asked.max(needed.unwrap_or(64)).max(64).max(align_of::<T>()))
    }

    /// Allocates the home, then lets every other device see it.
    fn sites(&self, plan: &Plan, bytes: usize) -> Result<Vec<Site>> {
        let align = self.alignment(plan)?;
        let spec = AllocSpec {
            bytes,
            align,
            strategy: plan.strategy,
            access: self.access,
            host: HostAccess::default(),
        };
        let home = self.hub.hal(plan.allocate_on).allocate(&spec, None)?;
        let mut sites = vec![Site {
            device: plan.allocate_on,
            kind: RouteKind::Same,
            memory: Some(home.clone()),
            group: HOME,
            copies: false,
            sync: self.rung(Rung::SameQueue),
            planned: true,
        }];
        for hop in plan.routes.iter().filter(|hop| hop.to != plan.allocate_on) {
            let groups = sites.iter().map(|s| s.group).max().unwrap_or(HOME);
            let site = self.site(&home, plan.allocate_on, hop, groups + 1, &spec)?;
            sites.push(site);
        }
        self.add_host(&mut sites, plan);
        Ok(sites)
    }

    fn rung(&self, planned: Rung) -> Rung {
        self.sync.map_or(planned, |forced| planned.max(forced))
    }

    fn site(
        &self,
        home: &Arc<dyn Memory>,
        home_device: DeviceIx,
        hop: &Hop,
        next_group: usize,
        spec: &AllocSpec,
    ) -> Result<Site> {
        let device = self.hub.hal(hop.to);
        let (memory, group) = match hop.kind {
            RouteKind::Staged => {
                let caps = &device.info().caps;
                let own = *caps.strategies.last().unwrap_or(&Strategy::Device);
                (Some(device.allocate(&AllocSpec { strategy: own, ..*spec }, None)?), next_group)
            }
            _ if hop.to == self.hub.host_index() => (None, HOME),
            _ => (Some(self.alias(home, home_device, hop)?), HOME),
        };
        Ok(Site {
            device: hop.to,
            kind: hop.kind,
            memory,
            group,
            copies: hop.kind != RouteKind::Staged && hop.zero_copy != Some(true),
            sync: self.rung(hop.sync),
            planned: true,
        })
    }

    /// The home as another device sees it.
    fn alias(
        &self,
        home: &Arc<dyn Memory>,
        home_device: DeviceIx,
        hop: &Hop,
    ) -> Result<Arc<dyn Memory>> {
        let export = home.export(&*self.hub.service_line(home_device)?.hal)?;
        self.hub.hal(hop.to).import(&export, self.access)
    }

    /// The host sees host-visible memory whether it was named or not.
    fn add_host(&self, sites: &mut Vec<Site>, plan: &Plan) {
        let host = self.hub.host_index();
        let routes = self.hub.topology().between(plan.allocate_on, host);
        let refuted = |route: &Route| {
            route.strategy == Some(plan.strategy) && route.verdict.state == State::Refuted
        };
        let hidden = matches!(plan.strategy, Strategy::Device | Strategy::OnChip);
        let blind = hidden || routes.iter().any(refuted);
        if blind || sites.iter().any(|site| site.device == host) {
            return;
        }
        let kind = match plan.strategy {
            Strategy::FineSvm | Strategy::CoarseSvm => RouteKind::SvmPointer,
            _ => RouteKind::HostPointer,
        };
        let sync = self.rung(Rung::HostWait);
        sites.push(Site {
            device: host,
            kind,
            memory: None,
            group: HOME,
            copies: !plan.host_sees(),
            sync,
            planned: false,
        });
    }
}

fn stricter(a: CopyPolicy, b: CopyPolicy) -> CopyPolicy {
    let rank =
        |p| [CopyPolicy::Allow, CopyPolicy::Warn, CopyPolicy::Forbid].iter().position(|&q| q == p);
    if rank(a) >= rank(b) { a } else { b }
}
