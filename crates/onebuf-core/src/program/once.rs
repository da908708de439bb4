//! Creating a value once, even if several threads request it at the same time.

use onebuf_hal::{
    Error, Result,
    locks::{Arc, Condvar, Mutex, lock},
};
use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// Values by key. The least recently used are dropped if there are too many.
pub(super) struct Once<K, V: ?Sized> {
    state: Mutex<OnceState<K, V>>,
    changed: Condvar,
    limit: usize,
}

struct OnceState<K, V: ?Sized> {
    slots: HashMap<K, OnceSlot<V>>,
    /// The number of uses so far.
    clock: u64,
}

enum OnceSlot<V: ?Sized> {
    /// A thread is creating the value.
    Making,
    Made {
        value: Arc<V>,
        used: u64,
    },
}

impl<K: Clone + Eq + Hash, V: ?Sized> Once<K, V> {
    pub fn new(limit: usize) -> Self {
        let state = OnceState { slots: HashMap::new(), clock: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    /// Returns the value of this key, after waiting if another thread is creating it. [`Lookup::Yours`] means that the caller
    /// must create it; the slot is reserved until the guard gets the value or is dropped.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the other thread takes too long.
    pub fn get(&self, key: &K, timeout: Duration) -> Result<Lookup<'_, K, V>> {
        let start = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = state.find(key) {
                return Ok(Lookup::Made(value));
            }
            if !state.slots.contains_key(key) {
                state.slots.insert(key.clone(), OnceSlot::Making);
                return Ok(Lookup::Yours(Making { once: self, key: key.clone() }));
            }
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|d| !d.is_zero()) else {
                let what = "waiting for another thread to build the same program";
                return Err(Error::timeout(what, timeout));
            };
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl<K: Clone + Eq + Hash, V: ?Sized> Once<K, V> {
    /// Drops the values of matching keys. Existing references stay valid.
    pub fn forget(&self, such: impl Fn(&K) -> bool) {
        let mut gone = Vec::new();
        {
            let mut state = lock(&self.state);
            let made = state
                .slots
                .extract_if(|key, slot| matches!(slot, OnceSlot::Made { .. }) && such(key));
            gone.extend(made);
        }
        // Outside the lock, since releasing a program calls the driver.
        drop(gone);
    }
}

impl<K: Clone + Eq + Hash, V: ?Sized> OnceState<K, V> {
    fn find(&mut self, key: &K) -> Option<Arc<V>> {
        self.clock += 1;
        match self.slots.get_mut(key) {
            Some(OnceSlot::Made { value, used }) => {
                *used = self.clock;
                Some(value.clone())
            }
            _ => None,
        }
    }

    /// Removes the least recently used value. Existing references stay valid.
    fn take_oldest(&mut self) -> Option<Arc<V>> {
        let made = self.slots.iter().filter_map(|(key, slot)| match slot {
            OnceSlot::Made { used, .. } => Some((*used, key)),
            OnceSlot::Making => None,
        });
        let key = made.min_by_key(|(used, _)| *used)?.1.clone();
        match self.slots.remove(&key) {
            Some(OnceSlot::Made { value, .. }) => Some(value),
            _ => None,
        }
    }
}

/// The result of a lookup.
pub(super) enum Lookup<'a, K: Clone + Eq + Hash, V: ?Sized> {
    Made(Arc<V>),
    Yours(Making<'a, K, V>),
}

/// The task of creating a value. If it is dropped without one, the next caller gets the task.
pub(super) struct Making<'a, K: Clone + Eq + Hash, V: ?Sized> {
    once: &'a Once<K, V>,
    key: K,
}

impl<K: Clone + Eq + Hash, V: ?Sized> Making<'_, K, V> {
    pub fn done(self, value: Arc<V>) {
        let mut gone = Vec::new();
        {
            let mut state = lock(&self.once.state);
            state.clock += 1;
            let slot = OnceSlot::Made { value, used: state.clock };
            state.slots.insert(self.key.clone(), slot);
            while state.slots.len() > self.once.limit {
                let Some(oldest) = state.take_oldest() else { break };
                gone.push(oldest);
            }
        }
        // Outside the lock, since releasing a program calls the driver.
        drop(gone);
    }
}

impl<K: Clone + Eq + Hash, V: ?Sized> Drop for Making<'_, K, V> {
    fn drop(&mut self) {
        let mut state = lock(&self.once.state);
        if let Some(OnceSlot::Making) = state.slots.get(&self.key) {
            state.slots.remove(&self.key);
        }
        drop(state);
        self.once.changed.notify_all();
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn make(once: &Once<u32, u32>, key: u32) -> bool {
        match once.get(&key, SOON).unwrap() {
            Lookup::Made(value) => {
                assert_eq!(*value, key);
                false
            }
            Lookup::Yours(making) => {
                making.done(Arc::new(key));
                true
            }
        }
    }

    #[test]
    fn the_least_recently_used_goes() {
        let once = Once::new(2);
        assert!(make(&once, 1) && make(&once, 2) && !make(&once, 1));
        assert!(make(&once, 3), "two goes");
        assert!(!make(&once, 1) && !make(&once, 3) && make(&once, 2));
    }

    #[test]
    fn what_is_being_made_is_not_thrown_out() {
        let once = Once::new(1);
        let Ok(Lookup::Yours(first)) = once.get(&1, SOON) else { panic!("nobody made it") };
        assert!(make(&once, 2));
        first.done(Arc::new(1));
        assert!(!make(&once, 1) && make(&once, 2));
    }

    #[test]
    fn a_failure_is_not_remembered_and_a_wait_ends() {
        let once: Once<u32, u32> = Once::new(1);
        let Ok(Lookup::Yours(making)) = once.get(&1, SOON) else { panic!("nobody made it") };
        let waited = once.get(&1, SOON).map(drop);
        assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
        drop(making);
        assert!(make(&once, 1));
    }
}

/// Run by `./dev test`, like `tests/shuttle.rs`.
#[cfg(all(test, onebuf_shuttle))]
mod shuttle_tests {
    use super::*;
    use onebuf_hal::locks::{AtomicU64, Ordering, thread};

    const LONG: Duration = Duration::from_secs(600);

    /// Three threads request two values, and the first attempt at one of them fails. Each value is created exactly once,
    /// every thread gets it, and no thread hangs.
    fn scenario() {
        let once: Arc<Once<u64, u64>> = Arc::new(Once::new(2));
        let made = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let failures = Arc::new(AtomicU64::new(1));
        let ask = |key: u64| {
            let (once, made, failures) = (once.clone(), made.clone(), failures.clone());
            thread::spawn(move || {
                loop {
                    match once.get(&key, LONG).unwrap() {
                        Lookup::Made(value) => return assert_eq!(*value, key),
                        Lookup::Yours(_) if key == 1 && failures.swap(0, Ordering::SeqCst) == 1 => {
                        }
                        Lookup::Yours(making) => {
                            made[key as usize].fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            making.done(Arc::new(key));
                        }
                    }
                }
            })
        };
        let threads = [0, 1, 1, 0, 1].map(ask);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([0, 1].map(|i| made[i].load(Ordering::SeqCst)), [1, 1]);
    }

    #[test]
    fn built_once_under_every_schedule() {
        shuttle::check_random(scenario, 1000);
        shuttle::check_pct(scenario, 1000, 3);
    }
}
