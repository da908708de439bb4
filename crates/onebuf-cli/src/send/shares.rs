//! Where the frames go: all of a frame to one port, or each rank's channels to a port of its own.

use crate::out::{Failure, Result};
use onebuf::{
    Complex32, Error,
    pipeline::sink::{Sink, Udp, UdpSent},
};
use onebuf_mpi::share;
use std::{ops::Range, str::FromStr, thread};

/// One of several shares of the channels: `1/4` is the second one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    rank: usize,
    ranks: usize,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(rank, ranks)| {
            Some(Self { rank: rank.parse().ok()?, ranks: ranks.parse().ok()? })
        });
        let known = parts.filter(|share| share.rank < share.ranks && share.ranks <= 1 << 16);
        known.ok_or_else(|| "write RANK/RANKS, such as 0/4, for the first of four".into())
    }
}

/// The samples of a frame that go to an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    pub to: String,
    pub samples: Range<usize>,
}

/// How channels of this length are divided among ports. Ranks without channels have none.
pub fn divide(
    to: &str,
    (channels, length): (usize, usize),
    ranks: Option<usize>,
    one: Option<Share>,
) -> Result<Vec<Destination>> {
    let samples = |rank, ranks| {
        let own = share(channels, ranks, rank);
        own.start * length..own.end * length
    };
    if let Some(Share { rank, ranks }) = one {
        let part = Destination { to: to.into(), samples: samples(rank, ranks) };
        return match part.samples.is_empty() {
            false => Ok(vec![part]),
            true => {
                Err(Failure::new(format!("--share {rank}/{ranks} of {channels} channels has none")))
            }
        };
    }
    let Some(ranks) = ranks else {
        return Ok(vec![Destination { to: to.into(), samples: 0..channels * length }]);
    };
    let wrong = || Failure::new(format!("udp:{to}: {ranks} ports from this one on do not exist"));
    let (host, first) = to.rsplit_once(':').ok_or_else(wrong)?;
    let first: usize = first.parse().map_err(|_| wrong())?;
    if first == 0 || first + ranks - 1 > usize::from(u16::MAX) {
        return Err(wrong());
    }
    let part = |rank| Destination {
        to: format!("{host}:{}", first + rank),
        samples: samples(rank, ranks),
    };
    Ok((0..ranks).map(part).filter(|part| !part.samples.is_empty()).collect())
}

/// Sends each part of a frame from a socket of its own.
pub struct Shares {
    parts: Vec<(Destination, Udp)>,
}

impl Shares {
    pub fn new(parts: Vec<(Destination, Udp)>) -> Self {
        Self { parts }
    }

    /// The sums of all ports; a frame counts once.
    pub fn sent(&self) -> UdpSent {
        let mut sum = UdpSent::default();
        for (_, udp) in &self.parts {
            let sent = udp.sent();
            sum.frames = sent.frames;
            sum.packets += sent.packets;
            sum.bytes += sent.bytes;
            sum.lost_packets += sent.lost_packets;
            sum.duplicate_packets += sent.duplicate_packets;
            sum.refused += sent.refused;
        }
        sum
    }

    pub fn payload_bytes(&self) -> Option<usize> {
        self.parts.first().map(|(_, udp)| udp.payload_bytes())
    }

    pub fn ports(&self) -> usize {
        self.parts.len()
    }

    /// Announces the end of all streams.
    pub fn finish(&mut self) -> onebuf::Result<()> {
        self.parts.iter_mut().try_for_each(|(_, udp)| udp.finish())
    }
}

impl Sink<Complex32> for Shares {
    /// Several parts are sent at the same time, so that each is paced evenly over the frame's time.
    fn take(&mut self, frame: &[Complex32], number: u64) -> onebuf::Result<()> {
        let send =
            |(part, udp): &mut (Destination, Udp)| udp.take(&frame[part.samples.clone()], number);
        if let [only] = &mut self.parts[..] {
            return send(only);
        }
        thread::scope(|threads| {
            let all = self.parts.iter_mut().map(|part| threads.spawn(move || send(part)));
            let all: Vec<_> = all.collect();
            // A thread that panicked has printed its message itself.
            let lost = || Err(Error::invalid("a part of a frame was not sent"));
            all.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| lost()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(parts: &[Destination]) -> Vec<(&str, Range<usize>)> {
        parts.iter().map(|part| (&*part.to, part.samples.clone())).collect()
    }

    #[test]
    fn channels_go_to_consecutive_ports() {
        let all = divide("[::1]:5000", (5, 8), Some(3), None).unwrap();
        let wanted = [("[::1]:5000", 0..16), ("[::1]:5001", 16..32), ("[::1]:5002", 32..40)];
        assert_eq!(ranges(&all), wanted);
        let more = divide("a:7", (2, 8), Some(3), None).unwrap();
        assert_eq!(ranges(&more), [("a:7", 0..8), ("a:8", 8..16)], "a rank without channels");
        let one = divide("a:7", (5, 8), None, "1/3".parse().ok()).unwrap();
        assert_eq!(ranges(&one), [("a:7", 16..32)]);
        assert_eq!(ranges(&divide("a:7", (5, 8), None, None).unwrap()), [("a:7", 0..40)]);
        for wrong in ["a:0", "a:65534", "a:x", "a"] {
            assert!(divide(wrong, (5, 8), Some(3), None).is_err(), "{wrong}");
        }
        assert!(divide("a:7", (2, 8), None, "2/3".parse().ok()).is_err(), "no channels");
    }

    #[test]
    fn shares_are_read() {
        assert_eq!("0/1".parse(), Ok(Share { rank: 0, ranks: 1 }));
        for wrong in ["", "1", "1/1", "2/1", "-1/3", "a/b", "0/0", "0/65537"] {
            assert!(wrong.parse::<Share>().is_err_and(|why| why.contains("0/4")), "{wrong}");
        }
    }
}
