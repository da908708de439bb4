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
    cores: Mutex<HashMap<usize, Entry>>,
    changed: Condvar,
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
        let mut cores = lock(&self.cores);
        loop {
            match cores.get(&key) {
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
            cores = match self.changed.wait_timeout(cores, left) {
                Ok((cores, _)) => cores,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        cores.insert(key, Entry::Making);
        drop(cores);
        let unmade = Unmade { all: self, key };
        let mut core = make()?;
        core.wrapped = Some(key);
        let core = Arc::new(core);
        lock(&self.cores).insert(key, Entry::Made(Arc::downgrade(&core)));
        self.changed.notify_all();
        std::mem::forget(unmade);
        Ok(core)
    }

    /// A core is done with its memory.
    pub fn forget(&self, key: usize) {
        lock(&self.cores).remove(&key);
        self.changed.notify_all();
    }
}

/// Takes the place back when nothing was made.
struct Unmade<'a> {
    all: &'a Wrapped,
    key: usize,
}

impl Drop for Unmade<'_> {
    fn drop(&mut self) {
        self.all.forget(self.key);
    }
}
