//! The last stage: detection of peaks in the beams. It runs on the CPU, because the beams are few and are read there
//! anyway.
//!
//! A bin is detected if its power is a peak and exceeds the noise around it by a factor. The noise is the mean of bins
//! on both sides at some distance, so that the peak's own leakage does not count.

use onebuf::{Complex32, num_complex::Complex};

/// Bins on either side that belong to the peak: Hamming's main lobe.
const GUARD: usize = 3;

/// Bins on either side, beyond those, that are used for the noise.
const TRAINING: usize = 16;

/// Threshold of power over noise. Noise alone exceeds it once in five million bins.
pub const THRESHOLD: f64 = 20.0;

/// A peak in a beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// The beam.
    pub beam: usize,
    /// The bin of the transform.
    pub bin: usize,
    /// Its power.
    pub power: f64,
    /// The mean power of the bins around.
    pub floor: f64,
}

/// The peaks, ordered by beam and bin.
///
/// # Panics
/// If the beams do not have this length.
pub fn detect(beams: &[Complex32], length: usize) -> Vec<Detection> {
    assert_eq!(beams.len() % length, 0, "whole beams");
    let numbered = beams.chunks(length).enumerate();
    numbered.flat_map(|(beam, bins)| in_beam(beam, &Powers::of(bins))).collect()
}

fn in_beam(beam: usize, powers: &Powers) -> Vec<Detection> {
    let found = |bin| {
        let (power, floor) = (powers.at[bin], powers.floor(bin)?);
        let peak = power > powers.above(bin) && power > powers.below(bin);
        (peak && power > THRESHOLD * floor).then_some(Detection { beam, bin, power, floor })
    };
    (0..powers.at.len()).filter_map(found).collect()
}

/// The powers of a beam's bins, and prefix sums of them. The spectrum is circular.
pub(super) struct Powers {
    pub at: Vec<f64>,
    /// The sum of all bins before this one, for three periods.
    sums: Vec<f64>,
}

impl Powers {
    pub fn of<T: Copy + Into<f64>>(bins: &[Complex<T>]) -> Self {
        let power = |x: &Complex<T>| {
            let (re, im): (f64, f64) = (x.re.into(), x.im.into());
            re * re + im * im
        };
        let at: Vec<f64> = bins.iter().map(power).collect();
        let mut sums = Vec::with_capacity(3 * at.len() + 1);
        let mut sum = 0.0;
        sums.push(sum);
        for power in at.iter().cycle().take(3 * at.len()) {
            sum += power;
            sums.push(sum);
        }
        Self { at, sums }
    }

    /// The noise around a bin; none if there are too few bins.
    pub fn floor(&self, bin: usize) -> Option<f64> {
        let length = self.at.len();
        let cells = TRAINING.min((length / 2).checked_sub(GUARD + 1).filter(|&cells| cells > 0)?);
        let (here, range) = (length + bin, |from: usize| self.sums[from + cells] - self.sums[from]);
        let both = range(here - GUARD - cells) + range(here + GUARD + 1);
        Some((both / (2 * cells) as f64).max(0.0))
    }

    pub fn above(&self, bin: usize) -> f64 {
        self.at[(bin + 1) % self.at.len()]
    }

    pub fn below(&self, bin: usize) -> f64 {
        self.at[(bin + self.at.len() - 1) % self.at.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::noise;

    /// Two beams of noise, with a tone each.
    fn beams() -> Vec<Complex32> {
        let mut beams = noise(256);
        beams.iter_mut().enumerate().for_each(|(i, x)| *x *= 0.5 + (i % 5) as f32 / 4.0);
        beams[100] = Complex32::new(9.0, 0.0);
        beams[128] = Complex32::new(0.0, -20.0);
        beams
    }

    #[test]
    fn tones_stand_out_and_noise_does_not() {
        let found = detect(&beams(), 128);
        let places: Vec<_> = found.iter().map(|at| (at.beam, at.bin, at.power)).collect();
        assert_eq!(places, [(0, 100, 81.0), (1, 0, 400.0)]);
        assert!(found.iter().all(|at| at.floor > 0.5 && at.floor < 2.0), "{found:?}");
        assert_eq!(detect(&noise(256), 128), []);
    }

    #[test]
    fn a_slope_has_one_peak() {
        let mut beams = beams();
        beams[101] = Complex32::new(8.9, 0.0);
        assert_eq!(detect(&beams, 128).iter().filter(|at| at.beam == 0).count(), 1);
    }

    #[test]
    fn the_noise_is_that_of_both_sides() {
        let powers = Powers::of(&beams()[..128]);
        let by_hand = |bin: usize| {
            let cells = (GUARD + 1..=GUARD + TRAINING).flat_map(|off| [bin + off, bin + 128 - off]);
            cells.map(|cell| powers.at[cell % 128]).sum::<f64>() / (2 * TRAINING) as f64
        };
        for bin in 0..128 {
            assert!((powers.floor(bin).unwrap() / by_hand(bin) - 1.0).abs() < 1e-12, "{bin}");
        }
    }

    #[test]
    fn few_bins_have_no_noise_to_compare_with() {
        for length in [2, 4, 8] {
            assert_eq!(detect(&beams()[..8], length), []);
        }
        let silence = vec![Complex32::ZERO; 64];
        assert_eq!(detect(&silence, 32), []);
    }
}
