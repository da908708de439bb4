//! An executor for futures, and a watchdog for tests that hang.

use crate::note;
use onebuf::Probe;
use std::{
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which is parked between wakes.
///
/// # Panics
/// If nothing wakes it for 20 s.
pub fn block_on<F: Future>(future: F) -> F::Output {
    const LIMIT: Duration = Duration::from_secs(20);
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park_timeout(LIMIT);
        assert!(start.elapsed() < LIMIT, "a future was not woken");
    }
}

/// Repeats a measurement until it fits, four times at most, and returns the last. A busy machine may make a hand-over without a copy
/// look like one with a copy, but not every time; a copy never looks like none.
pub fn measured<T>(mut measure: impl FnMut() -> T, fits: impl Fn(&T) -> bool) -> T {
    let mut found = measure();
    for again in 2..=4 {
        if fits(&found) {
            break;
        }
        note(&format!("a measurement does not fit; attempt {again}"));
        found = measure();
    }
    found
}

/// Asserts that no object of a driver is left. A thread that waited for the last work may be late, on a busy machine by
/// seconds, so this waits up to a minute.
///
/// # Panics
/// If something is left.
#[track_caller]
pub fn assert_settled(probe: &Probe, what: &str) {
    let start = Instant::now();
    while !probe.live().is_empty() && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(probe.live().is_empty(), "{what}: {:?} left, {:?}", probe.live(), probe.trace());
}

/// Ends the process, with a message, unless dropped in time. A deadlocked thread cannot be unwound.
#[derive(Debug)]
pub struct Watchdog(#[allow(dead_code, reason = "its drop is the signal")] mpsc::Sender<()>);

impl Watchdog {
    /// Starts the watchdog.
    pub fn new(what: &'static str, limit: Duration) -> Self {
        let (alive, dropped) = mpsc::channel();
        thread::spawn(move || {
            if dropped.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                note(&format!("{what}: no end after {limit:?}"));
                std::process::abort();
            }
        });
        Self(alive)
    }
}
