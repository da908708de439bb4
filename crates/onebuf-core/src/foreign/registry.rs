//! The currently wrapped memory objects, so that two wraps of one object share one state.

use crate::buffer::Core;
use onebuf_hal::{
    Error, Result,
    locks::{Arc, Condvar, Mutex, lock},
};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Weak,
    time::{Duration, Instant},
};

/// A map from the handle, or address, of a driver's object.
pub(super) type ByHandle<T> = HashMap<usize, T, BuildHasherDefault<Spread>>;

/// Hashes addresses. Drivers choose them, so protection against deliberate collisions is not needed; it would cost more than the
/// rest of a lookup.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize((*byte).into()));
    }

    fn write_usize(&mut self, at: usize) {
        // 2⁶⁴ divided by the golden ratio: each bit changes many above it. The table uses the lowest and the highest bits.
        let mixed = (self.0 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Cores by the memory object, or address, that they wrap.
#[derive(Default)]
pub(crate) struct Wrapped {
    all: Mutex<All>,
    changed: Condvar,
}

#[derive(Default)]
struct All {
    cores: ByHandle<WrapEntry>,
    /// Cores at rest and the keys of their memory, the oldest first. Such memory has no entry above.
    resting: Vec<(usize, Arc<Core>)>,
    /// The number of waiting threads. Without any, notifying is skipped: it is a system call even then.
    waiting: usize,
}

/// How many cores rest at most: a library call seldom gets more pointers.
const MOST_RESTING: usize = 8;

enum WrapEntry {
    /// A thread is creating the core, or is returning its memory.
    Making,
    /// The core exists. If the reference is dead, the core's drop is still waiting for work on the memory.
    Made(Weak<Core>),
}

impl Wrapped {
    /// Returns the core for this key. If there is none, `make` creates it; it gets the core that rests for this key, if one does.
    ///
    /// # Errors
    /// Those of `make`; [`Error::Timeout`] if the work of an earlier core does not complete.
    pub fn get(
        &self,
        key: usize,
        timeout: Duration,
        make: impl FnOnce(Option<Arc<Core>>) -> Result<Arc<Core>>,
    ) -> Result<Arc<Core>> {
        let mut start = None;
        let mut all = lock(&self.all);
        loop {
            match all.cores.get(&key) {
                None => break,
                Some(WrapEntry::Made(core)) => {
                    if let Some(core) = core.upgrade() {
                        return Ok(core);
                    }
                }
                Some(WrapEntry::Making) => {}
            }
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                let what = "another wrap of the same memory to be made or given back";
                return Err(Error::timeout(what, timeout));
            };
            all.waiting += 1;
            all = match self.changed.wait_timeout(all, left) {
                Ok((all, _)) => all,
                Err(poisoned) => poisoned.into_inner().0,
            };
            all.waiting -= 1;
        }
        all.cores.insert(key, WrapEntry::Making);
        let resting = all.resting.iter().position(|(of, _)| *of == key);
        let resting = resting.map(|at| all.resting.remove(at).1);
        drop(all);
        let unmade = Unmade { wrapped: self, key };
        let core = make(resting)?;
        self.change(|all| {
            if let Some(entry) = all.cores.get_mut(&key) {
                *entry = WrapEntry::Made(Arc::downgrade(&core));
            }
        });
        std::mem::forget(unmade);
        Ok(core)
    }

    /// Lets the core of this key rest if this is the last reference to it; otherwise drops the reference.
    pub fn keep(&self, key: usize, mut core: Arc<Core>) {
        let mut all = lock(&self.all);
        // Another reference can come only from the entry, which is locked.
        let entry = all.cores.get_mut(&key).filter(|_| Arc::strong_count(&core) == 1);
        let Some(entry) = entry else { return drop(all) };
        *entry = WrapEntry::Making;
        drop(all);
        let Some(claims) = Arc::get_mut(&mut core).and_then(Core::rest) else { return };
        let mut oldest = None;
        self.change(|all| {
            all.cores.remove(&key);
            if all.resting.len() == MOST_RESTING {
                oldest = Some(all.resting.remove(0));
            }
            all.resting.push((key, core));
        });
        // Not under the lock: a callback may wrap memory.
        drop((oldest, claims));
    }

    /// Removes memory that its core no longer uses. All work on it has ended.
    pub fn forget(&self, key: usize) {
        self.change(|all| drop(all.cores.remove(&key)));
    }

    fn change(&self, change: impl FnOnce(&mut All)) {
        let mut all = lock(&self.all);
        change(&mut all);
        if all.waiting > 0 {
            self.changed.notify_all();
        }
    }
}

/// Removes the entry if the core was not created.
struct Unmade<'a> {
    wrapped: &'a Wrapped,
    key: usize,
}

impl Drop for Unmade<'_> {
    fn drop(&mut self) {
        self.wrapped.forget(self.key);
    }
}
