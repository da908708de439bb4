//! Queues: streams of work, and how one is made to wait for another.

mod callback_thread;
mod joined;
mod point;
#[cfg(all(test, not(onebuf_shuttle)))]
pub(crate) mod tests;
mod watch;

pub(crate) use callback_thread::CallbackThread;
use joined::Joined;
pub(crate) use point::QueuePoint;

use crate::{
    extensions::Extensions,
    hub::{Hub, Pending},
    observe::{Tracer, What},
    route::share_events,
    semaphores,
    topology::DeviceIx,
};
use onebuf_hal::{
    self as hal, Error, QueueOrder, QueueSpec, Result, SyncMethod,
    locks::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock},
};
use std::{any::Any, sync::OnceLock, time::Duration};

/// What may join two queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// None better than this, across APIs.
    pub best: SyncMethod,
    /// Callbacks, too, that no experiment has seen to work between the two.
    pub trusts: bool,
}

impl Limit {
    /// What was proven, and what APIs promise.
    pub fn new(best: SyncMethod) -> Self {
        Self { best, trusts: false }
    }

    /// Whether callbacks may join queues of two devices.
    fn allows_callbacks(self, hub: &Hub, ends: [DeviceIx; 2]) -> bool {
        self.trusts || hub.topology().has_callbacks(ends)
    }
}

/// One native queue and how far it is.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub hal: Arc<dyn hal::Queue>,
    pub device: DeviceIx,
    pub spec: QueueSpec,
    /// By which it is known as long as the process lives.
    pub number: usize,
    callbacks: bool,
    host_signals: bool,
    wait_values: bool,
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
    context: Option<Arc<dyn Any + Send + Sync>>,
    /// Who waits for its work when all else is gone.
    pending: Option<Arc<Pending>>,
}

impl QueueState {
    /// Over a native queue of that device.
    pub fn of(
        device: DeviceIx,
        native: Arc<dyn hal::Queue>,
        hal: &dyn hal::Device,
        spec: QueueSpec,
        context: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        let (caps, at_once) = (&hal.info().caps, native.runs_at_once());
        Self {
            hal: native,
            device,
            spec,
            number: next_number(),
            callbacks: caps.callbacks,
            host_signals: caps.host_signals,
            wait_values: caps.wait_values,
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
            context,
            pending: None,
        }
    }

    /// What happens there is recorded where its hub's is.
    pub fn traced(mut self, tracer: &Tracer) -> Self {
        self.tracer = tracer.clone();
        self
    }

    /// Its work is waited for when its hub or the process ends, but that of a foreign context is its owner's.
    pub fn drained_by(mut self, pending: &Arc<Pending>) -> Arc<Self> {
        if self.at_once || self.context.is_some() {
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

    /// Somebody gets the native queue.
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

    /// Makes later work wait for a position, by the best sync method there is within the limit. Returns the sync method that was used.
    pub fn after(
        self: &Arc<Self>,
        hub: &Hub,
        point: &QueuePoint,
        limit: Limit,
    ) -> Result<SyncMethod> {
        self.after_or(hub, point, limit, |event| self.wait_by_event(point, event, hub.timeout()))
    }

    /// The same; an event of this queue's own API is given to `same_api` instead of waited for.
    pub fn after_or(
        self: &Arc<Self>,
        hub: &Hub,
        point: &QueuePoint,
        limit: Limit,
        same_api: impl FnOnce(Arc<dyn hal::Event>) -> Result<SyncMethod>,
    ) -> Result<SyncMethod> {
        if self.is_in_order() && Arc::ptr_eq(&point.queue_state, self) {
            return Ok(SyncMethod::SameQueue);
        }
        let began = self.tracer.begin(What::Wait);
        let joined = self.join(hub, point, limit, same_api);
        if joined != Ok(SyncMethod::SameQueue) {
            began.end(self, |event| {
                event.came_from(&point.queue_state);
                event.sync_method = joined.as_ref().ok().copied();
                event.failed = joined.is_err();
            });
        }
        joined
    }

    /// The same where it is not known to be this queue's own.
    fn join(
        self: &Arc<Self>,
        hub: &Hub,
        point: &QueuePoint,
        limit: Limit,
        same_api: impl FnOnce(Arc<dyn hal::Event>) -> Result<SyncMethod>,
    ) -> Result<SyncMethod> {
        let best = limit.best;
        let ends = [point.queue_state.device, self.device];
        let signals = best <= SyncMethod::Semaphore && self.may_signal(hub, ends, point);
        if signals && self.after_signal(hub, point) {
            return Ok(SyncMethod::Semaphore);
        }
        let Some(event) = point.event()? else { return Ok(SyncMethod::SameQueue) };
        if event.poll()? {
            return Ok(SyncMethod::SameQueue);
        }
        let is_own = event.domain() == self.hal.domain();
        if (is_own || best <= SyncMethod::Event) && self.hal.takes(&**event) {
            match !is_own && share_events(hub.topology(), ends) {
                true => self.note_joined(point, event),
                false => self.watch_with(point, event),
            }
            return same_api(event.clone());
        }
        if best <= SyncMethod::Semaphore
            && !signals
            && self.after_semaphore(hub, &point.queue_state)
        {
            self.note_joined(point, event);
            return Ok(SyncMethod::Semaphore);
        }
        if best <= SyncMethod::WaitValue && self.after_value(hub, &point.queue_state) {
            self.note_joined(point, event);
            return Ok(SyncMethod::WaitValue);
        }
        let calls =
            self.host_signals && point.queue_state.callbacks && best <= SyncMethod::Callback;
        if calls && limit.allows_callbacks(hub, ends) {
            self.watch_with(point, event);
            return self.after_callback(hub, point, &**event);
        }
        point.wait_by(&**event, hub.timeout())?;
        Ok(SyncMethod::HostWait)
    }

    /// Waits for a semaphore, where this queue does not yet wait for one that is behind the same work. False where they have
    /// no such way.
    fn after_signal(self: &Arc<Self>, hub: &Hub, point: &QueuePoint) -> bool {
        if self.is_in_order() && self.joined.is_behind(point) {
            return true;
        }
        // Read before the signal: all work noted by now is before it.
        let covered = point.queue_state.noted.load(Ordering::Acquire);
        let joined = self.after_semaphore(hub, &point.queue_state);
        if joined {
            self.joined.put_behind(point.queue_state.number, covered);
        }
        joined
    }

    /// Whether a semaphore is tried before there is an event: one that was made now would cost three calls, and hardly be
    /// reached already. Behind a host signal only an event tells how the work ended.
    fn may_signal(&self, hub: &Hub, ends: [DeviceIx; 2], point: &QueuePoint) -> bool {
        let (sender, known) = (&*point.queue_state.hal, hub.topology().nodes().len());
        // A fence may be another hub's, of a device that this one does not have.
        let here = ends.iter().all(|end| end.get() < known) && sender.domain() != self.hal.domain();
        let apart = here && !share_events(hub.topology(), ends);
        apart && !point.is_marked() && !sender.has_host_signals()
    }

    /// Makes later work wait for a semaphore that the other queue signals behind everything it was given. False where they
    /// have no such way.
    fn after_semaphore(self: &Arc<Self>, hub: &Hub, sender: &Arc<QueueState>) -> bool {
        if !sender.is_in_order() || sender.is_foreign || self.is_foreign {
            return false;
        }
        self.joined.expect(|| {
            let joined = hub.semaphores().join(hub, sender, self);
            let joined = joined.map(|[sent, taken]| self.note_signal(sender, sent, taken));
            joined.inspect_err(|why| tracing::debug!(%why, "no semaphore to wait on")).is_ok()
        })
    }

    /// Makes later work wait for a number that the other queue writes behind everything it was given. False where
    /// they have no such way.
    fn after_value(&self, hub: &Hub, sender: &Arc<QueueState>) -> bool {
        if !self.wait_values || !sender.is_in_order() || sender.is_foreign {
            return false;
        }
        let wait_value_words = hub.wait_value_table().between(hub, sender.device, self.device);
        self.joined.expect(|| {
            let joined =
                wait_value_words.and_then(|wait_value_words| wait_value_words.join(sender, self));
            let joined = joined.map(|()| self.note_signal(sender, sender.advance(), self.next()));
            joined.inspect_err(|why| tracing::debug!(%why, "no number to wait for")).is_ok()
        })
    }

    /// The best sync method by which this queue can be made to wait for another API's.
    pub fn best_across(&self, hub: &Hub, sender: DeviceIx, limit: Limit) -> SyncMethod {
        let ends = [sender, self.device];
        match (self.wait_values, self.host_signals) {
            _ if semaphores::are_between(hub, ends) => SyncMethod::Semaphore,
            _ if share_events(hub.topology(), ends) => SyncMethod::Event,
            (true, _) => SyncMethod::WaitValue,
            (false, true) if limit.allows_callbacks(hub, ends) => SyncMethod::Callback,
            (false, _) => SyncMethod::HostWait,
        }
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

    /// Makes later work wait for an event of this queue's own API, of that position.
    pub fn wait_by_event(
        &self,
        point: &QueuePoint,
        event: Arc<dyn hal::Event>,
        timeout: Duration,
    ) -> Result<SyncMethod> {
        match self.hal.wait_for(std::slice::from_ref(&event)) {
            Ok(()) => Ok(SyncMethod::Event),
            Err(error) => wait_instead(point, &*event, timeout, &error),
        }
    }

    /// Puts a host signal into this queue that the event's callback has opened.
    fn after_callback(
        &self,
        hub: &Hub,
        point: &QueuePoint,
        event: &dyn hal::Event,
    ) -> Result<SyncMethod> {
        let (place, timeout) = (hub.callback_thread().place(), hub.timeout());
        let kept = place.and_then(|place| Ok(place.keep(self.hal.host_signal()?)));
        let kept = match kept {
            Ok(kept) => kept,
            Err(error) => return wait_instead(point, event, timeout, &error),
        };
        let Err((error, callback)) = event.on_complete(Box::new(move |outcome| kept.open(outcome)))
        else {
            return Ok(SyncMethod::Callback);
        };
        tracing::warn!(%error, "no callback from this event: the thread waits instead");
        let outcome = point.wait_by(event, timeout);
        callback(outcome.clone());
        outcome.map(|()| SyncMethod::HostWait)
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

/// A queue could not be made to wait: the thread does. Work that failed says so here as well.
fn wait_instead(
    point: &QueuePoint,
    event: &dyn hal::Event,
    timeout: Duration,
    error: &Error,
) -> Result<SyncMethod> {
    tracing::warn!(%error, "a queue could not be made to wait: the thread waits instead");
    point.wait_by(event, timeout)?;
    Ok(SyncMethod::HostWait)
}
