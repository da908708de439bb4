//! Events, and waiting with a timeout.

use super::context::{Context, reached};
use onebuf_hal::{
    self as hal, Callback, Domain, Error, Profile, Result,
    locks::{Arc, AtomicBool, Ordering, thread},
    patience,
};
use onebuf_sys::gl::{Gl, GlRefused, GlSync, consts};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// Length of one wait on the context's thread, during which it serves no other call.
const SLICE: Duration = Duration::from_micros(200);

/// A point in the context's work.
pub struct Event {
    /// The context that the fence was created in.
    context: Arc<Context>,
    /// `None` if all earlier work was over when the event was created.
    sync: Option<GlSync>,
    reached: AtomicBool,
    /// On a profiled queue, the timestamp queries before and after the work.
    times: Option<[u32; 2]>,
}

impl Event {
    /// Takes ownership of a fence.
    pub(super) fn new(context: Arc<Context>, sync: GlSync) -> Event {
        Event::at(context, Some(sync))
    }

    /// Creates an event for work that is over.
    pub(super) fn past(context: Arc<Context>) -> Event {
        Event::at(context, None)
    }

    fn at(context: Arc<Context>, sync: Option<GlSync>) -> Event {
        let reached = AtomicBool::new(sync.is_none());
        Event { context, sync, reached, times: None }
    }

    /// Makes later work of another context, which shares objects with this one, wait on the device.
    pub(super) fn hold(&self, later: &Context) -> Result<()> {
        let reached = self.reached.load(Ordering::Acquire);
        let Some(sync) = self.sync.filter(|_| later.id != self.context.id && !reached) else {
            return Ok(());
        };
        if !self.context.is_inline() {
            // SAFETY: the context is current. The flush is needed, because a wait for an unflushed fence never ends.
            self.context.run(|gl| unsafe { gl.flush() })?;
        }
        // SAFETY: the context is current, and shares the fence, which is alive.
        later.run(|gl| unsafe { gl.stay_behind(sync, 0, consts::TIMEOUT_IGNORED) })
    }

    /// Takes ownership of two timestamp queries.
    pub fn timed(mut self, times: Option<[u32; 2]>) -> Event {
        self.times = times;
        self
    }

    /// Whether the fence is reached within `slice`; `turn` limits the wait for the context's thread. A foreign context that is current
    /// here is asked itself: to wake our context's thread takes longer. Its owner's errors stay: the call reports a failure of its own.
    fn reached_within(&self, turn: Duration, slice: Duration) -> Result<bool> {
        if self.reached.load(Ordering::Acquire) {
            return Ok(true);
        }
        let Some(sync) = self.sync else { return Ok(true) };
        let asked = |gl: &Gl| reached(gl, sync, slice);
        let has = match self.context.here() {
            Some(gl) => self.context.driver.check(asked(gl)),
            None => self.context.ours().run_within(turn, asked),
        }?;
        if has {
            self.reached.store(true, Ordering::Release);
        }
        Ok(has)
    }
}

/// Creates a query that records the time when all earlier work is done.
pub(super) fn stamp(gl: &Gl) -> Result<u32, GlRefused> {
    // SAFETY: the context is current; the query is new.
    unsafe {
        let query = gl.create_query()?;
        let asked = gl.query_counter(query, consts::TIMESTAMP);
        asked.inspect_err(|_| unstamp(gl, Some(query)))?;
        Ok(query)
    }
}

/// Deletes the query.
pub(super) fn unstamp(gl: &Gl, query: Option<u32>) {
    if let Some(query) = query {
        // SAFETY: the context is current; made by `stamp`, and deleted once.
        let _ = unsafe { gl.delete_query(query) };
    }
}

fn result(gl: &Gl, query: u32) -> Result<u64, GlRefused> {
    let mut ns = 0;
    // SAFETY: the context is current, the query was issued, and the pointer is valid.
    unsafe { gl.query_result(query, consts::QUERY_RESULT, &raw mut ns)? };
    Ok(ns)
}

// SAFETY: the event is over when its fence is signalled.
unsafe impl hal::Event for Event {
    fn domain(&self) -> Domain {
        self.context.driver.domain
    }

    fn poll(&self) -> Result<bool> {
        self.reached_within(self.context.driver.post.limit(), Duration::ZERO)
    }

    fn is_over(&self) -> bool {
        match self.poll() {
            Ok(reached) => reached,
            // The context is dead, and so is its work.
            Err(why) => matches!(why, Error::DeviceLost { .. }),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let late = || {
            let what = format!("work on {}", self.context.driver.info.name);
            Error::timeout(what, timeout)
        };
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match self.reached_within(left, SLICE.min(left)) {
                Ok(true) => return Ok(()),
                Ok(false) if left.is_zero() => return Err(late()),
                Ok(false) => {}
                Err(Error::Timeout { .. }) => return Err(late()),
                Err(why) => return Err(why),
            }
            let waited = start.elapsed();
            match patience::pause(waited) {
                // The slice was a wait already; yield to other callers.
                None => thread::yield_now(),
                Some(pause) => thread::sleep(pause.min(timeout.saturating_sub(waited))),
            }
        }
    }

    /// The driver does not report when work was enqueued, so all times but the end equal the start.
    fn profile(&self) -> Result<Profile> {
        let Some([start, end]) = self.times else {
            return Err(Error::unsupported(
                "the times of a command",
                "a launch with a fence on a queue opened with profiling",
            ));
        };
        if !self.poll()? {
            return Err(Error::Busy { what: "the work is not done: wait for it first".to_owned() });
        }
        let [started_ns, ended_ns] =
            self.context.ours().run(|gl| Ok([result(gl, start)?, result(gl, end)?]))?;
        Ok(Profile { queued_ns: started_ns, submitted_ns: started_ns, started_ns, ended_ns })
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        let what = format!("a callback on {}", self.context.driver.info.name);
        Err((Error::unsupported(what, "an API that calls back: wait for the fence"), callback))
    }

    fn raw(&self) -> usize {
        self.sync.map_or(0, |sync| sync.0 as usize)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let (sync, times) = (self.sync.take(), self.times.take());
        if sync.is_none() && times.is_none() {
            return;
        }
        self.context.delete(move |gl| {
            // SAFETY: the context is current; each was made for this event, and is deleted once.
            let fence = sync.map_or(Ok(()), |sync| unsafe { gl.delete_fence(sync) });
            // SAFETY: as above.
            let queries =
                times.into_iter().flatten().map(|query| unsafe { gl.delete_query(query) });
            queries.fold(fence, |first, next| first.and(next))
        });
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("sync", &self.sync)
            .field("reached", &self.reached.load(Ordering::Relaxed))
            .finish()
    }
}
