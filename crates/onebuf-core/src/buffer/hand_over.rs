//! The hand-over itself: release what others hold, order the queue after their work, acquire for this alias.
//!
//! Access state changes, copies and everything else that is more than a launch happen on in-order queues: an
//! out-of-order queue has the device's service queue do it, and its launches wait for that.

use super::{
    Core,
    core::HOME,
    few::Few,
    guard_entries::GuardEntry,
    span::Span,
    state::{State, Use},
};
use crate::{
    ledger::Cause,
    observe::{Began, What},
    queue_state::QueueState,
    sync::Terms,
    topology::DeviceIx,
};
use onebuf_hal::{AccessState, Error, Event, Result, SyncMethod, locks::Arc};

impl Core {
    /// Release the others, order the queue after them, acquire for this alias. What an out-of-order queue's
    /// launches have to wait for is put into `after`.
    pub(super) fn hand_over_by_route(
        &self,
        state: &mut State,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
        keep: bool,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        let GuardEntry { alias, write, .. } = *entry;
        let replica = self.aliases[alias].replica();
        if keep && !state.replicas[replica].current {
            self.stage_in(state, alias, queue_state)?;
        }
        self.release_others(state, alias, write)?;
        self.attach_home_for(state, alias, write)?;
        let sync_method = self.acquire(state, entry, queue_state, after)?;
        self.check_mapping(state, alias)?;
        if write && keep {
            state.written_at(alias, replica);
        }
        state.sync_method = sync_method;
        Ok(sync_method)
    }

    /// The release of a hand-over to that device, and no more of it. What is staged is copied when it is taken.
    pub fn release_to(&self, device: DeviceIx, write: bool) -> Result<()> {
        let alias = self.alias_of(device).ok_or_else(|| self.not_shared(device))?;
        self.check_policy(alias)?;
        let mut state = self.lock_reclaimed()?;
        let entry = GuardEntry { span: self.whole(), alias, write };
        state.guard_entries.take(entry)?;
        state.settled = None;
        let released = match state.replicas[self.aliases[alias].replica()].current {
            true => self.release_others(&mut state, alias, write),
            false => Ok(()),
        };
        state.guard_entries.give_back(&entry);
        released
    }

    /// Makes what other aliases of the replica wrote visible, and takes write access away from them where
    /// this alias will write.
    pub(super) fn release_others(
        &self,
        state: &mut State,
        alias: usize,
        write: bool,
    ) -> Result<()> {
        let replica = self.aliases[alias].replica();
        let apart = |o: &usize| !(self.aliases[*o].uses_home() && self.aliases[alias].uses_home());
        let others =
            (0..self.aliases.len()).filter(|&o| o != alias && self.aliases[o].replica() == replica);
        for other in others.filter(apart) {
            let wrote = state.replicas[replica].writer == Some(other);
            let to = match (write, self.access_state(other)) {
                (_, None | Some(AccessState::Released)) => continue,
                (true, _) => AccessState::Released,
                // The home's mapping is what the others look through, written or not.
                (false, Some(AccessState::Acquired)) if wrote || self.lends_mapping(other) => {
                    AccessState::SharedRead
                }
                (false, _) => continue,
            };
            self.reside_elsewhere(state, other, to)?;
        }
        if !write && !self.aliases[alias].uses_home() && replica == HOME {
            self.publish_home(state)?;
        }
        Ok(())
    }

    /// A home that is released is brought up to date before the first of several readers looks through its
    /// mapping: a later one on the home itself then finds nothing to unmap under the others' eyes.
    fn publish_home(&self, state: &mut State) -> Result<()> {
        let released =
            self.lends_mapping(HOME) && self.access_state(HOME) == Some(AccessState::Released);
        let writer = state.replicas[HOME].writer.and_then(|writer| self.access_state(writer));
        // Pages that their writer has not released yet are not what the home should take.
        if released && writer != Some(AccessState::Acquired) && state.guard_entries.alone() {
            self.reside_elsewhere(state, HOME, AccessState::SharedRead)?;
        }
        Ok(())
    }

    /// Where an alias's memory is; `None` for memory that needs no hand-over calls.
    pub(super) fn access_state(&self, alias: usize) -> Option<AccessState> {
        let memory = self.aliases[alias].memory().filter(|m| m.needs_access_state());
        memory.map(|memory| memory.access_state())
    }

    /// Whether other aliases see the bytes through this alias's mapping.
    fn lends_mapping(&self, alias: usize) -> bool {
        let home = &self.aliases[HOME];
        let is_home = self.aliases[alias].is_home;
        is_home && home.spare.get().is_none() && home.device != self.hub.host_index()
    }

    /// Orders the queue after earlier work, and lets this alias's kernels at the memory.
    pub(super) fn acquire(
        &self,
        state: &mut State,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        let GuardEntry { alias, write, .. } = *entry;
        self.bring_pages(state, entry, queue_state)?;
        let attach = match self.access_state(alias) {
            None | Some(AccessState::Acquired) => false,
            Some(AccessState::SharedRead) => write,
            Some(AccessState::Released) => true,
        };
        if !attach {
            return self.order(state, queue_state, entry, after);
        }
        // Attaching the home unmaps what others look through: their work must be over, and no guard
        // of theirs may be left.
        let unmaps = self.lends_mapping(alias);
        if unmaps && !state.guard_entries.alone() {
            return Err(Error::Busy {
                what: "others read through this memory's mapping; drop their guards first".into(),
            });
        }
        let changer = self.in_order(queue_state)?;
        let whole = GuardEntry { span: self.whole(), alias, write: write || unmaps };
        let sync_method = self.order(state, &changer, &whole, &mut Vec::new())?;
        self.reside(state, alias, &changer, AccessState::Acquired)?;
        match queue_state.is_in_order() {
            true => Ok(sync_method),
            false => Ok(sync_method.max(self.order(state, queue_state, entry, after)?)),
        }
    }

    /// The queue itself, or the service queue in place of an out-of-order one.
    pub(super) fn in_order(&self, queue_state: &Arc<QueueState>) -> Result<Arc<QueueState>> {
        match queue_state.is_in_order() {
            true => Ok(queue_state.clone()),
            false => self.hub.service_queue_state(queue_state.device),
        }
    }

    pub(super) fn whole(&self) -> Span {
        Span::whole(self.bytes)
    }

    /// Changes another alias's access state, on the queue that used it last, after what it must wait for.
    pub(super) fn reside_elsewhere(
        &self,
        state: &mut State,
        alias: usize,
        to: AccessState,
    ) -> Result<()> {
        let queue_state = self.queue_state_for(state, alias)?;
        let unmaps =
            self.lends_mapping(alias) && self.access_state(alias) == Some(AccessState::Released);
        let write = to == AccessState::Released || unmaps;
        self.order(
            state,
            &queue_state,
            &GuardEntry { span: self.whole(), alias, write },
            &mut Vec::new(),
        )?;
        self.reside(state, alias, &queue_state, to)
    }

    /// Changes an alias's access state. The change becomes a thing to wait for, also when it got only half
    /// way.
    pub(super) fn reside(
        &self,
        state: &mut State,
        alias: usize,
        queue_state: &Arc<QueueState>,
        to: AccessState,
    ) -> Result<()> {
        let Some(memory) = self.aliases[alias].memory().cloned() else { return Ok(()) };
        let began = self.hub.tracer().begin(What::Copy);
        let changed = queue_state.hal.reside(&*memory, to);
        state.tripped |= changed.is_err();
        if changed != Ok(false) {
            state.note_change(self.use_of_all(queue_state));
        }
        if changed? {
            self.count_change(alias, to, queue_state, began);
        }
        Ok(())
    }

    /// Everything that the queue was given so far, as a use of all bytes.
    pub(super) fn use_of_all(&self, queue_state: &Arc<QueueState>) -> Use {
        Use { span: self.whole(), point: queue_state.note() }
    }

    /// The in-order queue that used the alias last, or the device's service queue.
    pub(super) fn queue_state_for(&self, state: &State, alias: usize) -> Result<Arc<QueueState>> {
        match &state.queue_states[alias] {
            Some(queue_state) => Ok(queue_state.clone()),
            None => self.hub.service_queue_state(self.aliases[alias].device),
        }
    }

    /// Orders a queue after the earlier work on the bytes; after all work, where that was on another
    /// device, because what was handed over is the whole buffer.
    pub(super) fn order(
        &self,
        state: &mut State,
        queue_state: &Arc<QueueState>,
        entry: &GuardEntry,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        let mut sync_method =
            self.order_after(state, queue_state, entry, after, |state| &state.writes)?;
        if entry.write {
            sync_method =
                sync_method
                    .max(self.order_after(state, queue_state, entry, after, |state| &state.reads)?);
        }
        Ok(sync_method)
    }

    fn order_after(
        &self,
        state: &mut State,
        queue_state: &Arc<QueueState>,
        entry: &GuardEntry,
        after: &mut Vec<Arc<dyn Event>>,
        which: fn(&State) -> &Few<Use>,
    ) -> Result<SyncMethod> {
        let matters = |used: &&Use| {
            used.span.overlaps(entry.span) || used.point.queue_state.device != queue_state.device
        };
        let ordered =
            which(state).iter().filter(matters).try_fold(SyncMethod::SameQueue, |lowest, used| {
                self.order_after_one(queue_state, entry.alias, used, after)
                    .map(|sync_method| lowest.max(sync_method))
            });
        state.settle(ordered)
    }

    fn order_after_one(
        &self,
        queue_state: &Arc<QueueState>,
        alias: usize,
        used: &Use,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        let point = &used.point;
        if queue_state.is_in_order() && Arc::ptr_eq(queue_state, &point.queue_state) {
            return Ok(SyncMethod::SameQueue);
        }
        // The lower of what was proven for either end.
        let other = self.alias_of(point.queue_state.device).map(|s| self.aliases[s].sync);
        let best = self.aliases[alias].sync.max(other.unwrap_or(SyncMethod::HostWait));
        let (terms, sync) = (Terms { best, unproven: self.trusts }, self.hub.sync());
        let sync_method = match queue_state.is_in_order() {
            true => sync.after(queue_state, point, terms)?,
            false => sync.collect(queue_state, point, terms, after)?,
        };
        let lower = sync_method > best && best > SyncMethod::SameQueue;
        if lower && sync_method > sync.best(point.queue_state.device, queue_state.device, terms) {
            let device = self.device_id(queue_state.device);
            tracing::warn!(device, planned = %best, %sync_method, "a lower sync method than planned");
        }
        Ok(sync_method)
    }

    /// Counts an access state change that is not proven to copy nothing: an alias' own, or the home's where
    /// the host looks through a mapping that may copy.
    fn count_change(
        &self,
        alias: usize,
        to: AccessState,
        queue_state: &QueueState,
        began: Began<'_>,
    ) {
        let host = self.host_alias().filter(|&s| self.aliases[s].memory().is_none());
        let is_home = self.aliases[alias].is_home;
        let other = if is_home { host } else { Some(HOME) };
        let copier = if is_home { host } else { Some(alias) };
        let (Some(other), Some(true)) = (other, copier.map(|s| self.aliases[s].copies())) else {
            return;
        };
        let route = copier.map(|s| self.aliases[s].kind());
        let (alias, other) = (self.aliases[alias].device, self.aliases[other].device);
        let (from, to) = if to == AccessState::Acquired { (other, alias) } else { (alias, other) };
        // A driver moves the whole allocation, however much of it is in use.
        self.count_implied_bytes(from, to, self.capacity);
        began.end(queue_state, |event| {
            event.name = "access_state".into();
            event.route = route;
            self.tell_copy(event, Cause::Implied, from, to, self.capacity);
        });
    }
}
