//! Points in a queue, and host signals that the host opens.
//!
//! # Safety
//! What `hal` asks of an event holds by construction: see the `SAFETY` comment.

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

/// Something that is completed once and waited for by many.
#[derive(Default)]
pub(super) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
    /// When its work began and ended.
    times: Mutex<[Option<Instant>; 2]>,
}

enum State {
    Pending(Vec<Callback>),
    Done(Result<()>),
}

impl Default for State {
    fn default() -> Self {
        State::Pending(Vec::new())
    }
}

impl Signal {
    /// Its work begins.
    pub(super) fn start(&self) {
        lock(&self.times)[0] = Some(Instant::now());
    }

    /// Completes it and calls back. Only the first call counts.
    pub(super) fn complete(&self, outcome: Result<()>) {
        lock(&self.times)[1] = Some(Instant::now());
        let callbacks = {
            let mut state = lock(&self.state);
            match &mut *state {
                State::Done(_) => return,
                State::Pending(callbacks) => {
                    let callbacks = mem::take(callbacks);
                    *state = State::Done(outcome.clone());
                    callbacks
                }
            }
        };
        self.changed.notify_all();
        // Outside of the lock: a callback may ask this very event.
        callbacks.into_iter().for_each(|callback| call(callback, outcome.clone()));
    }

    /// How it ended, or `None` before.
    pub(super) fn outcome(&self) -> Option<Result<()>> {
        match &*lock(&self.state) {
            State::Pending(_) => None,
            State::Done(outcome) => Some(outcome.clone()),
        }
    }

    /// Waits as long as it takes; only for a queue's own thread.
    pub(super) fn wait(&self) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            if let State::Done(outcome) = &*state {
                return outcome.clone();
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits for some time; `None` when that ran out.
    fn wait_until(&self, deadline: Instant) -> Option<Result<()>> {
        let mut state = lock(&self.state);
        loop {
            if let State::Done(outcome) = &*state {
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
                State::Pending(callbacks) => return callbacks.push(callback),
                State::Done(outcome) => outcome.clone(),
            }
        };
        call(callback, outcome);
    }
}

/// A panic of the caller's must not take a queue's thread with it.
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
    /// Where the queue's clock starts, and when this was enqueued; on a queue opened for profiling.
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

    /// What its queue completes.
    pub(super) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl fmt::Debug for FakeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeEvent({:?})", self.signal.outcome())
    }
}

// SAFETY: its signal is completed when its command has run.
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

    /// What its queue waits for.
    pub(super) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl HostSignal for FakeHostSignal {
    fn open(self: Box<Self>, outcome: Result<()>) {
        self.watch.call_regardless("fake_open_gate");
        self.signal.complete(outcome);
    }
}

impl Drop for FakeHostSignal {
    fn drop(&mut self) {
        // Nothing happens where it was opened: only the first completion counts.
        self.signal.complete(Err(misuse("fake_gate", "ABANDONED")));
    }
}
