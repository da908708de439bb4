//! How long to measure.

use std::time::{Duration, Instant};

/// How many samples to take: until the time is spent, within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Minimum number of samples, however long they take. Six are needed for an interval of 95 %.
    pub least: usize,
    /// Maximum number of samples.
    pub most: usize,
    /// Time for the samples between the two limits.
    pub time: Duration,
}

impl Effort {
    /// Effort for reliable numbers.
    pub const FULL: Self = Self { least: 15, most: 501, time: Duration::from_secs(3) };

    /// Effort for a first look, and for tests.
    pub const QUICK: Self = Self { least: 7, most: 51, time: Duration::from_millis(200) };

    /// Limits the number of samples, for samples that are expensive to prepare.
    pub fn at_most(self, samples: usize) -> Self {
        let most = self.most.min(samples);
        Self { least: self.least.min(most), most, ..self }
    }

    /// Takes the samples.
    pub(crate) fn spend<T, E>(self, mut sample: impl FnMut() -> Result<T, E>) -> Result<Vec<T>, E> {
        let start = Instant::now();
        let mut samples = Vec::with_capacity(self.least);
        while samples.len() < self.least
            || (samples.len() < self.most && start.elapsed() < self.time)
        {
            samples.push(sample()?);
        }
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::Effort;
    use std::time::Duration;

    fn taken(effort: Effort) -> usize {
        effort.spend(|| Ok::<_, ()>(())).unwrap().len()
    }

    #[test]
    fn between_least_and_most() {
        let none = Effort { least: 7, most: 9, time: Duration::ZERO };
        assert_eq!(taken(none), 7);
        assert_eq!(taken(Effort { time: Duration::MAX, ..none }), 9);
        assert_eq!(taken(none.at_most(3)), 3);
    }

    #[test]
    fn the_first_error_ends_it() {
        let mut left = 3;
        let ended = Effort::QUICK.spend(|| {
            left -= 1;
            if left == 0 { Err("enough") } else { Ok(()) }
        });
        assert_eq!((ended, left), (Err("enough"), 0));
    }
}
