//! What happens when a route fails while the buffer is in use: its site goes on with memory of its own.
//!
//! A hand-over inside a group needs residency changes, of the site that takes the buffer and of those that
//! had it. Where a driver refuses one, the taker leaves the group: it gets memory of its own, a group of
//! its own, and from then on staged copies. The contents are read from where they are, as they are: by an
//! enqueued read from memory that could not be mapped, through the mapping of memory that could not be
//! unmapped. What the others have is not touched, and so a failed fail-over leaves the buffer as it was.
//!
//! The spare memory is set once and never taken back. So whoever has a reference to it keeps a valid one,
//! and taking the buffer on a lease asks no lock.

use super::{
    core::{Core, HOME, Site},
    make::allocate_own,
    marks::Mark,
    staging::Opened,
    state::{Group, State},
};
use crate::{
    CopyPolicy, Error, HostAccess, Result, RouteKind, Strategy, fence,
    hal::{AllocSpec, Event, Memory, Residency, Rung},
    queue::Line,
    sync::Arc,
};

/// What a site uses once its route has failed.
#[derive(Debug)]
pub(crate) struct Spare {
    memory: Arc<dyn Memory>,
    group: usize,
    why: String,
}

impl Site {
    /// What the device sees the buffer as; `None` for the host looking through the home's mapping.
    #[inline]
    pub fn memory(&self) -> Option<&Arc<dyn Memory>> {
        match self.spare.get() {
            None => self.memory.as_ref(),
            Some(spare) => Some(&spare.memory),
        }
    }

    /// The same as a group knows it: a site that left still has what it had there.
    fn memory_in(&self, group: usize) -> Option<&Arc<dyn Memory>> {
        if self.group == group { self.memory.as_ref() } else { self.memory() }
    }

    /// Which sites see the same bytes.
    #[inline]
    pub fn group(&self) -> usize {
        self.spare.get().map_or(self.group, |spare| spare.group)
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
        mark: &Mark,
        line: &Arc<Line>,
        keep: bool,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<Rung> {
        state.tripped = false;
        match self.hand_over_by_route(state, mark, line, keep, after) {
            Err(error) if state.tripped => {
                self.fail_over(state, mark.site, error)?;
                after.clear();
                self.hand_over_by_route(state, mark, line, keep, after)
            }
            done => done,
        }
    }

    /// The host may look through the home's mapping only while there is one: not where the home's own
    /// route has failed.
    pub(super) fn check_mapping(&self, state: &mut State, site: usize) -> Result<()> {
        let home = self.sites[HOME].memory.as_ref();
        let maps = || home.is_some_and(|home| home.host_pointer().is_some());
        if self.sites[site].memory().is_some() || maps() {
            return Ok(());
        }
        state.tripped = true;
        Err(Error::unsupported("a host view of this buffer", "memory that its device maps"))
    }

    /// Gives a site memory of its own; refuses with the error that its route failed with, or that of the
    /// policy.
    fn fail_over(&self, state: &mut State, site: usize, error: Error) -> Result<()> {
        let left = self.sites[site].spare.get().is_some();
        // Memory of somebody else's has to hold what they will find there; so has what another process sees.
        let owed = (self.wrapped.is_some() || state.exposed) && self.sites[site].is_home;
        if self.ordered || left || owed || state.marks.crowded(site) || fence::is_timeout(&error) {
            return Err(error);
        }
        let (home, device) =
            (self.device_id(self.sites[HOME].device), self.device_id(self.sites[site].device));
        if self.policy == CopyPolicy::Forbid {
            return Err(Error::CopyForbidden {
                route: format!("{home} -> {device}"),
                why: format!("the route failed ({error}), and the next one is a staged copy"),
            });
        }
        let memory = self.spare_memory(site).map_err(|_| error.clone())?;
        let (group, why) = (state.groups.len(), error.to_string());
        tracing::warn!(device, %error, "a route failed: from now on this device gets staged copies");
        if self.sites[site].spare.set(Spare { memory, group, why }).is_ok() {
            if let Some(card) = &self.card {
                card.note_failure(site);
            }
            state.groups.push(Group { current: false, writer: None });
        }
        Ok(())
    }

    fn spare_memory(&self, site: usize) -> Result<Arc<dyn Memory>> {
        let device = self.hub.hal(self.sites[site].device);
        let spec = AllocSpec {
            bytes: self.capacity,
            align: self.align.max(device.info().caps.align_bytes).max(64),
            strategy: Strategy::Device,
            access: self.access,
            host: HostAccess::ReadWrite,
            hint: None,
        };
        allocate_own(device, &spec)
    }

    /// Hands the newest contents of a group over to a copy: from the best site, or from where they are.
    pub(super) fn open_source(&self, state: &mut State, group: usize) -> Result<Opened> {
        let site = self.source_site(state, group);
        let line = self.line_for(state, site)?;
        state.tripped = false;
        let opened = self
            .release_others(state, site, false)
            .and_then(|()| self.open_end(state, site, &line, false));
        // A host that cannot look in says so; work that failed is another matter, and is told.
        let blind = |error: &Error| {
            let looks_in = self.sites[site].memory().is_none();
            looks_in && matches!(error, Error::Unsupported { .. })
        };
        match opened {
            Err(error) if state.tripped || blind(&error) => {
                tracing::debug!(%error, "the contents are read as they are");
                self.open_as_is(state, group).map_err(|_| error)
            }
            opened => opened,
        }
    }

    /// The group's last writer has the newest contents in its memory while that is attached; from when it
    /// was mapped they are where the mapping is, until somebody else has written.
    fn open_as_is(&self, state: &mut State, group: usize) -> Result<Opened> {
        let first = || self.sites.iter().position(|site| site.group == group).unwrap_or(HOME);
        let able = |w: &usize| self.sites[*w].takes_transfers();
        let site = state.groups[group].writer.filter(able).unwrap_or_else(first);
        let home = self.sites[HOME].memory.as_ref();
        let seen = self.sites[site].memory_in(group);
        let memory = seen.or(home).ok_or_else(|| {
            Error::unsupported("the contents of this buffer", "a memory that has them")
        })?;
        let mapped = memory.needs_residency() && memory.residency() == Residency::Away;
        let on_host = self.sites[site].device == self.hub.host_index();
        let pointer = memory.host_pointer().filter(|_| mapped || on_host);
        let line = match pointer {
            Some(_) => self.hub.service_line(self.hub.host_index())?,
            None => self.line_for(state, site)?,
        };
        let mark = Mark { span: self.whole(), site, write: false };
        self.order(state, &line, &mark, &mut Vec::new())?;
        match pointer.filter(|_| state.exposed) {
            // Another process can write them: the host's queue copies.
            Some(pointer) => {
                let memory = self.on_host(memory.clone(), pointer, self.whole())?;
                Ok(Opened { line, memory, pointer: None })
            }
            None => Ok(Opened { line, memory: memory.clone(), pointer }),
        }
    }

    /// What `explain` says of routes that failed.
    pub fn explain_failures(&self, text: &mut String) {
        for site in &self.sites {
            if let Some(why) = site.failure() {
                let (id, kind) = (self.device_id(site.device), site.kind);
                let planned = self.plan.routes.iter().find(|hop| hop.to == site.device);
                let kind = planned.map_or(kind, |hop| hop.kind);
                text.push_str(&format!("\n{id}: {kind} failed ({why}); staged copies instead"));
            }
        }
    }
}
