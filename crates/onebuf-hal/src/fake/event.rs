//! Events and host signals of the fake device.
//!
//! # Safety
//! The event fulfils the contract of `hal` by construction: see the `SAFETY` comment.

#![allow(unsafe_code)]

use super::{
    misuse,
    watch::{Live, Watch},
};
use crate::{
    Callback, Domain, Error, Event, HostSignal, Profile, Result,
    locks::{Arc, Condvar, Mutex, lock},
    native::panic_text,
};
use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// A one-time completion that any number of threads can wait for.
#[derive(Default)]
pub(super) struct Signal {
    state: Mutex<Completion>,
    changed: Condvar,
    /// When its work began and ended.
    times: Mutex<[Option<Instant>; 2]>,
}

enum Completion {
    Pending(Vec<Callback>),
    Done(Result<()>),
}

impl Default for Completion {
    fn default() -> Self {
        Completion::Pending(Vec::new())
    }
}

impl Signal {
    /// Records that its work begins.
    pub(super) fn start(&self) {
        lock(&self.times)[0] = Some(Instant::now());
    }

    /// Completes it and runs the callbacks. Only the first call has an effect.
    pub(super) fn complete(&self, outcome: Result<()>) {
        lock(&self.times)[1] = Some(Instant::now());
        let callbacks = {
            let mut state = lock(&self.state);
            match &mut *state {
                Completion::Done(_) => return,
                Completion::Pending(callbacks) => {
                    let callbacks = mem::take(callbacks);
                    *state = Completion::Done(outcome.clone());
                    callbacks
                }
            }
        };
        self.changed.notify_all();
        // Without the lock: a callback may query this event.
        callbacks.into_iter().for_each(|callback| call(callback, outcome.clone()));
    }

    /// The outcome; `None` before completion.
    pub(super) fn outcome(&self) -> Option<Result<()>> {
        match &*lock(&self.state) {
            Completion::Pending(_) => None,
            Completion::Done(outcome) => Some(outcome.clone()),
        }
    }

    /// Waits without a timeout; only for a queue's own thread.
    pub(super) fn wait(&self) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            if let Completion::Done(outcome) = &*state {
                return outcome.clone();
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits until the deadline; `None` if it passes.
    fn wait_until(&self, deadline: Instant) -> Option<Result<()>> {
        let mut state = lock(&self.state);
        loop {
            if let Completion::Done(outcome) = &*state {
                return Some(outcome.clone());
            }
            let left = deadline.checked_duration_since(Instant::now()).filter(|d| !d.is_zero())?;
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn on_complete(&self, callback: Callback) {
        let outcome = {
            let mut state = lock(&self.state);
            match &mut *state {
                Completion::Pending(callbacks) => return callbacks.push(callback),
                Completion::Done(outcome) => outcome.clone(),
            }
        };
        call(callback, outcome);
    }
}

/// Runs a callback. Its panic must not end the queue's thread.
fn call(callback: Callback, outcome: Result<()>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| callback(outcome))) {
        tracing::error!("a completion callback panicked: {}", panic_text(&*panic));
    }
}

/// A point in a queue.
pub struct FakeEvent {
    domain: Domain,
    signal: Arc<Signal>,
    callbacks: bool,
    /// The start of the queue's clock, and when this was enqueued; on a queue with profiling.
    queued: Option<(Instant, Instant)>,
    watch: Watch,
    _live: Live,
}

impl FakeEvent {
    pub(super) fn new(
        domain: Domain,
        callbacks: bool,
        clock: Option<Instant>,
        watch: &Watch,
    ) -> Self {
        FakeEvent {
            domain,
            signal: Arc::default(),
            callbacks,
            queued: clock.map(|clock| (clock, Instant::now())),
            watch: watch.clone(),
            _live: watch.object("event", "fake_release_event"),
        }
    }

    /// The signal that its queue completes.
    pub(super) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl fmt::Debug for FakeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeEvent({:?})", self.signal.outcome())
    }
}

// SAFETY: its signal is completed only after its command has run.
unsafe impl Event for FakeEvent {
    fn domain(&self) -> Domain {
        self.domain
    }

    fn poll(&self) -> Result<bool> {
        self.watch.call("fake_poll")?;
        self.signal.outcome().map_or(Ok(false), |outcome| outcome.map(|()| true))
    }

    fn is_over(&self) -> bool {
        self.signal.outcome().is_some()
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        self.watch.call("fake_wait")?;
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self
                .signal
                .wait_until(deadline)
                .unwrap_or_else(|| Err(Error::timeout("an event of the fake device", timeout))),
            None => self.signal.wait(),
        }
    }

    fn profile(&self) -> Result<Profile> {
        self.watch.call("fake_profile")?;
        let (clock, queued) = self.queued.ok_or_else(|| {
            Error::unsupported("the time of work on a fake queue", "a queue opened with profiling")
        })?;
        let [Some(started), Some(ended)] = *lock(&self.signal.times) else {
            return Err(Error::Busy { what: "the work is not done: wait for it first".into() });
        };
        let ns = |at: Instant| at.saturating_duration_since(clock).as_nanos() as u64;
        let (queued_ns, started_ns, ended_ns) = (ns(queued), ns(started), ns(ended));
        Ok(Profile { queued_ns, submitted_ns: queued_ns, started_ns, ended_ns })
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        if !self.callbacks {
            let error = Error::unsupported("a callback of a fake event", "`FakeConfig::callbacks`");
            return Err((error, callback));
        }
        if let Err(error) = self.watch.call("fake_on_complete") {
            return Err((error, callback));
        }
        self.signal.on_complete(callback);
        Ok(())
    }
}

/// A host signal in a queue.
pub(super) struct FakeHostSignal {
    signal: Arc<Signal>,
    watch: Watch,
    _live: Live,
}

impl FakeHostSignal {
    pub(super) fn new(watch: &Watch) -> Self {
        FakeHostSignal {
            signal: Arc::default(),
            watch: watch.clone(),
            _live: watch.object("event", "fake_release_event"),
        }
    }

    /// The signal that its queue waits for.
    pub(super) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl HostSignal for FakeHostSignal {
    fn open(self: Box<Self>, outcome: Result<()>) {
        self.watch.call_regardless("fake_complete_host_signal");
        self.signal.complete(outcome);
    }
}

impl Drop for FakeHostSignal {
    fn drop(&mut self) {
        // No effect if it was opened: only the first completion counts.
        self.signal.complete(Err(misuse("fake_host_signal", "ABANDONED")));
    }
}
