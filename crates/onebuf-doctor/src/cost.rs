//! The cost of a hand-over, and whether it copies.

use super::{
    experiment::{Experiment, MIB, Trouble},
    subject::{Side, Step},
};
use onebuf_core::Buffer;
use onebuf_hal::{Result, RouteKind};
use std::time::Instant;

/// The smaller size of the comparison.
const SMALL: usize = MIB;
/// How often a hand-over is timed: a series, one at larger sizes, and one of a route that is known to copy.
const TIMES: usize = 11;
const TIMES_FAR: usize = 7;
const TIMES_STAGED: usize = 3;
/// How many series may be taken until they agree.
const SERIES: usize = 4;

/// In seconds. Growth above `SUSPICIOUS` is measured again at a larger size, where growth below `NOISE` is ignored: no memory is
/// copied that fast.
const SUSPICIOUS: f64 = 20e-6;
const NOISE: f64 = 100e-6;

/// The cost of a route.
pub(super) struct Cost {
    pub zero_copy: Option<bool>,
    pub why: String,
    pub handoff_us: f64,
    /// Seconds of the slower direction, at the size at which sync methods are compared.
    slower: f64,
    pub gb_per_s: f64,
}

/// Seconds of hand-overs to the receiver and back, and of the same kernels without a hand-over.
#[derive(Clone, Default)]
struct Timing {
    crossed: [Vec<f64>; 2],
    stayed: [Vec<f64>; 2],
    address: Option<usize>,
    moves: bool,
}

impl Timing {
    fn note_address(&mut self, address: usize) {
        self.moves |= self.address.is_some_and(|before| before != address);
        self.address = Some(address);
    }

    fn extend(&mut self, other: &Timing) {
        for way in 0..2 {
            self.crossed[way].extend(&other.crossed[way]);
            self.stayed[way].extend(&other.stayed[way]);
        }
        self.moves |= other.moves;
    }

    fn hand_over(&self, way: usize) -> f64 {
        nth(&self.crossed[way], 0) - nth(&self.stayed[way], 0)
    }

    fn forth(&self) -> f64 {
        self.hand_over(0).max(0.0)
    }

    fn slower(&self) -> f64 {
        self.forth().max(self.hand_over(1))
    }

    /// How much longer a hand-over with its kernel takes than at another size. The kernel's own time is not subtracted,
    /// because a driver that copies around every kernel also copies for that one.
    fn growth_since(&self, other: &Timing) -> f64 {
        let way = |way: usize| nth(&self.crossed[way], 0) - nth(&other.crossed[way], 0);
        way(0).max(way(1))
    }

    /// Whether the fastest times were met several times. On a busy machine they may all be slow.
    fn is_steady(&self) -> bool {
        let steady = |times: &Vec<f64>| nth(times, 2) - nth(times, 0) < SUSPICIOUS;
        self.crossed.iter().all(steady)
    }
}

/// Uses the times without a hand-over of both sizes for each. On a busy machine a few may all be slow, and a kernel on one element of
/// memory that is not mapped takes no longer for more of it.
fn share_stayed(small: &mut Timing, large: &mut Timing) {
    for way in 0..2 {
        small.stayed[way].extend(&large.stayed[way]);
        large.stayed[way].clone_from(&small.stayed[way]);
    }
}

/// The nth of the times in ascending order, or the last.
fn nth(times: &[f64], n: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(n).or(times.last()).copied().unwrap_or(f64::MAX)
}

/// Whether growth at one size and at `times` that size is that of a copy. `None` if it is neither that nor none: noise.
fn is_copy(near: f64, far: f64, times: f64) -> Option<bool> {
    match () {
        () if far < NOISE => Some(false),
        // Proportional, except that the smaller size may fit into a cache.
        () if near <= 2.0 * far / times && near >= far / (8.0 * times) => Some(true),
        () => None,
    }
}

/// Whether growth is the same at one size and at `times` that size: what is beyond the smaller size costs nothing. Larger buffers may
/// cost more than small ones whatever their size, as for page tables.
fn is_level(near: f64, far: f64, times: f64) -> bool {
    (far - near).abs() < NOISE * (1.0 - 1.0 / times)
}

/// Times one kernel and the wait for it.
fn time(side: &Side, buffer: &Buffer<u32>, n: usize, step: Step) -> Result<f64> {
    let start = Instant::now();
    side.step(buffer, 0, n, step)?;
    side.queue.finish()?;
    Ok(start.elapsed().as_secs_f64())
}

impl Experiment<'_> {
    /// Measures the cost with host waits, because a late callback would hide growth. Then selects the best sync method that
    /// takes no more than twice as long; better methods spare the thread its wait.
    pub(super) fn cost_by_best_sync_method(&mut self) -> Result<Cost, Trouble> {
        let mut better = Vec::new();
        while let Some(below) = self.lower(self.planned()?) {
            better.push(self.planned()?);
            self.sync = Some(below);
        }
        let (lowest, mut cost) = (self.sync, self.cost()?);
        for sync_method in better {
            self.sync = Some(sync_method);
            let [buffer] = self.buffers_to_time([self.large_to_compare()])?;
            let mut timing = Timing::default();
            // Noise may have delayed all of one series.
            for _ in 0..2 {
                let [more] = self.time_hand_overs([&buffer], TIMES)?;
                timing.extend(&more);
                if timing.slower() <= 2.0 * cost.slower + NOISE {
                    if self.kind != RouteKind::Staged {
                        cost.handoff_us = timing.forth() * 1e6;
                    }
                    return Ok(cost);
                }
            }
            cost.why += &format!("; {sync_method} is late: {:.0} us", timing.slower() * 1e6);
        }
        self.sync = lowest;
        Ok(cost)
    }

    /// The size at which sync methods are compared. Staged routes copy at any size, and a late signal is seen best at a small one.
    fn large_to_compare(&self) -> usize {
        let large = self.large();
        if self.kind == RouteKind::Staged { SMALL.min(large) } else { large }
    }

    /// Measures a hand-over, and the receiver's bandwidth through the route.
    fn cost(&mut self) -> Result<Cost, Trouble> {
        let bytes = self.large();
        let is_staged = self.kind == RouteKind::Staged;
        let buffers = self.buffers_to_time([SMALL.min(bytes), bytes])?;
        let times = if is_staged { TIMES_STAGED } else { TIMES };
        let [mut small, mut large] = self.time_hand_overs(buffers.each_ref(), times)?;
        if is_staged {
            share_stayed(&mut small, &mut large);
        }
        let moves = small.moves || large.moves;
        let copies = is_staged || self.grows(&small, &large)?;
        // Sizes below this say nothing about growth.
        let zero_copy = (copies || moves || bytes >= 2 * SMALL).then_some(!copies && !moves);
        let why = match (copies, moves) {
            (false, false) => "the hand-over does not grow with the size".to_owned(),
            (false, true) => "the map's address moves: a copy behind it".to_owned(),
            (true, _) => format!(
                "the hand-over copies: {:.0} us at {} KiB, {:.0} us at {} KiB",
                small.slower() * 1e6,
                SMALL.min(bytes) >> 10,
                large.slower() * 1e6,
                bytes >> 10
            ),
        };
        let gb_per_s = match is_staged {
            true => bytes as f64 / large.forth().max(1e-9) / 1e9,
            false => 2.0 * bytes as f64 / self.time_sweep(&buffers[1])?.max(1e-9) / 1e9,
        };
        let slower = if is_staged { small.slower() } else { large.slower() };
        Ok(Cost { zero_copy, why, handoff_us: large.forth() * 1e6, slower, gb_per_s })
    }

    /// Whether a hand-over takes longer for more bytes. The speed of a hidden copy is unknown (a GPU's own memory moves 64
    /// MiB in 40 us), and timing is noisy. Suspicious growth is therefore measured again at four times the size, or at the
    /// device's limit, where a copy must cost proportionally more. Noise only makes times longer, so that one series can show
    /// that nothing is copied; that something is copied takes two which agree, and the fastest times of all.
    fn grows(&mut self, small: &Timing, large: &Timing) -> Result<bool, Trouble> {
        if large.growth_since(small) < SUSPICIOUS && small.is_steady() {
            return Ok(false);
        }
        let bytes = self.large();
        let times = (self.limit / bytes).min(4);
        if times < 2 {
            return self.grows_at(bytes);
        }
        let sizes = [SMALL.min(bytes), bytes, times * bytes];
        let (mut all, mut copied) =
            ([small.clone(), large.clone(), Timing::default()], None::<f64>);
        let mut was_level = [false; 2];
        let buffers = match self.buffers_to_time(sizes) {
            Err(Trouble::NotTried(_)) => return self.grows_at(bytes),
            built => built?,
        };
        for _ in 0..SERIES {
            let series = self.time_hand_overs(buffers.each_ref(), TIMES_FAR)?;
            for (all, series) in all.iter_mut().zip(&series) {
                all.extend(series);
            }
            let growth = |[small, near, far]: &[Timing; 3]| {
                [near.growth_since(small), far.growth_since(small)]
            };
            // Each direction by itself: a constant of one must not hide a copy of the other.
            let ways = [0, 1].map(|way| {
                let at = |size: usize| nth(&all[size].crossed[way], 0);
                [at(1) - at(0), at(2) - at(0)]
            });
            let level = ways.map(|[near, far]| is_level(near, far, times as f64));
            if (0..2).all(|way| ways[way][1] < NOISE || level[way] && was_level[way]) {
                return Ok(false);
            }
            was_level = level;
            let copies = |timings| {
                let [near, far] = growth(timings);
                is_copy(near, far, times as f64).unwrap_or(false).then_some(far)
            };
            let now = copies(&series);
            let agrees = |(now, before): (f64, f64)| now < 2.0 * before && before < 2.0 * now;
            // Beside a load two series can agree by accident, but the fastest times of all series do not.
            if now.zip(copied).is_some_and(agrees) && copies(&all).is_some() {
                return Ok(true);
            }
            copied = now;
        }
        let at = sizes
            .iter()
            .zip(&all)
            .map(|(size, timing)| format!("{:.0} us at {} KiB", timing.slower() * 1e6, size >> 10));
        let at = at.collect::<Vec<_>>().join(", ");
        Err(Trouble::NotTried(format!("not measured: timings do not agree on a copy: {at}")))
    }

    /// The same where there is no memory for a larger size: growth that remains in the fastest of all series is a copy.
    fn grows_at(&mut self, bytes: usize) -> Result<bool, Trouble> {
        let mut all = <[Timing; 2]>::default();
        let buffers = self.buffers_to_time([SMALL.min(bytes), bytes])?;
        for _ in 0..SERIES {
            let series = self.time_hand_overs(buffers.each_ref(), TIMES)?;
            for (all, series) in all.iter_mut().zip(&series) {
                all.extend(series);
            }
            if all[1].growth_since(&all[0]) < SUSPICIOUS {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Shared buffers of these sizes.
    fn buffers_to_time<const N: usize>(
        &mut self,
        sizes: [usize; N],
    ) -> Result<[Buffer<u32>; N], Trouble> {
        let mut buffers = Vec::new();
        for bytes in sizes {
            (self.tell)("allocating what is timed");
            buffers.push(self.shared::<u32>(bytes / 4)?);
        }
        buffers.try_into().map_err(|_| Trouble::Failed("fewer buffers than sizes".into()))
    }

    /// Times several hand-overs in each direction, with a one-element kernel on each side, and the same kernel without a
    /// hand-over. The sizes alternate, so that they see the same noise.
    fn time_hand_overs<const N: usize>(
        &mut self,
        buffers: [&Buffer<u32>; N],
        times: usize,
    ) -> Result<[Timing; N], Trouble> {
        let step = self.step();
        let touch = |side: &Side, buffer: &Buffer<u32>| time(side, buffer, 1, step);
        let mut timings = std::array::from_fn(|_| Timing::default());
        for _ in 0..times {
            (self.tell)("timing hand-overs");
            for (timing, buffer) in timings.iter_mut().zip(buffers) {
                for (way, side) in [&self.to, &self.from].into_iter().enumerate() {
                    timing.crossed[way].push(touch(side, buffer)?);
                    timing.stayed[way].push(touch(side, buffer)?);
                }
                timing.note_address(self.mapped_address(buffer)?);
            }
        }
        Ok(timings)
    }

    /// Times one kernel of the receiver over the whole buffer.
    fn time_sweep(&mut self, buffer: &Buffer<u32>) -> Result<f64, Trouble> {
        (self.tell)("timing kernels");
        let (mut best, step) = (f64::MAX, self.step());
        for _ in 0..3 {
            best = best.min(time(&self.to, buffer, buffer.len(), step)?);
        }
        Ok(best)
    }

    /// The host's address of the buffer, if the host is the receiver.
    fn mapped_address(&self, buffer: &Buffer<u32>) -> Result<usize, Trouble> {
        let looks =
            self.to.device.index() == self.hub.host().index() && self.kind != RouteKind::Staged;
        if !looks {
            return Ok(0);
        }
        Ok(buffer.map()?.as_ptr() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(times: &[f64]) -> Timing {
        Timing { crossed: [times.to_vec(), times.to_vec()], ..Timing::default() }
    }

    #[test]
    fn only_proportional_growth_is_a_copy() {
        let us = |near: f64, far: f64| is_copy(near * 1e-6, far * 1e-6, 4.0);
        assert_eq!(us(1000.0, 4000.0), Some(true));
        assert_eq!(us(300.0, 4000.0), Some(true), "a cache for the smaller size");
        assert_eq!(us(5000.0, 80.0), Some(false), "noise at the smaller size alone");
        assert_eq!(us(4000.0, 4000.0), None, "both as late");
        assert_eq!(us(5.0, 4000.0), None, "noise at the larger size alone");
    }

    #[test]
    fn growth_that_stays_the_same_is_no_copy() {
        let us = |near: f64, far: f64| is_level(near * 1e-6, far * 1e-6, 4.0);
        assert!(us(120.0, 125.0) && us(4000.0, 4050.0));
        assert!(!us(40.0, 160.0) && !us(1000.0, 4000.0));
    }

    #[test]
    fn a_kernel_that_was_late_makes_no_copy_faster() {
        let of = |crossed: f64, stayed: f64| Timing {
            crossed: [vec![crossed], vec![crossed]],
            stayed: [vec![stayed], vec![stayed]],
            ..Timing::default()
        };
        let (mut small, mut large) = (of(60e-6, 5e-6), of(3000e-6, 2900e-6));
        assert!(large.forth() < 101e-6, "as measured");
        share_stayed(&mut small, &mut large);
        assert!(large.forth() > 2990e-6 && large.slower() > 2990e-6);
        assert!((small.forth() - 55e-6).abs() < 1e-9);
    }

    #[test]
    fn a_fastest_time_that_was_met_once_is_not_steady() {
        assert!(timing(&[1e-3, 5e-6, 6e-6, 9e-6]).is_steady());
        assert!(!timing(&[1e-3, 5e-6, 2e-3, 9e-4]).is_steady());
    }
}
