//! Histograms of durations, cheap enough to be always on.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Buckets per power of two: a reported quantile is at most an eighth too long.
const STEPS: u64 = 8;
/// Covers 2^40 ns, which is 18 minutes. Longer durations count as that.
const BUCKETS: usize = 40 * STEPS as usize;

/// A histogram of durations.
pub(super) struct Times {
    buckets: Box<[AtomicU64]>,
    total_ns: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, total_ns: AtomicU64::new(0) }
    }
}

impl Times {
    pub fn note(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub fn clear(&self) {
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        self.total_ns.store(0, Ordering::Relaxed);
    }

    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns.load(Ordering::Relaxed))
    }

    /// The duration that a fraction `part` of all samples did not exceed; `None` without samples.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut so_far = 0;
        let at = counts.iter().position(|count| {
            so_far += count;
            so_far >= wanted
        })?;
        Some(Duration::from_nanos(end_of(at)))
    }
}

/// The first eight buckets hold one value each; then each power of two has eight.
fn bucket(ns: u64) -> usize {
    let Some(doubling) = (ns / STEPS).checked_ilog2() else { return ns as usize };
    let within = (ns >> doubling) - STEPS;
    ((u64::from(doubling) + 1) * STEPS + within).min(BUCKETS as u64 - 1) as usize
}

/// The largest value of a bucket.
fn end_of(bucket: usize) -> u64 {
    let (doubling, within) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if doubling == 0 { within } else { ((STEPS + within + 1) << (doubling - 1)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(end_of(at)), at);
            assert_eq!(bucket(end_of(at) + 1), at + 1);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_an_eighth_too_long_at_most() {
        let times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        (1..=1000).for_each(|us| times.note(Duration::from_micros(us)));
        for (part, us) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let told = times.quantile(part).unwrap();
            let (least, most) = (Duration::from_micros(us), Duration::from_micros(us * 9 / 8));
            assert!((least..=most).contains(&told), "{part}: {told:?}");
        }
        assert_eq!(times.total(), Duration::from_micros(500_500));
        times.clear();
        assert_eq!((times.quantile(0.5), times.total()), (None, Duration::ZERO));
    }
}
