//! Waiting for a buffer to come back, first come, first served.

use crate::{
    Error, Result,
    sync::{AtomicU64, Condvar, Mutex, Ordering, lock},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Those who wait, in the order in which they came.
#[derive(Default)]
pub(super) struct WaitingRoom {
    state: Mutex<State>,
    changed: Condvar,
    /// How many there are, for those who only want to know whether there are any.
    waiting: AtomicU64,
}

#[derive(Default)]
struct State {
    line: VecDeque<u64>,
    tickets: u64,
    /// Counts returns, so that none is missed between a try and a wait.
    returns: u64,
}

impl WaitingRoom {
    /// Tries until it works, whenever something has come back and it is our turn.
    pub fn wait<T>(&self, timeout: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let deadline = Instant::now().checked_add(timeout);
        let ticket = self.enter();
        let outcome = loop {
            let seen = self.until_first(ticket, deadline);
            match attempt() {
                Err(error @ Error::OutOfMemory { asked, limit, .. }) => {
                    let hopeless = limit.is_some_and(|limit| asked > limit);
                    if hopeless || !self.until_return(seen, deadline) {
                        break Err(error);
                    }
                }
                outcome => break outcome,
            }
        };
        self.leave(ticket);
        outcome
    }

    /// Something has come back.
    pub fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            lock(&self.state).returns += 1;
            self.changed.notify_all();
        }
    }

    fn enter(&self) -> u64 {
        let mut state = lock(&self.state);
        state.tickets += 1;
        let ticket = state.tickets;
        state.line.push_back(ticket);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        ticket
    }

    fn leave(&self, ticket: u64) {
        let mut state = lock(&self.state);
        state.line.retain(|other| *other != ticket);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        // The next in line may have been waiting for its turn only.
        self.changed.notify_all();
    }

    /// Waits for our turn, or for the end of our time; gives the number of returns so far.
    fn until_first(&self, ticket: u64, deadline: Option<Instant>) -> u64 {
        self.until(deadline, |state| state.line.front() == Some(&ticket)).1
    }

    /// Waits for a return after those seen; false when time ran out first.
    fn until_return(&self, seen: u64, deadline: Option<Instant>) -> bool {
        self.until(deadline, |state| state.returns > seen).0
    }

    fn until(&self, deadline: Option<Instant>, holds: impl Fn(&State) -> bool) -> (bool, u64) {
        let mut state = lock(&self.state);
        loop {
            if holds(&state) {
                return (true, state.returns);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return (false, state.returns);
            }
            let wait = self.changed.wait_timeout(state, left.unwrap_or(Duration::MAX));
            state = wait.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}
