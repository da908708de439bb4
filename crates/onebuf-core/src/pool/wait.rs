//! Waiting for a buffer to come back, first come, first served.

use onebuf_hal::{
    Error, Result,
    locks::{AtomicU64, Condvar, Mutex, Ordering, lock},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Those who wait, in the order in which they came.
#[derive(Default)]
pub(super) struct WaitingRoom {
    state: Mutex<WaitState>,
    changed: Condvar,
    /// How many there are, for those who only want to know whether there are any.
    waiting: AtomicU64,
}

#[derive(Default)]
struct WaitState {
    line: VecDeque<u64>,
    tickets: u64,
    /// Counts returns, so that none is missed between a try and a wait.
    returns: u64,
}

/// A place in the line, given up in every case: an attempt that panics must not stop those behind it.
struct WaitTurn<'r> {
    room: &'r WaitingRoom,
    ticket: u64,
}

impl Drop for WaitTurn<'_> {
    fn drop(&mut self) {
        self.room.leave(self.ticket);
    }
}

/// Time ran out behind others.
fn still_in_line(bytes: usize) -> Error {
    let device = "the pool, where others wait in front".to_owned();
    Error::OutOfMemory { device, asked: bytes as u64, limit: None }
}

impl WaitingRoom {
    /// Tries until it works, whenever something has come back and it is our turn. Nobody tries out of turn,
    /// not even when time has run out: what came back then is for those who came before.
    pub fn wait<T>(
        &self,
        timeout: Duration,
        bytes: usize,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let deadline = Instant::now().checked_add(timeout);
        let turn = WaitTurn { room: self, ticket: self.enter() };
        loop {
            let Some(seen) = self.until_first(turn.ticket, deadline) else {
                return Err(still_in_line(bytes));
            };
            match attempt() {
                Err(error @ Error::OutOfMemory { asked, limit, .. }) => {
                    let hopeless = limit.is_some_and(|limit| asked > limit);
                    if hopeless || !self.until_return(seen, deadline) {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Something has come back.
    #[inline]
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

    /// Waits for our turn; gives the number of returns so far, or `None` when time ran out first.
    fn until_first(&self, ticket: u64, deadline: Option<Instant>) -> Option<u64> {
        self.until(deadline, |state| state.line.front() == Some(&ticket))
    }

    /// Waits for a return after those seen; false when time ran out first.
    fn until_return(&self, seen: u64, deadline: Option<Instant>) -> bool {
        self.until(deadline, |state| state.returns > seen).is_some()
    }

    fn until(&self, deadline: Option<Instant>, holds: impl Fn(&WaitState) -> bool) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            if holds(&state) {
                return Some(state.returns);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let wait = self.changed.wait_timeout(state, left.unwrap_or(Duration::MAX));
            state = wait.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

#[cfg(test)]
mod room {
    use super::*;

    /// Something of which there are so many, and who got it, by ticket.
    #[derive(Default)]
    pub struct Shop {
        pub room: WaitingRoom,
        stock: Mutex<u64>,
        pub served: Mutex<Vec<u64>>,
    }

    impl Shop {
        pub fn buy(&self, timeout: Duration) -> Result<()> {
            self.room.wait(timeout, 1, || self.try_buy())
        }

        fn try_buy(&self) -> Result<()> {
            let mut stock = lock(&self.stock);
            match stock.checked_sub(1) {
                Some(left) => *stock = left,
                None => return Err(self.sold_out(1)),
            }
            drop(stock);
            lock(&self.served).push(lock(&self.room.state).line[0]);
            Ok(())
        }

        pub fn sold_out(&self, asked: u64) -> Error {
            Error::OutOfMemory { device: "the shop".into(), asked, limit: Some(1) }
        }

        pub fn deliver(&self) {
            *lock(&self.stock) += 1;
            self.room.wake();
        }
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::{room::Shop, *};
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        thread,
    };

    const SOON: Duration = Duration::from_secs(60);

    fn until_waiting(shop: &Shop, count: u64) {
        while shop.room.waiting.load(Ordering::SeqCst) < count {
            thread::yield_now();
        }
    }

    #[test]
    fn in_the_order_of_their_coming() {
        let shop = &Shop::default();
        thread::scope(|scope| {
            let threads: Vec<_> = (1..=8)
                .map(|number| {
                    let thread = scope.spawn(move || shop.buy(SOON));
                    until_waiting(shop, number);
                    thread
                })
                .collect();
            (0..8).for_each(|_| shop.deliver());
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
        assert_eq!(*lock(&shop.served), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(shop.room.waiting.load(Ordering::SeqCst), 0);
    }

    /// Its time is over before its turn came: what is there is for the one in front.
    #[test]
    fn nobody_jumps_the_line() {
        let (shop, tries) = (&Shop::default(), &AtomicU64::new(0));
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                shop.room.wait(SOON, 1, || {
                    until_waiting(shop, 2);
                    tries.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            });
            until_waiting(shop, 1);
            let late = shop.room.wait(Duration::ZERO, 77, || {
                tries.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            assert!(matches!(late, Err(Error::OutOfMemory { asked: 77, .. })), "{late:?}");
            // Let the first see two in line, whether or not it has looked already.
            shop.room.waiting.fetch_add(1, Ordering::SeqCst);
            first.join().unwrap().unwrap();
        });
        assert_eq!(tries.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn time_runs_out_and_the_hopeless_do_not_wait() {
        let shop = Shop::default();
        assert_eq!(shop.buy(Duration::ZERO), Err(shop.sold_out(1)));
        let hopeless = shop.room.wait(Duration::MAX, 2, || Err::<(), _>(shop.sold_out(2)));
        assert_eq!(hopeless, Err(shop.sold_out(2)));
        let other = shop.room.wait(SOON, 1, || Err::<(), _>(Error::invalid("no")));
        assert_eq!(other, Err(Error::invalid("no")));
        assert!(lock(&shop.room.state).line.is_empty());
    }

    #[test]
    fn a_panic_leaves_the_line() {
        let shop = Shop::default();
        let attempt = || shop.room.wait::<()>(SOON, 1, || panic!("as it was told"));
        assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
        shop.deliver();
        shop.buy(Duration::ZERO).unwrap();
    }
}

#[cfg(all(test, onebuf_shuttle))]
mod shuttle_tests {
    use super::{room::Shop, *};
    use onebuf_hal::locks::{Arc, thread};

    /// Whatever the schedule, everybody is served, in the order of their tickets. A return that is missed
    /// shows as a deadlock: shuttle's clock stands still.
    #[test]
    fn everybody_in_their_order() {
        let run = || {
            let shop = Arc::new(Shop::default());
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let shop = shop.clone();
                    thread::spawn(move || shop.buy(Duration::from_secs(600)).unwrap())
                })
                .collect();
            (0..3).for_each(|_| shop.deliver());
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let served = lock(&shop.served).clone();
            assert!(served.len() == 3 && served.is_sorted(), "{served:?}");
        };
        shuttle::check_random(run, 2000);
        shuttle::check_pct(run, 2000, 3);
    }
}
