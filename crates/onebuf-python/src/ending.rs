//! The end of the interpreter: no thread is inside of a driver when the process ends.
//!
//! Daemon threads go on while the process ends, and drivers are taken down then. At the interpreter's end, calls in flight are
//! waited for, and calls of other threads that begin later do not return, as such threads do not get the interpreter again either.

use pyo3::prelude::*;
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// Calls that are inside of the library now, without the interpreter.
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the interpreter.
static ENDED_BY: OnceLock<ThreadId> = OnceLock::new();
/// How long the end waits for calls in flight.
const PATIENCE: Duration = Duration::from_secs(2);

/// One call in flight.
pub(crate) struct Flight;

impl Flight {
    fn begin() -> Self {
        IN_FLIGHT.fetch_add(1, Ordering::SeqCst);
        let flight = Self;
        if ENDED_BY.get().is_some_and(|by| *by != thread::current().id()) {
            drop(flight);
            loop {
                thread::park();
            }
        }
        flight
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        IN_FLIGHT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A call that lasts until this is dropped, and gets the interpreter back meanwhile: a pipeline's run.
pub(crate) fn flight(py: Python<'_>) -> Flight {
    py.detach(Flight::begin)
}

/// Calls the library without the interpreter.
pub(crate) fn detached<T: Send>(py: Python<'_>, body: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _flight = Flight::begin();
        body()
    })
}

/// Whether the interpreter ends.
pub(crate) fn has_begun() -> bool {
    ENDED_BY.get().is_some()
}

/// Ends the use of the library by other threads: waits for calls in flight, and lets no other begin.
pub(crate) fn begin(py: Python<'_>) {
    let _ = ENDED_BY.set(thread::current().id());
    py.detach(|| {
        let start = Instant::now();
        while IN_FLIGHT.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    });
}
