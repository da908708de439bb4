//! How the core emits events: tracers, which are empty or lead to observers, and events that have begun.

use super::{Event, Observer, OnQueue, What, guarded::Guarded};
use crate::topology::DeviceIx;
use onebuf_hal::{self as hal, Profile, Result, locks::Arc};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// Work that a device times itself. It holds objects of the driver, so an observer should keep a limited number.
#[derive(Clone)]
pub struct Timed {
    /// The event of the work, or one behind it.
    work: Arc<dyn hal::Event>,
    /// An event before it, if the work has no event of its own.
    after: Option<Arc<dyn hal::Event>>,
}

impl Timed {
    /// Work with its own event.
    pub(crate) fn own(work: Arc<dyn hal::Event>) -> Self {
        Self { work, after: None }
    }

    /// All work that a queue was given between two of its events.
    #[doc(hidden)]
    pub fn between(after: Arc<dyn hal::Event>, work: Arc<dyn hal::Event>) -> Self {
        Self { work, after: Some(after) }
    }

    /// Returns when it ran, by the device's clock.
    ///
    /// # Errors
    /// [`Error::Busy`](onebuf_hal::Error::Busy) while it is still running; other errors if it failed, or if the driver does not
    /// report times.
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

/// The observers of a hub's events, and the hub's clock.
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

/// The tracer of a hub or queue: empty, or a reference to the observers.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct Tracer(Option<Arc<Told>>);

impl Tracer {
    /// Creates a tracer for these observers; empty if there are none. `device_times` requests the devices' times on queues that
    /// are opened without an explicit choice.
    pub(super) fn new(observers: Vec<Arc<Guarded<dyn Observer>>>, device_times: bool) -> Self {
        let any = !observers.is_empty();
        let told = || Arc::new(Told { zero: Instant::now(), device_times, observers });
        Self(any.then(told))
    }

    /// Whether queues should measure device times.
    pub fn wants_device_times(&self) -> bool {
        self.0.as_ref().is_some_and(|told| told.device_times)
    }

    /// Whether an observer receives events.
    #[inline]
    pub fn has_observer(&self) -> bool {
        self.0.is_some()
    }

    /// Whether events are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        cfg!(feature = "tracing") || self.has_observer()
    }

    /// The time since the hub was created, which is the clock of events. Zero without an observer.
    pub fn now(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |told| told.zero.elapsed())
    }

    /// Reports that the hub has opened a service queue.
    pub fn service_queue(&self, queue: usize) {
        for one in self.0.iter().flat_map(|told| &told.observers) {
            one.call(|observer| observer.service_queue(queue));
        }
    }

    /// Begins an event.
    #[inline]
    pub fn begin(&self, what: What) -> Began<'_> {
        Began(self.is_on().then(|| Running::new(self.0.as_deref(), what)))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observers = self.0.as_ref().map_or(0, |told| told.observers.len());
        write!(f, "Tracer({observers} observers)")
    }
}

/// An event that has begun. If it is dropped without an end, nothing is reported.
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
    /// Whether events are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Ends the event on a queue; `tell` fills in the other fields.
    #[inline]
    pub(crate) fn end(self, at: impl Into<OnQueue>, tell: impl FnOnce(&mut Event)) {
        self.end_timed(at, None, tell);
    }

    /// Ends the event on a queue, with work that the device times.
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

    /// Ends the event on a part of a pipeline that has no queue.
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
