//! State that one thread changes and others wait for.

use crate::deadline::Deadline;
use onebuf_hal::{
    Result,
    locks::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock},
};
use std::task::Waker;

/// State, and those who wait for a change of it.
pub(crate) struct Board<T> {
    state: Mutex<T>,
    changed: Condvar,
    /// How many threads wait. Each began with the state locked, so who has changed the state before sees them here.
    waiting: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl<T> Board<T> {
    pub fn new(state: T) -> Self {
        let (state, changed, waiting) = (Mutex::new(state), Condvar::new(), AtomicU64::new(0));
        Self { state, changed, waiting, waker: Mutex::new(None) }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.state)
    }

    /// Wakes those who wait.
    pub fn tell(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sets the one who is woken by every change.
    pub fn set_waker(&self, waker: &Waker) {
        let mut known = lock(&self.waker);
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Waits until `ready` has an answer; `None` if the time is over first.
    pub fn wait<R>(
        &self,
        until: Deadline,
        mut ready: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let mut state = self.lock();
        loop {
            if let Some(answer) = ready(&mut state) {
                return Some(answer);
            }
            let left = until.left();
            if left.is_zero() {
                return None;
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What the owner of a call waits for.
#[derive(Default)]
pub(crate) struct Progress {
    /// How the call has ended.
    pub outcome: Option<Result<()>>,
    /// Its memory is not in use any more.
    pub over: bool,
    /// The owner has given up.
    pub given_up: bool,
}
