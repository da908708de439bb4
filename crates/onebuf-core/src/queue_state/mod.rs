//! Queue states: how far a native queue is, what it waits for, and what is under way when everything ends.
//!
//! This module names no hub and no device: a queue state is told what it needs to know when it is made.

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

/// Keeps a foreign context, of a type that its owner knows.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// One native queue and how far it is.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub hal: Arc<dyn hal::Queue>,
    pub device: DeviceIx,
    pub spec: QueueSpec,
    /// By which it is known as long as the process lives.
    pub number: usize,
    /// Work that was noted is done.
    at_once: bool,
    /// Held by a launch on an out-of-order queue from its first question to its event's note: the next on
    /// the same view waits for that event.
    pub launching: Mutex<()>,
    /// How many pieces of work have been noted.
    noted: AtomicU64,
    /// How many of them are known to be complete.
    complete: AtomicU64,
    /// The newest event, and how many pieces of work it covers.
    mark: Mutex<Option<(u64, Arc<dyn hal::Event>)>>,
    /// A failure that was met by somebody who only wanted to know how busy the queue is.
    untold: Mutex<Option<Error>>,
    has_untold: AtomicBool,
    /// Other APIs' work that it waits for.
    joined: Joined,
    /// Somebody has the native queue: what they enqueue is behind no event of ours.
    given_away: AtomicBool,
    /// It is somebody else's, who orders what they enqueue there.
    pub is_foreign: bool,
    /// Only one thread can ask it for a mark: it is made when a view is given back.
    pub marks_at_once: bool,
    /// Where what happens is recorded.
    pub tracer: Tracer,
    /// What crates above keep with it, as libraries' handles and plans, which keep the native queue.
    pub extensions: Extensions,
    /// What keeps a foreign context; none for what the hub itself opens there.
    keeper: Option<Keeper>,
    /// Who waits for its work when all else is gone.
    pending: Option<Arc<PendingWork>>,
}

impl QueueState {
    /// Over a native queue of that device.
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

    /// What happens there is recorded where its hub's is.
    pub fn traced(mut self, tracer: &Tracer) -> Self {
        self.tracer = tracer.clone();
        self
    }

    /// Its work is waited for when its hub or the process ends, but that of a foreign context is its owner's.
    pub fn drained_by(mut self, pending: &Arc<PendingWork>) -> Arc<Self> {
        if self.at_once || self.keeper.is_some() {
            return Arc::new(self);
        }
        self.pending = Some(pending.clone());
        let queue_state = Arc::new(self);
        pending.add(&queue_state);
        queue_state
    }

    /// The native queue is somebody else's.
    pub fn foreign(mut self) -> Self {
        self.is_foreign = true;
        self
    }

    /// Views on it are given back with a mark.
    pub fn marked_at_once(mut self) -> Self {
        self.marks_at_once = true;
        self
    }

    /// The native handle was given to the caller.
    pub fn give_away(&self) {
        self.given_away.store(true, Ordering::Relaxed);
    }

    /// Whether others may enqueue there, so that only a mark tells the end of all work.
    pub fn was_given_away(&self) -> bool {
        self.given_away.load(Ordering::Relaxed)
    }

    pub fn is_in_order(&self) -> bool {
        self.spec.order == QueueOrder::InOrder
    }

    /// What a lease knows it by, a multiple of eight: its address; or a number of its device, which no address is, where
    /// work runs at once, so that all queues of the device are as one.
    #[inline]
    pub fn lease_key(self: &Arc<Self>) -> u64 {
        match self.at_once {
            true => (self.device.0 as u64 + 1) << 3,
            false => Arc::as_ptr(self).addr() as u64,
        }
    }

    /// Notes that work was enqueued; call it after the enqueue. The position covers everything so far,
    /// on an out-of-order queue too: events that are made of it are marks.
    pub fn note(self: &Arc<Self>) -> QueuePoint {
        Self::point_at(self, self.advance())
    }

    /// Where so many pieces of work are done.
    pub fn point_at(queue_state: &Arc<Self>, at: u64) -> QueuePoint {
        QueuePoint { queue_state: queue_state.clone(), at, event: OnceLock::new(), own: None }
    }

    /// Counts a piece of work that was enqueued. What is over need not be counted.
    pub fn advance(&self) -> u64 {
        if self.at_once { 1 } else { self.noted.fetch_add(1, Ordering::AcqRel) + 1 }
    }

    /// The point that one piece of work will have reached, by its own event.
    pub fn at_event(self: &Arc<Self>, event: Arc<dyn hal::Event>) -> QueuePoint {
        let mut point = self.note();
        point.own = Some(event);
        point
    }

    /// How many pieces of work are not known to be done. Asks the driver.
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
                // Whoever waits next shall hear of it: the event that told is this question's.
                lock(&self.untold).get_or_insert_with(|| error.clone());
                self.has_untold.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Waits until all its work is over; how that ended is somebody else's to hear.
    pub fn drain(self: &Arc<Self>, limit: Duration) {
        let (noted, done) =
            (self.noted.load(Ordering::Acquire), self.complete.load(Ordering::Acquire));
        if noted > done
            && let Ok(event) = self.event_for(noted)
            && let Err(error) = event.wait(limit)
        {
            tracing::debug!(%error, "work that was left behind");
        }
    }

    /// A failure that nobody who waits has been told of; the queue has come so far.
    fn tell(&self, reached: u64) -> Result<()> {
        if !self.has_untold.load(Ordering::Acquire) {
            return Ok(());
        }
        self.has_untold.store(false, Ordering::Release);
        let untold = lock(&self.untold).take();
        // One at a time: what is not told now is told next.
        let told = untold.map_or_else(|| self.joined.tell(reached), Err);
        if !self.joined.is_empty() {
            self.has_untold.store(true, Ordering::Release);
        }
        told
    }

    /// Whether so many pieces of work are known to be done.
    fn has_reached(&self, at: u64) -> bool {
        self.at_once || self.complete.load(Ordering::Acquire) >= at
    }

    /// Whether there is an event already that covers so many.
    fn is_marked(&self, at: u64) -> bool {
        // In a child no driver is asked; whoever wants the event is told so.
        onebuf_sys::fork::is_child()
            || lock(&self.mark).as_ref().is_some_and(|(covered, _)| *covered >= at)
    }

    /// The newest event if it covers so much, or a new one.
    fn event_for(&self, at: u64) -> Result<Arc<dyn hal::Event>> {
        // Before the lock: at the fork another thread may have held it, inside of its driver.
        if onebuf_sys::fork::is_child() {
            return Err(Error::forked("of this queue"));
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
