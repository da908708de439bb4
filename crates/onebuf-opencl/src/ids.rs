//! Ids of the objects of one context, for all of its devices.

use super::{kernel::Kernel, quirks::Quirks};
use onebuf_hal::locks::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::{fmt, sync::Weak};

/// The numbers of a context's objects, and the kernels that may keep one of them.
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
    /// A number that no other object of this context has or gets; never zero.
    pub(super) fn new_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A kernel whose driver may let it keep its arguments.
    pub(super) fn add_kernel(&self, kernel: &Arc<Kernel>, quirks: Quirks) {
        if quirks.keeps_arguments {
            let mut kernels = lock(&self.kernels);
            kernels.retain(|kernel| kernel.strong_count() > 0);
            kernels.push(Arc::downgrade(kernel));
        }
    }

    /// A memory goes: no kernel keeps it. Nothing where none is known that could.
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
