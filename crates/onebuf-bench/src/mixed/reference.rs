//! What must come out, in double precision on the CPU.

use super::Shape;
use onebuf::{Complex32, Complex64};
use rustfft::{Fft, FftPlanner};
use std::{f64::consts::TAU, sync::Arc, thread};

/// Of magnitude one and any phase, beam behind beam. Beams that point somewhere would add some signals up and
/// cancel others; these treat every sample alike, so that a lost one shows.
pub fn weights(shape: &Shape) -> Vec<Complex32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let weight = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let w = Complex64::cis(TAU * (state >> 11) as f64 / (1u64 << 53) as f64);
        Complex32::new(w.re as f32, w.im as f32)
    };
    (0..shape.channels * shape.beams).map(weight).collect()
}

/// The beams of one frame, and how large they could be expected to be.
pub struct Expected {
    beams: Vec<Complex64>,
    /// Per bin: the root of its power over all channels, or of the mean bin's where that is more.
    scale: Vec<f64>,
}

/// What some of the channels add: the beams, and each bin's power.
struct Sum {
    beams: Vec<Complex64>,
    power: Vec<f64>,
}

impl Expected {
    /// By all of the machine's cores.
    ///
    /// # Panics
    /// When the frame is not of this shape.
    pub fn of(shape: &Shape, frame: &[Complex32]) -> Self {
        assert_eq!(frame.len(), shape.samples(), "a frame of the shape");
        let (weights, fft) = (weights(shape), FftPlanner::new().plan_fft_forward(shape.length));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = shape.channels.div_ceil(cores);
        let parts = frame.chunks(share * shape.length).enumerate();
        let sums: Vec<Sum> = thread::scope(|scope| {
            let threads: Vec<_> = parts
                .map(|(part, samples)| {
                    let (weights, fft) = (&weights, &fft);
                    scope.spawn(move || Sum::of(shape, part * share, samples, weights, fft))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic there")).collect()
        });
        Self::from(sums.into_iter().fold(Sum::none(shape), Sum::plus))
    }

    /// The largest deviation of any number from what it has to be, relative to that, or to the bin's scale where
    /// that is more. NaN where one came out.
    pub fn max_rel_error(&self, found: &[Complex32]) -> f64 {
        let mut worst = 0.0;
        for (place, (want, found)) in self.beams.iter().zip(found).enumerate() {
            let off = (double(*found) - want).norm();
            let scale = want.norm().max(self.scale[place % self.scale.len()]);
            let relative = if off == 0.0 { 0.0 } else { off / scale };
            // Not `max`, which would overlook a NaN.
            worst = if relative <= worst || worst.is_nan() { worst } else { relative };
        }
        if found.len() == self.beams.len() { worst } else { f64::NAN }
    }
}

impl From<Sum> for Expected {
    fn from(sum: Sum) -> Self {
        let mean = sum.power.iter().sum::<f64>() / sum.power.len() as f64;
        let scale = sum.power.iter().map(|power| power.max(mean).sqrt()).collect();
        Self { beams: sum.beams, scale }
    }
}

impl Sum {
    fn none(shape: &Shape) -> Self {
        Self { beams: vec![Complex64::ZERO; shape.results()], power: vec![0.0; shape.length] }
    }

    /// Of the channels from `first` on.
    fn of(
        shape: &Shape,
        first: usize,
        samples: &[Complex32],
        weights: &[Complex32],
        fft: &Arc<dyn Fft<f64>>,
    ) -> Self {
        let mut sum = Self::none(shape);
        let mut scratch = vec![Complex64::ZERO; fft.get_inplace_scratch_len()];
        for (number, channel) in samples.chunks(shape.length).enumerate() {
            let mut spectrum: Vec<Complex64> = channel.iter().copied().map(double).collect();
            fft.process_with_scratch(&mut spectrum, &mut scratch);
            sum.power.iter_mut().zip(&spectrum).for_each(|(sum, x)| *sum += x.norm_sqr());
            for (beam, out) in sum.beams.chunks_mut(shape.length).enumerate() {
                let w = double(weights[beam * shape.channels + first + number]);
                out.iter_mut().zip(&spectrum).for_each(|(sum, x)| *sum += w * x);
            }
        }
        sum
    }

    fn plus(mut self, other: Self) -> Self {
        self.beams.iter_mut().zip(other.beams).for_each(|(sum, more)| *sum += more);
        self.power.iter_mut().zip(other.power).for_each(|(sum, more)| *sum += more);
        self
    }
}

fn double(x: Complex32) -> Complex64 {
    Complex64::new(x.re.into(), x.im.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { length: 64, channels: 65, beams: 3 };

    /// Numbers without a pattern.
    fn frame(shape: &Shape) -> Vec<Complex32> {
        let all = Shape { beams: shape.length, ..*shape };
        weights(&all)
    }

    fn single(numbers: &[Complex64]) -> Vec<Complex32> {
        numbers.iter().map(|x| Complex32::new(x.re as f32, x.im as f32)).collect()
    }

    /// By the definition, one sum for each number.
    #[test]
    fn the_reference_is_what_it_says() {
        let shape = Shape { length: 4, channels: 3, beams: 2 };
        let (frame, weights) = (frame(&shape), weights(&shape));
        let beam = |place: usize| {
            let (beam, bin) = (place / 4, place % 4);
            let term = |at: usize| {
                let turn = Complex64::cis(-TAU * (at % 4 * bin) as f64 / 4.0);
                double(weights[beam * 3 + at / 4]) * double(frame[at]) * turn
            };
            (0..12).map(term).sum::<Complex64>()
        };
        let by_hand: Vec<Complex64> = (0..8).map(beam).collect();
        assert!(Expected::of(&shape, &frame).max_rel_error(&single(&by_hand)) < 1e-6);
        assert!(Expected::of(&shape, &frame).max_rel_error(&single(&by_hand[..7])).is_nan());
    }

    /// At the size of the demonstration, a page of 4 KiB is a four-thousandth of the frame.
    #[test]
    fn one_lost_page_is_seen_and_so_is_one_lost_sample_and_a_nan() {
        let shape = Shape { length: 256, channels: 2048, beams: 2 };
        let mut frame = frame(&shape);
        let right = single(&Expected::of(&shape, &frame).beams);
        assert!(Expected::of(&shape, &frame).max_rel_error(&right) < 1e-6);
        frame[77] = Complex32::ZERO;
        assert!(Expected::of(&shape, &frame).max_rel_error(&right) > 1e-3);
        frame[512..1024].fill(Complex32::ZERO);
        assert!(Expected::of(&shape, &frame).max_rel_error(&right) > 1e-2);
        let mut wrong = right;
        wrong[3].im = f32::NAN;
        assert!(Expected::of(&shape, &frame).max_rel_error(&wrong).is_nan());
    }

    #[test]
    fn silence_is_no_error() {
        let expected = Expected::of(&SHAPE, &vec![Complex32::ZERO; SHAPE.samples()]);
        let mut found = vec![Complex32::ZERO; SHAPE.results()];
        assert_eq!(expected.max_rel_error(&found), 0.0);
        found[1].re = 1.0;
        assert!(expected.max_rel_error(&found) > 1.0);
    }
}
