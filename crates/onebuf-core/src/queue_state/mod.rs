//! Queue states: the progress of a native queue, the work that it waits for, and the work that is pending at shutdown.
//!
//! This module depends on no hub and no device: a queue state gets what it needs when it is created.

mod joined;
mod pending;
mod point;
#[cfg(all(test, not(onebuf_shuttle)))]
pub(crate) mod tests;
mod watch;

use joined::Joined;
pub(crate) use pending::PendingWork;
pub(crate) use point::QueuePoint;

use crate::{
    extensions::Extensions,
    observe::{OnQueue, Tracer},
    topology::DeviceIx,
};
use onebuf_hal::{
    self as hal, Error, QueueOrder, QueueSpec, Result,
    locks::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock},
};
use std::{any::Any, sync::OnceLock, time::Duration};

/// Keeps a foreign context alive; only its owner knows the type.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// One native queue and its progress.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub hal: Arc<dyn hal::Queue>,
    pub device: DeviceIx,
    pub spec: QueueSpec,
    /// A number that is unique in the process.
    pub number: usize,
    /// Whether its calls return only after their work is done.
    at_once: bool,
    /// Held by a launch on an out-of-order queue from its first query until its event is recorded: the next launch on the same
    /// view waits for that event.
    pub launching: Mutex<()>,
    /// How many pieces of work have been noted.
    noted: AtomicU64,
    /// How many of them are known to be complete.
    complete: AtomicU64,
    /// The newest event, and how many pieces of work it covers.
    mark: Mutex<Option<(u64, Arc<dyn hal::Event>)>>,
    /// A failure that a query of the backlog found. It is reported to the next caller that waits.
    untold: Mutex<Option<Error>>,
    has_untold: AtomicBool,
    /// Work of other queues that it waits for on the device.
    joined: Joined,
    /// Whether the caller has the native queue: work that it enqueues there is behind no event of onebuf.
    given_away: AtomicBool,
    /// Whether the native queue is foreign: its owner orders the work that it enqueues there.
    pub is_foreign: bool,
    /// Whether a mark is made when a view is dropped, because only one thread can make marks.
    pub marks_at_once: bool,
    /// Records its events.
    pub tracer: Tracer,
    /// Objects that higher crates keep with it, such as library handles and plans, which keep the native queue alive.
    pub extensions: Extensions,
    /// Keeps a foreign context alive; `None` for queues that the hub itself opens there.
    keeper: Option<Keeper>,
    /// Waits for its work at shutdown.
    pending: Option<Arc<PendingWork>>,
}

impl QueueState {
    /// Creates the state of a native queue of that device.
    pub fn of(
        device: DeviceIx,
        native: Arc<dyn hal::Queue>,
        spec: QueueSpec,
        keeper: Option<Keeper>,
    ) -> Self {
        let at_once = native.runs_at_once();
        Self {
            hal: native,
            device,
            spec,
            number: next_number(),
            at_once,
            launching: Mutex::new(()),
            noted: AtomicU64::new(0),
            complete: AtomicU64::new(0),
            mark: Mutex::new(None),
            untold: Mutex::new(None),
            has_untold: AtomicBool::new(false),
            joined: Joined::default(),
            given_away: AtomicBool::new(false),
            is_foreign: false,
            marks_at_once: false,
            tracer: Tracer::default(),
            extensions: Extensions::default(),
            keeper,
            pending: None,
        }
    }

    /// Records its events with the hub's tracer.
    pub fn traced(mut self, tracer: &Tracer) -> Self {
        self.tracer = tracer.clone();
        self
    }

    /// A marker at its current point, for a trace. `None` without an observer or profiling, or if the calls themselves do the work.
    pub fn timestamp(&self) -> Option<Arc<dyn hal::Event>> {
        let timed = self.spec.profiling && self.tracer.has_observer() && !self.at_once;
        timed.then(|| self.hal.mark().ok()).flatten()
    }

    /// Makes the end of its hub or of the process wait for its work, unless it is a queue of a foreign context, which its owner
    /// drains.
    pub fn drained_by(mut self, pending: &Arc<PendingWork>) -> Arc<Self> {
        if self.at_once || self.keeper.is_some() {
            return Arc::new(self);
        }
        self.pending = Some(pending.clone());
        let queue_state = Arc::new(self);
        pending.add(&queue_state);
        queue_state
    }

    /// Marks the native queue as foreign.
    pub fn foreign(mut self) -> Self {
        self.is_foreign = true;
        self
    }

    /// Makes a mark whenever a view on it is dropped.
    pub fn marked_at_once(mut self) -> Self {
        self.marks_at_once = true;
        self
    }

    /// Records that the caller got the native handle.
    pub fn give_away(&self) {
        self.given_away.store(true, Ordering::Relaxed);
    }

    /// Whether other code may enqueue there, so that only a mark covers all work.
    pub fn was_given_away(&self) -> bool {
        self.given_away.load(Ordering::Relaxed)
    }

    pub fn is_in_order(&self) -> bool {
        self.spec.order == QueueOrder::InOrder
    }

    /// Identifies the queue in a lease, as a multiple of eight. It is the queue state's address. If work runs at once, it is a
    /// small number of the device, which no address equals, so that all queues of the device share leases.
    #[inline]
    pub fn lease_key(self: &Arc<Self>) -> u64 {
        match self.at_once {
            true => (self.device.0 as u64 + 1) << 3,
            false => Arc::as_ptr(self).addr() as u64,
        }
    }

    /// Records that work was enqueued; call it after the enqueue. The point covers all work so far, on an out-of-order queue
    /// too, because its events are marks.
    pub fn note(self: &Arc<Self>) -> QueuePoint {
        Self::point_at(self, self.advance())
    }

    /// The point at which `at` pieces of work are done.
    pub fn point_at(queue_state: &Arc<Self>, at: u64) -> QueuePoint {
        QueuePoint { queue_state: queue_state.clone(), at, event: OnceLock::new(), own: None }
    }

    /// Counts a piece of work that was enqueued. Queues whose calls run at once do not count.
    pub fn advance(&self) -> u64 {
        if self.at_once { 1 } else { self.noted.fetch_add(1, Ordering::AcqRel) + 1 }
    }

    /// The point of one piece of work that has its own event.
    pub fn at_event(self: &Arc<Self>, event: Arc<dyn hal::Event>) -> QueuePoint {
        let mut point = self.note();
        point.own = Some(event);
        point
    }

    /// The number of pieces of work that are not known to be done. Queries the driver.
    pub fn backlog(self: &Arc<Self>) -> Result<u64> {
        let noted = self.noted.load(Ordering::Acquire);
        let done = self.complete.load(Ordering::Acquire);
        if noted <= done {
            return Ok(0);
        }
        match Self::point_at(self, noted).ask() {
            Ok(true) => Ok(0),
            Ok(false) => Ok(noted - done),
            Err(error) => {
                // Keep the error for the next wait: the event that reported it was this query's.
                lock(&self.untold).get_or_insert_with(|| error.clone());
                self.has_untold.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Waits until all its work has ended. Errors are only logged.
    pub fn drain(self: &Arc<Self>, limit: Duration) {
        let (noted, done) =
            (self.noted.load(Ordering::Acquire), self.complete.load(Ordering::Acquire));
        if noted > done
            && let Ok(event) = self.event_for(noted)
            && let Err(error) = event.wait(limit)
        {
            tracing::debug!(%error, "pending work failed or timed out at shutdown");
        }
    }

    /// Returns a failure that no wait has reported yet, once the queue has reached this point.
    fn tell(&self, reached: u64) -> Result<()> {
        if !self.has_untold.load(Ordering::Acquire) {
            return Ok(());
        }
        self.has_untold.store(false, Ordering::Release);
        let untold = lock(&self.untold).take();
        // One failure at a time: the next call reports the next.
        let told = untold.map_or_else(|| self.joined.tell(reached), Err);
        if !self.joined.is_empty() {
            self.has_untold.store(true, Ordering::Release);
        }
        told
    }

    /// Whether this many pieces of work are known to be done.
    fn has_reached(&self, at: u64) -> bool {
        self.at_once || self.complete.load(Ordering::Acquire) >= at
    }

    /// Whether an event exists that covers this many pieces of work.
    fn is_marked(&self, at: u64) -> bool {
        // In a forked child no driver is called; `event_for` returns the error.
        onebuf_sys::fork::is_child()
            || lock(&self.mark).as_ref().is_some_and(|(covered, _)| *covered >= at)
    }

    /// The newest event if it covers this many pieces of work, or a new one.
    fn event_for(&self, at: u64) -> Result<Arc<dyn hal::Event>> {
        // Before the lock: another thread may have held it at the fork, inside a driver call.
        if onebuf_sys::fork::is_child() {
            return Err(Error::forked("the device of this queue"));
        }
        let mut mark = lock(&self.mark);
        match &*mark {
            Some((covered, event)) if *covered >= at => Ok(event.clone()),
            _ => {
                // Read before marking: all work noted by now was enqueued before the mark.
                let covered = self.noted.load(Ordering::Acquire);
                let event = self.hal.mark_and_flush()?;
                *mark = Some((covered, event.clone()));
                Ok(event)
            }
        }
    }
}

impl From<&QueueState> for OnQueue {
    #[inline]
    fn from(queue_state: &QueueState) -> OnQueue {
        OnQueue { device: queue_state.device, queue: queue_state.number }
    }
}

impl From<&Arc<QueueState>> for OnQueue {
    #[inline]
    fn from(queue_state: &Arc<QueueState>) -> OnQueue {
        (&**queue_state).into()
    }
}

impl Drop for QueueState {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let (noted, done) =
            (self.noted.load(Ordering::Acquire), self.complete.load(Ordering::Acquire));
        if noted > done
            && let Ok(event) = self.event_for(noted)
            && !event.is_over()
        {
            pending.keep(event);
        }
    }
}

fn next_number() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
