//! What happens when a route fails while the buffer is in use: its alias goes on with memory of its own.
//!
//! A hand-over inside a replica needs access state changes, of the alias that takes the buffer and of those that
//! had it. Where a driver refuses one, the taker leaves the replica: it gets memory of its own, a replica of
//! its own, and from then on staged copies. The contents are read from where they are, as they are: by an
//! enqueued read from memory that could not be mapped, through the mapping of memory that could not be
//! unmapped. What the others have is not touched, and so a failed fail-over leaves the buffer as it was.
//!
//! The spare memory is set once and never taken back. So whoever has a reference to it keeps a valid one,
//! and taking the buffer on a lease asks no lock.

use super::{
    core::{Alias, Core, HOME},
    hand_over::{Execution, failed},
    make::allocate_own,
    pages::PAGES_MOVE,
    staging::Opened,
    state::CoreState,
    transition::{Enqueued, Outcome, Refusal, RouteEnd},
};
use crate::queue_state::QueuePoint;
use onebuf_hal::{
    AccessState, AllocSpec, Error, HostAccess, Memory, MemoryKind, Result, RouteKind, locks::Arc,
};

/// What an alias uses once its route has failed.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(super) memory: Arc<dyn Memory>,
    replica: usize,
    why: String,
}

impl Alias {
    /// What the device sees the buffer as; `None` for the host looking through the home's mapping.
    #[inline]
    pub fn memory(&self) -> Option<&Arc<dyn Memory>> {
        match self.spare.get() {
            None => self.memory.as_ref(),
            Some(spare) => Some(&spare.memory),
        }
    }

    /// The same as a replica knows it: an alias that left still has what it had there.
    fn memory_in(&self, replica: usize) -> Option<&Arc<dyn Memory>> {
        if self.replica == replica { self.memory.as_ref() } else { self.memory() }
    }

    /// Which aliases see the same bytes.
    #[inline]
    pub fn replica(&self) -> usize {
        self.spare.get().map_or(self.replica, |spare| spare.replica)
    }

    /// Whether a hand-over to or from it copies behind the scenes, or is not proven not to.
    pub fn copies(&self) -> bool {
        self.copies && self.spare.get().is_none()
    }

    /// By which route it sees the buffer now.
    pub fn kind(&self) -> RouteKind {
        self.spare.get().map_or(self.kind, |_| RouteKind::Staged)
    }

    /// Why it is a staged copy, where the plan had something better.
    fn failure(&self) -> Option<&str> {
        self.spare.get().map(|spare| spare.why.as_str()).or(self.lost.as_deref())
    }
}

impl Execution<'_> {
    /// The host may look through the home's mapping only while there is one: not where the home's own
    /// route has failed.
    pub fn look(&self, alias: usize) -> Outcome<QueuePoint, Error> {
        let home = self.core.aliases[HOME].memory.as_ref();
        let maps = || home.is_some_and(|home| home.host_pointer().is_some());
        if self.core.aliases[alias].memory().is_some() || maps() {
            return (Enqueued::default(), Ok(()));
        }
        let error = Error::unsupported("a host view of this buffer", "memory that its device maps");
        failed(error, Some(RouteEnd::Taker))
    }

    /// Gives an alias memory of its own; fails with the error that its route failed with.
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

    /// What is told of a hand-over that was refused; `why` is what failed before.
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
            Refusal::PagesInUse => busy(
                "the pages of managed memory lie where others read them; drop their guards first",
            ),
            Refusal::HomeLeft => Error::unsupported(
                "memory whose own device cannot unmap it, in place",
                "a device that can: a new buffer",
            ),
            Refusal::NoFailover => {
                why.unwrap_or_else(|| Error::unsupported("another route", "a buffer that may"))
            }
            Refusal::FailoverForbidden { alias } => {
                let failed = why.map(|why| format!(" ({why})")).unwrap_or_default();
                Error::CopyForbidden {
                    route: route(HOME, alias),
                    why: format!("the route failed{failed}, and the next one is a staged copy"),
                }
            }
        }
    }

    /// The newest contents as they are. Their replica's last writer has them in its memory while that is acquired; from when it
    /// was mapped they are where the mapping is, until somebody else has written.
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
            // Another process can write them: the host's queue copies.
            Some(pointer) => {
                let memory = self.on_host(memory.clone(), pointer, self.whole())?;
                Ok(Opened { queue_state, memory, pointer: None })
            }
            None => Ok(Opened { queue_state, memory: memory.clone(), pointer }),
        }
    }

    /// What `explain` says of routes that failed.
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
