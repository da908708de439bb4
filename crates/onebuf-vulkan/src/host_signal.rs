//! Host signals: batches that wait for one are held back until it is released.
//!
//! Work cannot be made to fail: if the host signal fails, the work runs, and the events after it report the failure.

use super::{batch::Latch, queue::RawQueue};
use onebuf_hal::{self as hal, Result, host_signals::Outcome, locks::Arc};

/// A host signal of a queue. Settled exactly once: when it is opened or dropped.
pub(super) struct HostSignal {
    latch: Arc<Latch>,
    outcome: Arc<Outcome>,
    settled: bool,
    queue: Arc<RawQueue>,
}

impl HostSignal {
    /// Creates a host signal and makes later work of the queue wait for it.
    pub fn new(queue: &Arc<RawQueue>) -> Result<HostSignal> {
        let (latch, outcome) = (Arc::<Latch>::default(), Arc::<Outcome>::default());
        let mut host_signal = HostSignal { latch, outcome, settled: false, queue: queue.clone() };
        // Before the wait, so that every event after the wait has it.
        queue.host_signals.push(host_signal.outcome.clone());
        queue.hold(&host_signal.latch).inspect_err(|_| host_signal.settle(true))?;
        Ok(host_signal)
    }

    fn settle(&mut self, opened: bool) {
        if !std::mem::replace(&mut self.settled, true) {
            self.outcome.settle(opened);
            self.latch.open();
            self.queue.context().pump();
        }
    }
}

impl hal::HostSignal for HostSignal {
    fn open(mut self: Box<Self>, outcome: Result<()>) {
        self.settle(outcome.is_ok());
    }
}

impl Drop for HostSignal {
    fn drop(&mut self) {
        self.settle(false);
    }
}
