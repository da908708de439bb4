//! Queues: streams of work, and how one is made to wait for another.

mod courier;
mod joined;
mod position;
#[cfg(all(test, not(onebuf_shuttle)))]
pub(crate) mod tests;
mod watch;

pub(crate) use courier::Courier;
use joined::Joined;
pub(crate) use position::Position;

use crate::{
    Error, Fence, Hub, Result,
    device::Device,
    foreign::Registration,
    hal::{self, QueueOrder, QueueSpec, Rung},
    hub::Pending,
    libs::Shelf,
    program::{Arg, Grid, Kernel},
    route::share_events,
    semaphores,
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock},
    topology::DeviceIx,
    trace::{Tap, What},
};
use std::{
    fmt,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A stream of work on one device. Cheap to clone; clones are the same stream.
///
/// In order unless it was opened otherwise: see [`Device::queue_with`]. On an out-of-order queue launches
/// run as the buffers they use allow, and each launch's own event is its fence.
#[derive(Clone)]
pub struct Queue {
    pub(crate) hub: Hub,
    pub(crate) line: Arc<Line>,
}

impl Queue {
    pub(crate) fn new(hub: &Hub, device: DeviceIx, spec: QueueSpec) -> Result<Self> {
        let (native, guest) = (hub.hal(device).queue(spec)?, hub.guests().of(device));
        let line = Line::of(device, native, hub.hal(device), spec, guest).traced(hub.tap());
        Ok(Self { hub: hub.clone(), line: line.drained_by(hub.pending()) })
    }

    /// The device that runs this queue's work.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.line.device)
    }

    /// How it was opened.
    pub fn spec(&self) -> QueueSpec {
        self.line.spec
    }

    /// Starts a kernel on the views given, which were taken on this queue. Given by value, as
    /// [`args!`](crate::args) makes them, they are released here.
    ///
    /// # Errors
    /// An argument that is missing, of the wrong type or kind, or a view of another queue is an
    /// [`Error::InvalidArgument`] that names it; nothing was started then.
    pub fn launch<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<()> {
        kernel.launch_plain(self, grid.into(), args.as_ref())
    }

    /// Like [`Queue::launch`], and gives the point that this launch will have reached. On a queue opened
    /// for profiling, [`Fence::profile`] tells when it ran.
    ///
    /// # Errors
    /// As for [`Queue::launch`].
    pub fn launch_fenced<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<Fence> {
        let event = kernel.launch_on(self, &grid.into(), args.as_ref(), true)?;
        let event = event.ok_or_else(|| Error::unsupported("a launch's own fence", "an event"))?;
        Ok(Fence::new(self.line.at_event(event), self.hub.timeout()))
    }

    /// Launches once, waits, and tells how long that took: what a driver leaves to the first launch
    /// (compiling for a group size, moving the program to the chip) is over then. The kernel does run, on
    /// the arguments given.
    ///
    /// # Errors
    /// As for [`Queue::launch`], and [`Error::Timeout`].
    pub fn warm_up<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<Duration> {
        let clock = Instant::now();
        self.launch(kernel, grid, args)?;
        self.finish()?;
        Ok(clock.elapsed())
    }

    /// Makes work enqueued from now on wait for a fence of any queue of the hub, by the best rung there
    /// is, and says which. Callbacks are used where the doctor has proven them for the two devices; otherwise the
    /// calling thread waits.
    ///
    /// # Errors
    /// When the work behind the fence failed; [`Error::Timeout`] when the thread had to wait for it.
    pub fn wait_for(&self, fence: &Fence) -> Result<Rung> {
        let after = |position: &Position| {
            let routes = self.hub.topology().between(position.line.device, self.line.device).iter();
            // None better than what was proven; unproven, the best that an API's contract promises.
            let best = routes.filter_map(|route| route.verdict.sync).max();
            let best = Limit::new(best.unwrap_or(Rung::SameQueue));
            self.line.after(&self.hub, position, best)
        };
        let mut rungs = fence.positions().iter().map(after);
        rungs.try_fold(Rung::SameQueue, |lowest, rung| rung.map(|rung| lowest.max(rung)))
    }

    /// The point that everything enqueued so far will have reached.
    pub fn fence(&self) -> Fence {
        let position = self.line.note();
        if self.line.is_foreign {
            // Marked now: what its owner enqueues later may wait for us. A failure comes again when asked.
            let _ = position.event();
        }
        Fence::new(position, self.hub.timeout())
    }

    /// Sees to it that enqueued work starts without further calls.
    pub fn flush(&self) -> Result<()> {
        self.line.hal.flush()
    }

    /// Waits until everything enqueued so far is done, for the hub's timeout at most.
    pub fn finish(&self) -> Result<()> {
        self.fence().wait(self.hub.timeout())
    }

    /// The native queue (a `cl_command_queue` for OpenCL) for libraries that enqueue work of their
    /// own; zero where there is none. Work enqueued there while a view of this queue is held is
    /// fenced like work of our own. The handle is valid while the `Queue` lives.
    pub fn raw(&self) -> usize {
        self.line.given_away.store(true, Ordering::Relaxed);
        self.line.hal.raw()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.device().id())
    }
}

/// What may join two queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// None better than this, across APIs.
    pub best: Rung,
    /// Callbacks, too, that no experiment has seen to work between the two.
    pub trusts: bool,
}

impl Limit {
    /// What was proven, and what APIs promise.
    pub fn new(best: Rung) -> Self {
        Self { best, trusts: false }
    }

    /// Whether callbacks may join queues of two devices.
    fn allows_callbacks(self, hub: &Hub, ends: [DeviceIx; 2]) -> bool {
        self.trusts || hub.topology().has_callbacks(ends)
    }
}

/// One native queue and how far it is.
#[derive(Debug)]
pub(crate) struct Line {
    pub hal: Arc<dyn hal::Queue>,
    pub device: DeviceIx,
    pub spec: QueueSpec,
    /// By which it is known as long as the process lives.
    pub number: usize,
    callbacks: bool,
    gates: bool,
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
    pub tap: Tap,
    /// What libraries keep with it: handles and plans, which keep the native queue.
    pub libs: Shelf,
    /// What keeps a foreign context; none for what the hub itself opens there.
    _guest: Option<Arc<Registration>>,
    /// Who waits for its work when all else is gone.
    pending: Option<Arc<Pending>>,
}

impl Line {
    /// Over a native queue of that device.
    pub fn of(
        device: DeviceIx,
        native: Arc<dyn hal::Queue>,
        hal: &dyn hal::Device,
        spec: QueueSpec,
        guest: Option<Arc<Registration>>,
    ) -> Self {
        let (caps, at_once) = (&hal.info().caps, native.runs_at_once());
        Self {
            hal: native,
            device,
            spec,
            number: next_number(),
            callbacks: caps.callbacks,
            gates: caps.gates,
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
            tap: Tap::default(),
            libs: Shelf::default(),
            _guest: guest,
            pending: None,
        }
    }

    /// What happens there is recorded where its hub's is.
    pub fn traced(mut self, tap: &Tap) -> Self {
        self.tap = tap.clone();
        self
    }

    /// Its work is waited for when its hub or the process ends, but that of a foreign context is its owner's.
    pub fn drained_by(mut self, pending: &Arc<Pending>) -> Arc<Self> {
        if self.at_once || self._guest.is_some() {
            return Arc::new(self);
        }
        self.pending = Some(pending.clone());
        let line = Arc::new(self);
        pending.add(&line);
        line
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
    pub fn note(self: &Arc<Self>) -> Position {
        Self::position_at(self, self.advance())
    }

    /// Where so many pieces of work are done.
    pub fn position_at(line: &Arc<Self>, at: u64) -> Position {
        Position { line: line.clone(), at, event: OnceLock::new(), own: None }
    }

    /// Counts a piece of work that was enqueued. What is over need not be counted.
    pub fn advance(&self) -> u64 {
        if self.at_once { 1 } else { self.noted.fetch_add(1, Ordering::AcqRel) + 1 }
    }

    /// The point that one piece of work will have reached, by its own event.
    pub fn at_event(self: &Arc<Self>, event: Arc<dyn hal::Event>) -> Position {
        let mut position = self.note();
        position.own = Some(event);
        position
    }

    /// Makes later work wait for a position, by the best rung there is within the limit. Returns the rung that was used.
    pub fn after(self: &Arc<Self>, hub: &Hub, position: &Position, limit: Limit) -> Result<Rung> {
        self.after_or(hub, position, limit, |event| {
            self.wait_by_event(position, event, hub.timeout())
        })
    }

    /// The same; an event of this queue's own API is given to `same_api` instead of waited for.
    pub fn after_or(
        self: &Arc<Self>,
        hub: &Hub,
        position: &Position,
        limit: Limit,
        same_api: impl FnOnce(Arc<dyn hal::Event>) -> Result<Rung>,
    ) -> Result<Rung> {
        if self.is_in_order() && Arc::ptr_eq(&position.line, self) {
            return Ok(Rung::SameQueue);
        }
        let began = self.tap.begin(What::Wait);
        let joined = self.join(hub, position, limit, same_api);
        if joined != Ok(Rung::SameQueue) {
            began.end(self, |event| {
                event.came_from(&position.line);
                event.rung = joined.as_ref().ok().copied();
                event.failed = joined.is_err();
            });
        }
        joined
    }

    /// The same where it is not known to be this queue's own.
    fn join(
        self: &Arc<Self>,
        hub: &Hub,
        position: &Position,
        limit: Limit,
        same_api: impl FnOnce(Arc<dyn hal::Event>) -> Result<Rung>,
    ) -> Result<Rung> {
        let best = limit.best;
        let ends = [position.line.device, self.device];
        let signals = best <= Rung::Semaphore && self.may_signal(hub, ends, position);
        if signals && self.after_signal(hub, position) {
            return Ok(Rung::Semaphore);
        }
        let Some(event) = position.event()? else { return Ok(Rung::SameQueue) };
        if event.poll()? {
            return Ok(Rung::SameQueue);
        }
        let is_own = event.domain() == self.hal.domain();
        if (is_own || best <= Rung::Event) && self.hal.takes(&**event) {
            match !is_own && share_events(hub.topology(), ends) {
                true => self.note_joined(position, event),
                false => self.watch_with(position, event),
            }
            return same_api(event.clone());
        }
        if best <= Rung::Semaphore && !signals && self.after_semaphore(hub, &position.line) {
            self.note_joined(position, event);
            return Ok(Rung::Semaphore);
        }
        if best <= Rung::WaitValue && self.after_value(hub, &position.line) {
            self.note_joined(position, event);
            return Ok(Rung::WaitValue);
        }
        let calls = self.gates && position.line.callbacks && best <= Rung::Callback;
        if calls && limit.allows_callbacks(hub, ends) {
            self.watch_with(position, event);
            return self.after_callback(hub, position, &**event);
        }
        position.wait_by(&**event, hub.timeout())?;
        Ok(Rung::HostWait)
    }

    /// Waits for a semaphore, where this queue does not yet wait for one that is behind the same work. False where they have
    /// no such way.
    fn after_signal(self: &Arc<Self>, hub: &Hub, position: &Position) -> bool {
        if self.is_in_order() && self.joined.is_behind(position) {
            return true;
        }
        // Read before the signal: all work noted by now is before it.
        let covered = position.line.noted.load(Ordering::Acquire);
        let joined = self.after_semaphore(hub, &position.line);
        if joined {
            self.joined.put_behind(position.line.number, covered);
        }
        joined
    }

    /// Whether a semaphore is tried before there is an event: one that was made now would cost three calls, and hardly be
    /// reached already. Behind a gate only an event tells how the work ended.
    fn may_signal(&self, hub: &Hub, ends: [DeviceIx; 2], position: &Position) -> bool {
        let (sender, known) = (&*position.line.hal, hub.topology().nodes().len());
        // A fence may be another hub's, of a device that this one does not have.
        let here = ends.iter().all(|end| end.get() < known) && sender.domain() != self.hal.domain();
        let apart = here && !share_events(hub.topology(), ends);
        apart && !position.is_marked() && !sender.has_gates()
    }

    /// Makes later work wait for a semaphore that the other queue signals behind everything it was given. False where they
    /// have no such way.
    fn after_semaphore(self: &Arc<Self>, hub: &Hub, sender: &Arc<Line>) -> bool {
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
    fn after_value(&self, hub: &Hub, sender: &Arc<Line>) -> bool {
        if !self.wait_values || !sender.is_in_order() || sender.is_foreign {
            return false;
        }
        let mailbox = hub.mailboxes().between(hub, sender.device, self.device);
        self.joined.expect(|| {
            let joined = mailbox.and_then(|mailbox| mailbox.join(sender, self));
            let joined = joined.map(|()| self.note_signal(sender, sender.advance(), self.next()));
            joined.inspect_err(|why| tracing::debug!(%why, "no number to wait for")).is_ok()
        })
    }

    /// The best rung by which this queue can be made to wait for another API's.
    pub fn best_across(&self, hub: &Hub, sender: DeviceIx, limit: Limit) -> Rung {
        let ends = [sender, self.device];
        match (self.wait_values, self.gates) {
            _ if semaphores::are_between(hub, ends) => Rung::Semaphore,
            _ if share_events(hub.topology(), ends) => Rung::Event,
            (true, _) => Rung::WaitValue,
            (false, true) if limit.allows_callbacks(hub, ends) => Rung::Callback,
            (false, _) => Rung::HostWait,
        }
    }

    /// How many pieces of work are not known to be done. Asks the driver.
    pub fn backlog(self: &Arc<Self>) -> Result<u64> {
        let noted = self.noted.load(Ordering::Acquire);
        let done = self.complete.load(Ordering::Acquire);
        if noted <= done {
            return Ok(0);
        }
        match Self::position_at(self, noted).ask() {
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
        position: &Position,
        event: Arc<dyn hal::Event>,
        timeout: Duration,
    ) -> Result<Rung> {
        match self.hal.wait_for(std::slice::from_ref(&event)) {
            Ok(()) => Ok(Rung::Event),
            Err(error) => wait_instead(position, &*event, timeout, &error),
        }
    }

    /// Puts a gate into this queue that the event's callback has opened.
    fn after_callback(
        &self,
        hub: &Hub,
        position: &Position,
        event: &dyn hal::Event,
    ) -> Result<Rung> {
        let (place, timeout) = (hub.courier().place(), hub.timeout());
        let kept = place.and_then(|place| Ok(place.keep(self.hal.gate()?)));
        let kept = match kept {
            Ok(kept) => kept,
            Err(error) => return wait_instead(position, event, timeout, &error),
        };
        let Err((error, callback)) = event.on_complete(Box::new(move |outcome| kept.open(outcome)))
        else {
            return Ok(Rung::Callback);
        };
        tracing::warn!(%error, "no callback from this event: the thread waits instead");
        let outcome = position.wait_by(event, timeout);
        callback(outcome.clone());
        outcome.map(|()| Rung::HostWait)
    }
}

impl Drop for Line {
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
    position: &Position,
    event: &dyn hal::Event,
    timeout: Duration,
    error: &Error,
) -> Result<Rung> {
    tracing::warn!(%error, "a queue could not be made to wait: the thread waits instead");
    position.wait_by(event, timeout)?;
    Ok(Rung::HostWait)
}
