//! How the work behind a gate learns that it failed.
//!
//! A driver may have no way to fail what waits, or tell nobody. So each event remembers the gates that it was
//! enqueued behind and asks them, whatever the driver says.

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// How a gate ended.
#[derive(Debug, Default)]
pub struct Outcome(AtomicU64);

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
pub struct Behind(Vec<Arc<Outcome>>);

impl Behind {
    /// Behind one gate alone.
    pub fn one(gate: &Arc<Outcome>) -> Behind {
        Behind(vec![gate.clone()])
    }

    /// Whether one of the gates has failed. Every one is asked: one answer tells of all of them.
    pub fn has_failed(&self) -> bool {
        self.0.iter().filter(|gate| gate.tell()).count() > 0
    }
}

/// The gates in a queue that later work waits for.
#[derive(Debug, Default)]
pub struct Gates {
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

    /// Whether there may be one that has not opened.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
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
        if !self.any() {
            return Behind::default();
        }
        let mut behind = lock(&self.all);
        behind.0.retain(|gate| gate.is(Outcome::PENDING) || gate.is(Outcome::FAILED));
        self.any.store(!behind.0.is_empty(), Ordering::Release);
        behind.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_gate_is_no_longer_waited_for() {
        let (gates, first, second) = (Gates::default(), Arc::default(), Arc::<Outcome>::default());
        assert!(!gates.any());
        gates.push(Arc::clone(&first));
        gates.push(second.clone());
        first.settle(true);
        assert_eq!(gates.pending().0.len(), 1);
        let behind = gates.pending();
        second.settle(false);
        assert!(behind.0[0].is(Outcome::FAILED));
        assert_eq!(gates.pending().0.len(), 1, "a failure that nobody was told of");
        assert!(gates.any());
        assert!(behind.0[0].tell());
        assert!(gates.pending().0.is_empty() && !gates.any());
        assert!(behind.0[0].tell(), "whoever was behind it is told again");
    }
}
