//! The streams that may be using an object.

use super::queue::RawQueue;
use onebuf_hal::locks::{Arc, AtomicU64, Mutex, Ordering, lock};

/// The queues that received work with an object. The list only grows. Using the same queue as last time takes no lock.
#[derive(Debug, Default)]
pub(super) struct Users {
    last: AtomicU64,
    all: Mutex<Vec<Arc<RawQueue>>>,
}

impl Users {
    #[inline]
    pub fn note(&self, queue: &Arc<RawQueue>) {
        if self.last.load(Ordering::Acquire) != queue.id {
            self.note_new(queue);
        }
    }

    #[cold]
    fn note_new(&self, queue: &Arc<RawQueue>) {
        let mut all = lock(&self.all);
        if !all.iter().any(|user| user.id == queue.id) {
            all.push(queue.clone());
        }
        self.last.store(queue.id, Ordering::Release);
    }

    /// Removes and returns all of them, when the object is freed.
    pub fn take(&self) -> Vec<Arc<RawQueue>> {
        std::mem::take(&mut lock(&self.all))
    }
}
