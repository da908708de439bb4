//! The expected results, in double precision on the CPU.

use crate::{
    Detection, Setup, Shape, THRESHOLD,
    detect::Powers,
    setup::{double, worse},
};
use onebuf::{Complex32, Complex64};
use rustfft::{Fft, FftDirection, algorithm::Radix4};
use std::{sync::Arc, thread};

/// The beams of one frame, and their expected magnitudes.
pub struct Expected {
    beams: Vec<Complex64>,
    /// Per bin: the root of its power over all channels, or of the mean bin's if that is larger.
    scale: Vec<f64>,
    /// Per beam: the root of its mean power, or [`PEAK`] of its largest number if that is larger. Rounding errors of a
    /// transform are the same in all channels that receive the same signal, and add up as the signal does.
    level: Vec<f64>,
}

/// The longer a channel, the louder a tone in its bin, and some of its rounding error goes to a few other bins: for
/// channels of 2^20 samples that already exceeds the average number.
const PEAK: f64 = 1.0 / 512.0;

/// The contribution of some channels: the beams, and the power of each bin.
struct Sum {
    beams: Vec<Complex64>,
    power: Vec<f64>,
}

/// The transform of this length, a power of two, in double precision. One algorithm, named, because a planner has all of them compiled.
///
/// # Panics
/// If the length is not a power of two.
pub fn transform_of(length: usize) -> Arc<dyn Fft<f64>> {
    Arc::new(Radix4::new(length, FftDirection::Forward))
}

impl Expected {
    /// Computes the expected beams on all cores.
    ///
    /// # Panics
    /// If the frame does not have this shape.
    pub fn of(setup: &Setup, frame: &[Complex32]) -> Self {
        let shape = setup.shape;
        assert_eq!(frame.len(), shape.samples(), "a frame of the shape");
        let fft = transform_of(shape.length);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = setup.used.div_ceil(cores);
        let parts = frame[..setup.used * shape.length].chunks(share * shape.length).enumerate();
        let sums: Vec<Sum> = thread::scope(|scope| {
            let threads: Vec<_> = parts
                .map(|(part, samples)| {
                    let fft = &fft;
                    scope.spawn(move || Sum::of(setup, part * share, samples, fft))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic there")).collect()
        });
        Self::from(sums.into_iter().fold(Sum::none(&shape), Sum::plus))
    }

    /// The spectrum of a frame's first channels.
    pub(super) fn spectrum(setup: &Setup, channels: &[Complex32]) -> Vec<Complex64> {
        let fft = transform_of(setup.shape.length);
        let channels = channels.chunks(setup.shape.length).enumerate();
        let mut spectrum: Vec<_> =
            channels.flat_map(|(number, samples)| setup.delayed(number, samples)).collect();
        // Processes one channel after another, because the buffer holds several lengths.
        fft.process(&mut spectrum);
        spectrum
    }

    /// The largest deviation of any number, relative to the expected value or to the bin's scale, whichever is larger.
    /// NaN if a result is NaN.
    pub fn max_rel_error(&self, found: &[Complex32]) -> f64 {
        let mut worst = 0.0;
        for (place, (want, found)) in self.beams.iter().zip(found).enumerate() {
            let off = (double(*found) - want).norm();
            let scale = want.norm().max(self.scale_at(place));
            let relative = if off == 0.0 { 0.0 } else { off / scale };
            worst = worse(worst, relative);
        }
        if found.len() == self.beams.len() { worst } else { f64::NAN }
    }

    /// The scale of a number's error if the number itself is small.
    fn scale_at(&self, place: usize) -> f64 {
        let length = self.scale.len();
        self.scale[place % length].max(self.level[place / length])
    }
}

/// Tolerance of a power, relative to itself, if its bin is loud only in this beam.
const POWER: f64 = 0.01;

/// Tolerance of numbers, relative to their bin's scale, and of values derived from them.
const NUMBER: f64 = 1e-4;

impl Expected {
    /// Returns what is wrong with detections: an unexpected one, a missing one, or a wrong power. If rounding may decide, both
    /// results are accepted.
    pub fn wrong_detection(&self, found: &[Detection]) -> Option<String> {
        let length = self.scale.len();
        for (beam, bins) in self.beams.chunks(length).enumerate() {
            let powers = Powers::of(bins);
            for bin in 0..length {
                let found = found.iter().find(|at| (at.beam, at.bin) == (beam, bin));
                let scale = self.scale_at(beam * length + bin);
                let slack = POWER + 2.0 * NUMBER * scale / powers.at[bin].sqrt();
                if let Some(why) = wrong(&powers, bin, slack, found) {
                    return Some(format!("beam {beam}, bin {bin}: {why}"));
                }
            }
        }
        None
    }
}

/// Whether a bin must, may or must not be detected.
fn wrong(powers: &Powers, bin: usize, slack: f64, found: Option<&Detection>) -> Option<String> {
    let power = powers.at[bin];
    let floor = powers.floor(bin).unwrap_or(f64::INFINITY);
    let rivals = powers.above(bin).max(powers.below(bin)).max(THRESHOLD * floor);
    match found {
        None if power > rivals * (1.0 + slack) => Some(format!("a power of {power:.3e} is missed")),
        Some(_) if power < rivals * (1.0 - slack) => {
            Some(format!("a power of {power:.3e} does not stand out"))
        }
        Some(at) if (at.power - power).abs() > slack * power => {
            Some(format!("a power of {:.3e}, not {power:.3e}", at.power))
        }
        _ => None,
    }
}

impl From<Sum> for Expected {
    fn from(sum: Sum) -> Self {
        let mean = sum.power.iter().sum::<f64>() / sum.power.len() as f64;
        let scale: Vec<f64> = sum.power.iter().map(|power| power.max(mean).sqrt()).collect();
        let power = |beam: &[Complex64]| beam.iter().map(|x| x.norm_sqr()).sum::<f64>();
        let rms = |beam: &[Complex64]| (power(beam) / beam.len() as f64).sqrt();
        let largest = |beam: &[Complex64]| beam.iter().map(|x| x.norm()).fold(0.0, f64::max);
        let level = |beam: &[Complex64]| rms(beam).max(PEAK * largest(beam));
        let level = sum.beams.chunks(scale.len()).map(level).collect();
        Self { beams: sum.beams, scale, level }
    }
}

impl Sum {
    fn none(shape: &Shape) -> Self {
        Self { beams: vec![Complex64::ZERO; shape.results()], power: vec![0.0; shape.length] }
    }

    /// The contribution of the channels from `first` on.
    fn of(setup: &Setup, first: usize, samples: &[Complex32], fft: &Arc<dyn Fft<f64>>) -> Self {
        let (shape, mut sum) = (setup.shape, Self::none(&setup.shape));
        let mut scratch = vec![Complex64::ZERO; fft.get_inplace_scratch_len()];
        for (number, channel) in samples.chunks(shape.length).enumerate() {
            let mut spectrum = setup.delayed(first + number, channel);
            fft.process_with_scratch(&mut spectrum, &mut scratch);
            sum.power.iter_mut().zip(&spectrum).for_each(|(sum, x)| *sum += x.norm_sqr());
            for (beam, out) in sum.beams.chunks_mut(shape.length).enumerate() {
                let w = double(setup.weights[beam * setup.used + first + number]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Interpolator, cable, detect, direction, phase,
        setup::{noise, single},
    };
    use std::f64::consts::TAU;

    fn setup(length: usize, channels: usize, beams: usize) -> Setup {
        Setup::new(Shape { length, channels, beams }, Interpolator::new(3).unwrap())
    }

    fn all_single(numbers: &[Complex64]) -> Vec<Complex32> {
        numbers.iter().copied().map(single).collect()
    }

    /// Compares with the definition: one sum for each number.
    #[test]
    fn the_reference_is_what_it_says() {
        let (setup, frame) = (setup(4, 3, 2), noise(12));
        let delayed: Vec<_> =
            frame.chunks(4).enumerate().flat_map(|(c, x)| setup.delayed(c, x)).collect();
        let beam = |place: usize| {
            let (beam, bin) = (place / 4, place % 4);
            let term = |at: usize| {
                let turn = Complex64::cis(-TAU * (at % 4 * bin) as f64 / 4.0);
                double(setup.weights[beam * 3 + at / 4]) * delayed[at] * turn
            };
            (0..12).map(term).sum::<Complex64>()
        };
        let by_hand: Vec<Complex64> = (0..8).map(beam).collect();
        assert!(Expected::of(&setup, &frame).max_rel_error(&all_single(&by_hand)) < 1e-6);
        assert!(Expected::of(&setup, &frame).max_rel_error(&all_single(&by_hand[..7])).is_nan());
    }

    /// One lost page of 4 KiB is a four-thousandth of the frame at the demonstration's size.
    #[test]
    fn one_lost_page_is_seen_and_so_is_one_lost_sample_and_a_nan() {
        let (setup, mut frame) = (setup(256, 2048, 2), noise(256 * 2048));
        let right = all_single(&Expected::of(&setup, &frame).beams);
        assert!(Expected::of(&setup, &frame).max_rel_error(&right) < 1e-6);
        frame[77] = Complex32::ZERO;
        assert!(Expected::of(&setup, &frame).max_rel_error(&right) > 1e-4);
        frame[512..1024].fill(Complex32::ZERO);
        assert!(Expected::of(&setup, &frame).max_rel_error(&right) > 1e-2);
        let mut wrong = right;
        wrong[3].im = f32::NAN;
        assert!(Expected::of(&setup, &frame).max_rel_error(&wrong).is_nan());
    }

    /// A tone from a beam's direction is found there; missed, invented and wrong detections are reported.
    #[test]
    fn detections_are_checked() {
        let setup = setup(128, 16, 4);
        let tone = |at: usize| {
            let (channel, n) = (at / 128, (at % 128) as f64 - cable(at / 128));
            single(phase(channel, direction(2, 4)) * Complex64::cis(TAU * n * 20.0 / 128.0))
        };
        let background = noise(setup.shape.samples());
        let frame: Vec<_> = background.iter().enumerate().map(|(i, x)| tone(i) + x * 0.1).collect();
        let expected = Expected::of(&setup, &frame);
        let found = detect(&all_single(&expected.beams), 128);
        let strongest = found.iter().max_by(|a, b| a.power.total_cmp(&b.power)).unwrap();
        assert_eq!((strongest.beam, strongest.bin), (2, 20), "{found:?}");
        assert_eq!(expected.wrong_detection(&found), None);
        assert!(expected.wrong_detection(&[]).is_some_and(|why| why.contains("missed")));
        let made_up = Detection { bin: 40, ..*strongest };
        let more = [&found[..], &[made_up]].concat();
        assert!(expected.wrong_detection(&more).is_some_and(|why| why.contains("stand out")));
        let louder = Detection { power: 1.5 * strongest.power, ..*strongest };
        let others = found.iter().copied().filter(|at| at != strongest);
        let wrong: Vec<_> = others.chain([louder]).collect();
        assert!(expected.wrong_detection(&wrong).is_some_and(|why| why.contains("not")));
    }

    #[test]
    fn silence_is_no_error() {
        let setup = setup(64, 65, 3);
        let expected = Expected::of(&setup, &vec![Complex32::ZERO; 64 * 65]);
        let mut found = vec![Complex32::ZERO; 64 * 3];
        assert_eq!(expected.max_rel_error(&found), 0.0);
        found[1].re = 1.0;
        assert!(expected.max_rel_error(&found) > 1.0);
    }
}
