//! Events, and waiting with a timeout.

use super::{
    callbacks, deferred_free::is_pending, device::Driver, layered::Below, queue::RawQueue,
};
use onebuf_hal::{
    self as hal, Callback, Domain, Error, Profile, Result,
    host_signals::Behind,
    locks::{Arc, thread},
    patience,
};
use onebuf_sys::cuda_like::CuEvent;
use std::{
    fmt,
    time::{Duration, Instant},
};

/// A point in a stream.
pub struct Event {
    queue: Arc<RawQueue>,
    raw: CuEvent,
    /// On a profiled queue, where the piece of work began.
    start: Option<CuEvent>,
    /// The host signals that were before it.
    behind: Behind,
}

impl Event {
    /// Of events that nobody else owns.
    pub(super) fn new(queue: Arc<RawQueue>, raw: CuEvent, start: Option<CuEvent>) -> Event {
        let behind = queue.host_signals.pending();
        Event { queue, raw, start, behind }
    }

    /// One that tells of none.
    pub fn without_host_signals(mut self) -> Event {
        self.behind = Behind::default();
        self
    }

    /// The host signals it waits behind.
    pub fn behind(&self) -> &Behind {
        &self.behind
    }

    /// An error when one of those has failed.
    pub fn check_host_signals(&self) -> Result<()> {
        match self.behind.has_failed() {
            true => self.driver().check(Err(callbacks::wait_failed())),
            false => Ok(()),
        }
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.queue.context.driver
    }

    pub fn handle(&self) -> CuEvent {
        self.raw
    }

    /// The queue beneath its stream.
    pub(super) fn below(&self) -> Option<&Below> {
        self.queue.below.as_ref()
    }

    /// Whether the driver has come so far.
    fn query(&self) -> Result<bool> {
        let _current = self.queue.context.enter()?;
        self.query_here()
    }

    /// The same where the context is current: entering it takes as long as asking.
    fn query_here(&self) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { self.driver().table.query_event(self.raw) } {
            Ok(()) => Ok(true),
            Err(refused) if is_pending(&refused) => Ok(false),
            Err(refused) => self.driver().check(Err(refused)),
        }
    }

    /// From one event to another, in nanoseconds.
    fn between(&self, from: CuEvent, to: CuEvent) -> Result<u64> {
        // SAFETY: live events of this context, with times, that have been reached.
        let ms = self.driver().check(unsafe { self.driver().table.elapsed_ms(from, to) })?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }
}

// SAFETY: it is over when the driver says that the stream has come so far.
unsafe impl hal::Event for Event {
    fn domain(&self) -> Domain {
        self.driver().domain
    }

    fn poll(&self) -> Result<bool> {
        let reached = self.query()?;
        if reached {
            self.check_host_signals()?;
        }
        Ok(reached)
    }

    fn is_over(&self) -> bool {
        match self.query() {
            Ok(reached) => reached,
            // The context is dead, and its work with it.
            Err(why) => matches!(why, Error::DeviceLost { .. }),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let _current = self.queue.context.enter()?;
        loop {
            if self.query_here()? {
                return self.check_host_signals();
            }
            let waited = start.elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                let what = format!("work on {}", self.driver().info.name);
                return Err(Error::timeout(what, timeout));
            }
            match patience::pause(waited) {
                // What lies beneath may compute on these very cores.
                None if self.below().is_some() => thread::yield_now(),
                None => patience::breathe(waited),
                Some(pause) => thread::sleep(pause.min(left)),
            }
        }
    }

    /// The driver does not tell when work was enqueued: all but the end are the beginning.
    fn profile(&self) -> Result<Profile> {
        let Some(base) = self.queue.base else {
            return Err(Error::unsupported(
                "the times of a command",
                "a queue opened with profiling",
            ));
        };
        if !self.poll()? {
            return Err(Error::Busy { what: "the work is not done: wait for it first".to_owned() });
        }
        let _current = self.queue.context.enter()?;
        let start = self.start.unwrap_or(self.raw);
        let started_ns = self.between(base, start)?;
        // Apart, since the driver's number is a short one: far from the base it has no microseconds.
        let ended_ns = started_ns + self.between(start, self.raw)?;
        Ok(Profile { queued_ns: started_ns, submitted_ns: started_ns, started_ns, ended_ns })
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        if !self.driver().info.caps.callbacks {
            let what = format!("a callback on {}", self.driver().info.name);
            return Err((Error::unsupported(what, "a driver that runs host functions"), callback));
        }
        match self.queue.context.enter() {
            Ok(_current) => callbacks::send(&self.queue, self.raw, self.behind.clone(), callback),
            Err(why) => Err((why, callback)),
        }
    }

    fn raw(&self) -> usize {
        self.raw.0 as usize
    }

    fn native_in(&self, domain: Domain) -> Result<Option<usize>> {
        self.layered(domain)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let context = &self.queue.context;
        if let Some(_current) = context.enter_to_free() {
            [Some(self.raw), self.start].into_iter().flatten().for_each(|event| {
                context.destroy_event(event);
            });
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("raw", &self.raw)
            .field("over", &hal::Event::is_over(self))
            .finish()
    }
}
