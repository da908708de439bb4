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
    /// The number of waiting threads. Without any, notifying is skipped: it is a system call even then.
    waiting: usize,
}

enum WrapEntry {
    /// A thread is creating the core.
    Making,
    /// The core exists. If the reference is dead, the core's drop is still waiting for work on the memory.
    Made(Weak<Core>),
}

impl Wrapped {
    /// Returns the core for this key. If there is none, `make` creates it.
    ///
    /// # Errors
    /// Those of `make`; [`Error::Timeout`] if the work of an earlier core does not complete.
    pub fn get(
        &self,
        key: usize,
        timeout: Duration,
        make: impl FnOnce() -> Result<Arc<Core>>,
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
        drop(all);
        let unmade = Unmade { wrapped: self, key };
        let core = make()?;
        self.change(|cores| drop(cores.insert(key, WrapEntry::Made(Arc::downgrade(&core)))));
        std::mem::forget(unmade);
        Ok(core)
    }

    /// Removes memory that its core no longer uses. All work on it has ended.
    pub fn forget(&self, key: usize) {
        self.change(|cores| drop(cores.remove(&key)));
    }

    fn change(&self, change: impl FnOnce(&mut ByHandle<WrapEntry>)) {
        let mut all = lock(&self.all);
        change(&mut all.cores);
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
