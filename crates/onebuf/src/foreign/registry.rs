//! Which memory objects are wrapped now, so that two wraps of one share one state.

use crate::{
    Error, Result,
    buffer::Core,
    sync::{Arc, Condvar, Mutex, lock},
};
use std::{
    collections::HashMap,
    sync::Weak,
    time::{Duration, Instant},
};

/// Cores by the memory object, or address, that they are around.
#[derive(Default)]
pub(crate) struct Wrapped {
    all: Mutex<All>,
    changed: Condvar,
}

#[derive(Default)]
struct All {
    cores: HashMap<usize, Entry>,
    /// How many threads wait for a change: waking nobody is a system call too.
    waiting: usize,
}

enum Entry {
    /// Some thread is making it.
    Making,
    /// Made. Where it is dead, its drop is still waiting for work on the memory.
    Made(Weak<Core>),
}

impl Wrapped {
    /// The core around this, which `make` makes if there is none.
    ///
    /// # Errors
    /// Those of `make`, and [`Error::Timeout`] when an earlier one's work does not end.
    pub fn get(
        &self,
        key: usize,
        timeout: Duration,
        make: impl FnOnce() -> Result<Core>,
    ) -> Result<Arc<Core>> {
        let start = Instant::now();
        let mut all = lock(&self.all);
        loop {
            match all.cores.get(&key) {
                None => break,
                Some(Entry::Made(core)) => {
                    if let Some(core) = core.upgrade() {
                        return Ok(core);
                    }
                }
                Some(Entry::Making) => {}
            }
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
            else {
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
        all.cores.insert(key, Entry::Making);
        drop(all);
        let unmade = Unmade { wrapped: self, key };
        let mut core = make()?;
        core.wrapped = Some(key);
        let core = Arc::new(core);
        self.change(|cores| drop(cores.insert(key, Entry::Made(Arc::downgrade(&core)))));
        std::mem::forget(unmade);
        Ok(core)
    }

    /// A core is done with its memory.
    pub fn forget(&self, key: usize) {
        self.change(|cores| drop(cores.remove(&key)));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<usize, Entry>)) {
        let mut all = lock(&self.all);
        change(&mut all.cores);
        if all.waiting > 0 {
            self.changed.notify_all();
        }
    }
}

/// Takes the place back when nothing was made.
struct Unmade<'a> {
    wrapped: &'a Wrapped,
    key: usize,
}

impl Drop for Unmade<'_> {
    fn drop(&mut self) {
        self.wrapped.forget(self.key);
    }
}
