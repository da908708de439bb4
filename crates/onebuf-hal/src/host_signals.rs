//! How work that waits for a host signal learns that the signal failed.
//!
//! A driver may have no way to fail waiting work, or may not report it. So each event remembers the host signals that
//! it was enqueued after and checks them, whatever the driver says.

use crate::locks::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// How a host signal ended.
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

/// The host signals that something waits for.
#[derive(Clone, Debug, Default)]
pub struct Behind(Vec<Arc<Outcome>>);

impl Behind {
    /// Behind one host signal alone.
    pub fn one(host_signal: &Arc<Outcome>) -> Behind {
        Behind(vec![host_signal.clone()])
    }

    /// Whether one of the host signals has failed. Every one is asked: one answer tells of all of them.
    pub fn has_failed(&self) -> bool {
        self.0.iter().filter(|host_signal| host_signal.tell()).count() > 0
    }
}

/// The host signals in a queue that later work waits for.
#[derive(Debug, Default)]
pub struct HostSignals {
    all: Mutex<Behind>,
    /// Whether there are any; written under the lock. Most queues never have one, and every event asks.
    any: AtomicBool,
}

impl HostSignals {
    /// One more that later work waits for.
    pub fn push(&self, host_signal: Arc<Outcome>) {
        self.add([host_signal]);
    }

    fn add(&self, host_signals: impl IntoIterator<Item = Arc<Outcome>>) {
        let mut behind = lock(&self.all);
        behind.0.extend(host_signals);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there may be one that has not opened.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Waiting for an event is waiting for its host signals.
    pub fn extend(&self, event: &Behind) {
        if !event.0.is_empty() {
            self.add(event.0.iter().cloned());
        }
    }

    /// What an event that is enqueued now waits behind: host signals that are shut, and failed ones that no
    /// event has told of. Events are made late, so the failure may be long past.
    pub fn pending(&self) -> Behind {
        if !self.any() {
            return Behind::default();
        }
        let mut behind = lock(&self.all);
        behind.0.retain(|host_signal| {
            host_signal.is(Outcome::PENDING) || host_signal.is(Outcome::FAILED)
        });
        self.any.store(!behind.0.is_empty(), Ordering::Release);
        behind.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_host_signal_is_no_longer_waited_for() {
        let (host_signals, first, second) =
            (HostSignals::default(), Arc::default(), Arc::<Outcome>::default());
        assert!(!host_signals.any());
        host_signals.push(Arc::clone(&first));
        host_signals.push(second.clone());
        first.settle(true);
        assert_eq!(host_signals.pending().0.len(), 1);
        let behind = host_signals.pending();
        second.settle(false);
        assert!(behind.0[0].is(Outcome::FAILED));
        assert_eq!(host_signals.pending().0.len(), 1, "a failure that nobody was told of");
        assert!(host_signals.any());
        assert!(behind.0[0].tell());
        assert!(host_signals.pending().0.is_empty() && !host_signals.any());
        assert!(behind.0[0].tell(), "whoever was behind it is told again");
    }
}
