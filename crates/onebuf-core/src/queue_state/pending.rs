//! Work that is still under way when its hub or the process ends.
//!
//! A driver's own exit handlers take away what its threads still use: PoCL 3.1, whose threads compile a kernel when it is first
//! launched, crashes in most programs that return from `main` meanwhile. So the last of a hub waits for its work, and the end of
//! the process waits for the work of all hubs that are left. Both wait briefly ([`LONGEST`]): work that never ends must not keep a
//! program from ending.
//!
//! Handlers run in the reverse order of their registration, and LLVM registers some whenever it first needs something, so no
//! handler is sure to run before those. But `exit` destroys its thread's local data before it runs any handler. So the main
//! thread waits there; for an `exit` on another thread there is a handler, too, which is registered after the drivers were
//! loaded and again with the first queues.
//!
//! # Safety
//!
//! A function that is registered takes no arguments and never unwinds; the other foreign calls only ask for numbers.

#![allow(unsafe_code)]

use super::QueueState;
use onebuf_hal::{
    Event,
    locks::{Arc, lock},
    watchdog,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    // Programs end on real threads, whatever schedules are being explored.
    sync::{
        Condvar, Mutex, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long the end of a hub or of the process is held up, at most, where the hub's timeout is not shorter. A compiler that
/// shares two cores with others takes seconds for a kernel, and a process that does not wait for it crashes.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two looks at threads that are inside of drivers.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// So often the handler is registered at most.
const MOST_HANDLERS: usize = 16;

/// Every hub's that lives, for the process's end.
static ALL: Mutex<Vec<Weak<PendingWork>>> = Mutex::new(Vec::new());

/// What was waited for at the process's end.
static KEPT: Mutex<Vec<Arc<PendingWork>>> = Mutex::new(Vec::new());

/// What one hub's queues have under way: those that live, and the last work of those that are gone.
#[derive(Debug)]
pub(crate) struct PendingWork {
    queue_states: onebuf_hal::locks::Mutex<Vec<Weak<QueueState>>>,
    left: onebuf_hal::locks::Mutex<Vec<Arc<dyn Event>>>,
    limit: Duration,
}

impl PendingWork {
    /// For a hub of that timeout, which has loaded its drivers.
    pub fn new(timeout: Duration) -> Arc<PendingWork> {
        let (queue_states, left) = Default::default();
        let pending = Arc::new(PendingWork { queue_states, left, limit: timeout.min(LONGEST) });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&pending));
        watch_exit();
        pending
    }

    /// A queue that was opened.
    pub fn add(&self, queue_state: &Arc<QueueState>) {
        let mut queue_states = lock(&self.queue_states);
        queue_states.retain(|other| other.strong_count() > 0);
        queue_states.push(Arc::downgrade(queue_state));
        watch_exit();
    }

    /// The last work of a queue that goes.
    pub fn keep(&self, event: Arc<dyn Event>) {
        let mut left = lock(&self.left);
        left.retain(|event| !event.is_over());
        left.push(event);
    }

    /// Waits for everything that is under way.
    fn drain(&self) {
        let start = Instant::now();
        let rest = || self.limit.saturating_sub(start.elapsed());
        let queue_states: Vec<_> =
            lock(&self.queue_states).iter().filter_map(Weak::upgrade).collect();
        queue_states.iter().for_each(|queue_state| queue_state.drain(rest()));
        let left = std::mem::take(&mut *lock(&self.left));
        for event in left {
            if let Err(error) = event.wait(rest()) {
                tracing::debug!(%error, "work that was left behind");
            }
        }
    }
}

impl Drop for PendingWork {
    fn drop(&mut self) {
        if !onebuf_sys::fork::is_child() {
            self.drain();
        }
    }
}

/// Sees to it that the end of the process waits, from the next moment on at which a driver may have added a handler of its own.
fn watch_exit() {
    static HANDLERS: AtomicUsize = AtomicUsize::new(0);
    if cfg!(miri) {
        return;
    }
    // Of this thread, if it is the first one: a thread that merely ends waits for nothing.
    // SAFETY: both take nothing, and cannot fail.
    if unsafe { libc::getpid() == libc::gettid() } {
        // None in what runs after the thread's own data was destroyed: exit handlers, whose own is registered below.
        let _ = LAST.try_with(|_| ());
    }
    if HANDLERS.fetch_add(1, Ordering::Relaxed) < MOST_HANDLERS {
        // SAFETY: a function without arguments that does not unwind. Where there is no room for it, nothing waits.
        unsafe { libc::atexit(at_exit) };
    }
}

thread_local! {
    static LAST: Last = const { Last };
}

/// Dropped when the main thread ends the process, before any handler runs.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        at_exit();
    }
}

extern "C" fn at_exit() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    // What did not end the first time is not waited for again.
    if !onebuf_sys::fork::is_child() && !ONCE.swap(true, Ordering::Relaxed) {
        // Unwinding from here would end the process in another way than it wants to.
        let _ = catch_unwind(drain_all);
    }
}

/// Waits for all hubs' work. On a thread of its own, as who holds a lock or hangs in a driver must not keep the process.
fn drain_all() {
    let all: Vec<_> = match ALL.try_lock() {
        Ok(all) => all.iter().filter_map(Weak::upgrade).collect(),
        Err(TryLockError::Poisoned(all)) => {
            all.into_inner().iter().filter_map(Weak::upgrade).collect()
        }
        Err(TryLockError::WouldBlock) => return,
    };
    if all.is_empty() {
        return;
    }
    // Not a channel: this thread's own data may be gone.
    let over = Arc::new((Mutex::new(false), Condvar::new()));
    let longest = all.iter().map(|pending| pending.limit).max().unwrap_or_default();
    let told = over.clone();
    let drain = move || {
        let start = Instant::now();
        all.iter().for_each(|pending| pending.drain());
        while !watchdog::others_are_out() && start.elapsed() < longest {
            thread::sleep(LOOK_AGAIN);
        }
        // Nothing that these hold may be dropped here, at the end of the program.
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).extend(all);
    };
    let run = move || {
        let _ = catch_unwind(AssertUnwindSafe(drain));
        *told.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        told.1.notify_all();
    };
    if thread::Builder::new().spawn(run).is_ok() {
        let is_over = over.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(over.1.wait_timeout_while(is_over, longest, |is_over| !*is_over));
    }
}
