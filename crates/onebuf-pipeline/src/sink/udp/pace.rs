//! Paces packets at a rate.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Packets sent in one burst cover at most this many seconds at the requested rate, so that the receiver's queue need not
/// hold more.
const TOGETHER_S: f64 = 0.0005;

/// A sender that is later than this does not catch up, because pacing must avoid bursts.
const BEHIND: Duration = Duration::from_millis(20);

/// A rate, if any, and when the next packets are due.
#[derive(Debug, Default)]
pub(super) struct Pace {
    bytes_per_s: Option<f64>,
    due: Option<Instant>,
}

impl Pace {
    pub fn new(bytes_per_s: f64) -> Option<Self> {
        let is_rate = bytes_per_s.is_finite() && bytes_per_s >= 1.0;
        is_rate.then_some(Self { bytes_per_s: Some(bytes_per_s), due: None })
    }

    /// The pace of one of several senders that share the rate.
    pub fn part(&self, senders: usize) -> Self {
        Self { bytes_per_s: self.bytes_per_s.map(|rate| rate / senders as f64), due: None }
    }

    /// How many packets of this size may leave in one burst.
    pub fn packets(&self, bytes: usize) -> usize {
        let together = |rate: f64| (rate * TOGETHER_S / bytes as f64) as usize;
        self.bytes_per_s.map_or(usize::MAX, |rate| together(rate).max(1))
    }

    /// Waits until this many bytes may leave.
    pub fn wait(&mut self, bytes: usize) {
        let Some(rate) = self.bytes_per_s else { return };
        let now = Instant::now();
        let earliest = now.checked_sub(BEHIND).unwrap_or(now);
        let due = self.due.map_or(now, |due| due.max(earliest));
        thread::sleep(due.saturating_duration_since(now));
        self.due = due.checked_add(Duration::from_secs_f64(bytes as f64 / rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_never_early() {
        let mut pace = Pace::new(1e6).unwrap();
        let start = Instant::now();
        (0..11).for_each(|_| pace.wait(1000));
        assert!(start.elapsed() >= Duration::from_millis(10), "10 kB at 1 MB/s before the last");
    }

    #[test]
    fn rates_are_numbers_and_batches_are_short() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pace::new(wrong).is_none(), "{wrong}");
        }
        let packets = |rate: f64| Pace::new(rate).unwrap().packets(1000);
        assert_eq!((packets(1e3), packets(2e6), packets(1e8)), (1, 1, 50));
        assert_eq!(Pace::default().packets(1000), usize::MAX);
        assert_eq!(Pace::new(1e8).unwrap().part(5).packets(1000), 10);
    }
}
