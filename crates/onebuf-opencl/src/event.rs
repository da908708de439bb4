//! Events, and waiting with a timeout.

use super::{conv, device::Driver, query, queue::RawQueue};
use onebuf_hal::{
    self as hal, Callback, DeviceKind, Domain, Error, Profile, Result,
    host_signals::Behind,
    locks::{Arc, AtomicBool, Condvar, Mutex, Ordering, lock, thread},
    patience::{self, SHORTEST_SLEEP},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClEvent, consts as cl},
};
use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// How long a wait for a CPU device polls without sleeping: most such waits end within this time, and a callback costs two
/// thread switches. Polling for longer would take CPU time from the work itself; on other devices it does not.
const CPU_SPIN: Duration = Duration::from_micros(100);

/// The profiling queries, in chronological order.
const TIMES: [u32; 4] = [
    cl::CL_PROFILING_COMMAND_QUEUED,
    cl::CL_PROFILING_COMMAND_SUBMIT,
    cl::CL_PROFILING_COMMAND_START,
    cl::CL_PROFILING_COMMAND_END,
];

/// Replaces the call's name in errors of the work itself.
pub(super) const COMMAND: &str = "a command on the queue";

/// A `cl_event`, released once, and the queue of its command.
pub(super) struct RawEvent {
    pub queue: Arc<RawQueue>,
    pub raw: ClEvent,
    pub behind: Behind,
}

impl RawEvent {
    pub fn driver(&self) -> &Arc<Driver> {
        self.queue.driver()
    }

    fn status(&self) -> Result<i32> {
        let (driver, event) = (self.driver(), self.raw);
        let what = cl::CL_EVENT_COMMAND_EXECUTION_STATUS;
        let status = query::value::<i32>(|n, at, len| {
            // SAFETY: a live event; `query` passes a buffer of the stated length.
            unsafe { driver.cl.get_event_info(event, what, n, at, len) }
        });
        driver.check("clGetEventInfo", status)
    }

    /// Whether it is complete. Returns an error if its work failed.
    fn done(&self) -> Result<bool> {
        let status = self.status()?;
        ended(self.driver(), status, &self.behind)?;
        Ok(status == cl::CL_COMPLETE)
    }

    /// One of the profiling times of completed work.
    fn time(&self, what: u32) -> Result<u64> {
        let (driver, event) = (self.driver(), self.raw);
        let time = query::value(|n, at, len| {
            // SAFETY: a live event; `query` passes a buffer of the stated length.
            unsafe { driver.cl.get_event_profiling_info(event, what, n, at, len) }
        });
        time.map_err(|status| match status {
            ClStatus::PROFILING_INFO_NOT_AVAILABLE => no_times(driver),
            _ => conv::status("clGetEventProfilingInfo", status, &driver.info.name),
        })
    }

    /// Registers a callback, which runs once, on a driver's thread or at once. Returns the callback if the driver refuses it.
    fn notify(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        if !self.driver().info.caps.callbacks {
            let what = format!("a callback on {}", self.driver().info.name);
            return Err((Error::unsupported(what, "a driver that calls back"), callback));
        }
        let (driver, behind) = (self.driver().clone(), self.behind.clone());
        let user = Box::into_raw(Box::new(Notice { driver, behind, callback }));
        // SAFETY: a live event; `notified` takes the box back, once, since this registers it once.
        let answer = unsafe {
            let set = self.driver().cl.set_event_callback(
                self.raw,
                cl::CL_COMPLETE,
                Some(notified),
                user.cast(),
            );
            set.map_err(|status| (status, Box::from_raw(user)))
        };
        answer.map_err(|(status, notice)| {
            let error = conv::status("clSetEventCallback", status, &notice.driver.info.name);
            (error, notice.callback)
        })
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: this struct owns one reference.
        let released = unsafe { self.driver().cl.release_event(self.raw) };
        self.driver().note("clReleaseEvent", released);
    }
}

fn no_times(driver: &Driver) -> Error {
    let what = format!("the times of a command on {}", driver.info.name);
    Error::unsupported(what, "a driver that measures them")
}

/// Returns the error of a command: a negative execution status, or a failed host signal before it.
fn ended(driver: &Driver, status: i32, behind: &Behind) -> Result<()> {
    match status {
        cl::CL_COMPLETE => check_host_signals(driver, behind),
        ..cl::CL_COMPLETE => driver.check(COMMAND, Err(ClStatus(status))),
        _ => Ok(()),
    }
}

/// Returns an error if the work waited for a host signal that failed.
fn check_host_signals(driver: &Driver, behind: &Behind) -> Result<()> {
    match behind.has_failed() {
        true => driver.check(COMMAND, Err(ClStatus(conv::HOST_SIGNAL_FAILED))),
        false => Ok(()),
    }
}

/// The user data of an event callback.
struct Notice {
    driver: Arc<Driver>,
    behind: Behind,
    callback: Callback,
}

/// # Safety
/// `user` is a `Box<Notice>` that is not taken elsewhere.
unsafe extern "system" fn notified(_event: ClEvent, status: i32, user: *mut c_void) {
    // SAFETY: the caller's promise; `RawEvent::notify` created the box.
    let notice = unsafe { Box::from_raw(user.cast::<Notice>()) };
    let Notice { driver, behind, callback } = *notice;
    // A panic must not unwind into the driver.
    if catch_unwind(AssertUnwindSafe(|| callback(ended(&driver, status, &behind)))).is_err() {
        tracing::error!(device = %driver.info.name, "an event's callback panicked");
    }
}

/// A flag that a callback sets and threads wait for.
#[derive(Default)]
struct Signal {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn set(&self) {
        *lock(&self.set) = true;
        self.changed.notify_all();
    }

    fn wait(&self, timeout: Duration) {
        let set = lock(&self.set);
        if !*set {
            // The caller queries the driver next, whether the flag was set or not.
            drop(self.changed.wait_timeout(set, timeout));
        }
    }
}

/// A point in a queue.
pub struct Event {
    raw: RawEvent,
    /// Whether its queue was flushed since. Without a flush rusticl runs nothing and the event never completes, as the
    /// specification permits.
    flushed: AtomicBool,
    /// Whether the host completes it; then it belongs to no queue.
    by_host: bool,
    /// Created by the first wait that sleeps, so that repeated waits register only one callback.
    signal: Mutex<Option<Arc<Signal>>>,
}

impl Event {
    pub(super) fn new(queue: Arc<RawQueue>, raw: ClEvent) -> Event {
        let behind = queue.host_signals.pending();
        let raw = RawEvent { queue, raw, behind };
        let flushed = AtomicBool::new(false);
        Event { raw, flushed, by_host: false, signal: Mutex::new(None) }
    }

    /// A foreign event, with one more reference. `queue` is the event's queue, or any queue of the context for an event
    /// that the host completes, which needs no flush.
    ///
    /// # Safety
    /// `raw` is a live event of the queue's context.
    pub(super) unsafe fn retained(
        queue: Arc<RawQueue>,
        raw: ClEvent,
        by_host: bool,
        behind: Behind,
    ) -> Result<Event> {
        let driver = queue.driver();
        // SAFETY: the caller's promise.
        driver.check("clRetainEvent", unsafe { driver.cl.retain_event(raw) })?;
        let raw = RawEvent { queue, raw, behind };
        let flushed = AtomicBool::new(by_host);
        Ok(Event { raw, flushed, by_host, signal: Mutex::new(None) })
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        self.raw.driver()
    }

    pub fn handle(&self) -> ClEvent {
        self.raw.raw
    }

    /// Returns the event without its host signals, so that their failure is not reported.
    pub fn without_host_signals(mut self) -> Event {
        self.raw.behind = Behind::default();
        self
    }

    /// The host signals that it waits for.
    pub fn behind(&self) -> &Behind {
        &self.raw.behind
    }

    /// Returns an error if one of its host signals has failed.
    pub fn check_host_signals(&self) -> Result<()> {
        check_host_signals(self.raw.driver(), &self.raw.behind)
    }

    /// Whether it belongs to that queue.
    pub(super) fn is_of(&self, queue: &RawQueue) -> bool {
        !self.by_host && self.raw.queue.raw == queue.raw
    }

    /// Flushes the event's queue once, so that the event can complete. Required before another queue or thread waits for it.
    pub fn flush(&self) -> Result<()> {
        if !self.flushed.load(Ordering::Acquire) {
            self.raw.queue.flush()?;
            self.flushed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the flag that wakes a sleeping wait; `None` if the driver refused the callback.
    fn signal(&self) -> Option<Arc<Signal>> {
        let mut slot = lock(&self.signal);
        if slot.is_none() {
            let signal = Arc::new(Signal::default());
            let in_callback = signal.clone();
            match self.raw.notify(Box::new(move |_| in_callback.set())) {
                Ok(()) => *slot = Some(signal),
                Err((why, _)) => tracing::warn!("waiting by polling: {why}"),
            }
        }
        slot.clone()
    }

    /// Spins, yields or sleeps, depending on how long the wait has lasted; at most for `left`.
    fn pause(&self, waited: Duration, left: Duration) {
        let on_host = self.driver().info.kind == DeviceKind::Cpu;
        let crowded = (on_host && waited >= CPU_SPIN).then_some(SHORTEST_SLEEP);
        match patience::pause(waited).or(crowded) {
            Some(pause) => self.sleep(pause.min(left)),
            None if on_host => thread::yield_now(),
            None => patience::breathe(waited),
        }
    }

    /// Sleeps until the callback or for `pause`: NVIDIA calls back 4 to 19 ms late for a map, even while a thread polls
    /// (32 MiB: complete after 0.6 ms by `clGetEventInfo`).
    fn sleep(&self, pause: Duration) {
        match self.signal() {
            Some(signal) => signal.wait(pause),
            None => thread::sleep(pause),
        }
    }
}

// SAFETY: it is over only once the driver reports that the command has ended.
unsafe impl hal::Event for Event {
    fn domain(&self) -> Domain {
        self.raw.driver().domain
    }

    fn poll(&self) -> Result<bool> {
        if self.raw.done()? {
            return Ok(true);
        }
        self.flush()?;
        Ok(false)
    }

    fn is_over(&self) -> bool {
        self.raw.status().is_ok_and(|status| status <= cl::CL_COMPLETE)
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        // Before the first query, so that the device starts meanwhile. If the flush fails, the status is still queried once.
        let flushed = self.flush();
        loop {
            if self.raw.done()? {
                return Ok(());
            }
            flushed.clone()?;
            let waited = start.elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                let what = format!("work on {}", self.raw.driver().info.name);
                return Err(Error::timeout(what, timeout));
            }
            self.pause(waited, left);
        }
    }

    fn profile(&self) -> Result<Profile> {
        if !self.raw.queue.profiling {
            return Err(Error::unsupported(
                "the times of a command",
                "a queue opened with profiling",
            ));
        }
        if !hal::Event::poll(self)? {
            return Err(Error::Busy { what: "the work is not done: wait for it first".to_owned() });
        }
        let times = TIMES.map(|what| self.raw.time(what));
        let [queued_ns, submitted_ns, started_ns, ended_ns] = times;
        let (queued_ns, submitted_ns) = (queued_ns?, submitted_ns?);
        let (started_ns, ended_ns) = (started_ns?, ended_ns?);
        // Rusticl 22.3 does not measure times, and returns the indices of the queries instead.
        if [queued_ns, submitted_ns, started_ns, ended_ns] == [0, 1, 2, 3] {
            return Err(no_times(self.raw.driver()));
        }
        Ok(Profile { queued_ns, submitted_ns, started_ns, ended_ns })
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        // Before registering: a registered callback cannot be returned to the caller.
        if let Err(why) = self.flush() {
            return Err((why, callback));
        }
        self.raw.notify(callback)
    }

    fn raw(&self) -> usize {
        self.raw.raw.0 as usize
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("raw", &self.raw.raw)
            .field("over", &hal::Event::is_over(self))
            .finish()
    }
}
