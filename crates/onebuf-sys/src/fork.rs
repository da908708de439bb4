//! Detects forked children, in which drivers do not work.
//!
//! A child has only one of its parent's threads, and locks in an arbitrary state. A driver whose threads are gone never
//! answers, so no table calls a driver there: each call is refused, and nothing is released.
//!
//! # Safety
//!
//! The one foreign call registers a handler that only stores to an atomic, which is allowed in a forked child.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

/// The status of calls in a forked child.
pub const FORKED: i32 = i32::MIN + 3;

/// The reason, for errors.
pub const WHY: &str = "this process was forked from one that had loaded drivers, which do not survive fork(): \
    call exec() in the child, or discover only after the fork";

static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Starts detecting forks. Called when the first driver has been loaded.
pub fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler only stores to an atomic, and its code is never unmapped while threads run it. If memory
        // is exhausted, the call fails and forks are not detected.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Whether this process was forked after a driver had been loaded.
#[inline]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}
