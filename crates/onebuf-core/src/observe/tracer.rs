//! How the core emits: a tap that is empty or leads to observers, and what has begun.

use super::{Event, Observer, What, installed::Guarded};
use crate::topology::DeviceIx;
use onebuf_hal::{self as hal, Profile, Result, locks::Arc};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// Work that a device times itself. Holds objects of the driver, so an observer keeps only so many.
#[derive(Clone)]
pub struct Timed {
    /// The work's own event, or one behind it.
    work: Arc<dyn hal::Event>,
    /// One before it, where it has none of its own.
    after: Option<Arc<dyn hal::Event>>,
}

impl Timed {
    /// Work that has an event of its own.
    pub(crate) fn own(work: Arc<dyn hal::Event>) -> Self {
        Self { work, after: None }
    }

    /// Whatever a queue was given between two of its events.
    #[doc(hidden)]
    pub fn between(after: Arc<dyn hal::Event>, work: Arc<dyn hal::Event>) -> Self {
        Self { work, after: Some(after) }
    }

    /// When it ran, by the device's clock.
    ///
    /// # Errors
    /// [`Error::Busy`](onebuf_hal::Error::Busy) while it is still running; others when it failed, or the driver has no times.
    pub fn profile(&self) -> Result<Profile> {
        let work = self.work.profile()?;
        let Some(after) = &self.after else { return Ok(work) };
        let started_ns = after.profile()?.ended_ns;
        Ok(Profile { queued_ns: started_ns, submitted_ns: started_ns, started_ns, ..work })
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").finish_non_exhaustive()
    }
}

/// Those who are told of a hub's events, and the hub's clock.
pub(super) struct Told {
    zero: Instant,
    device_times: bool,
    /// Never empty.
    observers: Vec<Arc<Guarded<dyn Observer>>>,
}

impl Told {
    #[cold]
    fn event(&self, event: Event, timed: Option<Timed>) {
        let Some((last, others)) = self.observers.split_last() else { return };
        for other in others {
            other.call(|observer| observer.event(event.clone(), timed.clone()));
        }
        last.call(|observer| observer.event(event, timed));
    }
}

/// Which queue something happened on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnQueue {
    pub device: DeviceIx,
    /// By which it is known as long as the process lives.
    pub queue: usize,
}

/// What hubs and queues carry: nothing, or who is told.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct Tracer(Option<Arc<Told>>);

impl Tracer {
    /// To these, if there are any; with the devices' times, where queues are opened without a word about that.
    pub(super) fn new(observers: Vec<Arc<Guarded<dyn Observer>>>, device_times: bool) -> Self {
        let any = !observers.is_empty();
        let told = || Arc::new(Told { zero: Instant::now(), device_times, observers });
        Self(any.then(told))
    }

    /// Whether the devices' times are wanted.
    pub fn wants_device_times(&self) -> bool {
        self.0.as_ref().is_some_and(|told| told.device_times)
    }

    /// Whether an observer is told of events.
    #[inline]
    pub fn has_observer(&self) -> bool {
        self.0.is_some()
    }

    /// Whether anybody wants to know.
    #[inline]
    pub fn is_on(&self) -> bool {
        cfg!(feature = "tracing") || self.has_observer()
    }

    /// The time on the clock of events: since the hub was made. Zero where nobody is told.
    pub fn now(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |told| told.zero.elapsed())
    }

    /// The hub has opened a queue of its own.
    pub fn service_queue(&self, queue: usize) {
        for one in self.0.iter().flat_map(|told| &told.observers) {
            one.call(|observer| observer.service_queue(queue));
        }
    }

    /// Something begins.
    #[inline]
    pub fn begin(&self, what: What) -> Began<'_> {
        Began(self.is_on().then(|| Running::new(self.0.as_deref(), what)))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observers = self.0.as_ref().map_or(0, |told| told.observers.len());
        write!(f, "Tap({observers} observers)")
    }
}

/// Something that has begun. Dropped without an end, it was nothing.
#[doc(hidden)]
pub struct Began<'t>(Option<Running<'t>>);

struct Running<'t> {
    told: Option<&'t Told>,
    what: What,
    start: Instant,
    #[cfg(feature = "tracing")]
    span: tracing::span::EnteredSpan,
}

impl Began<'_> {
    /// Whether anybody wants to know.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// It ends, at a queue; `tell` says the rest.
    #[inline]
    pub(crate) fn end(self, at: impl Into<OnQueue>, tell: impl FnOnce(&mut Event)) {
        self.end_timed(at, None, tell);
    }

    /// The same of work that the device times.
    #[inline]
    pub(crate) fn end_timed(
        self,
        at: impl Into<OnQueue>,
        timed: Option<Timed>,
        tell: impl FnOnce(&mut Event),
    ) {
        if let Some(running) = self.0 {
            let OnQueue { device, queue } = at.into();
            running.end(device, Some(queue), timed, tell);
        }
    }

    /// It ends, at something that has no queue.
    pub fn end_at(self, device: DeviceIx, part: &'static str, tell: impl FnOnce(&mut Event)) {
        if let Some(running) = self.0 {
            running.end(device, None, None, |event| {
                event.part = Some(part);
                tell(event);
            });
        }
    }
}

impl<'t> Running<'t> {
    #[cold]
    fn new(told: Option<&'t Told>, what: What) -> Self {
        Self {
            told,
            what,
            #[cfg(feature = "tracing")]
            span: super::spans::open(what),
            start: Instant::now(),
        }
    }

    #[cold]
    fn end(
        self,
        device: DeviceIx,
        queue: Option<usize>,
        timed: Option<Timed>,
        tell: impl FnOnce(&mut Event),
    ) {
        let end = Instant::now();
        let mut event = Event::new(self.what, device, queue);
        tell(&mut event);
        #[cfg(feature = "tracing")]
        super::spans::record(&self.span, &event);
        let Some(told) = self.told else { return };
        event.start = self.start.saturating_duration_since(told.zero);
        event.end = end.saturating_duration_since(told.zero);
        told.event(event, timed);
    }
}
