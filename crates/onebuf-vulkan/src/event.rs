//! Events: values of a timeline, of a queue or of the application.

use super::{
    batch::Ticks, device::Driver, queue::RawQueue, shared_queue::SemaphorePoint, timeline::Timeline,
};
use onebuf_hal::{
    self as hal, Callback, Domain, Error, Profile, Result, host_signals::Behind, locks::Arc,
};
use std::{any::Any, fmt, time::Duration};

/// A value of a timeline.
pub struct Event {
    pub(super) timeline: Arc<Timeline>,
    pub value: u64,
    /// The queue of the timeline; `None` for a timeline of the application.
    pub(super) queue: Option<Arc<RawQueue>>,
    /// The times of its launch, on a profiled queue.
    ticks: Option<Ticks>,
    /// The host signals before it.
    behind: Behind,
}

impl Event {
    pub(super) fn new(queue: Arc<RawQueue>, value: u64, ticks: Option<Ticks>) -> Event {
        let (timeline, behind) = (queue.timeline.clone(), queue.host_signals.pending());
        Event { timeline, value, queue: Some(queue), ticks, behind }
    }

    /// A value of a timeline that the application signals.
    pub(super) fn of_timeline(timeline: Arc<Timeline>, value: u64) -> Event {
        Event { timeline, value, queue: None, ticks: None, behind: Behind::default() }
    }

    /// The semaphore and the value, for a queue of the application, with what keeps the semaphore alive.
    pub(super) fn semaphore_point(&self) -> Result<(SemaphorePoint, Arc<dyn Any + Send + Sync>)> {
        self.check_host_signals()?;
        if !self.is_submitted() {
            let what = "a VkSemaphore of work that waits for the host";
            return Err(Error::unsupported(
                what,
                "work that the driver has been given: wait for it",
            ));
        }
        let point = SemaphorePoint::timeline(self.timeline.raw, self.value);
        Ok((point, self.timeline.clone()))
    }

    /// Whether the driver has the work, after another attempt to submit it.
    pub(super) fn is_submitted(&self) -> bool {
        self.queue.iter().for_each(|queue| queue.urge(self.value));
        self.timeline.is_submitted(self.value)
    }

    /// Returns the event without its host signals, so that their failure is not reported.
    pub fn without_host_signals(mut self) -> Event {
        self.behind = Behind::default();
        self
    }

    /// The host signals that it waits for.
    pub fn behind(&self) -> &Behind {
        &self.behind
    }

    fn driver(&self) -> &Driver {
        &self.timeline.context.driver
    }

    /// Returns an error if one of its host signals has failed.
    pub fn check_host_signals(&self) -> Result<()> {
        if !self.behind.has_failed() {
            return Ok(());
        }
        let name = "the work that it waited for failed".to_owned();
        Err(Error::Driver { api: "vulkan", call: "a host signal", code: -1, name })
    }

    /// Whether its work, and all work before it, is done and its bytes are copied.
    pub fn is_reached(&self) -> Result<bool> {
        self.queue.iter().for_each(|queue| queue.urge(self.value));
        let reached = self.timeline.has_reached(self.value)?;
        if reached {
            self.queue.iter().for_each(|queue| queue.sweep());
        }
        Ok(reached)
    }

    /// Converts ticks of the clock to nanoseconds. Bits beyond the clock's width are undefined, and ignored.
    fn ns(&self, ticks: u64) -> u64 {
        let bits = self.driver().family.clock_bits.clamp(1, 64);
        let counted = ticks & (u64::MAX >> (64 - bits));
        (counted as f64 * self.driver().limits.clock_ns) as u64
    }
}

// SAFETY: it is over only once the timeline has reached its value and the bytes of its reads are copied.
unsafe impl hal::Event for Event {
    fn domain(&self) -> Domain {
        self.driver().domain
    }

    fn poll(&self) -> Result<bool> {
        let reached = self.is_reached()?;
        if reached {
            self.check_host_signals()?;
        }
        Ok(reached)
    }

    fn is_over(&self) -> bool {
        match self.is_reached() {
            Ok(reached) => reached,
            // The device is lost, and its work with it.
            Err(why) => matches!(why, Error::DeviceLost { .. }),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let reached = match &self.queue {
            Some(queue) => queue.wait(self.value, timeout),
            None => self.timeline.wait(self.value, timeout),
        };
        if !reached? {
            return Err(Error::timeout(format!("work on {}", self.driver().info.name), timeout));
        }
        self.check_host_signals()
    }

    /// The driver does not report when work was enqueued or submitted, so those times are the start time.
    fn profile(&self) -> Result<Profile> {
        let Some(ticks) = &self.ticks else {
            let needs = "the event of a launch on a queue opened with profiling";
            return Err(Error::unsupported("the times of a command", needs));
        };
        if !hal::Event::poll(self)? {
            return Err(Error::Busy { what: "the work is not done: wait for it first".to_owned() });
        }
        let Some(read) = ticks.get() else {
            return Err(Error::unsupported("the times of a command", "a driver that reports them"));
        };
        let [started_ns, ended_ns] = read.map(|ticks| self.ns(ticks));
        Ok(Profile { queued_ns: started_ns, submitted_ns: started_ns, started_ns, ended_ns })
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        let what = format!("a callback on {}", self.driver().info.name);
        Err((Error::unsupported(what, "an API that calls back: wait for the event"), callback))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("value", &self.value)
            .field("over", &hal::Event::is_over(self))
            .finish()
    }
}
