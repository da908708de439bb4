//! Taking the buffer for a queue, and giving it back.

use super::{
    Core, Few, GuardEntry, Part, Seen,
    alias::HOME,
    state::{CoreState, Settled},
};
use crate::{observe::What, queue_state::QueueState};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

/// What a guard needs to know about the hand-over that it was taken by.
pub(crate) struct Taken<'b> {
    pub alias: usize,
    pub memory: Seen<'b>,
    pub sync_method: SyncMethod,
    /// The events that launches on an out-of-order queue wait for.
    pub after: Vec<Arc<dyn Event>>,
    /// The newest contents stay in another replica until the guard reports that it has overwritten everything.
    pub overwrites: bool,
    /// Another process can write the memory.
    pub exposed: bool,
}

impl Core {
    /// Adds a guard entry for the bytes, hands the buffer over to the queue, and returns the memory as the queue sees it.
    /// If `keep` is false the caller overwrites all bytes, and the contents are not brought along.
    pub(crate) fn take<'b>(
        &'b self,
        part: &Part<'b>,
        queue_state: &Arc<QueueState>,
        write: bool,
        keep: bool,
    ) -> Result<Taken<'b>> {
        let alias =
            self.alias_of(queue_state.device).ok_or_else(|| self.not_shared(queue_state.device))?;
        self.check_policy(alias)?;
        if queue_state.marks_at_once {
            queue_state.hal.check_thread()?;
        }
        let entry = GuardEntry { span: part.span, alias, write };
        let mut state = self.lock_reclaimed()?;
        self.enter(&mut state, entry)?;
        state.settled = None;
        // A replica with the newest contents has nothing to bring along. Otherwise the other replica stays the newest until
        // this one has been overwritten.
        let keep = keep || state.has_newest(self.aliases[alias].replica());
        let began = self.hub.tracer().begin(What::HandOver);
        let told = began.is_on() || self.observers.is_on();
        let from = if told { state.last_other(queue_state) } else { None };
        let taken = match self.begins_with(alias, &state) {
            true => Ok((self.begin(&mut state, write), Vec::new())),
            false => self.hand_over(&mut state, &entry, queue_state, keep),
        };
        if let Some(from) = from {
            if let Ok((sync_method, _)) = &taken {
                self.observers.handed_over(from.device, queue_state.device, *sync_method);
            }
            began.end(queue_state, |event| {
                event.came_from(&from);
                event.bytes = Some(part.span.len() as u64);
                event.buffer = Some(self.label.to_string());
                event.route = Some(self.aliases[alias].kind());
                event.sync_method = taken.as_ref().ok().map(|(sync_method, _)| *sync_method);
                event.failed = taken.is_err();
            });
        }
        let taken =
            taken.and_then(|(sync_method, after)| Ok((part.memory(alias)?, sync_method, after)));
        let (memory, sync_method, after) =
            taken.inspect_err(|_| state.guard_entries.give_back(&entry))?;
        // An alias without memory gets no lease: its view through the home's mapping is created for each guard.
        let has_own = self.aliases[alias].memory().is_some();
        let leases = queue_state.is_in_order() && !queue_state.marks_at_once;
        if keep && part.is_whole() && leases && has_own {
            state.settled = Some(Settled { queue_state: queue_state.clone(), alias, write });
        }
        Ok(Taken { alias, memory, sync_method, after, overwrites: !keep, exposed: state.exposed })
    }

    /// Whether a queue of the home is the first user, and no other device has memory of the buffer: then there is nothing to wait
    /// for and nothing to move. This is the common case for foreign memory that is wrapped for one launch.
    fn begins_with(&self, alias: usize, state: &CoreState) -> bool {
        let alone = || self.aliases.iter().all(|alias| alias.is_home || alias.memory.is_none());
        let home = || alias == HOME && self.aliases[HOME].spare.get().is_none();
        // The pages of new managed memory may be on either side.
        let stays = !self.moves_pages();
        state.uses.is_empty() && stays && home() && self.is_at_home(state) && alone()
    }

    fn begin(&self, state: &mut CoreState, write: bool) -> SyncMethod {
        if write {
            state.written_at(HOME);
        }
        state.sync_method = SyncMethod::SameQueue;
        state.sync_method
    }

    /// Records that the alias has overwritten everything: its replica has the newest contents.
    pub fn overwritten(&self, alias: usize) {
        self.lock_state().written_at(alias);
    }

    /// Records that the contents are no longer needed: every replica has some contents, and none is copied into another.
    pub(crate) fn discard(&self) -> Result<()> {
        let mut state = self.lock_state();
        let entry = GuardEntry { span: self.whole(), alias: HOME, write: true };
        state.guard_entries.check(&entry).map_err(|refused| self.refused(&entry, refused))?;
        // A write on a lease that is granted again would outdate no replica.
        state.settled = None;
        state.discard();
        Ok(())
    }

    /// Removes a guard entry, and records the work on its bytes that the queue may have received. `ends` are the events of the
    /// guard's launches; `None` if only a marker behind all work shows their completion. On an out-of-order queue, no events mean
    /// that there was no work: the next user waits for the earlier uses.
    pub(crate) fn give_back(
        &self,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
        ends: Option<Few<Arc<dyn Event>>>,
    ) {
        let mut state = self.lock_state();
        state.guard_entries.give_back(entry);
        self.wake(&mut state);
        match ends {
            _ if queue_state.marks_at_once => match queue_state.hal.mark() {
                Ok(mark_here) => state.note(entry, queue_state.at_event(mark_here)),
                // The next user that has to wait tries again, and gets the error.
                Err(_) => state.note_queue_state(entry, queue_state),
            },
            Some(ends) if !queue_state.is_in_order() => {
                for point in ends.into_vec().into_iter().map(|event| queue_state.at_event(event)) {
                    state.note(entry, point);
                }
                return;
            }
            // On an in-order queue the last event covers all launches. Transfers have no event here.
            Some(mut ends) if !queue_state.was_given_away() => match ends.pop() {
                Some(last) => state.note(entry, queue_state.at_event(last)),
                None => state.note_queue_state(entry, queue_state),
            },
            _ => state.note_queue_state(entry, queue_state),
        }
        // onebuf enqueues nothing on a foreign queue unless the caller requests it.
        if queue_state.is_in_order() && !queue_state.is_foreign {
            let last = &mut state.queue_states[entry.alias];
            if !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, queue_state)) {
                *last = Some(queue_state.clone());
            }
        }
        self.lease.grant(&state);
    }
}
