//! Failover: an alias whose route fails at run time continues on a replica in separate memory.
//!
//! A hand-over inside a replica changes the access state of the alias that takes the buffer and of those that
//! had it. If a driver call fails there, the taker leaves the replica: it gets separate memory, which is a new
//! replica, and uses staged copies from then on. The contents are read without changing their access state: by an
//! enqueued read from memory that could not be mapped, or through the mapping of memory that could not be
//! unmapped. The other aliases are not touched, so a failover that fails leaves the buffer as it was.
//!
//! The spare memory is set once and never removed. References to it therefore stay valid, and taking the
//! buffer on a lease needs no lock.

use super::{
    Core,
    alias::{HOME, Spare},
    core::PAGES_MOVE,
    hand_over::{Execution, failed},
    make::allocate_own,
    staging::Opened,
    state::CoreState,
    transition::{Enqueued, Outcome, Refusal, RouteEnd},
};
use crate::queue_state::QueuePoint;
use onebuf_hal::{
    AccessState, AllocSpec, Error, HostAccess, Memory, MemoryKind, Result, locks::Arc,
};

impl Execution<'_> {
    /// Checks that the host can use the home's mapping. There may be none if the home's own route has
    /// failed.
    pub fn look(&self, alias: usize) -> Outcome<QueuePoint, Error> {
        let home = self.core.aliases[HOME].memory.as_ref();
        let maps = || home.is_some_and(|home| home.host_pointer().is_some());
        if self.core.aliases[alias].memory().is_some() || maps() {
            return (Enqueued::default(), Ok(()));
        }
        let error = Error::unsupported("a host view of this buffer", "memory that its device maps");
        failed(error, Some(RouteEnd::Taker))
    }

    /// Gives an alias separate memory. If that fails, returns the error of the route.
    pub fn leave(&mut self, alias: usize) -> Outcome<QueuePoint, Error> {
        let core = self.core;
        let error = self.why.clone().unwrap_or_else(|| Error::invalid("no route has failed"));
        let Ok(memory) = core.spare_memory(alias) else { return failed(error, None) };
        let (replica, why) = (self.state.replicas.len(), error.to_string());
        let device = core.device_id(core.aliases[alias].device);
        tracing::warn!(device, %error, "a route failed: from now on this device gets staged copies");
        match core.aliases[alias].spare.set(Spare { memory, replica, why }) {
            Ok(()) => core.observers.route_failed(alias),
            Err(_) => return failed(error, None),
        }
        (Enqueued::default(), Ok(()))
    }
}

impl Core {
    fn spare_memory(&self, alias: usize) -> Result<Arc<dyn Memory>> {
        let device = self.hub.hal(self.aliases[alias].device);
        let spec = AllocSpec {
            bytes: self.capacity,
            align: self.align.max(device.info().caps.align_bytes).max(64),
            memory_kind: MemoryKind::Device,
            access: self.access,
            host: HostAccess::ReadWrite,
            hint: None,
        };
        allocate_own(device, &spec)
    }

    /// Returns the error of a refused hand-over; `why` is the error of the route that failed before.
    pub(super) fn refusal(&self, refusal: Refusal, why: Option<Error>) -> Error {
        let route = |from: usize, to: usize| {
            let [from, to] = [from, to].map(|alias| self.device_id(self.aliases[alias].device));
            format!("{from} -> {to}")
        };
        let busy = |what: &str| Error::Busy { what: what.into() };
        match refusal {
            Refusal::CopyForbidden { from, to } => Error::CopyForbidden {
                route: route(from, to),
                why: "the contents are in another copy of the buffer".into(),
            },
            Refusal::MoveForbidden { to } => {
                Error::CopyForbidden { route: route(HOME, to), why: PAGES_MOVE.into() }
            }
            Refusal::MappingInUse => {
                busy("others read through this memory's mapping; drop their guards first")
            }
            Refusal::PagesInUse => {
                busy("other guards are reading the pages of this managed memory; drop them first")
            }
            Refusal::HomeLeft => Error::unsupported(
                "using this memory in place, after its device failed to unmap it,",
                "a new buffer",
            ),
            Refusal::NoFailover => why.unwrap_or_else(|| {
                Error::unsupported("another route", "a buffer whose route may be replaced")
            }),
            Refusal::FailoverForbidden { alias } => {
                let failed = why.map(|why| format!(" ({why})")).unwrap_or_default();
                Error::CopyForbidden {
                    route: route(HOME, alias),
                    why: format!("the route failed{failed}, and the next one is a staged copy"),
                }
            }
        }
    }

    /// Opens the newest contents without changing an access state. They are in the last writer's memory while that is acquired;
    /// once it has been mapped they are in the mapping, until another alias writes.
    pub(super) fn contents_as_is(&self, state: &CoreState, index: usize) -> Result<Opened> {
        let (alias, home) = (&self.aliases[index], self.aliases[HOME].memory.as_ref());
        let memory = alias.memory_in(state.newest()).or(home).ok_or_else(|| {
            Error::unsupported("the contents of this buffer", "a memory that has them")
        })?;
        let mapped = memory.needs_access_state() && memory.access_state() == AccessState::Released;
        let host = self.hub.host_index();
        let pointer = memory.host_pointer().filter(|_| mapped || alias.device == host);
        let queue_state = match pointer {
            Some(_) => self.hub.service_queue_state(host)?,
            None => self.queue_state_for(state, index)?,
        };
        match pointer.filter(|_| state.exposed) {
            // Another process can write these bytes, so the host's queue copies them.
            Some(pointer) => {
                let memory = self.on_host(memory.clone(), pointer, self.whole())?;
                Ok(Opened { queue_state, memory, pointer: None })
            }
            None => Ok(Opened { queue_state, memory: memory.clone(), pointer }),
        }
    }

    /// Appends the routes that failed to the text of `explain`.
    pub fn explain_failures(&self, text: &mut String) {
        for alias in &self.aliases {
            if let Some(why) = alias.failure() {
                let (id, kind) = (self.device_id(alias.device), alias.kind);
                let planned = self.plan.routes.iter().find(|hop| hop.to == alias.device);
                let kind = planned.map_or(kind, |hop| hop.kind);
                text.push_str(&format!("\n{id}: {kind} failed ({why}); staged copies instead"));
            }
        }
    }
}
