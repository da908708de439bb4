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
    guard_entries::GuardEntry,
    make::allocate_own,
    staging::Opened,
    state::{Replica, State},
};
use crate::{fence, queue_state::QueueState};
use onebuf_hal::{
    AccessState, AllocSpec, CopyPolicy, Error, Event, HostAccess, Memory, MemoryKind, Result,
    RouteKind, SyncMethod, locks::Arc,
};

/// What an alias uses once its route has failed.
#[derive(Debug)]
pub(crate) struct Spare {
    memory: Arc<dyn Memory>,
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

impl Core {
    /// Hands the buffer over to the queue; by a staged copy where the route fails.
    pub(super) fn hand_over(
        &self,
        state: &mut State,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
        keep: bool,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        state.tripped = false;
        match self.hand_over_by_route(state, entry, queue_state, keep, after) {
            Err(error) if state.tripped => {
                self.fail_over(state, entry.alias, error)?;
                after.clear();
                self.hand_over_by_route(state, entry, queue_state, keep, after)
            }
            done => done,
        }
    }

    /// The host may look through the home's mapping only while there is one: not where the home's own
    /// route has failed.
    pub(super) fn check_mapping(&self, state: &mut State, alias: usize) -> Result<()> {
        let home = self.aliases[HOME].memory.as_ref();
        let maps = || home.is_some_and(|home| home.host_pointer().is_some());
        if self.aliases[alias].memory().is_some() || maps() {
            return Ok(());
        }
        state.tripped = true;
        Err(Error::unsupported("a host view of this buffer", "memory that its device maps"))
    }

    /// Gives an alias memory of its own; refuses with the error that its route failed with, or that of the
    /// policy.
    fn fail_over(&self, state: &mut State, alias: usize, error: Error) -> Result<()> {
        let left = self.aliases[alias].spare.get().is_some();
        // Memory of somebody else's has to hold what they will find there; so has what another process sees.
        let owed = (self.is_foreign() || state.exposed) && self.aliases[alias].is_home;
        if self.ordered
            || left
            || owed
            || state.guard_entries.crowded(alias)
            || fence::is_timeout(&error)
        {
            return Err(error);
        }
        let (home, device) =
            (self.device_id(self.aliases[HOME].device), self.device_id(self.aliases[alias].device));
        if self.policy == CopyPolicy::Forbid {
            return Err(Error::CopyForbidden {
                route: format!("{home} -> {device}"),
                why: format!("the route failed ({error}), and the next one is a staged copy"),
            });
        }
        let memory = self.spare_memory(alias).map_err(|_| error.clone())?;
        let (replica, why) = (state.replicas.len(), error.to_string());
        tracing::warn!(device, %error, "a route failed: from now on this device gets staged copies");
        if self.aliases[alias].spare.set(Spare { memory, replica, why }).is_ok() {
            self.observers.route_failed(alias);
            state.replicas.push(Replica { current: false, writer: None });
        }
        Ok(())
    }

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

    /// Hands the newest contents of a replica over to a copy: from the best alias, or from where they are.
    pub(super) fn open_source(&self, state: &mut State, replica: usize) -> Result<Opened> {
        let alias = self.source_alias(state, replica);
        let queue_state = self.queue_state_for(state, alias)?;
        state.tripped = false;
        let opened = self
            .release_others(state, alias, false)
            .and_then(|()| self.open_end(state, alias, &queue_state, false));
        // A host that cannot look in says so; work that failed is another matter, and is told.
        let blind = |error: &Error| {
            let looks_in = self.aliases[alias].memory().is_none();
            looks_in && matches!(error, Error::Unsupported { .. })
        };
        match opened {
            Err(error) if state.tripped || blind(&error) => {
                tracing::debug!(%error, "the contents are read as they are");
                self.open_as_is(state, replica).map_err(|_| error)
            }
            opened => opened,
        }
    }

    /// The replica's last writer has the newest contents in its memory while that is acquired; from when it
    /// was mapped they are where the mapping is, until somebody else has written.
    fn open_as_is(&self, state: &mut State, replica: usize) -> Result<Opened> {
        let first =
            || self.aliases.iter().position(|alias| alias.replica == replica).unwrap_or(HOME);
        let able = |w: &usize| self.aliases[*w].takes_transfers();
        let alias = state.replicas[replica].writer.filter(able).unwrap_or_else(first);
        let home = self.aliases[HOME].memory.as_ref();
        let seen = self.aliases[alias].memory_in(replica);
        let memory = seen.or(home).ok_or_else(|| {
            Error::unsupported("the contents of this buffer", "a memory that has them")
        })?;
        let mapped = memory.needs_access_state() && memory.access_state() == AccessState::Released;
        let on_host = self.aliases[alias].device == self.hub.host_index();
        let pointer = memory.host_pointer().filter(|_| mapped || on_host);
        let queue_state = match pointer {
            Some(_) => self.hub.service_queue_state(self.hub.host_index())?,
            None => self.queue_state_for(state, alias)?,
        };
        let entry = GuardEntry { span: self.whole(), alias, write: false };
        self.order(state, &queue_state, &entry, &mut Vec::new())?;
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
