//! Which memory objects are wrapped now, so that two wraps of one share one state.

use crate::buffer::{Core, Owner, Tag};
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

/// Something by the handle, or address, of a driver's object.
pub(super) type ByHandle<T> = HashMap<usize, T, BuildHasherDefault<Spread>>;

/// Spreads addresses, which nobody chooses in order to make them meet: what guards against that costs more than
/// the rest of a look.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize((*byte).into()));
    }

    fn write_usize(&mut self, at: usize) {
        // 2⁶⁴ by the golden ratio: each bit changes many above it. The table looks at the lowest and the highest.
        let mixed = (self.0 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Cores by the memory object, or address, that they are around.
#[derive(Default)]
pub(crate) struct Wrapped {
    all: Mutex<All>,
    changed: Condvar,
}

#[derive(Default)]
struct All {
    cores: ByHandle<WrapEntry>,
    /// How many threads wait for a change: waking nobody is a system call too.
    waiting: usize,
}

enum WrapEntry {
    /// Some thread is making it.
    Making,
    /// Made. Where it is dead, its drop is still waiting for work on the memory.
    Made(Weak<Core>),
}

impl Wrapped {
    /// The core around this, which `make` makes if there is none; it is told the key, too.
    ///
    /// # Errors
    /// Those of `make`, and [`Error::Timeout`] when an earlier one's work does not end.
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

    fn change(&self, change: impl FnOnce(&mut ByHandle<WrapEntry>)) {
        let mut all = lock(&self.all);
        change(&mut all.cores);
        if all.waiting > 0 {
            self.changed.notify_all();
        }
    }
}

impl Owner for Wrapped {
    fn forget(&self, tag: Tag) {
        self.change(|cores| drop(cores.remove(&(tag.number as usize))));
    }
}

/// Takes the place back when nothing was made.
struct Unmade<'a> {
    wrapped: &'a Wrapped,
    key: usize,
}

impl Drop for Unmade<'_> {
    fn drop(&mut self) {
        self.wrapped.change(|cores| drop(cores.remove(&self.key)));
    }
}
