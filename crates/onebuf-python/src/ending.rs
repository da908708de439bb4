//! The end of the interpreter: no thread is inside of the library, or of a driver, when the process ends.
//!
//! Daemon threads go on while the interpreter ends, and drivers are taken down with the process. Before version 3.14 the interpreter
//! ends such a thread where it asks for the lock again, by `pthread_exit`, which unwinds the thread's stack. Frames of Rust cannot be unwound
//! by it: the C library's unwinder aborts there, and if the module has an unwinder of its own (the release is linked with LLVM's), the two
//! read each other's structures. So a thread with such frames never asks for the lock of an ending interpreter. The end waits until
//! other threads have left the library, with the lock free for them. Calls that begin later do not return, as such threads do not get the
//! interpreter again either, and nor do calls that take longer than the end waits.

use pyo3::prelude::*;
use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// Threads that are inside of the library now, with or without the interpreter's lock.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Threads of these that ask for the lock again.
static RETURNING: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the interpreter.
static ENDED_BY: OnceLock<ThreadId> = OnceLock::new();
/// No other thread may ask for the lock.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// How long the end waits for calls.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for threads that need nothing but the lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// How many calls of the library this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A thread is inside of the library until this is dropped.
pub(crate) struct Inside {
    counted: bool,
    /// It counts on one thread.
    _of: std::marker::PhantomData<*const ()>,
}

impl Inside {
    /// The thread enters for another, which is inside already and waits for it: a part of a pipeline.
    pub fn for_another() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self { counted: false, _of: std::marker::PhantomData }
    }

    /// A thread of the library's own enters: the end waits for it.
    pub fn on_its_own() -> Self {
        let mut inside = Self::for_another();
        INSIDE.fetch_add(1, Ordering::SeqCst);
        inside.counted = true;
        inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if self.counted {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Enters the library. Calls that run code of Python do this first; calls that release the lock do it by [`detached`].
pub(crate) fn enter(py: Python<'_>) -> Inside {
    let mut inside = Inside::for_another();
    if DEPTH.get() > 1 {
        return inside;
    }
    INSIDE.fetch_add(1, Ordering::SeqCst);
    inside.counted = true;
    if ends_elsewhere() {
        inside.counted = false;
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        py.detach(|| stay());
    }
    inside
}

/// Calls Python from a thread of the library's own. `None` if the interpreter ends.
pub(crate) fn visit<R>(body: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _inside = Inside::on_its_own();
    match has_begun() {
        true => None,
        false => Python::try_attach(body),
    }
}

/// Whether another thread ends the interpreter.
fn ends_elsewhere() -> bool {
    ENDED_BY.get().is_some_and(|by| *by != thread::current().id())
}

/// The thread does nothing more.
fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// Calls the library without the interpreter.
pub(crate) fn detached<T: Send>(py: Python<'_>, body: impl FnOnce() -> T + Send) -> T {
    let _inside = enter(py);
    let out = py.detach(|| {
        let out = body();
        RETURNING.fetch_add(1, Ordering::SeqCst);
        if CLOSED.load(Ordering::SeqCst) && ends_elsewhere() {
            RETURNING.fetch_sub(1, Ordering::SeqCst);
            stay();
        }
        out
    });
    RETURNING.fetch_sub(1, Ordering::SeqCst);
    out
}

/// Whether the interpreter ends.
pub(crate) fn has_begun() -> bool {
    ENDED_BY.get().is_some()
}

/// Ends the use of the library by other threads: waits for those that are inside, and lets no other enter.
pub(crate) fn begin(py: Python<'_>) {
    let _ = ENDED_BY.set(thread::current().id());
    py.detach(|| {
        wait_for_none(&INSIDE, PATIENCE);
        CLOSED.store(true, Ordering::SeqCst);
        wait_for_none(&RETURNING, LOCK_PATIENCE);
    });
}

fn wait_for_none(threads: &AtomicUsize, patience: Duration) {
    let start = Instant::now();
    while threads.load(Ordering::SeqCst) > 0 && start.elapsed() < patience {
        thread::sleep(Duration::from_millis(1));
    }
}
