//! The samples that go in, and what must come out.

use crate::out::{Failure, Result};
use onebuf::{Complex32, Complex64};
use onebuf_bench::mixed::{Expected, Shape};
use std::{f64::consts::TAU, fs::File, os::unix::fs::FileExt, path::PathBuf, rc::Rc, str::FromStr};

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

/// Frames of one shape, each with what must come out. Neighbours differ, in a batch and from one batch to the next,
/// so that a stale one cannot pass for the next.
pub struct Frames {
    shape: Shape,
    supply: Supply,
}

enum Supply {
    /// Two, whose beams are computed once.
    Synthetic([(Vec<Complex32>, Rc<Expected>); 2]),
    File(Recording),
}

struct Recording {
    file: File,
    path: PathBuf,
    whole: u64,
    current: Vec<Complex32>,
}

const SAMPLE_BYTES: usize = size_of::<Complex32>();

impl Frames {
    pub fn open(source: &Source, shape: Shape) -> Result<Self> {
        let made = |seed| {
            let samples = synthetic(seed, shape.samples());
            let expected = Rc::new(Expected::of(&shape, &samples));
            (samples, expected)
        };
        let supply = match source {
            Source::Synthetic => Supply::Synthetic([1, 2].map(made)),
            Source::File(path) => Supply::File(Recording::open(path.clone(), shape.samples())?),
        };
        Ok(Self { shape, supply })
    }

    /// The frame with this number, of batches of this size, and its beams; a file that has too few starts over.
    pub fn frame(&mut self, number: usize, batch: usize) -> Result<(&[Complex32], Rc<Expected>)> {
        match &mut self.supply {
            Supply::Synthetic(two) => {
                let (samples, expected) = &two[(number / batch + number % batch) % 2];
                Ok((samples, expected.clone()))
            }
            Supply::File(recording) => {
                let samples = recording.frame(number)?;
                Ok((samples, Rc::new(Expected::of(&self.shape, samples))))
            }
        }
    }
}

impl Recording {
    fn open(path: PathBuf, samples: usize) -> Result<Self> {
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
        Ok(Self { file, path, whole, current: vec![Complex32::ZERO; samples] })
    }

    fn frame(&mut self, number: usize) -> Result<&[Complex32]> {
        let Self { file, path, whole, current } = self;
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

#[cfg(test)]
mod tests {
    use super::{Complex32, Frames, Recording, Shape, Source};
    use std::io::Write;

    #[test]
    fn neighbours_differ_whatever_the_batch() {
        let mut frames = Frames::open(&Source::Synthetic, Shape::of(16, 1).unwrap()).unwrap();
        let mut samples = |number, batch| frames.frame(number, batch).unwrap().0.to_vec();
        for batch in 1..=8 {
            for number in 0..8 {
                let ahead = samples(number + batch, batch);
                assert_ne!(samples(number, batch), ahead, "{number} of {batch}: one slot");
                if number % batch + 1 < batch {
                    assert_ne!(samples(number, batch), samples(number + 1, batch), "{batch}");
                }
            }
        }
    }

    #[test]
    fn a_file_gives_its_frames_in_turn() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for value in 0..10i16 {
            file.write_all(&f32::from(value).to_le_bytes()).unwrap();
        }
        let path = || file.path().into();
        let source: Source = format!("file:{}", file.path().display()).parse().unwrap();
        assert_eq!(source, Source::File(path()));
        let mut frames = Recording::open(path(), 2).unwrap();
        let second = [Complex32::new(4.0, 5.0), Complex32::new(6.0, 7.0)];
        assert_eq!(frames.frame(1).unwrap(), second);
        assert_eq!(frames.frame(3).unwrap(), second, "a frame that is not whole is left out");
        let short = Recording::open(path(), 6).err().unwrap().to_string();
        assert!(short.contains("5 samples") && short.contains("one frame of 6"), "{short}");
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0xff; 64]).unwrap();
        let mut frames = Recording::open(file.path().into(), 8).unwrap();
        assert!(frames.frame(0).unwrap_err().to_string().contains("not finite"));
    }
}
