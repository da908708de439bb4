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
    single: Planner<f32>,
    double: Planner<f64>,
}

type Planner<R> = Mutex<Option<FftPlanner<R>>>;

impl fmt::Debug for Planners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Planners")
    }
}

impl Planners {
    // The library is large and generic. A function for each type has it compiled with this crate: otherwise every crate that
    // transforms would compile it again.

    /// Transforms a batch in place.
    #[inline(never)]
    pub fn single(&self, plan: &Fft1d, data: &mut [Complex<f32>]) {
        run(&self.single, plan, data);
    }

    /// Transforms a batch in place.
    #[inline(never)]
    pub fn double(&self, plan: &Fft1d, data: &mut [Complex<f64>]) {
        run(&self.double, plan, data);
    }
}

fn run<R: FftNum>(planner: &Planner<R>, plan: &Fft1d, data: &mut [Complex<R>]) {
    let direction = match plan.direction() {
        Direction::Forward => FftDirection::Forward,
        Direction::Inverse => FftDirection::Inverse,
    };
    let mut kept = lock(planner);
    let fft = kept.get_or_insert_with(FftPlanner::new).plan_fft(plan.len(), direction);
    drop(kept);
    divide(&fft, data, plan.len());
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
