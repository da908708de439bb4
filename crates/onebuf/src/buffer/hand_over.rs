//! The hand-over itself: release what others hold, order the queue after their work, acquire for this site.
//!
//! Residency changes, copies and everything else that is more than a launch happen on in-order queues: an
//! out-of-order queue has the device's service queue do it, and its launches wait for that.

use super::{
    Core,
    core::HOME,
    few::Few,
    marks::Mark,
    span::Span,
    state::{State, Use},
};
use crate::{
    Error, Result,
    hal::{Event, Residency, Rung},
    ledger::Cause,
    queue::{Limit, Line},
    sync::Arc,
    topology::DeviceIx,
    trace::{Began, What},
};

impl Core {
    /// Release the others, order the queue after them, acquire for this site. What an out-of-order queue's
    /// launches have to wait for is put into `after`.
    pub(super) fn hand_over_by_route(
        &self,
        state: &mut State,
        mark: &Mark,
        line: &Arc<Line>,
        keep: bool,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<Rung> {
        let Mark { site, write, .. } = *mark;
        let group = self.sites[site].group();
        if keep && !state.groups[group].current {
            self.stage_in(state, site, line)?;
        }
        self.release_others(state, site, write)?;
        self.attach_home_for(state, site, write)?;
        let rung = self.acquire(state, mark, line, after)?;
        self.check_mapping(state, site)?;
        if write && keep {
            state.written_at(site, group);
        }
        state.rung = rung;
        Ok(rung)
    }

    /// The release of a hand-over to that device, and no more of it. What is staged is copied when it is taken.
    pub fn release_to(&self, device: DeviceIx, write: bool) -> Result<()> {
        let site = self.site_of(device).ok_or_else(|| self.not_shared(device))?;
        self.check_policy(site)?;
        let mut state = self.lock_reclaimed()?;
        let mark = Mark { span: self.whole(), site, write };
        state.marks.take(mark)?;
        state.settled = None;
        let released = match state.groups[self.sites[site].group()].current {
            true => self.release_others(&mut state, site, write),
            false => Ok(()),
        };
        state.marks.give_back(&mark);
        released
    }

    /// Makes what other sites of the group wrote visible, and takes write access away from them where
    /// this site will write.
    pub(super) fn release_others(&self, state: &mut State, site: usize, write: bool) -> Result<()> {
        let group = self.sites[site].group();
        let apart = |o: &usize| !(self.sites[*o].uses_home() && self.sites[site].uses_home());
        let others = (0..self.sites.len()).filter(|&o| o != site && self.sites[o].group() == group);
        for other in others.filter(apart) {
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
        if !write && !self.sites[site].uses_home() && group == HOME {
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
    pub(super) fn residency(&self, site: usize) -> Option<Residency> {
        let memory = self.sites[site].memory().filter(|m| m.needs_residency());
        memory.map(|memory| memory.residency())
    }

    /// Whether other sites see the bytes through this site's mapping.
    fn lends_mapping(&self, site: usize) -> bool {
        let home = &self.sites[HOME];
        let is_home = self.sites[site].is_home;
        is_home && home.spare.get().is_none() && home.device != self.hub.host_index()
    }

    /// Orders the queue after earlier work, and lets this site's kernels at the memory.
    pub(super) fn acquire(
        &self,
        state: &mut State,
        mark: &Mark,
        line: &Arc<Line>,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<Rung> {
        let Mark { site, write, .. } = *mark;
        self.bring_pages(state, mark, line)?;
        let attach = match self.residency(site) {
            None | Some(Residency::Attached) => false,
            Some(Residency::Published) => write,
            Some(Residency::Away) => true,
        };
        if !attach {
            return self.order(state, line, mark, after);
        }
        // Attaching the home unmaps what others look through: their work must be over, and no guard
        // of theirs may be left.
        let unmaps = self.lends_mapping(site);
        if unmaps && !state.marks.alone() {
            return Err(Error::Busy {
                what: "others read through this memory's mapping; drop their guards first".into(),
            });
        }
        let changer = self.in_order(line)?;
        let whole = Mark { span: self.whole(), site, write: write || unmaps };
        let rung = self.order(state, &changer, &whole, &mut Vec::new())?;
        self.reside(state, site, &changer, Residency::Attached)?;
        match line.is_in_order() {
            true => Ok(rung),
            false => Ok(rung.max(self.order(state, line, mark, after)?)),
        }
    }

    /// The queue itself, or the service queue in place of an out-of-order one.
    pub(super) fn in_order(&self, line: &Arc<Line>) -> Result<Arc<Line>> {
        match line.is_in_order() {
            true => Ok(line.clone()),
            false => self.hub.service_line(line.device),
        }
    }

    pub(super) fn whole(&self) -> Span {
        Span::whole(self.bytes)
    }

    /// Changes another site's residency, on the queue that used it last, after what it must wait for.
    pub(super) fn reside_elsewhere(
        &self,
        state: &mut State,
        site: usize,
        to: Residency,
    ) -> Result<()> {
        let line = self.line_for(state, site)?;
        let unmaps = self.lends_mapping(site) && self.residency(site) == Some(Residency::Away);
        let write = to == Residency::Away || unmaps;
        self.order(state, &line, &Mark { span: self.whole(), site, write }, &mut Vec::new())?;
        self.reside(state, site, &line, to)
    }

    /// Changes a site's residency. The change becomes a thing to wait for, also when it got only half
    /// way.
    pub(super) fn reside(
        &self,
        state: &mut State,
        site: usize,
        line: &Arc<Line>,
        to: Residency,
    ) -> Result<()> {
        let Some(memory) = self.sites[site].memory().cloned() else { return Ok(()) };
        let began = self.hub.tap().begin(What::Copy);
        let changed = line.hal.reside(&*memory, to);
        state.tripped |= changed.is_err();
        if changed != Ok(false) {
            state.note_change(self.use_of_all(line));
        }
        if changed? {
            self.count_change(site, to, line, began);
        }
        Ok(())
    }

    /// Everything that the queue was given so far, as a use of all bytes.
    pub(super) fn use_of_all(&self, line: &Arc<Line>) -> Use {
        Use { span: self.whole(), position: line.note() }
    }

    /// The in-order queue that used the site last, or the device's service queue.
    pub(super) fn line_for(&self, state: &State, site: usize) -> Result<Arc<Line>> {
        match &state.lines[site] {
            Some(line) => Ok(line.clone()),
            None => self.hub.service_line(self.sites[site].device),
        }
    }

    /// Orders a queue after the earlier work on the bytes; after all work, where that was on another
    /// device, because what was handed over is the whole buffer.
    pub(super) fn order(
        &self,
        state: &mut State,
        line: &Arc<Line>,
        mark: &Mark,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<Rung> {
        let mut rung = self.order_after(state, line, mark, after, |state| &state.writes)?;
        if mark.write {
            rung = rung.max(self.order_after(state, line, mark, after, |state| &state.reads)?);
        }
        Ok(rung)
    }

    fn order_after(
        &self,
        state: &mut State,
        line: &Arc<Line>,
        mark: &Mark,
        after: &mut Vec<Arc<dyn Event>>,
        which: fn(&State) -> &Few<Use>,
    ) -> Result<Rung> {
        let matters =
            |used: &&Use| used.span.overlaps(mark.span) || used.position.line.device != line.device;
        let ordered =
            which(state).iter().filter(matters).try_fold(Rung::SameQueue, |lowest, used| {
                self.order_after_one(line, mark.site, used, after).map(|rung| lowest.max(rung))
            });
        state.settle(ordered)
    }

    fn order_after_one(
        &self,
        line: &Arc<Line>,
        site: usize,
        used: &Use,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<Rung> {
        let position = &used.position;
        if line.is_in_order() && Arc::ptr_eq(line, &position.line) {
            return Ok(Rung::SameQueue);
        }
        // The lower of what was proven for either end.
        let other = self.site_of(position.line.device).map(|s| self.sites[s].sync);
        let best = self.sites[site].sync.max(other.unwrap_or(Rung::HostWait));
        let (limit, timeout) = (Limit { best, trusts: self.trusts }, self.hub.timeout());
        let rung = line.after_or(&self.hub, position, limit, |event| match line.is_in_order() {
            true => line.wait_by_event(position, event, timeout),
            false => {
                after.push(event);
                Ok(Rung::Event)
            }
        })?;
        let lower = rung > best && best > Rung::SameQueue;
        if lower && rung > line.best_across(&self.hub, position.line.device, limit) {
            let device = self.device_id(line.device);
            tracing::warn!(device, planned = %best, %rung, "a lower rung than planned");
        }
        Ok(rung)
    }

    /// Counts a residency change that is not proven to copy nothing: an alias' own, or the home's where
    /// the host looks through a mapping that may copy.
    fn count_change(&self, site: usize, to: Residency, line: &Line, began: Began<'_>) {
        let host = self.host_site().filter(|&s| self.sites[s].memory().is_none());
        let is_home = self.sites[site].is_home;
        let other = if is_home { host } else { Some(HOME) };
        let copier = if is_home { host } else { Some(site) };
        let (Some(other), Some(true)) = (other, copier.map(|s| self.sites[s].copies())) else {
            return;
        };
        let route = copier.map(|s| self.sites[s].kind());
        let (site, other) = (self.sites[site].device, self.sites[other].device);
        let (from, to) = if to == Residency::Attached { (other, site) } else { (site, other) };
        // A driver moves the whole allocation, however much of it is in use.
        self.count_implied_bytes(from, to, self.capacity);
        began.end(line, |event| {
            event.name = "residency".into();
            event.route = route;
            self.tell_copy(event, Cause::Implied, from, to, self.capacity);
        });
    }
}
