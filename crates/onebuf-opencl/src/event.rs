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

/// Most waits for a CPU end within this time, and a callback costs two thread switches. Longer, and asking would take its
/// time from the work itself; other devices do not compute more slowly for being asked.
const CPU_SPIN: Duration = Duration::from_micros(100);

/// The questions of a profile, in the order in which their answers come to pass.
const TIMES: [u32; 4] = [
    cl::CL_PROFILING_COMMAND_QUEUED,
    cl::CL_PROFILING_COMMAND_SUBMIT,
    cl::CL_PROFILING_COMMAND_START,
    cl::CL_PROFILING_COMMAND_END,
];

/// In place of a call, where it is the work itself that failed.
pub(super) const COMMAND: &str = "a command on the queue";

/// A `cl_event` that is released once, and the queue whose work it stands for.
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
            // SAFETY: a live event; `query` gives a place of the length it says.
            unsafe { driver.cl.get_event_info(event, what, n, at, len) }
        });
        driver.check("clGetEventInfo", status)
    }

    /// Whether it is complete; an error when its work failed.
    fn done(&self) -> Result<bool> {
        let status = self.status()?;
        ended(self.driver(), status, &self.behind)?;
        Ok(status == cl::CL_COMPLETE)
    }

    /// One of the times of work that has ended.
    fn time(&self, what: u32) -> Result<u64> {
        let (driver, event) = (self.driver(), self.raw);
        let time = query::value(|n, at, len| {
            // SAFETY: a live event; `query` gives a place of the length it says.
            unsafe { driver.cl.get_event_profiling_info(event, what, n, at, len) }
        });
        time.map_err(|status| match status {
            ClStatus::PROFILING_INFO_NOT_AVAILABLE => no_times(driver),
            _ => conv::status("clGetEventProfilingInfo", status, &driver.info.name),
        })
    }

    /// Calls back once, on a driver's thread or at once; gives the callback back when refused.
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
    Error::unsupported(what, "a driver that takes them")
}

/// An execution status below zero is the error that the work ended with.
fn ended(driver: &Driver, status: i32, behind: &Behind) -> Result<()> {
    match status {
        cl::CL_COMPLETE => check_host_signals(driver, behind),
        ..cl::CL_COMPLETE => driver.check(COMMAND, Err(ClStatus(status))),
        _ => Ok(()),
    }
}

/// An error when work waited behind a host signal that failed.
fn check_host_signals(driver: &Driver, behind: &Behind) -> Result<()> {
    match behind.has_failed() {
        true => driver.check(COMMAND, Err(ClStatus(conv::HOST_SIGNAL_FAILED))),
        false => Ok(()),
    }
}

/// What a callback needs, in the box that the driver keeps.
struct Notice {
    driver: Arc<Driver>,
    behind: Behind,
    callback: Callback,
}

/// # Safety
/// `user` is a `Box<Notice>` that nobody else takes.
unsafe extern "system" fn notified(_event: ClEvent, status: i32, user: *mut c_void) {
    // SAFETY: the caller's promise; `RawEvent::notify` made it.
    let notice = unsafe { Box::from_raw(user.cast::<Notice>()) };
    let Notice { driver, behind, callback } = *notice;
    // A panic must not unwind into the driver.
    if catch_unwind(AssertUnwindSafe(|| callback(ended(&driver, status, &behind)))).is_err() {
        tracing::error!(device = %driver.info.name, "an event's callback panicked");
    }
}

/// Set by a callback, waited for by threads.
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
            // Whether it was set or not, the driver is asked next.
            drop(self.changed.wait_timeout(set, timeout));
        }
    }
}

/// A point in a queue.
pub struct Event {
    raw: RawEvent,
    /// Whether its queue was flushed since: without that, rusticl runs nothing and the event never
    /// completes (by the specification none needs to).
    flushed: AtomicBool,
    /// Whether the host completes it, so that it is of no queue.
    by_host: bool,
    /// Made by the first wait that has to sleep, so that repeated waits register one callback.
    signal: Mutex<Option<Arc<Signal>>>,
}

impl Event {
    pub(super) fn new(queue: Arc<RawQueue>, raw: ClEvent) -> Event {
        let behind = queue.host_signals.pending();
        let raw = RawEvent { queue, raw, behind };
        let flushed = AtomicBool::new(false);
        Event { raw, flushed, by_host: false, signal: Mutex::new(None) }
    }

    /// Somebody else's event, with a reference of our own. The queue is its own; any of the context for
    /// one that the host completes, which nothing has to be flushed for.
    ///
    /// # Safety
    /// A live event of the queue's context.
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

    /// One that tells of none.
    pub fn without_host_signals(mut self) -> Event {
        self.raw.behind = Behind::default();
        self
    }

    /// The host signals it waits behind.
    pub fn behind(&self) -> &Behind {
        &self.raw.behind
    }

    /// An error when one of those has failed.
    pub fn check_host_signals(&self) -> Result<()> {
        check_host_signals(self.raw.driver(), &self.raw.behind)
    }

    /// Whether it belongs to that queue.
    pub(super) fn is_of(&self, queue: &RawQueue) -> bool {
        !self.by_host && self.raw.queue.raw == queue.raw
    }

    /// Sees to it that the event is on its way. Waiting from another queue or thread needs that.
    pub fn flush(&self) -> Result<()> {
        if !self.flushed.load(Ordering::Acquire) {
            self.raw.queue.flush()?;
            self.flushed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// What wakes a sleeping wait; `None` when the driver refused the callback.
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

    /// Lets some time pass after so long a wait, but no more than is left.
    fn pause(&self, waited: Duration, left: Duration) {
        let on_host = self.driver().info.kind == DeviceKind::Cpu;
        let crowded = (on_host && waited >= CPU_SPIN).then_some(SHORTEST_SLEEP);
        match patience::pause(waited).or(crowded) {
            Some(pause) => self.sleep(pause.min(left)),
            None if on_host => thread::yield_now(),
            None => patience::breathe(waited),
        }
    }

    /// Until a callback comes, or for so long: NVIDIA calls back 4 to 19 ms late for a map, also while somebody asks (32 MiB:
    /// complete after 0.6 ms by `clGetEventInfo`).
    fn sleep(&self, pause: Duration) {
        match self.signal() {
            Some(signal) => signal.wait(pause),
            None => thread::sleep(pause),
        }
    }
}

// SAFETY: it is over when the driver says that the command is, and no sooner.
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
        // Before the first question: the device begins meanwhile. Who is refused asks all the same.
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
        // Rusticl 22.3 takes no times, and answers with the numbers of the questions.
        if [queued_ns, submitted_ns, started_ns, ended_ns] == [0, 1, 2, 3] {
            return Err(no_times(self.raw.driver()));
        }
        Ok(Profile { queued_ns, submitted_ns, started_ns, ended_ns })
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        // First, for a callback that is registered cannot be given back.
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
