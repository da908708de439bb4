//! The hand-over as a pure function: from a buffer's state and a request to the steps that satisfy it.
//!
//! A hand-over inside a replica changes access states: the others *release*, the queue is *ordered* after their work, the alias
//! *acquires*. Between replicas it *copies*. Managed memory *moves its pages*. [`transition`] decides which of these happen,
//! where and in which order. [`BufferState::apply`] and [`Uses::note_step`] record what each step has changed once its call has
//! succeeded, so that the state stays true after a failure of any step. [`run`] performs the steps through an [`Executor`] and,
//! if a route fails, plans again without it. None of these uses a driver, a queue or a clock: the tests run them over a model
//! of the memory, through all states that up to four devices can reach.
//!
//! Access state changes, copies and all other work except launches happen on in-order queues: for an
//! out-of-order queue the device's service queue performs them, and the launches wait for that.

mod run;
mod state;
mod step;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod uses;

pub(crate) use run::{Executor, Outcome, StepFailed, perform_all, run};
pub(crate) use state::{AliasState, BufferState, Pages, Replica, Rules, Sides};
pub(crate) use step::{
    Acquire, CopySource, On, OrderAfter, Refusal, RouteEnd, Step, Steps, Without,
};
pub(crate) use uses::{Enqueued, Point, Use, Uses};

use super::{alias::HOME, guard_entries::GuardEntry};
use onebuf_hal::AccessState;
use std::borrow::Cow;

/// Fills in the steps that hand the buffer over. The list is large, so it is written in place instead of returned.
pub(crate) fn transition(
    state: &BufferState,
    acquire: &Acquire,
    steps: &mut Steps,
) -> Result<(), Refusal> {
    steps.clear();
    StepPlanner::new(state, steps).hand_over(acquire)
}

/// Returns only the release steps of a hand-over to an alias. A staged copy is made later, when the buffer is taken.
pub(crate) fn release_others(state: &BufferState, alias: usize, write: bool) -> Steps {
    let mut steps = Steps::default();
    if state.has_newest(state.aliases[alias].replica()) {
        StepPlanner::new(state, &mut steps).release_others(alias, write, RouteEnd::Taker);
    }
    steps
}

/// Returns the steps that release the home's own memory for another process, if that takes a driver call.
pub(crate) fn release_home(state: &BufferState) -> Steps {
    let mut steps = Steps::default();
    if state.access(HOME).is_some() {
        let mut planner = StepPlanner::new(state, &mut steps);
        planner.change_elsewhere(HOME, AccessState::Released, RouteEnd::Taker);
    }
    steps
}

/// How the access state of an alias is changed.
#[derive(Clone, Copy)]
struct Via {
    on: On,
    end: RouteEnd,
    /// Whether the hand-over reports the sync method of this order.
    reported: bool,
}

struct StepPlanner<'s> {
    /// The state after the steps so far, except for access states, which `access` derives.
    state: Cow<'s, BufferState>,
    steps: &'s mut Steps,
}

impl<'s> StepPlanner<'s> {
    fn new(state: &'s BufferState, steps: &'s mut Steps) -> Self {
        Self { state: Cow::Borrowed(state), steps }
    }

    /// Releases the other aliases, orders the queue after their work, and acquires for this alias.
    fn hand_over(&mut self, acquire: &Acquire) -> Result<(), Refusal> {
        let Acquire { entry, keep, in_order, without } = *acquire;
        let GuardEntry { alias, write, .. } = entry;
        if without.route {
            self.leave(alias)?;
        }
        let stages = keep && !self.state.has_newest(self.state.aliases[alias].replica());
        if self.state.is_cut_off(alias, write || stages) {
            return Err(Refusal::HomeLeft);
        }
        let on = if in_order { On::Taker } else { On::Service };
        if stages {
            self.stage_in(alias, on, without.source)?;
        }
        self.release_others(alias, write, RouteEnd::Taker);
        self.acquire_home_for(alias, write, RouteEnd::Taker)?;
        let changed = self.acquire(entry, Via { on, end: RouteEnd::Taker, reported: true })?;
        // An in-order queue that performs the change is already ordered after everything.
        if !(in_order && changed) {
            self.order(On::Taker, entry, true);
        }
        if !self.state.aliases[alias].sees() {
            self.steps.push(Step::Look { alias });
        }
        if write && keep {
            self.steps.push(Step::Written { alias });
        }
        Ok(())
    }

    /// Moves the alias to separate memory. The other aliases are not touched, so a failover that fails leaves the buffer as it
    /// was.
    fn leave(&mut self, alias: usize) -> Result<(), Refusal> {
        let BufferState { rules, exposed, ref guard_entries, .. } = *self.state;
        let AliasState { is_home, own, .. } = self.state.aliases[alias];
        if own.is_some() {
            return Ok(());
        }
        // Foreign memory must hold the contents that its owner expects, and so must memory that another process sees.
        let owed = (rules.is_foreign || exposed) && is_home;
        if rules.keeps_routes || owed || guard_entries.crowded(alias) {
            return Err(Refusal::NoFailover);
        }
        if rules.forbids_copies {
            return Err(Refusal::FailoverForbidden { alias });
        }
        self.push_seen(Step::Leave { alias });
        Ok(())
    }

    /// Adds a step whose effect later decisions depend on.
    fn push_seen(&mut self, step: Step) {
        self.steps.push(step);
        self.state.to_mut().apply(&step);
    }

    /// Copies the newest contents into another replica: the staged route.
    fn stage_in(&mut self, alias: usize, on: On, as_is: bool) -> Result<(), Refusal> {
        let AliasState { is_home, .. } = self.state.aliases[alias];
        let in_place = self.state.aliases[alias].uses_home() && !is_home;
        if in_place && self.state.aliases[HOME].own.is_some() {
            return Err(Refusal::HomeLeft);
        }
        let replica = self.state.newest();
        let source = self.state.source(replica);
        if self.state.rules.forbids_copies {
            return Err(Refusal::CopyForbidden { from: source.unwrap_or(HOME), to: alias });
        }
        let handed_over = source.filter(|_| !as_is);
        let from = match handed_over {
            Some(alias) => CopySource { alias, as_is: false },
            None => CopySource { alias: self.state.source_as_is(replica), as_is: true },
        };
        self.open_source(from)?;
        // An alias that uses the home in place gets the contents by a copy into the home.
        let (to, on) = if in_place { (HOME, On::Last) } else { (alias, on) };
        self.release_others(to, true, RouteEnd::Taker);
        self.open(to, true, Via { on, end: RouteEnd::Taker, reported: false })?;
        self.push_seen(Step::Copy { from, to, on });
        Ok(())
    }

    /// Hands the source of a copy over to the copy, or only orders the copy after earlier work if it reads the source as it is.
    fn open_source(&mut self, from: CopySource) -> Result<(), Refusal> {
        let CopySource { alias, as_is } = from;
        if as_is {
            let entry = GuardEntry { span: self.state.whole, alias, write: false };
            self.order(On::AsIs, entry, false);
            return Ok(());
        }
        self.release_others(alias, false, RouteEnd::Source);
        self.acquire_home_for(alias, false, RouteEnd::Source)?;
        self.open(alias, false, Via { on: On::Last, end: RouteEnd::Source, reported: false })
    }

    /// Hands all bytes of an alias over to a copy.
    fn open(&mut self, alias: usize, write: bool, via: Via) -> Result<(), Refusal> {
        let entry = GuardEntry { span: self.state.whole, alias, write };
        if !self.acquire(entry, via)? {
            self.order(via.on, entry, false);
        }
        Ok(())
    }

    /// Makes visible what other aliases of the replica wrote and, if this alias will write, takes their access
    /// away.
    fn release_others(&mut self, alias: usize, write: bool, end: RouteEnd) {
        let AliasState { own, .. } = self.state.aliases[alias];
        let replica = self.state.aliases[alias].replica();
        let at_home = self.state.aliases[alias].uses_home();
        // No other alias sees the separate memory of an alias whose route failed.
        let others = if own.is_some() { 0 } else { self.state.aliases.len() };
        for other in (0..others).filter(|&other| other != alias) {
            let together = at_home && self.state.aliases[other].uses_home();
            if together || self.state.aliases[other].replica() != replica {
                continue;
            }
            let wrote = self.state.is_unpublished(other);
            let to = match (write, self.access(other)) {
                (_, None | Some(AccessState::Released)) => continue,
                (true, _) => AccessState::Released,
                // The other aliases use the home's mapping, so the home must be mapped even if it did not write.
                (false, Some(AccessState::Acquired))
                    if wrote || self.state.lends_mapping(other) =>
                {
                    AccessState::SharedRead
                }
                (false, _) => continue,
            };
            self.change_elsewhere(other, to, end);
        }
        if !write && !at_home && replica == HOME {
            self.publish_home(end);
        }
    }

    /// Changes a released home to `shared_read` before the first of several readers uses its mapping. A later reader
    /// on the home itself then need not unmap memory that the others are reading.
    fn publish_home(&mut self, end: RouteEnd) {
        let lends = self.state.lends_mapping(HOME);
        let released = lends && self.access(HOME) == Some(AccessState::Released);
        let acquired = |&writer: &usize| self.access(writer) == Some(AccessState::Acquired);
        let unpublished = |writer: &usize| self.state.is_unpublished(*writer);
        let writer = self.state.replicas[HOME].writer.filter(unpublished).filter(acquired);
        // Not before the last writer has released its memory: the home would take old contents.
        if released && writer.is_none() && self.state.guard_entries.alone() {
            self.change_elsewhere(HOME, AccessState::SharedRead, end);
        }
    }

    /// Changes another alias's access state on the queue that used it last, ordered after conflicting work.
    fn change_elsewhere(&mut self, alias: usize, to: AccessState, end: RouteEnd) {
        let unmaps =
            self.state.lends_mapping(alias) && self.access(alias) == Some(AccessState::Released);
        let write = to == AccessState::Released || unmaps;
        self.change(alias, to, write, Via { on: On::Last, end, reported: false });
    }

    /// Changes an access state, ordered after the writes and, for a `write`, the reads so far.
    fn change(&mut self, alias: usize, to: AccessState, write: bool, via: Via) {
        let Via { on, end, reported } = via;
        self.order(on, GuardEntry { span: self.state.whole, alias, write }, reported);
        self.steps.push(Step::Change { alias, to, on, end });
    }

    fn order(&mut self, on: On, entry: GuardEntry, reported: bool) {
        let GuardEntry { span, alias, write } = entry;
        self.steps.push(Step::Order(OrderAfter { on, alias, span, write, reported }));
    }

    /// The access state of an alias's memory after the steps so far; `None` for memory that needs no calls.
    fn access(&self, alias: usize) -> Option<AccessState> {
        let state = &*self.state;
        let own = state.aliases[alias].own.is_some();
        let keeper = if own { alias } else { state.keeper(alias) };
        let changed = self.steps.iter().rev().find_map(|step| match *step {
            Step::Change { alias: other, to, .. } => {
                let left = state.aliases[other].own.is_some();
                let other = if left { other } else { state.keeper(other) };
                (other == keeper && left == own).then_some(to)
            }
            _ => None,
        });
        changed.or_else(|| state.access(alias))
    }

    /// Unmaps the home for an alias that uses it in place: always before a write, and before a read if the home is mapped for
    /// writing.
    fn acquire_home_for(
        &mut self,
        alias: usize,
        write: bool,
        end: RouteEnd,
    ) -> Result<(), Refusal> {
        let AliasState { is_home, .. } = self.state.aliases[alias];
        if is_home || !self.state.aliases[alias].uses_home() {
            return Ok(());
        }
        // A home that has left its first memory can no longer unmap it, and need not: see `is_cut_off`.
        if self.state.aliases[HOME].own.is_some() {
            return Ok(());
        }
        match self.access(HOME) {
            None | Some(AccessState::Acquired) => return Ok(()),
            Some(AccessState::SharedRead) if !write => return Ok(()),
            Some(AccessState::SharedRead | AccessState::Released) => {}
        }
        if !self.state.guard_entries.alone() {
            return Err(Refusal::MappingInUse);
        }
        let via = Via { on: On::Last, end, reported: false };
        self.change(HOME, AccessState::Acquired, true, via);
        Ok(())
    }

    /// Acquires the memory for an alias's kernels, ordered after earlier work. Returns whether that took a change.
    fn acquire(&mut self, entry: GuardEntry, via: Via) -> Result<bool, Refusal> {
        let GuardEntry { alias, write, .. } = entry;
        self.bring_pages(entry, via.on)?;
        let acquired = match self.access(alias) {
            None | Some(AccessState::Acquired) => true,
            Some(AccessState::SharedRead) => !write,
            Some(AccessState::Released) => false,
        };
        if acquired {
            return Ok(false);
        }
        // Acquiring the home unmaps memory that others use: their work must have ended, and they must hold no
        // guard.
        let unmaps = self.state.lends_mapping(alias);
        if unmaps && !self.state.guard_entries.alone() {
            return Err(Refusal::MappingInUse);
        }
        self.change(alias, AccessState::Acquired, write || unmaps, via);
        Ok(true)
    }

    /// Moves the pages of the bytes that an alias of the home's replica takes, if they are on the other side, ordered after all
    /// work on the buffer.
    fn bring_pages(&mut self, entry: GuardEntry, on: On) -> Result<(), Refusal> {
        let (state, GuardEntry { alias, span, .. }) = (&*self.state, entry);
        let Some(pages) = state.pages.filter(|_| state.aliases[alias].replica() == HOME) else {
            return Ok(());
        };
        let here = state.aliases[alias].uses_home();
        let to = if here { AccessState::Acquired } else { AccessState::Released };
        let sides = if span == state.whole { pages.whole } else { pages.taken };
        let moved = |step: &Step| matches!(step, Step::MovePages { to: done, .. } if *done == to);
        if !sides.misplaced(to) || self.steps.iter().any(moved) {
            return Ok(());
        }
        // Pages must not move while a guard on the other side is held: its reads would move them back, uncounted.
        let other = |&other: &usize| other != alias && state.aliases[other].replica() == HOME;
        let held = |other| state.guard_entries.held_at(other);
        if (0..state.aliases.len()).filter(other).any(held) {
            return Err(Refusal::PagesInUse);
        }
        if state.rules.forbids_copies {
            return Err(Refusal::MoveForbidden { to: alias });
        }
        let on = if here { on } else { On::Last };
        let all = GuardEntry { span: state.whole, alias: HOME, write: true };
        self.order(on, all, false);
        self.steps.push(Step::MovePages { to, span, on });
        Ok(())
    }
}
