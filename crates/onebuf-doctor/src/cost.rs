//! The cost of a hand-over, and whether it copies.

use super::{
    experiment::{Experiment, MIB, Trouble},
    subject::{Side, Step},
};
use onebuf_core::Buffer;
use onebuf_hal::{Result, RouteKind};
use std::time::Instant;

/// The smaller size of the comparison, and the number of timings.
const SMALL: usize = MIB;
const TIMES: usize = 11;

/// In seconds. Growth above `SUSPICIOUS` is measured again at a larger size, where growth below `NOISE` is ignored.
const SUSPICIOUS: f64 = 20e-6;
const NOISE: f64 = 100e-6;

/// The cost of a route.
pub(super) struct Cost {
    pub zero_copy: Option<bool>,
    pub why: String,
    pub handoff_us: f64,
    slower_us: f64,
    pub gb_per_s: f64,
}

/// Seconds to the receiver and back, with a hand-over and without.
#[derive(Clone, Copy)]
struct Timing {
    crossed: [f64; 2],
    stayed: [f64; 2],
    address: Option<usize>,
    stable_address: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self { crossed: [f64::MAX; 2], stayed: [f64::MAX; 2], address: None, stable_address: true }
    }
}

impl Timing {
    fn note_address(&mut self, address: usize) {
        self.stable_address &= self.address.is_none_or(|before| before == address);
        self.address = Some(address);
    }

    fn forth(&self) -> f64 {
        (self.crossed[0] - self.stayed[0]).max(0.0)
    }

    /// How much longer a hand-over with its kernel takes than at another size. The kernel's own time is not subtracted,
    /// because a driver that copies around every kernel also copies for that one.
    fn growth_since(&self, other: &Timing) -> f64 {
        let way = |way: usize| self.crossed[way] - other.crossed[way];
        way(0).max(way(1))
    }

    fn slower(&self) -> f64 {
        self.forth().max(self.crossed[1] - self.stayed[1])
    }
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
        let mut timed = Vec::new();
        while let Some(below) = self.lower(self.planned()?) {
            let [timing] = self.time_hand_overs([self.large()])?;
            timed.push((self.planned()?, timing));
            self.sync = Some(below);
        }
        let mut cost = self.cost()?;
        for (sync_method, timing) in timed {
            let slower_us = timing.slower() * 1e6;
            if slower_us <= 2.0 * cost.slower_us + NOISE * 1e6 {
                self.sync = Some(sync_method);
                cost.handoff_us = timing.forth() * 1e6;
                break;
            }
            cost.why += &format!("; {sync_method} is late: {slower_us:.0} us");
        }
        Ok(cost)
    }

    /// Measures a hand-over, and the receiver's bandwidth through the route.
    fn cost(&mut self) -> Result<Cost, Trouble> {
        let bytes = self.large();
        let [small, large] = self.time_hand_overs([SMALL.min(bytes), bytes])?;
        let moves = !(small.stable_address && large.stable_address);
        let copies = self.kind == RouteKind::Staged || self.grows(&small, &large)?;
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
        let gb_per_s = match self.kind {
            RouteKind::Staged => bytes as f64 / large.forth().max(1e-9) / 1e9,
            _ => 2.0 * bytes as f64 / self.time_sweep(bytes)?.max(1e-9) / 1e9,
        };
        let (handoff_us, slower_us) = (large.forth() * 1e6, large.slower() * 1e6);
        Ok(Cost { zero_copy, why, handoff_us, slower_us, gb_per_s })
    }

    /// Whether a hand-over takes longer for more bytes. The speed of a hidden copy is unknown (a GPU's own memory moves 64
    /// MiB in 40 us), and timing is noisy. Suspicious growth is therefore measured again at four times the size, or at the
    /// device's limit, where a copy must cost proportionally more.
    fn grows(&mut self, small: &Timing, large: &Timing) -> Result<bool, Trouble> {
        if large.growth_since(small) < SUSPICIOUS {
            return Ok(false);
        }
        let bytes = self.large();
        let times = (self.limit / bytes).min(4);
        if times < 2 {
            return Ok(true);
        }
        match self.time_hand_overs([SMALL.min(bytes), bytes, times * bytes]) {
            Ok([small, large, far]) => {
                let near = large.growth_since(&small);
                Ok(far.growth_since(&small) > NOISE.max(times as f64 / 2.0 * near))
            }
            Err(Trouble::NotTried(_)) => Ok(true),
            Err(trouble) => Err(trouble),
        }
    }

    /// The fastest of several hand-overs in each direction, with a one-element kernel on each side, and the same kernel
    /// without a hand-over. The sizes alternate, so that they see the same noise.
    fn time_hand_overs<const N: usize>(
        &mut self,
        sizes: [usize; N],
    ) -> Result<[Timing; N], Trouble> {
        let mut buffers = Vec::new();
        for bytes in sizes {
            buffers.push(self.shared::<u32>(bytes / 4)?);
        }
        let step = self.step();
        let touch = |side: &Side, buffer: &Buffer<u32>| time(side, buffer, 1, step);
        let mut timings = [Timing::default(); N];
        for _ in 0..TIMES {
            (self.tell)("timing hand-overs");
            for (timing, buffer) in timings.iter_mut().zip(&buffers) {
                for (way, side) in [&self.to, &self.from].into_iter().enumerate() {
                    let took = [touch(side, buffer)?, touch(side, buffer)?];
                    timing.crossed[way] = timing.crossed[way].min(took[0]);
                    timing.stayed[way] = timing.stayed[way].min(took[1]);
                }
                timing.note_address(self.mapped_address(buffer)?);
            }
        }
        Ok(timings)
    }

    /// Times one kernel of the receiver over the whole buffer.
    fn time_sweep(&mut self, bytes: usize) -> Result<f64, Trouble> {
        (self.tell)("timing kernels");
        let (buffer, step) = (self.shared::<u32>(bytes / 4)?, self.step());
        let mut best = f64::MAX;
        for _ in 0..4 {
            best = best.min(time(&self.to, &buffer, bytes / 4, step)?);
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
