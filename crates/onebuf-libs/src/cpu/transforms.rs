//! Batches of transforms, divided among threads.

use crate::fft::{Direction, Fft1d};
use onebuf_hal::locks::{Mutex, lock};
use rustfft::{Fft, FftDirection, FftNum, FftPlanner, num_complex::Complex};
use std::{fmt, sync::Arc, thread};

/// Fewer samples than this are not worth a thread.
const PER_THREAD: usize = 1 << 16;

/// The cached plans of one queue.
#[derive(Default)]
pub struct Planners {
    pub single: Planner<f32>,
    pub double: Planner<f64>,
}

type Planner<R> = Mutex<Option<FftPlanner<R>>>;

impl fmt::Debug for Planners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Planners")
    }
}

/// A batch to transform in place.
pub struct Transforms<'a, T> {
    pub planners: &'a Planners,
    pub plan: &'a Fft1d,
    pub data: &'a mut [T],
}

impl<R: FftNum> Transforms<'_, Complex<R>> {
    pub fn run(self, planner: impl Fn(&Planners) -> &Planner<R>) {
        let direction = match self.plan.direction() {
            Direction::Forward => FftDirection::Forward,
            Direction::Inverse => FftDirection::Inverse,
        };
        let mut kept = lock(planner(self.planners));
        let fft = kept.get_or_insert_with(FftPlanner::new).plan_fft(self.plan.len(), direction);
        drop(kept);
        divide(&fft, self.data, self.plan.len());
    }
}

/// Gives each thread whole transforms. The calling thread takes the first share.
fn divide<R: FftNum>(fft: &Arc<dyn Fft<R>>, data: &mut [Complex<R>], len: usize) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let shares = (data.len() / PER_THREAD).clamp(1, cores);
    let share = (data.len() / len).div_ceil(shares) * len;
    thread::scope(|scope| {
        let (own, others) = data.split_at_mut(share.min(data.len()));
        for part in others.chunks_mut(share) {
            scope.spawn(|| fft.process(part));
        }
        fft.process(own);
    });
}
