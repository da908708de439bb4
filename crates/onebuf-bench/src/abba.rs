//! Comparison of two ways to do the same thing.
//!
//! Each block runs ours, the baseline twice, and ours again. A steady change (a clock that slows down, a cache that
//! fills) affects both sides equally; a sudden change affects one block of many.
//!
//! The ratio is the median of the *blocks' own* ratios, with its interval. Both sides of a block saw the same machine.
//! Medians of each side over all blocks need not have: if the machine is slow half of the time, one median may come
//! from the slow half and the other from the fast half. The two reported values therefore split the median block's time
//! in this ratio.

use crate::{
    effort::Effort,
    stats::{median, median_interval},
};

/// One block: nanoseconds per operation, two batches of each side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// The first and the last batch.
    pub ours: [f64; 2],
    /// The two between.
    pub baseline: [f64; 2],
}

impl Block {
    fn ratio(&self) -> f64 {
        self.ours.iter().sum::<f64>() / self.baseline.iter().sum::<f64>()
    }

    /// The time of one operation of each side.
    fn both(&self) -> f64 {
        self.ours.iter().chain(&self.baseline).sum::<f64>() / 2.0
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Ours, nanoseconds per operation.
    pub ours_ns: f64,
    /// The baseline, nanoseconds per operation.
    pub baseline_ns: f64,
    /// Ours over the baseline.
    pub ratio: f64,
    /// The ratio's 95 % interval; `None` with fewer than six blocks.
    pub interval: Option<(f64, f64)>,
    /// Number of blocks.
    pub blocks: usize,
}

impl Compared {
    /// Evaluates the blocks.
    pub fn of(blocks: &[Block]) -> Self {
        let ratios: Vec<f64> = blocks.iter().map(Block::ratio).collect();
        let both: Vec<f64> = blocks.iter().map(Block::both).collect();
        let (ratio, both) = (median(&ratios), median(&both));
        Self {
            ours_ns: both * ratio / (1.0 + ratio),
            baseline_ns: both / (1.0 + ratio),
            ratio,
            interval: median_interval(&ratios),
            blocks: blocks.len(),
        }
    }
}

/// Runs blocks of A B B A. Each side runs one batch and returns nanoseconds per operation.
///
/// The first block is a warm-up and not counted: drivers compile and pages are allocated on first use.
///
/// # Errors
/// The first error of either side.
pub fn compare<E>(
    effort: Effort,
    mut ours: impl FnMut() -> Result<f64, E>,
    mut baseline: impl FnMut() -> Result<f64, E>,
) -> Result<Compared, E> {
    let mut block = || -> Result<Block, E> {
        let first = ours()?;
        let baseline = [baseline()?, baseline()?];
        Ok(Block { ours: [first, ours()?], baseline })
    };
    block()?;
    Ok(Compared::of(&effort.spend(block)?))
}

#[cfg(test)]
mod tests {
    use super::{Block, Compared, compare};
    use crate::Effort;
    use std::cell::RefCell;

    /// Reproducible pseudo-random numbers.
    struct Noise(u64);

    impl Noise {
        /// Uniform between 0 and 1.
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// A time as on shared machines: never early, often a little late, sometimes very late.
        fn late(&mut self, exact: f64) -> f64 {
            let outlier = if self.next() < 0.05 { 5.0 * self.next() } else { 0.0 };
            exact * (1.0 + 0.2 * self.next() * self.next() + outlier)
        }
    }

    /// Blocks of a machine whose speed drifts, for two sides with this ratio.
    fn blocks(noise: &mut Noise, many: usize, ratio: f64) -> Vec<Block> {
        let mut speed = 1.0;
        let block = |_| {
            speed *= 0.95 + 0.1 * noise.next();
            let mut two = |exact: f64| [noise.late(exact * speed), noise.late(exact * speed)];
            Block { ours: two(700.0 * ratio), baseline: two(700.0) }
        };
        (0..many).map(block).collect()
    }

    /// In how many of 1000 runs the interval contains this ratio.
    fn covered(seed: u64, many: usize, truth: f64, asked: f64) -> usize {
        let mut noise = Noise(seed);
        let holds = |_: &usize| {
            let (low, high) = Compared::of(&blocks(&mut noise, many, truth)).interval.unwrap();
            (low..=high).contains(&asked)
        };
        (0..1000).filter(holds).count()
    }

    #[test]
    fn a_known_ratio_without_noise_is_exact() {
        let block = Block { ours: [30.0, 30.0], baseline: [20.0, 20.0] };
        let found = Compared::of(&[block; 9]);
        assert_eq!((found.ours_ns, found.baseline_ns, found.blocks), (30.0, 20.0, 9));
        assert_eq!((found.ratio, found.interval), (1.5, Some((1.5, 1.5))));
        assert_eq!(Compared::of(&[block; 5]).interval, None);
    }

    #[test]
    fn the_interval_holds_the_ratio_as_often_as_it_says() {
        for (seed, many, ratio) in [(1, 7, 1.0), (2, 15, 1.0), (3, 101, 1.05), (4, 501, 0.3)] {
            let covered = covered(seed, many, ratio, ratio);
            assert!(covered >= 940, "{many} blocks, ratio {ratio}: {covered} of 1000");
        }
    }

    #[test]
    fn a_shift_of_five_percent_is_seen() {
        let missed = covered(5, 501, 1.05, 1.0);
        assert!(missed < 10, "in {missed} of 1000 runs");
    }

    #[test]
    fn steady_drift_weighs_on_both() {
        // Every batch takes a hundredth longer than the first did; both sides do the same work.
        let at = |batch: usize| 100.0 + batch as f64;
        let block = |number: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|batch| at(4 * number + batch));
            Block { ours: [a, d], baseline: [b, c] }
        };
        let blocks: Vec<Block> = (0..51).map(block).collect();
        assert_eq!(Compared::of(&blocks).interval, Some((1.0, 1.0)));
    }

    /// Medians of either side alone would come from different halves, and be off by a factor of two.
    #[test]
    fn a_jump_common_to_both_moves_nothing() {
        let (fast, slow) = ([100.0; 2], [200.0; 2]);
        let mut blocks = vec![Block { ours: fast, baseline: fast }; 50];
        blocks.extend(vec![Block { ours: slow, baseline: slow }; 50]);
        blocks.push(Block { ours: slow, baseline: fast });
        let found = Compared::of(&blocks);
        assert_eq!((found.ratio, found.interval), (1.0, Some((1.0, 1.0))));
        assert_eq!(found.ours_ns, found.baseline_ns);
    }

    #[test]
    fn the_order_is_a_b_b_a_and_the_first_block_is_not_counted() {
        let order = RefCell::new(String::new());
        let note = |side: char| {
            let mut order = order.borrow_mut();
            order.push(side);
            Ok::<_, ()>(if order.len() <= 4 { 1000.0 } else { 1.0 })
        };
        let effort = Effort::FULL.at_most(2);
        let found = compare(effort, || note('a'), || note('b')).unwrap();
        assert_eq!(*order.borrow(), "abbaabbaabba");
        assert_eq!((found.ours_ns, found.baseline_ns, found.blocks), (1.0, 1.0, 2));
    }

    #[test]
    fn an_error_of_either_side_ends_it() {
        let stop = || Err::<f64, _>("no");
        assert_eq!(compare(Effort::QUICK, stop, || Ok(1.0)), Err("no"));
        assert_eq!(compare(Effort::QUICK, || Ok(1.0), stop), Err("no"));
    }
}
