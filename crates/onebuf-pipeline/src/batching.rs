//! How many frames a stage enqueues before it passes them on.
//!
//! A chip that gets work from two APIs switches contexts, which takes as long as the doctor measured for a hand-over between them. A
//! batch switches once for all of its frames. Small batches have short latencies, so the smallest is chosen at which switching
//! there and back is a small share of the stages' own time. That time is measured with the first frames of the first run: they go
//! through the stages one at a time, and each stage waits for its device.

use super::graft::Placement;
use onebuf_core::Device;
use onebuf_hal::locks::{Mutex, lock};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// The batch sizes that are considered. Measured on an H200: larger batches gained little.
const SIZES: [usize; 4] = [1, 2, 4, 8];
/// The allowed cost of switching, as a share of the stages' own time.
const SHARE: f64 = 0.1;
/// Frames that are timed in each stage, after one in which drivers compile and allocate.
const TIMED: usize = 3;

/// The size of batches, known or being measured.
#[derive(Debug)]
pub(super) struct Batching {
    frames: AtomicUsize,
    measure: Option<Measure>,
}

#[derive(Debug)]
struct Measure {
    /// A change between the two APIs.
    switch: Duration,
    most: usize,
    /// The times of each stage; the first does not count.
    times: Mutex<Vec<Vec<Duration>>>,
    /// Timed frames that are still wanted.
    left: AtomicUsize,
}

impl Default for Batching {
    fn default() -> Self {
        Self::fixed(1)
    }
}

impl Batching {
    pub fn fixed(frames: usize) -> Self {
        Self { frames: AtomicUsize::new(frames), measure: None }
    }

    /// One frame at a time if no two neighbours change between two APIs of a chip, otherwise as many as a measurement shows, up to half
    /// of the ring: the other half is with the next stage.
    pub fn measured(placements: &[Placement], depth: usize) -> Self {
        let pairs = placements.windows(2);
        let switch_us = pairs.filter_map(|two| switch_us(&two[0].device, &two[1].device));
        let (most, switch_us) = (depth.div_ceil(2), switch_us.fold(0.0, f64::max));
        if switch_us == 0.0 || most < 2 {
            return Self::fixed(1);
        }
        let stages = placements.len();
        let measure = Measure {
            switch: Duration::from_secs_f64(switch_us / 1e6),
            most,
            times: Mutex::new(vec![Vec::new(); stages]),
            left: AtomicUsize::new(stages * (TIMED + 1)),
        };
        Self { measure: Some(measure), ..Self::fixed(1) }
    }

    /// Frames of a batch, as far as known.
    pub fn frames(&self) -> usize {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether the next frame is timed.
    pub fn is_measuring(&self) -> bool {
        self.measure.as_ref().is_some_and(|measure| measure.left.load(Ordering::Relaxed) > 0)
    }

    /// Notes how long one frame took in a stage, until its device was done. The last of them decides.
    pub fn note(&self, stage: usize, time: Duration) {
        let Some(measure) = &self.measure else { return };
        let mut times = lock(&measure.times);
        let Some(of_stage) = times.get_mut(stage).filter(|times| times.len() <= TIMED) else {
            return;
        };
        of_stage.push(time);
        if measure.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let frames = smallest_batch(measure.switch, own(&times), measure.most);
            self.frames.store(frames, Ordering::Relaxed);
            let (switch, own) = (measure.switch, own(&times));
            tracing::info!(
                "batches of {frames}: a change of API takes {switch:.1?}, the stages {own:.1?}"
            );
        }
    }

    /// Describes the choice; `None` if there is nothing to choose.
    pub fn explain(&self) -> Option<String> {
        let Measure { switch, times, .. } = self.measure.as_ref()?;
        let times = lock(times);
        let frames = self.frames();
        Some(match self.is_measuring() {
            true => format!(
                "a change of API takes {switch:.1?}: the first frames show how many go through a stage at once"
            ),
            false => format!(
                "batches of {frames}: a change of API takes {switch:.1?}, the stages {:.1?} a frame",
                own(&times)
            ),
        })
    }
}

/// What the stages take for a frame, each at its best.
fn own(times: &[Vec<Duration>]) -> Duration {
    times.iter().filter_map(|times| times.get(1..)?.iter().min()).sum()
}

/// The smallest batch, of at most `most` frames, at which two changes of API take a small share of `own`, the time that the stages
/// take for a frame.
#[doc(hidden)]
pub fn smallest_batch(switch: Duration, own: Duration, most: usize) -> usize {
    let small = |&frames: &usize| {
        switch.is_zero() || 2.0 * switch.as_secs_f64() < SHARE * own.as_secs_f64() * frames as f64
    };
    let found = SIZES.into_iter().find(small);
    found.unwrap_or(SIZES[SIZES.len() - 1]).min(most).max(1)
}

/// The measured hand-over between two APIs of one chip, if there are two. Either may own the shared memory: NVIDIA's OpenCL imports
/// CUDA's and exports none.
fn switch_us(a: &Device, b: &Device) -> Option<f64> {
    if a.id() == b.id() || !a.info().physical.same_chip(&b.info().physical) {
        return None;
    }
    let (hub, ends) = (a.hub(), [a.index(), b.index()]);
    let [there, back] = [[0, 1], [1, 0]].map(|[x, y]| hub.topology().between(ends[x], ends[y]));
    let proven = there.iter().chain(back).filter(|route| route.verdict.zero_copy == Some(true));
    proven.filter_map(|route| route.verdict.handoff_us).reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(switch_us: u64, own_us: u64, most: usize) -> usize {
        smallest_batch(Duration::from_micros(switch_us), Duration::from_micros(own_us), most)
    }

    #[test]
    fn switching_stays_a_small_share() {
        assert_eq!(chosen(140, 3000, 8), 1);
        assert_eq!(chosen(140, 2799, 8), 2);
        assert_eq!(chosen(140, 100, 8), 8, "none is large enough: the largest");
        assert_eq!(chosen(140, 100, 3), 3, "the ring has no more room");
        assert_eq!((chosen(1, 100, 8), chosen(5, 0, 1)), (1, 1));
    }

    #[test]
    fn the_best_of_each_stage_counts_and_the_first_never() {
        let millis = |times: [u64; 3]| times.map(Duration::from_millis).to_vec();
        assert_eq!(own(&[millis([1, 5, 4]), millis([9, 2, 3])]), Duration::from_millis(6));
        assert_eq!(own(&[vec![], vec![Duration::MAX]]), Duration::ZERO);
    }
}
