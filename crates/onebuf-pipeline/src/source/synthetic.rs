//! A synthetic signal: plane waves on a linear sensor array, with noise.

use super::FrameSource;
use crate::Filled;
use onebuf_core::{Complex32, Complex64};
use onebuf_hal::{Error, Result};
use std::f64::consts::{PI, TAU};

/// One plane wave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wave {
    /// The amplitude.
    pub level: f64,
    /// Cycles per sample, from -0.5 to 0.5.
    pub frequency: f64,
    /// The direction of arrival in degrees from broadside, from -90 to 90.
    pub direction: f64,
}

/// Plane waves and noise as received by a linear array of sensors half a wavelength apart. The same parameters give the same
/// samples. The waves are continuous from frame to frame.
///
/// A frame holds the samples of channel 0, then those of channel 1, and so on. Needs the cargo feature `testing`.
///
/// ```
/// use onebuf::{Complex32, pipeline::source::{Synthetic, Wave}};
///
/// let ahead = Wave { level: 1.0, frequency: 0.25, direction: 0.0 };
/// let signal = Synthetic::new(2, 4).waves([ahead]).noise(0.0);
/// let mut frame = [Complex32::ZERO; 8];
/// signal.frame(7, &mut frame)?;
/// assert!((frame[1] - Complex32::I).norm() < 1e-6);
/// assert_eq!(frame[..4], frame[4..], "from broadside all sensors receive the same");
/// # Ok::<(), onebuf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    channels: usize,
    samples: usize,
    waves: Vec<Wave>,
    late: Vec<f64>,
    noise: f64,
    seed: u64,
    frames: Option<u64>,
    next: u64,
}

impl Synthetic {
    /// An endless signal of this many channels and samples per frame: three waves from different directions in weak noise.
    pub fn new(channels: usize, samples: usize) -> Self {
        let wave = |level, frequency, direction| Wave { level, frequency, direction };
        let waves = [wave(1.0, 0.1875, 0.0), wave(0.5, 0.05, 30.0), wave(0.25, -0.31, -45.0)];
        let (waves, late) = (waves.into(), Vec::new());
        Self { channels, samples, waves, late, noise: 0.1, seed: 1, frames: None, next: 0 }
    }

    /// Replaces the waves.
    pub fn waves(self, waves: impl Into<Vec<Wave>>) -> Self {
        Self { waves: waves.into(), ..self }
    }

    /// Delays each channel by this many samples, like a longer cable. The default is no delay.
    pub fn late(self, samples: impl Into<Vec<f64>>) -> Self {
        Self { late: samples.into(), ..self }
    }

    /// Sets the noise: uniform between `-level` and `level` in the real and the imaginary part.
    pub fn noise(self, level: f64) -> Self {
        Self { noise: level, ..self }
    }

    /// Sets the seed of the noise.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Ends the signal after this many frames.
    pub fn frames(self, frames: u64) -> Self {
        Self { frames: Some(frames), ..self }
    }

    /// Computes the frame with this number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `frame` is not exactly one frame long.
    pub fn frame(&self, number: u64, frame: &mut [Complex32]) -> Result<()> {
        let (channels, samples) = (self.channels, self.samples);
        if samples == 0 || channels.checked_mul(samples) != Some(frame.len()) {
            let given = frame.len();
            let what = format!(
                "a frame of {given} samples does not hold {channels} channels of {samples}"
            );
            return Err(Error::invalid(what));
        }
        for (channel, line) in frame.chunks_exact_mut(samples).enumerate() {
            self.channel(number, channel, line);
        }
        Ok(())
    }

    fn channel(&self, number: u64, channel: usize, line: &mut [Complex32]) {
        let start = |wave: &Wave| self.turning(wave, number, channel);
        let mut waves: Vec<(Complex64, Complex64)> = self.waves.iter().map(start).collect();
        let mut noise = Noise::new([self.seed, number, channel as u64], self.noise);
        for sample in line {
            let mut sum = noise.next();
            for (now, turn) in &mut waves {
                sum += *now;
                *now *= *turn;
            }
            *sample = Complex32::new(sum.re as f32, sum.im as f32);
        }
    }

    /// A wave's value at a frame's first sample on a channel, and the factor from one sample to the next.
    fn turning(&self, wave: &Wave, number: u64, channel: usize) -> (Complex64, Complex64) {
        // Whole cycles are removed first: the sample count grows without limit, and the fraction would lose its precision.
        let samples = number.wrapping_mul(self.samples as u64);
        let turns = (wave.frequency * (samples % (1 << 32)) as f64).fract();
        let turns = turns + (wave.frequency * 4294967296.0).fract() * (samples >> 32) as f64;
        let late = self.late.get(channel).map_or(0.0, |samples| wave.frequency * samples);
        let delay = channel as f64 * PI * wave.direction.to_radians().sin();
        (
            Complex64::from_polar(wave.level, TAU * (turns - late) + delay),
            Complex64::cis(TAU * wave.frequency),
        )
    }
}

impl FrameSource<Complex32> for Synthetic {
    fn fill(&mut self, frame: &mut [Complex32]) -> Result<Filled> {
        if self.frames.is_some_and(|frames| self.next >= frames) {
            return Ok(Filled::End);
        }
        self.frame(self.next, frame)?;
        self.next += 1;
        Ok(Filled::Frame)
    }
}

/// A deterministic pseudo-random generator.
struct Noise {
    state: u64,
    level: f64,
}

impl Noise {
    fn new(seeds: [u64; 3], level: f64) -> Self {
        let state = seeds.into_iter().fold(0, |state, seed| mix(state ^ seed));
        Self { state: state | 1, level }
    }

    fn next(&mut self) -> Complex64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let part = |bits: u64| self.level * (bits as i32 as f64 / 2_147_483_648.0);
        Complex64::new(part(self.state >> 32), part(self.state & 0xffff_ffff))
    }
}

/// Spreads a number over all bits (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(signal: &Synthetic, number: u64) -> Vec<Complex32> {
        let mut frame = vec![Complex32::ZERO; signal.channels * signal.samples];
        signal.frame(number, &mut frame).unwrap();
        frame
    }

    #[test]
    fn every_sample_is_the_sum_of_its_waves() {
        let waves = [
            Wave { level: 1.0, frequency: 0.21, direction: 20.0 },
            Wave { level: 0.5, frequency: -0.4, direction: -70.0 },
        ];
        let signal = Synthetic::new(3, 16).waves(waves).noise(0.0);
        for number in [0, 1, 1000, 1 << 33] {
            for (at, found) in frame(&signal, number).into_iter().enumerate() {
                let (channel, time) =
                    ((at / 16) as f64, u128::from(number) * 16 + (at % 16) as u128);
                let wave = |wave: &Wave| {
                    // In hundredths of a cycle, exactly.
                    let turns = time as i128 * (wave.frequency * 100.0).round() as i128;
                    let turns = turns.rem_euclid(100) as f64 / 100.0;
                    let delay = channel * PI * wave.direction.to_radians().sin();
                    Complex64::from_polar(wave.level, TAU * turns + delay)
                };
                let wanted: Complex64 = waves.iter().map(wave).sum();
                let wanted = Complex32::new(wanted.re as f32, wanted.im as f32);
                assert!((found - wanted).norm() < 1e-4, "{number} {at}: {found} {wanted}");
            }
        }
    }

    #[test]
    fn the_same_numbers_give_the_same_samples_and_others_do_not() {
        let signal = Synthetic::new(2, 64);
        assert_eq!(frame(&signal, 3), frame(&signal.clone(), 3));
        assert_ne!(frame(&signal, 3), frame(&signal, 4));
        assert_ne!(frame(&signal, 3), frame(&signal.clone().seed(2), 3));
        let noise = frame(&signal.waves([]).noise(0.5), 0);
        assert!(noise.iter().all(|x| x.re.abs() <= 0.5 && x.im.abs() <= 0.5));
        let mean = noise.iter().map(|x| x.norm_sqr()).sum::<f32>() / 128.0;
        assert!((0.08..0.25).contains(&mean), "two parts of a twelfth: {mean}");
    }

    #[test]
    fn a_channel_that_is_late_hears_what_another_heard_before() {
        let wave = Wave { level: 1.0, frequency: 0.05, direction: 0.0 };
        let signal = Synthetic::new(2, 16).waves([wave]).noise(0.0).late([0.0, 3.0]);
        let frame = frame(&signal, 1);
        for time in 3..16 {
            assert!((frame[16 + time] - frame[time - 3]).norm() < 1e-5, "{time}");
            assert!((frame[16 + time] - frame[time]).norm() > 0.1, "{time}");
        }
    }

    #[test]
    fn it_ends_when_asked_and_wants_whole_frames() {
        let mut signal = Synthetic::new(2, 4).frames(2);
        let mut into = [Complex32::ZERO; 8];
        let filled = [0; 4].map(|_| signal.fill(&mut into).unwrap());
        assert_eq!(filled, [Filled::Frame, Filled::Frame, Filled::End, Filled::End]);
        assert!(signal.frame(0, &mut into[..7]).unwrap_err().to_string().contains("2 channels"));
    }
}
