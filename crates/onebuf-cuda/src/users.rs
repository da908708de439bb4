//! The streams that may be using an object.

use super::queue::RawQueue;
use onebuf_hal::locks::{Arc, AtomicU64, Mutex, Ordering, lock};

/// Which queues were given work with something. Only ever grows; the usual queue is the one of last
/// time, and costs no lock.
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

    /// All of them, when the thing goes.
    pub fn take(&self) -> Vec<Arc<RawQueue>> {
        std::mem::take(&mut lock(&self.all))
    }
}
