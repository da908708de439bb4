//! The input samples, and the expected results.

use super::listen::Listen;
use crate::out::{Failure, Result};
use onebuf::Complex32;
use onebuf_demo::{Expected, Setup, signal};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// The source of frames.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    Synthetic,
    File(PathBuf),
    Network(Listen),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "synthetic" => Ok(Source::Synthetic),
            Some(("file", path)) if !path.is_empty() => Ok(Source::File(path.into())),
            Some(("udp", at)) if at.contains(':') => Ok(Source::Network(Listen::Udp(at.parse()?))),
            Some(("tcp", at)) if at.contains(':') => Ok(Source::Network(Listen::Tcp(at.into()))),
            _ => Err("write `synthetic`, `file:PATH`, `udp:HOST:PORT` or `tcp:HOST:PORT`".into()),
        }
    }
}

/// Frames of one shape, each with the expected result. Neighbours differ, in a batch and from one batch to the next, so
/// that a stale frame is detected.
pub struct Frames {
    setup: Setup,
    supply: FrameSource,
}

/// A frame whose beams are computed once.
pub type Known = (Vec<Complex32>, Arc<Expected>);

enum FrameSource {
    Known([Known; 2]),
    /// Another process knows the results.
    Unchecked([Vec<Complex32>; 2]),
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
    pub fn synthetic(setup: &Setup) -> Result<Self> {
        Ok(Self::known(setup, [synthetic(0, setup)?, synthetic(1, setup)?]))
    }

    /// The frames of [`Frames::synthetic`] without the expected results, which take long to compute.
    pub fn unchecked(setup: &Setup) -> Result<Self> {
        let two = [synthetic(0, setup)?, synthetic(1, setup)?];
        Ok(Self { setup: setup.clone(), supply: FrameSource::Unchecked(two) })
    }

    pub fn file(path: &Path, setup: &Setup) -> Result<Self> {
        let recording = Recording::open(path.into(), setup.shape.samples())?;
        Ok(Self { setup: setup.clone(), supply: FrameSource::File(recording) })
    }

    /// Frames that were received before, filled up with synthetic ones.
    pub fn again(setup: &Setup, kept: Vec<Vec<Complex32>>) -> Result<Self> {
        let mut kept = kept.into_iter();
        let mut next = |number| kept.next().map_or_else(|| synthetic(number, setup), Ok);
        Ok(Self::known(setup, [next(0)?, next(1)?]))
    }

    fn known(setup: &Setup, two: [Vec<Complex32>; 2]) -> Self {
        let known = |samples: Vec<Complex32>| {
            let expected = Arc::new(Expected::of(setup, &samples));
            (samples, expected)
        };
        Self { setup: setup.clone(), supply: FrameSource::Known(two.map(known)) }
    }

    /// Whether the expected result is known without computing it.
    pub fn are_known(&self) -> bool {
        matches!(self.supply, FrameSource::Known(_))
    }

    /// The frame with this number, of batches of this size; a file that has too few starts over.
    pub fn samples(&mut self, number: usize, batch: usize) -> Result<&[Complex32]> {
        match &mut self.supply {
            FrameSource::Known(two) => Ok(&two[which(number, batch)].0),
            FrameSource::Unchecked(two) => Ok(&two[which(number, batch)]),
            FrameSource::File(recording) => recording.frame(number),
        }
    }

    /// The frame with this number, and its expected result.
    pub fn frame(&mut self, number: usize, batch: usize) -> Result<(&[Complex32], Arc<Expected>)> {
        match &mut self.supply {
            FrameSource::Known(two) => {
                let (samples, expected) = &two[which(number, batch)];
                Ok((samples, expected.clone()))
            }
            FrameSource::Unchecked(two) => {
                let samples = &two[which(number, batch)];
                Ok((samples, Arc::new(Expected::of(&self.setup, samples))))
            }
            FrameSource::File(recording) => {
                let samples = recording.frame(number)?;
                Ok((samples, Arc::new(Expected::of(&self.setup, samples))))
            }
        }
    }
}

/// Which of two frames has this number.
fn which(number: usize, batch: usize) -> usize {
    (number / batch + number % batch) % 2
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
            false => Err(about(
                &"samples that are not finite: the format is raw little-endian f32 I and Q",
            )),
        }
    }
}

/// A synthetic frame of the sensor array.
pub fn synthetic(number: u64, setup: &Setup) -> Result<Vec<Complex32>> {
    let mut samples = vec![Complex32::ZERO; setup.shape.samples()];
    signal(&setup.shape).frame(number, &mut samples)?;
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::{Complex32, Frames, Listen, Recording, Setup, Source};
    use onebuf_demo::{Interpolator, Shape};
    use std::io::Write;

    #[test]
    fn neighbours_differ_whatever_the_batch() {
        let setup = Setup::new(Shape::of(16, 1).unwrap(), Interpolator::new(3).unwrap());
        let mut frames = Frames::synthetic(&setup).unwrap();
        let mut samples = |number, batch| frames.samples(number, batch).unwrap().to_vec();
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
    fn sources_are_read() {
        let read = |text: &str| text.parse::<Source>();
        assert_eq!(read("synthetic"), Ok(Source::Synthetic));
        let udp = Source::Network(Listen::Udp("[::1]:5000".parse().unwrap()));
        assert_eq!(read("udp:[::1]:5000"), Ok(udp));
        let tcp = Source::Network(Listen::Tcp("0.0.0.0:1".into()));
        assert_eq!(read("tcp:0.0.0.0:1"), Ok(tcp));
        assert!(
            read("udp:[::1]:5000?sockets=2").is_ok() && read("udp:[::1]:5000?sockets").is_err()
        );
        for wrong in ["", "udp", "udp:5000", "file:", "ftp:x:1"] {
            assert!(read(wrong).is_err_and(|why| why.contains("udp:HOST:PORT")), "{wrong}");
        }
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0xff; 64]).unwrap();
        let mut frames = Recording::open(file.path().into(), 8).unwrap();
        assert!(frames.frame(0).unwrap_err().to_string().contains("not finite"));
    }
}
