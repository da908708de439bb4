//! The executor of hand-overs: performs the steps that [`transition`](super::transition) decides on queues and memories, counts
//! and reports them.

use super::{
    Core,
    alias::HOME,
    guard_entries::GuardEntry,
    span::Span,
    state::CoreState,
    transition::{
        Acquire, BufferState, Enqueued, Executor, On, OrderAfter, Outcome, Refusal, RouteEnd, Step,
        StepFailed, Steps, Use, Uses, Without, perform_all, release_home, release_others, run,
    },
};
use crate::{
    fence,
    ledger::Cause,
    observe::{Began, What},
    queue_state::{QueuePoint, QueueState},
    sync::Terms,
    topology::DeviceIx,
};
use onebuf_hal::{AccessState, Error, Event, Result, SyncMethod, locks::Arc};
use std::ops::Deref;

impl Core {
    /// Hands the buffer over to the queue; by a staged copy if the route fails. Returns the sync method, and the events that an
    /// out-of-order queue's launches must wait for.
    pub(super) fn hand_over(
        &self,
        state: &mut CoreState,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
        keep: bool,
    ) -> Result<(SyncMethod, Vec<Arc<dyn Event>>)> {
        self.refresh(state, entry.span);
        let (in_order, without) = (queue_state.is_in_order(), Without::default());
        let mut hand_over = Execution::new(self, state, Some(queue_state));
        run(&mut hand_over, Acquire { entry: *entry, keep, in_order, without })?;
        let Execution { sync_method, after, .. } = hand_over;
        state.sync_method = sync_method;
        Ok((sync_method, after))
    }

    /// Performs only the release of a hand-over to a device. A staged copy is made later, when the buffer is taken.
    pub fn release_to(&self, device: DeviceIx, write: bool) -> Result<()> {
        let alias = self.alias_of(device).ok_or_else(|| self.not_shared(device))?;
        self.check_policy(alias)?;
        let mut state = self.lock_reclaimed()?;
        let entry = GuardEntry { span: self.whole(), alias, write };
        self.enter(&mut state, entry)?;
        state.settled = None;
        let released = self.perform(&mut state, |state| release_others(state, alias, write));
        state.guard_entries.give_back(&entry);
        released
    }

    /// Releases the home's memory for another process, if that takes a driver call.
    pub(super) fn release_home(&self, state: &mut CoreState) -> Result<()> {
        self.perform(state, release_home)
    }

    /// Performs steps that are not part of taking the buffer, and that have no alternative if they fail.
    fn perform(
        &self,
        state: &mut CoreState,
        plan: impl FnOnce(&BufferState) -> Steps,
    ) -> Result<()> {
        self.refresh(state, self.whole());
        let steps = plan(&state.buffer);
        let done = perform_all(&mut Execution::new(self, state, None), &steps);
        done.map_err(|failed| failed.error)
    }

    /// Reads the access states of the memories, and where pages are.
    fn refresh(&self, state: &mut CoreState, span: Span) {
        state.refresh(&self.aliases);
        if let Some(pages) = &mut state.buffer.pages {
            *pages = self.pages(span);
        }
    }

    /// Returns all work that the queue has received so far as a use of all bytes.
    pub(super) fn use_of_all(&self, queue_state: &Arc<QueueState>) -> Use<QueuePoint> {
        Use { span: self.whole(), point: queue_state.note() }
    }

    /// Counts an access state change as an implied copy unless it is proven to copy nothing: an alias's own change, or the
    /// home's if the host uses a mapping that may copy.
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
        // A driver moves the whole allocation, even if only a part of it is in use.
        self.count_implied_bytes(from, to, self.capacity);
        began.end(queue_state, |event| {
            event.name = "access_state".into();
            event.route = route;
            self.tell_copy(event, Cause::Implied, from, to, self.capacity);
        });
    }
}

/// One hand-over in progress.
pub(super) struct Execution<'h> {
    pub core: &'h Core,
    pub state: &'h mut CoreState,
    /// The queue that takes the buffer; `None` for a release alone.
    taker: Option<&'h Arc<QueueState>>,
    /// The lowest sync method that ordered the taking queue.
    sync_method: SyncMethod,
    /// The events that launches on an out-of-order queue wait for.
    after: Vec<Arc<dyn Event>>,
    /// The error that made the hand-over try another route.
    pub why: Option<Error>,
}

/// The queue of a step. The reference count is touched only for a queue that is looked up for this step.
pub(super) enum Chosen<'q> {
    Known(&'q Arc<QueueState>),
    Service(Arc<QueueState>),
}

impl Deref for Chosen<'_> {
    type Target = Arc<QueueState>;

    fn deref(&self) -> &Arc<QueueState> {
        match self {
            Chosen::Known(queue_state) => queue_state,
            Chosen::Service(queue_state) => queue_state,
        }
    }
}

/// The outcome of a step that failed before anything was enqueued.
pub(super) fn failed<T>(error: Error, route: Option<RouteEnd>) -> Outcome<T, Error> {
    (Enqueued::default(), Err(StepFailed { error, route, of_work: false }))
}

impl Executor for Execution<'_> {
    type Point = QueuePoint;
    type Error = Error;

    fn state(&self) -> &BufferState {
        &self.state.buffer
    }

    fn parts(&mut self) -> (&mut BufferState, &mut Uses<QueuePoint>) {
        (&mut self.state.buffer, &mut self.state.uses)
    }

    fn perform(&mut self, step: &Step) -> Outcome<QueuePoint, Error> {
        match *step {
            Step::Order(order) => self.order(&order),
            Step::Change { alias, to, on, end } => self.change(alias, to, on, end),
            Step::MovePages { to, span, on } => self.move_pages(to, span, on),
            Step::Copy { from, to, on } => self.copy(from, to, on),
            Step::Leave { alias } => self.leave(alias),
            Step::Look { alias } => self.look(alias),
            Step::Written { .. } => (Enqueued::default(), Ok(())),
        }
    }

    fn failed(&mut self, step: &Step, failed: &StepFailed<Error>) {
        if failed.of_work {
            self.state.settle_failure(&failed.error);
        }
        if matches!(step, Step::Change { .. } | Step::MovePages { .. }) {
            self.core.refresh(self.state, self.core.whole());
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Error {
        self.core.refusal(refusal, self.why.take())
    }

    fn again(&mut self, error: Error, without: Without) {
        tracing::debug!(%error, ?without, "the hand-over takes another way");
        (self.sync_method, self.why) = (SyncMethod::SameQueue, Some(error));
        self.after.clear();
    }
}

impl<'h> Execution<'h> {
    fn new(core: &'h Core, state: &'h mut CoreState, taker: Option<&'h Arc<QueueState>>) -> Self {
        let (sync_method, after) = (SyncMethod::SameQueue, Vec::new());
        Self { core, state, taker, sync_method, after, why: None }
    }

    /// Returns the queue that performs a step for an alias.
    pub fn queue(&self, on: On, alias: usize) -> Result<Chosen<'_>> {
        let (known, device) = match on {
            On::Taker => (self.taker, self.taken_on()),
            On::Service => (None, self.taken_on()),
            On::Last => (self.state.queue_states[alias].as_ref(), self.core.aliases[alias].device),
            On::AsIs => {
                let queue_state = self.core.contents_as_is(self.state, alias)?.queue_state;
                return Ok(Chosen::Service(queue_state));
            }
        };
        match known {
            Some(queue_state) => Ok(Chosen::Known(queue_state)),
            None => self.core.hub.service_queue_state(device).map(Chosen::Service),
        }
    }

    /// The device that takes the buffer; the home's for a release alone.
    fn taken_on(&self) -> DeviceIx {
        self.taker.map_or(self.core.aliases[HOME].device, |taker| taker.device)
    }

    /// Orders a queue after earlier work.
    fn order(&mut self, order: &OrderAfter) -> Outcome<QueuePoint, Error> {
        let mut after = std::mem::take(&mut self.after);
        let ordered = self.queue(order.on, order.alias).map_err(|error| (error, false)).and_then(
            |queue_state| {
                let mut uses = self.state.uses.before(order, queue_state.device);
                uses.try_fold(SyncMethod::SameQueue, |lowest, used| {
                    let ordered =
                        self.core.order_after(&queue_state, order.alias, used, &mut after);
                    ordered.map(|sync_method| lowest.max(sync_method))
                })
                .map_err(|error| (error, true))
            },
        );
        self.after = after;
        match ordered {
            Ok(sync_method) => {
                if order.reported {
                    self.sync_method = self.sync_method.max(sync_method);
                }
                (Enqueued::default(), Ok(()))
            }
            Err((error, of_work)) => {
                (Enqueued::default(), Err(StepFailed { error, route: None, of_work }))
            }
        }
    }

    /// Changes an alias's access state. Later users wait for the change, also if it failed after it was partly
    /// enqueued.
    fn change(
        &mut self,
        alias: usize,
        to: AccessState,
        on: On,
        end: RouteEnd,
    ) -> Outcome<QueuePoint, Error> {
        let queue_state = match self.queue(on, alias) {
            Ok(queue_state) => queue_state,
            Err(error) => return failed(error, None),
        };
        let Some(memory) = self.core.aliases[alias].memory() else {
            return (Enqueued::default(), Ok(()));
        };
        let began = self.core.hub.tracer().begin(What::Copy);
        let changed = queue_state.hal.reside(&**memory, to);
        let on = (changed != Ok(false)).then(|| queue_state.note());
        if changed == Ok(true) {
            self.core.count_change(alias, to, &queue_state, began);
        }
        let done = changed.map(|_| ()).map_err(|error| {
            let route = (!fence::is_timeout(&error)).then_some(end);
            StepFailed { error, route, of_work: false }
        });
        (Enqueued { source: None, on }, done)
    }
}

impl Core {
    /// Orders a queue after one piece of work. This is the only place of a hand-over where one queue waits for another.
    fn order_after(
        &self,
        queue_state: &Arc<QueueState>,
        alias: usize,
        used: &Use<QueuePoint>,
        after: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        let point = &used.point;
        if queue_state.is_in_order() && Arc::ptr_eq(queue_state, &point.queue_state) {
            return Ok(SyncMethod::SameQueue);
        }
        // The lower of the sync methods of both ends.
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
}
