//! Ids of the objects of one context, shared by all of its devices.

use super::{kernel::Kernel, quirks::Quirks};
use onebuf_hal::locks::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::{fmt, sync::Weak};

/// Allocates the ids of a context's objects, and lists the kernels that may keep a memory as an argument.
pub struct Ids {
    next: AtomicU64,
    kernels: Mutex<Vec<Weak<Kernel>>>,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { next: AtomicU64::new(1), kernels: Mutex::default() }
    }
}

impl Ids {
    /// Returns an id that is unique within this context and never zero.
    pub(super) fn new_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a kernel if its driver keeps kernel arguments.
    pub(super) fn add_kernel(&self, kernel: &Arc<Kernel>, quirks: Quirks) {
        if quirks.keeps_arguments {
            let mut kernels = lock(&self.kernels);
            kernels.retain(|kernel| kernel.strong_count() > 0);
            kernels.push(Arc::downgrade(kernel));
        }
    }

    /// Clears a memory that is being dropped from the arguments of all registered kernels.
    pub(super) fn take_back(&self, memory: u64) {
        let kernels: Vec<_> = lock(&self.kernels).iter().filter_map(Weak::upgrade).collect();
        kernels.iter().for_each(|kernel| kernel.take_back(memory));
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ids(next {})", self.next.load(Ordering::Relaxed))
    }
}
