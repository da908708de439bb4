//! The samples that go in, and what must come out.

use super::kernels::{PHASES, SCALE, oscillator};
use crate::out::{Failure, Result};
use onebuf::{Complex32, Complex64};
use std::{f64::consts::TAU, fs::File, os::unix::fs::FileExt, path::PathBuf, str::FromStr};

/// Where frames come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    Synthetic,
    File(PathBuf),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "synthetic" => Ok(Source::Synthetic),
            Some(("file", path)) if !path.is_empty() => Ok(Source::File(path.into())),
            _ => Err("write `synthetic` or `file:PATH`".into()),
        }
    }
}

/// Frames of equal length. Neighbours differ, so that a stale one cannot pass for the next.
pub enum Frames {
    Synthetic([Vec<Complex32>; 2]),
    File { file: File, path: PathBuf, whole: u64, current: Vec<Complex32> },
}

const SAMPLE_BYTES: usize = size_of::<Complex32>();

impl Frames {
    pub fn open(source: &Source, samples: usize) -> Result<Self> {
        match source {
            Source::Synthetic => Ok(Frames::Synthetic([1, 2].map(|seed| synthetic(seed, samples)))),
            Source::File(path) => Self::open_file(path.clone(), samples),
        }
    }

    fn open_file(path: PathBuf, samples: usize) -> Result<Self> {
        let about = |error| Failure::new(format!("{}: {error}", path.display()));
        let file = File::open(&path).map_err(about)?;
        let bytes = file.metadata().map_err(about)?.len();
        let whole = bytes / (samples * SAMPLE_BYTES) as u64;
        if whole == 0 {
            return Err(Failure::new(format!(
                "{}: {} samples of {SAMPLE_BYTES} bytes, fewer than one frame of {samples} (see --samples)",
                path.display(),
                bytes / SAMPLE_BYTES as u64,
            )));
        }
        Ok(Frames::File { file, path, whole, current: vec![Complex32::ZERO; samples] })
    }

    /// The frame with this number; a file that has too few starts over.
    pub fn frame(&mut self, number: usize) -> Result<&[Complex32]> {
        let (file, path, whole, current) = match self {
            Frames::Synthetic(frames) => return Ok(&frames[number % frames.len()]),
            Frames::File { file, path, whole, current } => (file, path, whole, current),
        };
        let about =
            |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
        let mut bytes = vec![0; current.len() * SAMPLE_BYTES];
        let offset = number as u64 % *whole * bytes.len() as u64;
        file.read_exact_at(&mut bytes, offset).map_err(|error| about(&error))?;
        for (sample, raw) in current.iter_mut().zip(bytes.chunks_exact(SAMPLE_BYTES)) {
            let part =
                |at: usize| f32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
            *sample = Complex32::new(part(0), part(4));
        }
        match current.iter().all(|sample| sample.is_finite()) {
            true => Ok(current),
            false => {
                Err(about(&"samples that are not finite: raw little-endian f32 I and Q are read"))
            }
        }
    }
}

/// Three tones in noise, the same for the same seed.
fn synthetic(seed: u64, samples: usize) -> Vec<Complex32> {
    let tones = [(3.0 / 16.0, 1.0), (0.05 * seed as f64, 0.5), (-0.31, 0.25)];
    let mut tones = tones.map(|(f, level)| (Complex64::from(level), Complex64::cis(TAU * f)));
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        0.2 * ((state >> 40) as f64 / f64::from(1 << 24) - 0.5)
    };
    let sample = |_| {
        let mut sum = Complex64::new(noise(), noise());
        for (tone, turn) in &mut tones {
            sum += *tone;
            *tone *= *turn;
        }
        Complex32::new(sum.re as f32, sum.im as f32)
    };
    (0..samples).map(sample).collect()
}

/// The largest deviation of any sample from what both stages make of the input in double precision,
/// relative to that signal's root mean square.
pub fn max_rel_error(input: &[Complex32], output: &[Complex32]) -> f64 {
    let oscillator = oscillator();
    let double = |x: Complex32| Complex64::new(x.re.into(), x.im.into());
    let mixed = |i: usize| double(input[i]) * oscillator[i % PHASES];
    let (mut worst, mut power) = (0.0f64, 0.0);
    let mut compare = |i: usize, want: Complex64| {
        let off = (double(output[i]) - want).norm_sqr();
        // Not `max`, which would overlook a NaN.
        worst = if off <= worst || worst.is_nan() { worst } else { off };
        power += want.norm_sqr();
    };
    let pulse = input.len() / 2;
    for i in 0..pulse {
        let (a, b) = (mixed(i), mixed(i + pulse));
        compare(i, (a + b) * SCALE);
        compare(i + pulse, (a - b) * SCALE);
    }
    // The last sample of an odd number has no partner.
    (2 * pulse..input.len()).for_each(|i| compare(i, mixed(i)));
    let mean = power / input.len() as f64;
    if worst == 0.0 { 0.0 } else { (worst / mean).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::{Complex32, Frames, Source, max_rel_error, synthetic};
    use std::io::Write;

    /// Both stages by hand for two samples: the oscillator turns the second by 3/16.
    #[test]
    fn the_reference_is_what_it_says() {
        let input = [Complex32::new(1.0, 0.0), Complex32::new(0.0, 2.0)];
        let turned = input[1] * Complex32::cis(-std::f32::consts::TAU * 3.0 / 16.0);
        let scale = std::f32::consts::FRAC_1_SQRT_2;
        let good = [(input[0] + turned) * scale, (input[0] - turned) * scale];
        assert!(max_rel_error(&input, &good) < 1e-6);
        assert!(max_rel_error(&input, &input) > 0.1);
    }

    #[test]
    fn one_lost_sample_is_seen_and_so_is_a_nan() {
        let input = synthetic(1, 1001);
        let mut output = vec![Complex32::ZERO; 1001];
        assert!(max_rel_error(&input, &output) > 0.5);
        output[3].re = f32::NAN;
        assert!(max_rel_error(&input, &output).is_nan());
        let silence = [Complex32::ZERO; 4];
        assert_eq!(max_rel_error(&silence, &silence), 0.0);
    }

    #[test]
    fn a_file_gives_its_frames_in_turn() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for value in 0..10i16 {
            file.write_all(&f32::from(value).to_le_bytes()).unwrap();
        }
        let source: Source = format!("file:{}", file.path().display()).parse().unwrap();
        let mut frames = Frames::open(&source, 2).unwrap();
        let second = [Complex32::new(4.0, 5.0), Complex32::new(6.0, 7.0)];
        assert_eq!(frames.frame(1).unwrap(), second);
        assert_eq!(frames.frame(3).unwrap(), second, "a frame that is not whole is left out");
        let short = Frames::open(&source, 6).err().unwrap().to_string();
        assert!(short.contains("5 samples") && short.contains("one frame of 6"), "{short}");
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0xff; 64]).unwrap();
        let mut frames = Frames::open(&Source::File(file.path().into()), 8).unwrap();
        assert!(frames.frame(0).unwrap_err().to_string().contains("not finite"));
    }
}
