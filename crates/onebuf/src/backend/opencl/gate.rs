//! Gates that the host opens, and how the work behind one learns that it failed.
//!
//! Drivers differ here: rusticl 22.3 completes a marker behind a failed user event as if nothing had
//! happened, PoCL [must not be told](super::quirks::Quirks::cannot_fail_gates) at all. So each event
//! remembers the gates that it was enqueued behind and asks them, whatever the driver says.

use super::{
    conv,
    device::Driver,
    event::{COMMAND, Event, RawEvent},
    queue::RawQueue,
};
use crate::{
    Error, Result, hal,
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock},
};
use onebuf_sys::{ClStatus, opencl::consts as cl};

/// How a gate ended.
#[derive(Debug, Default)]
pub(super) struct Outcome(AtomicU64);

impl Outcome {
    const PENDING: u64 = 0;
    const OPENED: u64 = 1;
    const FAILED: u64 = 2;
    /// Failed, and an event behind it has said so.
    const TOLD: u64 = 3;

    /// To be called before the user event is completed, so that whoever sees that sees this.
    pub fn settle(&self, opened: bool) {
        self.0.store(if opened { Self::OPENED } else { Self::FAILED }, Ordering::Release);
    }

    fn is(&self, state: u64) -> bool {
        self.0.load(Ordering::Acquire) == state
    }

    /// Whether it has failed; from now on somebody knows.
    fn tell(&self) -> bool {
        let failed = self.is(Self::FAILED) || self.is(Self::TOLD);
        if failed {
            self.0.store(Self::TOLD, Ordering::Release);
        }
        failed
    }
}

/// The gates that something waits behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind(Vec<Arc<Outcome>>);

impl Behind {
    /// An error when one of the gates has failed.
    pub fn check(&self, driver: &Driver) -> Result<()> {
        // Every gate is asked: one error tells of all of them.
        match self.0.iter().filter(|gate| gate.tell()).count() > 0 {
            true => driver.check(COMMAND, Err(ClStatus(conv::GATE_FAILED))),
            false => Ok(()),
        }
    }
}

/// The gates in a queue that later work waits for.
#[derive(Debug, Default)]
pub(super) struct Gates {
    all: Mutex<Behind>,
    /// Whether there are any; written under the lock. Most queues never have one, and every event asks.
    any: AtomicBool,
}

impl Gates {
    pub fn push(&self, gate: Arc<Outcome>) {
        self.add([gate]);
    }

    fn add(&self, gates: impl IntoIterator<Item = Arc<Outcome>>) {
        let mut behind = lock(&self.all);
        behind.0.extend(gates);
        self.any.store(true, Ordering::Release);
    }

    /// Waiting for an event is waiting for its gates.
    pub fn extend(&self, event: &Behind) {
        if !event.0.is_empty() {
            self.add(event.0.iter().cloned());
        }
    }

    /// What an event that is enqueued now waits behind: gates that are shut, and failed ones that no
    /// event has told of. Events are made late, so the failure may be long past.
    pub fn pending(&self) -> Behind {
        if !self.any.load(Ordering::Acquire) {
            return Behind::default();
        }
        let mut behind = lock(&self.all);
        behind.0.retain(|gate| gate.is(Outcome::PENDING) || gate.is(Outcome::FAILED));
        self.any.store(!behind.0.is_empty(), Ordering::Release);
        behind.clone()
    }
}

/// A user event that a queue waits for. Completed exactly once: when opened, or when dropped.
pub(super) struct Gate {
    event: RawEvent,
    outcome: Arc<Outcome>,
    settled: bool,
}

impl Gate {
    /// Makes later work of the queue wait.
    pub fn new(queue: &Arc<RawQueue>) -> Result<Gate> {
        // Should the wait fail, the drop completes the event, in case it was enqueued after all.
        let gate = Gate::shut(queue)?;
        queue.wait_list(&[gate.event.raw])?;
        queue.gates.push(gate.outcome.clone());
        Ok(gate)
    }

    /// A gate that nothing waits at yet, and the event for whoever will.
    pub fn apart(queue: &Arc<RawQueue>) -> Result<(Gate, Event)> {
        let gate = Gate::shut(queue)?;
        let behind = Behind(vec![gate.outcome.clone()]);
        // SAFETY: a live event of the queue's context.
        let event = unsafe { Event::retained(queue.clone(), gate.event.raw, true, behind) }?;
        Ok((gate, event))
    }

    fn shut(queue: &Arc<RawQueue>) -> Result<Gate> {
        let driver = queue.driver();
        if !driver.info.caps.gates {
            let needs = "a driver whose clFlush does not block";
            return Err(Error::unsupported(format!("a gate on {}", driver.info.name), needs));
        }
        // SAFETY: a live context.
        let made = unsafe { driver.cl.create_user_event(queue.context.raw) };
        let raw = driver.check("clCreateUserEvent", made)?;
        let event = RawEvent { queue: queue.clone(), raw, behind: Behind::default() };
        Ok(Gate { event, outcome: Arc::default(), settled: false })
    }

    fn settle(&mut self, opened: bool) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.outcome.settle(opened);
        let driver = self.event.driver();
        let opens = opened || driver.quirks.cannot_fail_gates;
        let status = if opens { cl::CL_COMPLETE } else { conv::GATE_FAILED };
        // SAFETY: a live user event whose status was not set before.
        let set = unsafe { driver.cl.set_user_event_status(self.event.raw, status) };
        driver.note("clSetUserEventStatus", set);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_gate_is_no_longer_waited_for() {
        let (gates, first, second) = (Gates::default(), Arc::default(), Arc::<Outcome>::default());
        gates.push(Arc::clone(&first));
        gates.push(second.clone());
        first.settle(true);
        assert_eq!(gates.pending().0.len(), 1);
        let behind = gates.pending();
        second.settle(false);
        assert!(behind.0[0].is(Outcome::FAILED));
        assert_eq!(gates.pending().0.len(), 1, "a failure that nobody was told of");
        assert!(behind.0[0].tell());
        assert!(gates.pending().0.is_empty());
        assert!(behind.0[0].tell(), "whoever was behind it is told again");
    }
}
