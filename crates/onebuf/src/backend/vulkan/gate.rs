//! Gates that the host opens: the batches behind one are held back until then.
//!
//! Work cannot be made to fail: where the gate does, it runs, and the events behind it say so.

use super::{batch::Latch, queue::RawQueue};
use crate::{Result, backend::gates::Outcome, hal, sync::Arc};

/// What a queue waits at. Opened exactly once: by whoever has it, or when it is dropped.
pub(super) struct Gate {
    latch: Arc<Latch>,
    outcome: Arc<Outcome>,
    settled: bool,
    queue: Arc<RawQueue>,
}

impl Gate {
    /// Makes later work of the queue wait.
    pub fn new(queue: &Arc<RawQueue>) -> Result<Gate> {
        let (latch, outcome) = (Arc::<Latch>::default(), Arc::<Outcome>::default());
        let mut gate = Gate { latch, outcome, settled: false, queue: queue.clone() };
        // First, so that no event behind the gate misses it.
        queue.gates.push(gate.outcome.clone());
        queue.hold(&gate.latch).inspect_err(|_| gate.settle(true))?;
        Ok(gate)
    }

    fn settle(&mut self, opened: bool) {
        if !std::mem::replace(&mut self.settled, true) {
            self.outcome.settle(opened);
            self.latch.open();
            self.queue.context().pump();
        }
    }
}

impl hal::Gate for Gate {
    fn open(mut self: Box<Self>, outcome: Result<()>) {
        self.settle(outcome.is_ok());
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.settle(false);
    }
}
