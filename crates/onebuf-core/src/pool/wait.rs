//! A fair queue for buffers at the limit.

use onebuf_hal::{
    Error, Result,
    locks::{AtomicU64, Condvar, Mutex, Ordering, lock},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Waiting callers, in order of arrival.
#[derive(Default)]
pub(super) struct WaitingRoom {
    state: Mutex<WaitState>,
    changed: Condvar,
    /// The number of waiting callers, readable without the lock.
    waiting: AtomicU64,
}

#[derive(Default)]
struct WaitState {
    line: VecDeque<u64>,
    tickets: u64,
    /// Counts returns, so that none is missed between an attempt and a wait.
    returns: u64,
}

/// A place in the queue, released even if an attempt panics, so that those behind are not blocked.
struct QueuePlace<'r> {
    room: &'r WaitingRoom,
    ticket: u64,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.room.leave(self.ticket);
    }
}

/// How long a wait takes at most before its caller is asked whether to go on.
const SLICE: Duration = Duration::from_millis(50);

/// The timeout error of a caller that others precede.
fn still_in_line(bytes: usize) -> Error {
    let device = "the pool, where other requests are queued".to_owned();
    Error::OutOfMemory { device, asked: bytes as u64, limit: None }
}

impl WaitingRoom {
    /// Tries until it succeeds: whenever a buffer was returned and the caller is first in the queue. No caller tries out of
    /// order, not even after its timeout, because a returned buffer belongs to those before it. An error of `go_on`, which is called
    /// again and again without the lock, ends the wait.
    pub fn wait<T>(
        &self,
        timeout: Duration,
        bytes: usize,
        mut go_on: impl FnMut() -> Result<()>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let deadline = Instant::now().checked_add(timeout);
        let turn = QueuePlace { room: self, ticket: self.enter() };
        loop {
            let first = |state: &WaitState| state.line.front() == Some(&turn.ticket);
            let Some(seen) = self.until(deadline, &mut go_on, first)? else {
                return Err(still_in_line(bytes));
            };
            match attempt() {
                Err(error @ Error::OutOfMemory { asked, limit, .. }) => {
                    let hopeless = limit.is_some_and(|limit| asked > limit);
                    let returned = |state: &WaitState| state.returns > seen;
                    if hopeless || self.until(deadline, &mut go_on, returned)?.is_none() {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Notifies waiting callers that a buffer was returned.
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
        // The next caller may have been waiting only to become first.
        self.changed.notify_all();
    }

    /// Waits until the state is as asked. Returns the number of returns so far, or `None` after the deadline.
    fn until(
        &self,
        deadline: Option<Instant>,
        go_on: &mut impl FnMut() -> Result<()>,
        holds: impl Fn(&WaitState) -> bool,
    ) -> Result<Option<u64>> {
        let mut state = lock(&self.state);
        loop {
            if holds(&state) {
                return Ok(Some(state.returns));
            }
            let left =
                deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            let wait = self.changed.wait_timeout(state, left.min(SLICE));
            let (again, over) = wait.unwrap_or_else(|poisoned| poisoned.into_inner());
            state = again;
            if over.timed_out() && left > SLICE {
                drop(state);
                go_on()?;
                state = lock(&self.state);
            }
        }
    }
}

#[cfg(test)]
mod room {
    use super::*;

    /// A limited stock of items, and the tickets of the callers that got one.
    #[derive(Default)]
    pub struct Shop {
        pub room: WaitingRoom,
        stock: Mutex<u64>,
        pub served: Mutex<Vec<u64>>,
    }

    impl Shop {
        pub fn buy(&self, timeout: Duration) -> Result<()> {
            self.room.wait(timeout, 1, || Ok(()), || self.try_buy())
        }

        pub fn try_buy(&self) -> Result<()> {
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

    /// A caller whose timeout ends before its turn does not take the item of the caller in front.
    #[test]
    fn nobody_jumps_the_line() {
        let (shop, tries) = (&Shop::default(), &AtomicU64::new(0));
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let attempt = || {
                    until_waiting(shop, 2);
                    tries.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                };
                shop.room.wait(SOON, 1, || Ok(()), attempt)
            });
            until_waiting(shop, 1);
            let attempt = || {
                tries.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let late = shop.room.wait(Duration::ZERO, 77, || Ok(()), attempt);
            assert!(matches!(late, Err(Error::OutOfMemory { asked: 77, .. })), "{late:?}");
            // Lets the first caller see two in the queue, whether or not it has looked already.
            shop.room.waiting.fetch_add(1, Ordering::SeqCst);
            first.join().unwrap().unwrap();
        });
        assert_eq!(tries.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn time_runs_out_and_the_hopeless_do_not_wait() {
        let shop = Shop::default();
        assert_eq!(shop.buy(Duration::ZERO), Err(shop.sold_out(1)));
        let on = || Ok(());
        let hopeless = shop.room.wait(Duration::MAX, 2, on, || Err::<(), _>(shop.sold_out(2)));
        assert_eq!(hopeless, Err(shop.sold_out(2)));
        let other = shop.room.wait(SOON, 1, on, || Err::<(), _>(Error::invalid("no")));
        assert_eq!(other, Err(Error::invalid("no")));
        assert!(lock(&shop.room.state).line.is_empty());
    }

    /// Also one that is not first in the line. The next caller is first then.
    #[test]
    fn a_caller_that_gives_up_leaves_the_line() {
        let (shop, asked) = (&Shop::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            let first = scope.spawn(|| shop.buy(SOON));
            until_waiting(shop, 1);
            let gives_up = || match asked.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err(Error::invalid("enough")),
            };
            let gave_up = shop.room.wait(Duration::MAX, 1, gives_up, || Ok(()));
            assert_eq!(gave_up, Err(Error::invalid("enough")));
            shop.deliver();
            first.join().unwrap().unwrap();
        });
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let alone =
            shop.room.wait(Duration::MAX, 1, || Err(Error::invalid("no")), || shop.try_buy());
        assert_eq!(alone, Err(Error::invalid("no")));
        assert!(lock(&shop.room.state).line.is_empty());
    }

    #[test]
    fn a_panic_leaves_the_line() {
        let shop = Shop::default();
        let attempt = || shop.room.wait::<()>(SOON, 1, || Ok(()), || panic!("as it was told"));
        assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
        shop.deliver();
        shop.buy(Duration::ZERO).unwrap();
    }
}

#[cfg(all(test, onebuf_shuttle))]
mod shuttle_tests {
    use super::{room::Shop, *};
    use onebuf_hal::locks::{Arc, thread};

    /// In every schedule all callers are served in the order of their tickets. A missed return would show as a deadlock,
    /// because shuttle's clock stands still.
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
