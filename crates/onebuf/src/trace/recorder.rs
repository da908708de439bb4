//! Where events are kept: the newest, so many and no more.

use super::{Clock, Event, What};
use crate::{
    hal::{self, Profile},
    queue::QueueState,
    sync::{Arc, Mutex, lock},
    topology::DeviceIx,
};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

/// Launches whose device times are not known yet are looked at again when there are so many more.
const LOOK_AGAIN: usize = 64;
/// No more of them are kept: each holds an object of the driver's.
const MOST_RUNNING: usize = 4096;

/// Where in the picture an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Track {
    /// At a queue, by its number.
    Queue(usize),
    /// At a part of a pipeline that has no queue.
    Part(&'static str),
}

/// Work that a device times.
pub(crate) struct Timed {
    /// The work's own event, or one behind it.
    work: Arc<dyn hal::Event>,
    /// One before it, where it has none of its own.
    after: Option<Arc<dyn hal::Event>>,
}

impl Timed {
    /// Work that has an event of its own.
    pub fn own(work: Arc<dyn hal::Event>) -> Self {
        Self { work, after: None }
    }

    /// Whatever a queue was given between two of its events.
    pub fn between(after: Arc<dyn hal::Event>, work: Arc<dyn hal::Event>) -> Self {
        Self { work, after: Some(after) }
    }

    fn profile(&self) -> crate::Result<Profile> {
        let work = self.work.profile()?;
        let Some(after) = &self.after else { return Ok(work) };
        let started_ns = after.profile()?.ended_ns;
        Ok(Profile { queued_ns: started_ns, submitted_ns: started_ns, started_ns, ..work })
    }
}

/// What everything that can be traced has: nothing, or where to record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracer(Option<Arc<Recorder>>);

impl Tracer {
    /// For so many events; with the devices' times, where queues are opened without a word about that.
    pub fn new(events: usize, devices: bool) -> Self {
        Self(Some(Arc::new(Recorder::new(events, devices))))
    }

    /// Whether the devices' times are wanted.
    pub fn wants_device_times(&self) -> bool {
        self.recorder().is_some_and(|recorder| recorder.devices)
    }

    pub fn recorder(&self) -> Option<&Recorder> {
        self.0.as_deref()
    }

    /// Whether anybody wants to know.
    #[inline]
    pub fn is_on(&self) -> bool {
        cfg!(feature = "tracing") || self.0.is_some()
    }

    /// Something begins.
    #[inline]
    pub fn begin(&self, what: What) -> Began<'_> {
        Began(self.is_on().then(|| Running::new(self.recorder(), what)))
    }
}

/// Something that has begun. Dropped without an end, it was nothing.
pub(crate) struct Began<'t>(Option<Running<'t>>);

struct Running<'t> {
    recorder: Option<&'t Recorder>,
    what: What,
    start: Instant,
    #[cfg(feature = "tracing")]
    span: tracing::span::EnteredSpan,
}

impl<'t> Running<'t> {
    #[cold]
    fn new(recorder: Option<&'t Recorder>, what: What) -> Self {
        Self {
            recorder,
            what,
            #[cfg(feature = "tracing")]
            span: spans::open(what),
            start: Instant::now(),
        }
    }
}

impl Began<'_> {
    /// Whether anybody wants to know.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// It ends, at a queue; `tell` says the rest.
    #[inline]
    pub fn end(self, queue_state: &QueueState, tell: impl FnOnce(&mut Event)) {
        self.end_timed(queue_state, None, tell);
    }

    /// The same of work that the device times.
    #[inline]
    pub fn end_timed(
        self,
        queue_state: &QueueState,
        timed: Option<Timed>,
        tell: impl FnOnce(&mut Event),
    ) {
        if let Some(running) = self.0 {
            running.end(queue_state.device, Track::Queue(queue_state.number), timed, tell);
        }
    }

    /// It ends, at something that has no queue.
    pub fn end_at(self, device: DeviceIx, part: &'static str, tell: impl FnOnce(&mut Event)) {
        if let Some(running) = self.0 {
            running.end(device, Track::Part(part), None, tell);
        }
    }
}

impl Running<'_> {
    #[cold]
    fn end(
        self,
        device: DeviceIx,
        track: Track,
        timed: Option<Timed>,
        tell: impl FnOnce(&mut Event),
    ) {
        let end = Instant::now();
        let mut event = Event::new(self.what, device, track);
        tell(&mut event);
        #[cfg(feature = "tracing")]
        spans::record(&self.span, &event);
        let Some(recorder) = self.recorder else { return };
        event.start = self.start.saturating_duration_since(recorder.zero);
        event.end = end.saturating_duration_since(recorder.zero);
        recorder.push(event, timed);
    }
}

impl Event {
    pub(super) fn new(what: What, device: DeviceIx, track: Track) -> Self {
        let queue = if let Track::Queue(number) = track { Some(number) } else { None };
        Self {
            what,
            name: what.name().into(),
            device,
            queue,
            start: Duration::ZERO,
            end: Duration::ZERO,
            clock: Clock::Host,
            from: None,
            from_queue: None,
            to: None,
            bytes: None,
            route: None,
            sync_method: None,
            buffer: None,
            cause: None,
            frame: None,
            failed: false,
            why: None,
            track,
        }
    }

    /// A thread waited for the queue.
    pub(crate) fn thread_waited<T>(&mut self, outcome: &crate::Result<T>) {
        self.sync_method = Some(crate::SyncMethod::HostWait);
        self.failed = outcome.is_err();
    }

    /// The queue that it came from, or was waited for.
    pub(crate) fn came_from(&mut self, queue_state: &QueueState) {
        self.from = Some(queue_state.device);
        self.from_queue = Some(queue_state.number);
    }
}

/// The newest events of a hub.
pub(crate) struct Recorder {
    zero: Instant,
    most: usize,
    devices: bool,
    kept: Mutex<Kept>,
    /// What queues are called that are not the program's.
    names: Mutex<BTreeMap<usize, &'static str>>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<(Event, Option<Profile>)>,
    /// How many came before the first of them.
    dropped: u64,
    /// The device's work that is still to be timed, by its event's number from the beginning.
    running: VecDeque<(u64, Timed)>,
    look_at: usize,
}

impl Recorder {
    fn new(most: usize, devices: bool) -> Self {
        let kept = Kept { look_at: LOOK_AGAIN, ..Kept::default() };
        let (zero, names) = (Instant::now(), Mutex::default());
        Self { zero, most: most.max(1), devices, kept: Mutex::new(kept), names }
    }

    /// From where times are counted.
    pub fn zero(&self) -> Instant {
        self.zero
    }

    pub fn catch_up(&self) {
        lock(&self.kept).look();
    }

    /// A queue that the program does not know is told apart.
    pub fn name_queue(&self, number: usize, name: &'static str) {
        lock(&self.names).insert(number, name);
    }

    pub fn queue_names(&self) -> BTreeMap<usize, &'static str> {
        lock(&self.names).clone()
    }

    pub fn dropped(&self) -> u64 {
        lock(&self.kept).dropped
    }

    pub fn clear(&self) {
        *lock(&self.kept) = Kept { look_at: LOOK_AGAIN, ..Kept::default() };
    }

    fn push(&self, event: Event, timed: Option<Timed>) {
        let mut kept = lock(&self.kept);
        if kept.events.len() == self.most {
            kept.events.pop_front();
            kept.dropped += 1;
        }
        let number = kept.dropped + kept.events.len() as u64;
        kept.events.push_back((event, None));
        if let Some(timed) = timed {
            kept.running.push_back((number, timed));
            if kept.running.len() >= kept.look_at {
                kept.look();
            }
        }
    }

    /// Everything that is kept. Launches that a device has timed are there a second time, by its clock.
    pub fn events(&self) -> Vec<Event> {
        let mut kept = lock(&self.kept);
        kept.look();
        let shifts = kept.shifts();
        let mut events = Vec::with_capacity(kept.events.len());
        for (event, profile) in &kept.events {
            events.push(event.clone());
            let Some((profile, shift)) = profile.zip(shifts.get(&event.track)) else { continue };
            let at =
                |ns: u64| Duration::from_nanos(shift.saturating_add_unsigned(ns).max(0) as u64);
            let (start, end) = (at(profile.started_ns), at(profile.ended_ns));
            events.push(Event { start, end, clock: Clock::Device, ..event.clone() });
        }
        events
    }
}

impl Kept {
    /// Asks for the times of what is done by now.
    fn look(&mut self) {
        for (number, timed) in std::mem::take(&mut self.running) {
            match timed.profile() {
                Ok(profile) => self.note(number, profile),
                Err(crate::Error::Busy { .. }) => self.running.push_back((number, timed)),
                // It failed, or this driver has no times.
                Err(error) => tracing::debug!(%error, "no times of a launch"),
            }
        }
        let many = self.running.len().saturating_sub(MOST_RUNNING);
        self.running.drain(..many);
        self.look_at = self.running.len() + LOOK_AGAIN;
    }

    fn note(&mut self, number: u64, profile: Profile) {
        let at = number.checked_sub(self.dropped).map(|at| at as usize);
        if let Some((_, times)) = at.and_then(|at| self.events.get_mut(at)) {
            *times = Some(profile);
        }
    }

    /// How much later a queue's clock has to be for its launches to be queued no earlier than they were.
    fn shifts(&self) -> BTreeMap<Track, i64> {
        let mut shifts = BTreeMap::new();
        for (event, profile) in &self.events {
            let Some(profile) = profile else { continue };
            let shift = event.start.as_nanos() as i64 - profile.queued_ns as i64;
            let most = shifts.entry(event.track).or_insert(shift);
            *most = shift.max(*most);
        }
        shifts
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({} events)", lock(&self.kept).events.len())
    }
}

/// Events as spans of the `tracing` crate.
#[cfg(feature = "tracing")]
mod spans {
    use super::{Event, What};
    use tracing::{Span, field::Empty, span::EnteredSpan, trace_span};

    /// Its fields are filled in at the end: most are known only then.
    pub fn open(what: What) -> EnteredSpan {
        macro_rules! span {
            ($name:literal) => {
                trace_span!(
                    target: "onebuf", $name, of = Empty, device = Empty, queue = Empty, from = Empty,
                    bytes = Empty, route = Empty, sync_method = Empty, buffer = Empty, implied = Empty,
                    frame = Empty, failed = Empty, why = Empty,
                )
            };
        }
        let span = match what {
            What::Launch => span!("launch"),
            What::HandOver => span!("hand_over"),
            What::Wait => span!("wait"),
            What::Copy => span!("copy"),
            What::Stage => span!("stage"),
            What::Graft => span!("graft"),
        };
        span.entered()
    }

    pub fn record(span: &Span, event: &Event) {
        if span.is_disabled() {
            return;
        }
        span.record("of", event.name.as_str());
        span.record("device", event.device.get());
        span.record("queue", event.queue);
        span.record("from", event.from.map(|from| from.get()));
        span.record("bytes", event.bytes);
        span.record("route", event.route.map(tracing::field::display));
        span.record("sync", event.sync_method.map(tracing::field::display));
        span.record("buffer", event.buffer.as_deref());
        span.record("implied", event.cause.map(|cause| cause == crate::Cause::Implied));
        span.record("frame", event.frame);
        span.record("failed", event.failed);
        span.record("why", event.why.as_deref());
    }
}
