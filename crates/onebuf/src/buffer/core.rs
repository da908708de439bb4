//! One allocation, who sees it, and the hand-over between them.
//!
//! A *site* is one device's view of the buffer. Sites that see the same bytes form a *group*: the home
//! allocation and its aliases are one, each staged copy is another. A hand-over inside a group moves
//! residency (release, fence, acquire); between groups it copies, and the ledger says so.
//!
//! Two sets of positions order everything: `writes` (what must be done before anybody uses the buffer)
//! and `reads` (what must also be done before anybody writes it).

use super::state::{Group, State};
use crate::{
    Access, CopyPolicy, Error, Hub, Result,
    fence::{self, Fence},
    hal::{Export, HostRange, Memory, Residency, RouteKind, Rung},
    ledger::Cause,
    plan::Plan,
    queue::{Line, Position},
    route::staged::{self, End},
    sync::{Arc, Mutex, MutexGuard, lock},
    topology::DeviceIx,
};
use std::{any::Any, time::Duration};

/// One device's view of the buffer.
#[derive(Debug)]
pub(crate) struct Site {
    pub device: DeviceIx,
    pub kind: RouteKind,
    /// The memory as this device sees it; `None` for the host looking through the home's mapping.
    pub memory: Option<Arc<dyn Memory>>,
    pub group: usize,
    /// Whether a hand-over to or from it copies, or is not proven not to.
    pub copies: bool,
    /// The best rung that may join it to the others.
    pub sync: Rung,
    /// Whether the plan has it; the host may be there unasked.
    pub planned: bool,
}

/// The part of a buffer that has no type.
#[derive(Debug)]
pub(crate) struct Core {
    pub hub: Hub,
    pub bytes: usize,
    pub align: usize,
    /// What kernels may do with it at all.
    pub access: Access,
    pub sites: Vec<Site>,
    pub plan: Plan,
    pub policy: CopyPolicy,
    pub state: Mutex<State>,
}

/// The home allocation is the first site and the first group.
pub(crate) const HOME: usize = 0;

impl Core {
    pub fn device_id(&self, device: DeviceIx) -> &str {
        &self.hub.topology().node(device).id
    }

    pub fn site_of(&self, device: DeviceIx) -> Option<usize> {
        self.sites.iter().position(|s| s.device == device)
    }

    /// The host's view, if it has one; staged or not.
    pub fn host_site(&self) -> Option<usize> {
        self.site_of(self.hub.host_index())
    }

    /// Marks the buffer, hands it over to the queue, and says as what memory the queue sees it. The
    /// contents come along unless `keep` is false: then the taker overwrites all of them.
    pub fn take(
        &self,
        line: &Arc<Line>,
        write: bool,
        keep: bool,
    ) -> Result<(usize, Arc<dyn Memory>, Rung)> {
        let site = self.site_of(line.device).ok_or_else(|| self.not_shared(line.device))?;
        self.check_policy(site)?;
        let mut state = lock(&self.state);
        state.marks.take(write)?;
        let taken = self.hand_over(&mut state, site, line, write, keep);
        if taken.is_err() {
            state.marks.give_back(write);
        }
        taken.map(|(memory, rung)| (site, memory, rung))
    }

    /// Notes that the queue may have been given work on this buffer, and clears the mark.
    pub fn give_back(&self, site: usize, line: &Arc<Line>, write: bool) {
        let mut state = lock(&self.state);
        let position = line.note();
        if write {
            state.note_write(position)
        } else {
            state.note_read(position)
        }
        state.lines[site] = Some(line.clone());
        state.marks.give_back(write);
    }

    /// The plan has no copies under `Forbid`; but the host, where it was not asked for, may look through
    /// a mapping that copies.
    fn check_policy(&self, site: usize) -> Result<()> {
        let Site { device, copies, kind, planned, .. } = self.sites[site];
        if self.policy != CopyPolicy::Forbid || !copies || planned {
            return Ok(());
        }
        let (home, device) = (self.device_id(self.sites[HOME].device), self.device_id(device));
        Err(Error::CopyForbidden {
            route: format!("{home} -> {device}"),
            why: format!(
                "{kind} is not proven to be free of copies: share the buffer with {device} too"
            ),
        })
    }

    fn not_shared(&self, device: DeviceIx) -> Error {
        let ids: Vec<&str> = self.sites.iter().map(|s| self.device_id(s.device)).collect();
        Error::NotShared { device: self.device_id(device).into(), shared_with: ids.join(", ") }
    }

    /// Release the others, order the queue after them, acquire for this site.
    fn hand_over(
        &self,
        state: &mut State,
        site: usize,
        line: &Arc<Line>,
        write: bool,
        keep: bool,
    ) -> Result<(Arc<dyn Memory>, Rung)> {
        let group = self.sites[site].group;
        if keep && !state.groups[group].current {
            self.stage_in(state, site, line)?;
        }
        self.release_others(state, site, write)?;
        let rung = self.acquire(state, site, line, write)?;
        if write {
            for (index, other) in state.groups.iter_mut().enumerate() {
                other.current = index == group;
            }
            state.groups[group].writer = Some(site);
        }
        state.rung = rung;
        Ok((self.memory(site)?, rung))
    }

    /// Makes what other sites of the group wrote visible, and takes write access away from them where
    /// this site will write.
    fn release_others(&self, state: &mut State, site: usize, write: bool) -> Result<()> {
        let group = self.sites[site].group;
        for other in (0..self.sites.len()).filter(|&o| o != site && self.sites[o].group == group) {
            let wrote = state.groups[group].writer == Some(other);
            let to = match (write, self.residency(other)) {
                (_, None | Some(Residency::Away)) => continue,
                (true, _) => Residency::Away,
                // The home's mapping is what the others look through, written or not.
                (false, Some(Residency::Attached)) if wrote || self.lends_mapping(other) => {
                    Residency::Published
                }
                (false, _) => continue,
            };
            self.reside_elsewhere(state, other, to)?;
        }
        if !write && site != HOME && group == HOME {
            self.publish_home(state)?;
        }
        Ok(())
    }

    /// A home that is away is brought up to date before the first of several readers looks through its
    /// mapping: a later one on the home itself then finds nothing to unmap under the others' eyes.
    fn publish_home(&self, state: &mut State) -> Result<()> {
        let away = self.lends_mapping(HOME) && self.residency(HOME) == Some(Residency::Away);
        let writer = state.groups[HOME].writer.and_then(|writer| self.residency(writer));
        // Pages that their writer has not published yet are not what the home should take.
        if away && writer != Some(Residency::Attached) && state.marks.alone() {
            self.reside_elsewhere(state, HOME, Residency::Published)?;
        }
        Ok(())
    }

    /// Where a site's memory is; `None` for memory that needs no hand-over calls.
    fn residency(&self, site: usize) -> Option<Residency> {
        let memory = self.sites[site].memory.as_ref().filter(|m| m.needs_residency());
        memory.map(|memory| memory.residency())
    }

    /// Whether other sites see the bytes through this site's mapping.
    fn lends_mapping(&self, site: usize) -> bool {
        site == HOME && self.sites[HOME].device != self.hub.host_index()
    }

    /// Orders the queue after earlier work, and lets this site's kernels at the memory.
    fn acquire(
        &self,
        state: &mut State,
        site: usize,
        line: &Arc<Line>,
        write: bool,
    ) -> Result<Rung> {
        let attach = match self.residency(site) {
            None | Some(Residency::Attached) => false,
            Some(Residency::Published) => write,
            Some(Residency::Away) => true,
        };
        // Attaching the home unmaps what others look through: their work must be over, and no guard
        // of theirs may be left.
        let unmaps = attach && self.lends_mapping(site);
        if unmaps && !state.marks.alone() {
            return Err(Error::Busy { what: "others read through this memory's mapping".into() });
        }
        let rung = self.order(state, line, site, write || unmaps)?;
        if attach {
            self.reside(state, site, line, Residency::Attached)?;
        }
        Ok(rung)
    }

    /// Changes another site's residency, on the queue that used it last, after what it must wait for.
    fn reside_elsewhere(&self, state: &mut State, site: usize, to: Residency) -> Result<()> {
        let line = self.line_for(state, site)?;
        let unmaps = self.lends_mapping(site) && self.residency(site) == Some(Residency::Away);
        self.order(state, &line, site, to == Residency::Away || unmaps)?;
        self.reside(state, site, &line, to)
    }

    /// Changes a site's residency. The change becomes a thing to wait for, also when it got only half
    /// way.
    fn reside(
        &self,
        state: &mut State,
        site: usize,
        line: &Arc<Line>,
        to: Residency,
    ) -> Result<()> {
        let Some(memory) = self.sites[site].memory.clone() else { return Ok(()) };
        let changed = line.hal.reside(&*memory, to);
        if changed != Ok(false) {
            state.note_change(line.note());
        }
        if changed? {
            self.count_change(site, to);
        }
        Ok(())
    }

    /// The queue that used the site last, or the device's service queue.
    fn line_for(&self, state: &State, site: usize) -> Result<Arc<Line>> {
        match &state.lines[site] {
            Some(line) => Ok(line.clone()),
            None => self.hub.service_line(self.sites[site].device),
        }
    }

    /// Orders a queue after the buffer's earlier work.
    fn order(&self, state: &mut State, line: &Arc<Line>, site: usize, write: bool) -> Result<Rung> {
        let mut rung = self.order_after(state, line, site, |state| &state.writes)?;
        if write {
            rung = rung.max(self.order_after(state, line, site, |state| &state.reads)?);
        }
        Ok(rung)
    }

    fn order_after(
        &self,
        state: &mut State,
        line: &Arc<Line>,
        site: usize,
        which: fn(&State) -> &Vec<Position>,
    ) -> Result<Rung> {
        let timeout = self.hub.timeout();
        let ordered = which(state).iter().try_fold(Rung::SameQueue, |lowest, position| {
            // The lower of what was proven for either end.
            let other = self.site_of(position.line.device).map(|s| self.sites[s].sync);
            let best = self.sites[site].sync.max(other.unwrap_or(Rung::HostWait));
            let rung = line.after(position, best, timeout)?;
            if rung > best && best > Rung::SameQueue {
                let device = self.device_id(line.device);
                tracing::warn!(device, planned = %best, %rung, "a lower rung than planned");
            }
            Ok(lowest.max(rung))
        });
        self.settle(state, ordered)
    }

    /// A timeout quarantines the buffer; failed work is reported once, and is over.
    fn settle<T>(&self, state: &mut State, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            if fence::is_timeout(error) {
                state.quarantined = true;
            } else {
                state.forget_failed();
            }
        }
        outcome
    }

    /// Counts a residency change that is not proven to copy nothing: an alias' own, or the home's where
    /// the host looks through a mapping that may copy.
    fn count_change(&self, site: usize, to: Residency) {
        let host = self.host_site().filter(|&s| self.sites[s].memory.is_none());
        let other = if site == HOME { host } else { Some(HOME) };
        let copier = if site == HOME { host } else { Some(site) };
        let (Some(other), Some(true)) = (other, copier.map(|s| self.sites[s].copies)) else {
            return;
        };
        let (site, other) = (self.sites[site].device, self.sites[other].device);
        match to {
            Residency::Attached => self.count_implied(other, site),
            Residency::Published | Residency::Away => self.count_implied(site, other),
        }
    }

    pub fn count_implied(&self, from: DeviceIx, to: DeviceIx) {
        if self.policy == CopyPolicy::Warn {
            let (from, to) = (self.device_id(from), self.device_id(to));
            tracing::warn!(from, to, bytes = self.bytes, "an implied copy");
        }
        self.hub.ledger().record(from, to, Cause::Implied, self.bytes);
    }

    /// What the site's kernels, or the host, see.
    fn memory(&self, site: usize) -> Result<Arc<dyn Memory>> {
        match &self.sites[site].memory {
            Some(memory) => Ok(memory.clone()),
            None => self.through_home(),
        }
    }

    /// The home's mapping as memory of the host.
    fn through_home(&self) -> Result<Arc<dyn Memory>> {
        let home = self.memory(HOME)?;
        let pointer = home.host_pointer().ok_or_else(|| {
            Error::unsupported("a host view of this buffer", "memory that its device maps")
        })?;
        if pointer.addr().get() % self.align != 0 {
            return Err(Error::unsupported(
                format!("a host view aligned to {} bytes", self.align),
                "a driver whose maps are aligned so: share the buffer with the host too",
            ));
        }
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(home);
        let range = HostRange { pointer, bytes: self.bytes, owner };
        let host = self.hub.hal(self.hub.host_index());
        host.import(&Export::Host(range), Access::ReadWrite)
    }

    /// Brings the newest contents into a group of its own: the staged route.
    fn stage_in(&self, state: &mut State, site: usize, line: &Arc<Line>) -> Result<()> {
        let group = self.sites[site].group;
        let from = (0..state.groups.len()).find(|&g| state.groups[g].current).unwrap_or(HOME);
        let source = self.source_site(state, from);
        let (from_device, to_device) = (self.sites[source].device, self.sites[site].device);
        if self.policy == CopyPolicy::Forbid {
            return Err(Error::CopyForbidden {
                route: format!("{} -> {}", self.device_id(from_device), self.device_id(to_device)),
                why: "the contents are in another copy of the buffer".into(),
            });
        }
        let source_line = self.line_for(state, source)?;
        self.release_others(state, source, false)?;
        let source_end = self.open_end(state, source, &source_line, false)?;
        self.release_others(state, site, true)?;
        let target_end = self.open_end(state, site, line, true)?;
        let copied = staged::copy(&source_end, &target_end, self.bytes, self.hub.timeout());
        if copied.is_err() {
            // Parts of it may still be under way.
            state.note_read(source_line.note());
            state.note_change(line.note());
        }
        self.settle(state, copied)?;
        state.note_write(line.note());
        state.groups[group] = Group { current: true, writer: Some(site) };
        self.count_implied(from_device, to_device);
        Ok(())
    }

    /// Which site of a group to copy from: the host's where it sees the bytes themselves, else the last
    /// writer's. A mapping that copies would move everything for the sake of a part.
    fn source_site(&self, state: &State, group: usize) -> usize {
        let direct = |s: &usize| self.sites[*s].group == group && !self.sites[*s].copies;
        let host = self.host_site().filter(direct);
        let first = || self.sites.iter().position(|s| s.group == group).unwrap_or(HOME);
        host.or(state.groups[group].writer).unwrap_or_else(first)
    }

    /// Hands a site over to the copy engine.
    fn open_end(
        &self,
        state: &mut State,
        site: usize,
        line: &Arc<Line>,
        write: bool,
    ) -> Result<End> {
        self.acquire(state, site, line, write)?;
        let memory = self.memory(site)?;
        let host = self.sites[site].device == self.hub.host_index();
        Ok(match memory.host_pointer().filter(|_| host) {
            Some(pointer) => End::Host(pointer),
            None => End::Device(line.hal.clone(), memory),
        })
    }

    /// A site that holds the newest contents, for copies that the caller asked for: the host's if it
    /// can see them, else the last writer's.
    pub fn newest_site(&self) -> usize {
        let state = lock(&self.state);
        let group = (0..state.groups.len()).find(|&g| state.groups[g].current).unwrap_or(HOME);
        self.source_site(&state, group)
    }

    /// Where to overwrite everything: at the home, by the host if it sees the bytes themselves.
    pub fn overwrite_site(&self) -> usize {
        self.source_site(&lock(&self.state), HOME)
    }

    /// Every device that sees the newest contents.
    pub fn newest_devices(&self) -> Vec<DeviceIx> {
        let state = lock(&self.state);
        let newest = self.sites.iter().filter(|s| state.groups[s.group].current);
        newest.map(|s| s.device).collect()
    }

    /// A site other than the host's that sees the newest contents, the last writer's if it does.
    pub fn newest_device_site(&self) -> Option<usize> {
        let state = lock(&self.state);
        let host = self.hub.host_index();
        let fits =
            |s: &usize| self.sites[*s].device != host && state.groups[self.sites[*s].group].current;
        let writers = state.groups.iter().filter_map(|g| g.writer);
        writers.chain(0..self.sites.len()).find(fits)
    }

    /// The queue on which to do the caller's copies at a site.
    pub fn line_at(&self, site: usize) -> Result<Arc<Line>> {
        let state = lock(&self.state);
        self.line_for(&state, site)
    }

    /// The last write as a fence, or the last read where nothing was written.
    pub fn fence(&self) -> Option<Fence> {
        let state = lock(&self.state);
        let position = state.writes.last().or(state.reads.last())?.clone();
        Some(Fence::new(position, self.hub.timeout()).with_rung(state.rung))
    }

    pub fn lock_state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// How long the drop of a buffer whose work is not known to have ended waits for it.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Drop for Core {
    fn drop(&mut self) {
        let state = self.lock_state();
        let forgotten = state.marks.any();
        let running = |p: &Position| p.wait(LAST_WAIT).is_err() && !p.is_over();
        let late = state.quarantined && state.writes.iter().chain(&state.reads).any(running);
        drop(state);
        if forgotten || late {
            // A guard that was never dropped, or work that never ended, may still use the memory.
            tracing::warn!(
                bytes = self.bytes,
                forgotten,
                "a buffer's memory is kept: it may still be in use"
            );
            for site in self.sites.drain(..) {
                std::mem::forget(site.memory);
            }
        }
    }
}
