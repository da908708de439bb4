//! What the driver counts of class A's objects, so that a test sees whether all is as before.

use super::{ClassA, Own};
use onebuf_sys::opencl::{ClEvent, ClMem};
use std::{
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

/// References to a context, its queue, some buffers and events.
///
/// Drivers also count references of their own, so these are taken at rest, and compared by
/// [`assert_restored`], which is patient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Of the context.
    pub context: u32,
    /// Of class A's own queue.
    pub queue: u32,
    /// Of the buffers, in the order given.
    pub buffers: Vec<u32>,
    /// Of the events, in the order given.
    pub events: Vec<u32>,
}

/// How often counts that change are looked at again.
const LOOKS: u32 = 100;

/// How often they must be the same in a row where a buffer is held.
const HELD_LOOKS: u32 = 40;

impl ClassA {
    /// Counts at rest: whatever used the buffers last was class A's own queue, and is done. PoCL has every
    /// buffer hold the event that used it last, and so a queue; rusticl has kernels hold their arguments.
    pub fn reference_counts(&self, buffers: &[&Own<ClMem>], events: &[&Own<ClEvent>]) -> Counts {
        buffers.iter().for_each(|buffer| drop(self.read(&self.queue, buffer, 1)));
        self.finish(&self.queue);
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let count = || self.count_now(buffers, events);
        let mut counts = count();
        // A driver's thread lets go of a command after `clFinish` has returned; on a busy machine much later. A buffer that
        // somebody else holds may be such a command's.
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

/// Waits until the counts are as they were: destructor callbacks and drivers' threads come late.
///
/// # Panics
/// With both, when they do not become equal.
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
