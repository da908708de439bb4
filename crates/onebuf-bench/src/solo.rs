//! Measurement of one cost, without a baseline.

use crate::{effort::Effort, stats::median};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// Minimum duration of a batch. Reading the clock twice takes about 50 ns, which is negligible beside it.
const BATCH: Duration = Duration::from_micros(200);

/// Maximum number of operations per batch.
const MOST: u64 = 1 << 24;

/// The result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Nanoseconds per operation, median over the batches.
    pub ns: f64,
    /// Number of batches.
    pub batches: usize,
}

/// Measures batches of so many operations that the clock's own cost is negligible. `batch` runs the given number of
/// operations and returns the time.
///
/// # Errors
/// The first error of a batch.
pub fn measure<E>(
    effort: Effort,
    mut batch: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<Alone, E> {
    let many = calibrate(&mut batch)?;
    let samples =
        effort.spend(|| batch(many).map(|spent| spent.as_nanos() as f64 / many as f64))?;
    Ok(Alone { ns: median(&samples), batches: samples.len() })
}

/// Doubles the number until a batch lasts long enough; this also warms up.
fn calibrate<E>(mut batch: impl FnMut(u64) -> Result<Duration, E>) -> Result<u64, E> {
    let mut many = 1;
    while batch(many)? < BATCH && many < MOST {
        many *= 2;
    }
    Ok(many)
}

/// The time of this many operations, one after another.
pub fn timed<T>(times: u64, mut operation: impl FnMut() -> T) -> Duration {
    let clock = Instant::now();
    for _ in 0..times {
        black_box(operation());
    }
    clock.elapsed()
}

/// Measures this many operations that can fail, one after another.
///
/// # Errors
/// The first error.
pub fn try_timed<E>(
    times: u64,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<Duration, E> {
    let clock = Instant::now();
    for _ in 0..times {
        operation()?;
    }
    Ok(clock.elapsed())
}

#[cfg(test)]
mod tests {
    use super::{BATCH, MOST, calibrate, measure, try_timed};
    use crate::Effort;
    use std::{convert::Infallible, time::Duration};

    #[test]
    fn batches_are_long_enough_for_the_clock() {
        let cost = |ns: u64| {
            calibrate(|many| Ok::<_, Infallible>(Duration::from_nanos(many * ns))).unwrap()
        };
        assert_eq!(cost(BATCH.as_nanos() as u64), 1);
        assert_eq!(cost(100), 2048);
        assert_eq!(cost(0), MOST);
    }

    #[test]
    fn the_median_is_per_operation() {
        let mut calls = 0;
        let found = measure(Effort::QUICK, |many| {
            calls += 1;
            // Every third batch is disturbed.
            let disturbed = if calls % 3 == 0 { 1_000_000 } else { 0 };
            Ok::<_, Infallible>(Duration::from_nanos(many * 100 + disturbed))
        });
        assert_eq!(found.map(|found| (found.ns, found.batches)), Ok((100.0, Effort::QUICK.most)));
    }

    #[test]
    fn errors_come_through() {
        assert_eq!(measure(Effort::QUICK, |_| Err("no")).map(drop), Err("no"));
        assert_eq!(try_timed(3, || Err("no")).map(drop), Err("no"));
    }
}
