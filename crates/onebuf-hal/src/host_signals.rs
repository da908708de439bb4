//! Reports failed host signals to the work behind them.
//!
//! A driver may be unable to fail waiting work, or may not report the failure. So each event remembers the host signals that it
//! was enqueued behind and checks them, regardless of the driver's status.

use crate::locks::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// How a host signal ended.
#[derive(Debug, Default)]
pub struct Outcome(AtomicU64);

impl Outcome {
    const PENDING: u64 = 0;
    const OPENED: u64 = 1;
    const FAILED: u64 = 2;
    /// Failed, and an event behind it has reported that.
    const TOLD: u64 = 3;

    /// Records the outcome. Call it before the native event is completed, so that a thread that sees the completion also sees
    /// the outcome.
    pub fn settle(&self, opened: bool) {
        self.0.store(if opened { Self::OPENED } else { Self::FAILED }, Ordering::Release);
    }

    fn is(&self, state: u64) -> bool {
        self.0.load(Ordering::Acquire) == state
    }

    /// Whether it has failed. If so, marks the failure as reported.
    fn tell(&self) -> bool {
        let failed = self.is(Self::FAILED) || self.is(Self::TOLD);
        if failed {
            self.0.store(Self::TOLD, Ordering::Release);
        }
        failed
    }
}

/// The host signals that an event waits for.
#[derive(Clone, Debug, Default)]
pub struct Behind(Vec<Arc<Outcome>>);

impl Behind {
    /// Waits for one host signal only.
    pub fn one(host_signal: &Arc<Outcome>) -> Behind {
        Behind(vec![host_signal.clone()])
    }

    /// Whether one of the host signals has failed. All of them are checked and marked as reported: one error covers all.
    pub fn has_failed(&self) -> bool {
        self.0.iter().filter(|host_signal| host_signal.tell()).count() > 0
    }
}

/// The host signals in a queue that later work waits for.
#[derive(Debug, Default)]
pub struct HostSignals {
    all: Mutex<Behind>,
    /// Whether there are any; written under the lock. Most queues never have one, and every event checks.
    any: AtomicBool,
}

impl HostSignals {
    /// Adds a host signal that later work waits for.
    pub fn push(&self, host_signal: Arc<Outcome>) {
        self.add([host_signal]);
    }

    fn add(&self, host_signals: impl IntoIterator<Item = Arc<Outcome>>) {
        let mut behind = lock(&self.all);
        behind.0.extend(host_signals);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there may be one that has not been opened.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Adds the host signals of an event that later work waits for.
    pub fn extend(&self, event: &Behind) {
        if !event.0.is_empty() {
            self.add(event.0.iter().cloned());
        }
    }

    /// The host signals that a newly enqueued event waits for: pending ones, and failed ones that no event has reported. Events
    /// are created lazily, so the failure may be long past.
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
        assert_eq!(host_signals.pending().0.len(), 1, "the failure was not reported");
        assert!(host_signals.any());
        assert!(behind.0[0].tell());
        assert!(host_signals.pending().0.is_empty() && !host_signals.any());
        assert!(behind.0[0].tell(), "whoever was behind it is told again");
    }
}
