//! Work that is still running when its hub or the process ends.
//!
//! A driver's exit handlers free what its threads still use. PoCL 3.1, whose threads compile a kernel at its first launch,
//! crashes in most programs that return from `main` meanwhile. So dropping the last reference to a hub waits for its work, and
//! the end of the process waits for the work of all remaining hubs. Both waits are short ([`LONGEST`]): work that never ends
//! must not keep a program from ending.
//!
//! Handlers run in the reverse order of their registration, and LLVM registers some when it first needs them, so no handler is
//! certain to run before those. But `exit` destroys its thread's local data before it runs any handler. So the main thread
//! waits there. For an `exit` on another thread there is also a handler, which is registered after the drivers were loaded and
//! again with the first queues.
//!
//! # Safety
//!
//! The registered function takes no arguments and never unwinds; the other foreign calls only return ids.

#![allow(unsafe_code)]

use super::QueueState;
use onebuf_hal::{
    Event,
    locks::{Arc, lock},
    watchdog,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    // The standard library's, also under shuttle: programs end on real threads.
    sync::{
        Condvar, Mutex, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Maximum wait at the end of a hub or of the process, unless the hub's timeout is shorter. A compiler that shares two cores
/// with others takes seconds for a kernel, and a process that does not wait for it crashes.
const LONGEST: Duration = Duration::from_secs(10);
/// Time between two checks for threads inside drivers.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Maximum number of registrations of the handler.
const MOST_HANDLERS: usize = 16;

/// The pending work of all live hubs.
static ALL: Mutex<Vec<Weak<PendingWork>>> = Mutex::new(Vec::new());

/// The pending work that the end of the process waited for. Never dropped.
static KEPT: Mutex<Vec<Arc<PendingWork>>> = Mutex::new(Vec::new());

/// The work of one hub's queues: the live queues, and the last events of dropped ones.
#[derive(Debug)]
pub(crate) struct PendingWork {
    queue_states: onebuf_hal::locks::Mutex<Vec<Weak<QueueState>>>,
    left: onebuf_hal::locks::Mutex<Vec<Arc<dyn Event>>>,
    limit: Duration,
}

impl PendingWork {
    /// Creates the record of a hub with this timeout. Call it after the hub has loaded its drivers.
    pub fn new(timeout: Duration) -> Arc<PendingWork> {
        let (queue_states, left) = Default::default();
        let pending = Arc::new(PendingWork { queue_states, left, limit: timeout.min(LONGEST) });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&pending));
        watch_exit();
        pending
    }

    /// Adds a queue.
    pub fn add(&self, queue_state: &Arc<QueueState>) {
        let mut queue_states = lock(&self.queue_states);
        queue_states.retain(|other| other.strong_count() > 0);
        queue_states.push(Arc::downgrade(queue_state));
        watch_exit();
    }

    /// Keeps the last event of a dropped queue.
    pub fn keep(&self, event: Arc<dyn Event>) {
        let mut left = lock(&self.left);
        left.retain(|event| !event.is_over());
        left.push(event);
    }

    /// Waits for all pending work.
    fn drain(&self) {
        let start = Instant::now();
        let rest = || self.limit.saturating_sub(start.elapsed());
        let queue_states: Vec<_> =
            lock(&self.queue_states).iter().filter_map(Weak::upgrade).collect();
        queue_states.iter().for_each(|queue_state| queue_state.drain(rest()));
        let left = std::mem::take(&mut *lock(&self.left));
        for event in left {
            if let Err(error) = event.wait(rest()) {
                tracing::debug!(%error, "pending work failed or timed out at shutdown");
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

/// Makes the end of the process wait for pending work. Called whenever a driver may have registered a handler.
fn watch_exit() {
    static HANDLERS: AtomicUsize = AtomicUsize::new(0);
    if cfg!(miri) {
        return;
    }
    // Only on the main thread: other threads end without waiting.
    // SAFETY: both calls take no arguments and cannot fail. The second is made by its number, because glibc before 2.30 has no function
    // for it.
    let (process, thread) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid)) };
    if libc::c_long::from(process) == thread {
        // Fails in exit handlers, which run after the thread's local data was destroyed; the handler below covers them.
        let _ = LAST.try_with(|_| ());
    }
    if HANDLERS.fetch_add(1, Ordering::Relaxed) < MOST_HANDLERS {
        // SAFETY: the function takes no arguments and does not unwind. If the registration fails, nothing waits.
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
    // Work that did not end the first time is not waited for again.
    if !onebuf_sys::fork::is_child() && !ONCE.swap(true, Ordering::Relaxed) {
        // Unwinding out of an exit handler would abort the process.
        let _ = catch_unwind(drain_all);
    }
}

/// Waits for all hubs' work, on a separate thread: a held lock or a hanging driver must not keep the process from ending.
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
    // Not a channel: this thread's local data may be destroyed.
    let over = Arc::new((Mutex::new(false), Condvar::new()));
    let longest = all.iter().map(|pending| pending.limit).max().unwrap_or_default();
    let told = over.clone();
    let drain = move || {
        let start = Instant::now();
        all.iter().for_each(|pending| pending.drain());
        while !watchdog::others_are_out() && start.elapsed() < longest {
            thread::sleep(LOOK_AGAIN);
        }
        // The objects that these hold must not be dropped at the end of the program.
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
