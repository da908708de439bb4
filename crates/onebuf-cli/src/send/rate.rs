//! Parsing of rates.

use std::str::FromStr;

/// The rate of frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    Bytes(f64),
    Frames(f64),
    Max,
}

const UNITS: [(&str, f64); 6] =
    [("gb/s", 1e9), ("mb/s", 1e6), ("kb/s", 1e3), ("gb", 1e9), ("mb", 1e6), ("kb", 1e3)];
const FRAMES: [&str; 3] = ["fps", "frames/s", "frames"];

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_lowercase();
        if lower == "max" {
            return Ok(Rate::Max);
        }
        let end = lower.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(lower.len());
        let (number, unit) = (lower[..end].parse::<f64>().ok(), lower[end..].trim());
        let number = number.filter(|number| *number > 0.0);
        let bytes = || UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
        let rate = number.and_then(|number| match unit {
            "" => Some(Rate::Bytes(number * 1e6)),
            frames if FRAMES.contains(&frames) => Some(Rate::Frames(number)),
            _ => bytes().map(|scale| Rate::Bytes(number * scale)),
        });
        rate.ok_or_else(|| "write 100 (MB/s), 1.5GB/s, 30fps or max".into())
    }
}

impl Rate {
    /// In bytes per second; none without a limit.
    pub fn bytes_per_s(self, frame_bytes: u64) -> Option<f64> {
        match self {
            Rate::Bytes(rate) => Some(rate),
            Rate::Frames(rate) => Some(rate * frame_bytes as f64),
            Rate::Max => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn rates_are_read() {
        let read = |text: &str| text.parse::<Rate>().ok();
        assert_eq!(read("100"), Some(Rate::Bytes(1e8)));
        assert_eq!(read("1.5GB/s"), Some(Rate::Bytes(1.5e9)));
        assert_eq!(read("20 kb"), Some(Rate::Bytes(2e4)));
        assert_eq!(read("30fps"), Some(Rate::Frames(30.0)));
        assert_eq!(read("0.5 frames/s"), Some(Rate::Frames(0.5)));
        assert_eq!(read("max"), Some(Rate::Max));
        for wrong in ["", "0", "-1", "fast", "10 apples", "nan", "1.2.3"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(Rate::Frames(2.0).bytes_per_s(100), Some(200.0));
        assert_eq!(Rate::Max.bytes_per_s(100), None);
    }
}
