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
    /// The start of the work, on a profiled queue.
    start: Option<CuEvent>,
    /// The host signals enqueued before it.
    behind: Behind,
    /// Whether the application owns it.
    is_foreign: bool,
}

impl Event {
    /// Takes ownership of the raw events.
    pub(super) fn new(queue: Arc<RawQueue>, raw: CuEvent, start: Option<CuEvent>) -> Event {
        let behind = queue.host_signals.pending();
        Event { queue, raw, start, behind, is_foreign: false }
    }

    /// An event of the application. Its context is that of the queue, which need not have recorded it.
    pub(super) fn foreign(queue: Arc<RawQueue>, raw: CuEvent) -> Event {
        Event { queue, raw, start: None, behind: Behind::default(), is_foreign: true }
    }

    /// Drops the record of earlier host signals.
    pub fn without_host_signals(mut self) -> Event {
        self.behind = Behind::default();
        self
    }

    /// Returns the host signals enqueued before it.
    pub fn behind(&self) -> &Behind {
        &self.behind
    }

    /// Fails if one of those host signals has failed.
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

    /// The base API's queue under this event's stream, if any.
    pub(super) fn below(&self) -> Option<&Below> {
        self.queue.below.as_ref()
    }

    /// Whether the stream has reached the event.
    fn query(&self) -> Result<bool> {
        let _current = self.queue.context.enter()?;
        self.query_here()
    }

    /// Queries the event while the context is current: entering it takes as long as the query.
    fn query_here(&self) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { self.driver().table.query_event(self.raw) } {
            Ok(()) => Ok(true),
            Err(refused) if is_pending(&refused) => Ok(false),
            Err(refused) => self.driver().check(Err(refused)),
        }
    }

    /// Returns the time from one event to the other, in nanoseconds.
    fn between(&self, from: CuEvent, to: CuEvent) -> Result<u64> {
        // SAFETY: live events of this context, with times, that have been reached.
        let ms = self.driver().check(unsafe { self.driver().table.elapsed_ms(from, to) })?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }
}

// SAFETY: the event is over when the driver reports that the stream has reached it.
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
            // The context is dead, and so is its work.
            Err(why) => matches!(why, Error::DeviceLost { .. }),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let _current = self.queue.context.enter()?;
        loop {
            if self.query_here()? {
                self.queue.context.sweep();
                return self.check_host_signals();
            }
            let waited = start.elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                let what = format!("work on {}", self.driver().info.name);
                return Err(Error::timeout(what, timeout));
            }
            match patience::pause(waited) {
                // The base API may compute on these cores.
                None if self.below().is_some() => thread::yield_now(),
                None => patience::breathe(waited),
                Some(pause) => thread::sleep(pause.min(left)),
            }
        }
    }

    /// The driver does not report when work was enqueued, so all times but the end equal the start.
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
        // Measured separately: the driver returns a 32-bit float, which far from the base loses microseconds.
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
        if self.is_foreign {
            return;
        }
        let context = &self.queue.context;
        if let Some(_current) = context.enter_to_free() {
            match self.queue.base {
                None => context.recycle_event(self.raw),
                Some(_) => context.destroy_event(self.raw),
            }
            self.start.into_iter().for_each(|start| context.destroy_event(start));
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
