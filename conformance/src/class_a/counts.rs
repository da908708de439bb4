//! The driver's reference counts of class A's objects, so that a test can check that they are restored.

use super::{ClassA, Own};
use onebuf_sys::opencl::{ClEvent, ClMem};
use std::{
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

/// References to a context, its queue, some buffers and events.
///
/// Drivers hold references of their own, so counts are taken when idle, and [`assert_restored`] allows time for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// References to the context.
    pub context: u32,
    /// References to class A's own queue.
    pub queue: u32,
    /// References to the buffers, in the given order.
    pub buffers: Vec<u32>,
    /// References to the events, in the given order.
    pub events: Vec<u32>,
}

/// How often changing counts are read again.
const LOOKS: u32 = 100;

/// How many equal counts in a row are required while a buffer has further references.
const HELD_LOOKS: u32 = 40;

impl ClassA {
    /// Returns the counts when idle: class A's own queue was the last user of the buffers and has finished. In PoCL every
    /// buffer holds the event that used it last, and so a queue; in rusticl kernels hold their arguments.
    pub fn reference_counts(&self, buffers: &[&Own<ClMem>], events: &[&Own<ClEvent>]) -> Counts {
        buffers.iter().for_each(|buffer| drop(self.read(&self.queue, buffer, 1)));
        self.finish(&self.queue);
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let count = || self.count_now(buffers, events);
        let mut counts = count();
        // A driver's thread may release a command after `clFinish` has returned, much later on a busy machine. A further
        // reference to a buffer may belong to such a command.
        let mut same = 0;
        for _ in 0..LOOKS {
            let held = counts.buffers.iter().any(|count| *count > 1);
            if same >= if held { HELD_LOOKS } else { 1 } {
                break;
            }
            thread::sleep(Duration::from_millis(2));
            let now = count();
            same = if now == counts { same + 1 } else { 0 };
            counts = now;
        }
        counts
    }

    fn count_now(&self, buffers: &[&Own<ClMem>], events: &[&Own<ClEvent>]) -> Counts {
        Counts {
            context: self.context.count(),
            queue: self.queue.count(),
            buffers: buffers.iter().map(|buffer| buffer.count()).collect(),
            events: events.iter().map(|event| event.count()).collect(),
        }
    }
}

/// Waits until the counts are restored; destructor callbacks and drivers' threads may be late.
///
/// # Panics
/// If they do not become equal; the message has both.
#[track_caller]
pub fn assert_restored(before: &Counts, now: impl Fn() -> Counts, what: &str) {
    let start = Instant::now();
    loop {
        let counts = now();
        if counts == *before {
            return;
        }
        let late = start.elapsed() > Duration::from_secs(10);
        assert!(!late, "{what}: references were {before:?}, and are {counts:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
