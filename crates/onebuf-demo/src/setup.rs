//! The constants of all frames: dimensions, each channel's delay, the window, and the weights.

use crate::{Interpolator, Place, Shape};
use onebuf::{
    Complex32, Complex64,
    pipeline::source::{Synthetic, Wave},
};
use std::f64::consts::{PI, TAU};

/// Every cable is shorter than this many samples.
const LONGEST_CABLE: f64 = 1.5;

/// After the delay stage every channel is as late as one with a cable of this length.
const ALIGNED: f64 = 2.0;

/// The constants of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The dimensions.
    pub shape: Shape,
    /// The interpolator for delays.
    pub interpolator: Interpolator,
    /// Per channel: the position of its delayed samples.
    pub places: Vec<Place>,
    /// The window, applied after the delay.
    pub window: Vec<f32>,
    /// Beams are formed from this many first channels.
    pub used: usize,
    /// One beam after another, for as many channels.
    pub weights: Vec<Complex32>,
}

impl Setup {
    /// Channels whose cables differ in length, which the delays compensate; beams evenly spread over all directions.
    pub fn new(shape: Shape, interpolator: Interpolator) -> Self {
        let place = |channel| interpolator.place(ALIGNED - cable(channel));
        Self {
            shape,
            interpolator,
            places: (0..shape.channels).map(place).collect(),
            window: window(shape.length),
            used: shape.channels,
            weights: steering(shape.channels, shape.beams),
        }
    }

    /// Beams of the first channels only.
    ///
    /// # Panics
    /// If there are fewer channels, or none.
    pub fn of_channels(self, used: usize) -> Self {
        assert!((1..=self.shape.channels).contains(&used), "{used} channels");
        Self { used, weights: steering(used, self.shape.beams), ..self }
    }

    /// The dimensions of the matrix product.
    pub fn product(&self) -> Shape {
        Shape { channels: self.used, ..self.shape }
    }

    /// A channel as the transform gets it, in double precision.
    pub(super) fn delayed(&self, channel: usize, samples: &[Complex32]) -> Vec<Complex64> {
        let samples: Vec<Complex64> = samples.iter().copied().map(double).collect();
        let mut delayed = self.interpolator.delayed(self.places[channel], &samples);
        delayed.iter_mut().zip(&self.window).for_each(|(x, &w)| *x *= f64::from(w));
        delayed
    }
}

/// The delay of a channel's cable, in samples: each differs from all of its neighbours.
pub fn cable(channel: usize) -> f64 {
    LONGEST_CABLE * (channel as f64 * 0.618_033_988_749_895).fract()
}

/// The sine of a beam's angle, evenly spaced from one side to the other.
pub fn direction(beam: usize, beams: usize) -> f64 {
    (2 * beam + 1) as f64 / beams as f64 - 1.0
}

/// The received signal: three waves, from the directions of the first, the middle and the last beam, through the
/// cables, with noise.
pub fn signal(shape: &Shape) -> Synthetic {
    let Shape { length, channels, beams } = *shape;
    let wave = |level, frequency, beam| {
        let direction = direction(beam, beams).asin().to_degrees();
        Wave { level, frequency, direction }
    };
    let last = beams.saturating_sub(1);
    let waves = [wave(1.0, 0.1875, last / 2), wave(0.5, 0.05, 0), wave(0.25, -0.31, last)];
    let cables: Vec<f64> = (0..channels).map(cable).collect();
    Synthetic::new(channels, length).waves(waves).late(cables)
}

/// Phase of a wave from this direction in a channel; neighbouring sensors are half a wavelength apart.
pub fn phase(channel: usize, direction: f64) -> Complex64 {
    Complex64::cis(PI * channel as f64 * direction)
}

/// Weights of magnitude one, so that all channels count equally.
fn steering(channels: usize, beams: usize) -> Vec<Complex32> {
    let beam = |beam: usize| {
        (0..channels).map(move |channel| single(phase(channel, direction(beam, beams)).conj()))
    };
    (0..beams).flat_map(beam).collect()
}

/// Hamming's window. It is nowhere zero, so that any lost sample shows.
fn window(length: usize) -> Vec<f32> {
    let at = |n: usize| 0.54 - 0.46 * (TAU * n as f64 / length as f64).cos();
    (0..length).map(|n| at(n) as f32).collect()
}

/// The larger error. Not `max`, which would ignore a NaN.
pub(super) fn worse(one: f64, other: f64) -> f64 {
    if other <= one || one.is_nan() { one } else { other }
}

pub(super) fn double(x: Complex32) -> Complex64 {
    Complex64::new(x.re.into(), x.im.into())
}

pub(super) fn single(x: Complex64) -> Complex32 {
    Complex32::new(x.re as f32, x.im as f32)
}

/// Numbers of magnitude one and any phase, so that errors do not cancel by chance.
#[cfg(test)]
pub(super) fn noise(count: usize) -> Vec<Complex32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let number = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        single(Complex64::cis(TAU * (state >> 11) as f64 / (1u64 << 53) as f64))
    };
    (0..count).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        let shape = Shape { length: 64, channels: 16, beams: 8 };
        Setup::new(shape, Interpolator::new(3).unwrap())
    }

    #[test]
    fn a_beam_sees_what_comes_from_where_it_looks() {
        let setup = setup();
        let sum = |beam: usize, from: f64| {
            let weights = &setup.weights[beam * 16..][..16];
            let term = |(c, w): (usize, &Complex32)| double(*w) * phase(c, from);
            weights.iter().enumerate().map(term).sum::<Complex64>().norm()
        };
        for beam in 0..8 {
            assert!((sum(beam, direction(beam, 8)) - 16.0).abs() < 1e-4);
            assert!(sum(beam, direction((beam + 1) % 8, 8)) < 1e-4, "its neighbour does not");
        }
    }

    #[test]
    fn delays_make_up_for_the_cables() {
        let setup = setup();
        let late = |channel: usize| {
            let of = |n: usize| single(Complex64::cis(0.2 * (n as f64 - cable(channel))));
            let samples: Vec<Complex32> = (0..64).map(of).collect();
            setup.delayed(channel, &samples)[32]
        };
        for channel in 1..16 {
            assert!((late(channel) - late(0)).norm() < 1e-3, "{channel}");
            assert!((cable(channel) - cable(channel - 1)).abs() > 0.1);
        }
        assert!(setup.window.iter().all(|&w| w > 0.07 && w <= 1.0));
    }
}
