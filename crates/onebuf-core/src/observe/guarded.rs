//! Calls of observers. A panic of one does not affect others or the work.

use onebuf_hal::locks::Arc;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

/// An observer that is not called again once it has panicked.
pub(super) struct Guarded<T: ?Sized> {
    observer: Arc<T>,
    has_panicked: AtomicBool,
}

impl<T: ?Sized> Guarded<T> {
    pub fn new(observer: Arc<T>) -> Self {
        Self { observer, has_panicked: AtomicBool::new(false) }
    }

    pub fn observer(&self) -> &Arc<T> {
        &self.observer
    }

    /// Calls the observer and returns its result; the default if it panics now, or has panicked before.
    pub fn call<R: Default>(&self, tell: impl FnOnce(&T) -> R) -> R {
        if self.has_panicked.load(Ordering::Relaxed) {
            return R::default();
        }
        // Unwind-safe: nothing is passed by `&mut`, and an observer that panicked is not called again.
        catch_unwind(AssertUnwindSafe(|| tell(&self.observer))).unwrap_or_else(|_| self.silence())
    }

    #[cold]
    fn silence<R: Default>(&self) -> R {
        self.has_panicked.store(true, Ordering::Relaxed);
        tracing::error!("an observer panicked; it is not called again");
        R::default()
    }
}
