//! The dimensions of a frame.

use onebuf::Complex32;

/// A frame's channels and their length, and the number of beams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Complex samples of a channel, a power of two.
    pub length: usize,
    /// Channels of a frame.
    pub channels: usize,
    /// Number of beams.
    pub beams: usize,
}

impl Shape {
    /// Maximum length of a channel.
    pub const LONGEST: usize = 1 << 22;

    /// Default maximum length: it fits the local memory of one work-group everywhere.
    pub const USUAL: usize = 2048;

    /// Channels as long as their number, or the next power of two below, but not longer than [`Shape::USUAL`].
    ///
    /// # Errors
    /// A message if the samples do not form whole channels, or there are none.
    pub fn of(samples: usize, beams: usize) -> Result<Self, String> {
        if samples < 4 || beams == 0 {
            return Err(format!("{samples} samples and {beams} beams: at least 4 and 1"));
        }
        let length = Self::USUAL.min(1 << (samples.isqrt().ilog2()));
        let rest = samples % length;
        if rest != 0 {
            let (less, more) = (samples - rest, samples - rest + length);
            return Err(format!(
                "{samples} samples do not make whole channels of {length}: {less} or {more} would"
            ));
        }
        Ok(Self { length, channels: samples / length, beams })
    }

    /// This many channels; the samples determine their length.
    ///
    /// # Errors
    /// A message if the length is not a power of two from 2 to [`Shape::LONGEST`].
    pub fn with_channels(samples: usize, channels: usize, beams: usize) -> Result<Self, String> {
        let length = samples / channels.max(1);
        let whole = channels > 0 && length * channels == samples && beams > 0;
        match whole && length.is_power_of_two() && (2..=Self::LONGEST).contains(&length) {
            true => Ok(Self { length, channels, beams }),
            false => Err(format!(
                "{samples} samples in {channels} channels: each takes a power of two, from 2 to {}",
                Self::LONGEST
            )),
        }
    }

    /// Samples of a frame.
    pub fn samples(&self) -> usize {
        self.length * self.channels
    }

    /// Numbers in the result of a frame.
    pub fn results(&self) -> usize {
        self.length * self.beams
    }

    /// The bytes that both stages move at least: the samples are read, their spectrum is written and read, the beams are written.
    pub fn bytes_moved(&self) -> usize {
        (3 * self.samples() + self.results()) * size_of::<Complex32>()
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn channels_are_as_long_as_there_are_many() {
        let shape = |samples| Shape::of(samples, 3).map(|shape| (shape.length, shape.channels));
        assert_eq!(shape(1 << 22), Ok((2048, 2048)));
        assert_eq!(shape(1 << 30), Ok((2048, 1 << 19)));
        assert_eq!(shape(4096), Ok((64, 64)));
        assert_eq!(shape(96), Ok((8, 12)));
        assert_eq!(shape(4), Ok((2, 2)));
        assert_eq!(Shape::of(96, 3).map(|shape| (shape.samples(), shape.results())), Ok((96, 24)));
    }

    #[test]
    fn channels_can_be_given() {
        let length =
            |samples, channels| Shape::with_channels(samples, channels, 3).map(|s| s.length);
        assert_eq!((length(4096, 2), length(4096, 64), length(96, 3)), (Ok(2048), Ok(64), Ok(32)));
        assert_eq!(length(1 << 22, 1), Ok(Shape::LONGEST));
        for (samples, channels) in [(4096, 0), (1 << 23, 1), (4096, 3), (96, 2), (64, 64)] {
            assert!(length(samples, channels).is_err(), "{samples} in {channels}");
        }
    }

    #[test]
    fn what_is_no_whole_number_of_channels_is_told() {
        let why = Shape::of(4097, 16).unwrap_err();
        assert!(why.contains("channels of 64: 4096 or 4160"), "{why}");
        assert!(Shape::of(3, 16).is_err() && Shape::of(4, 0).is_err());
    }
}
