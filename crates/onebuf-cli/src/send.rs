//! `onebuf send`: sends frames to a listening pipeline, so that everything can be tried on one machine.

pub mod common;
mod play;
mod rate;
mod shares;

use crate::{
    doctor,
    out::{Answer, Failure, Result, warn, wrong_usage},
    units,
};
use onebuf::{
    Complex32,
    pipeline::{
        sink::{Faults, Udp, UdpSent},
        source::{File, FrameSource, Npy},
    },
};
use onebuf_demo::{Shape, signal};
use play::Play;
use rate::Rate;
use serde_json::json;
use shares::{Destination, Share, Shares, divide};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Send a file or a computed signal to a pipeline that listens at a UDP port
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf send --to udp:127.0.0.1:5000                     100 MB/s of plane waves in noise
  onebuf send --to udp:receiver:5000 --rate 30fps --frames 900
  onebuf send --to udp:127.0.0.1:5000 --samples 65536 --file capture.npy --rate 1GB/s
  onebuf send --to udp:receiver:5000 --rate max --threads 4         as fast as it goes
  onebuf send --to udp:127.0.0.1:5000 --lose 0.001 --reorder 8      on a bad network
  onebuf send --to udp:127.0.0.1:5000 --json | jq .mb_per_s
  onebuf send --to udp:127.0.0.1:5000 --ranks 4       to `mpirun -n 4 onebuf demo --source udp:127.0.0.1:5000`
  onebuf send --to udp:node2:5001 --share 1/4         the channels of rank 1 alone

A frame is complex samples of two f32, one channel after another. The receiver must expect the same number
of samples: `onebuf demo --source udp:0.0.0.0:5000 --samples N`. The computed signal is three plane waves
on a line of sensors, with noise; it is the same in every run. Up to 64 different frames of it, or 256 MiB,
are computed before the first is sent, and repeat. A file is a `.npy` of complex64, or raw little-endian
f32 I and Q; one of up to 2 GiB is read before its first frame is sent. docs/pipeline.md describes the packets.
Start the receiver first: packets sent before it listens are lost.")]
pub struct SendArgs {
    /// Address of the receiver, or of the first of several --ranks: udp:HOST:PORT
    #[arg(long, value_name = "udp:HOST:PORT", value_parser = address)]
    to: String,
    /// Number of frames [default: 64, or those of the file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    frames: Option<u64>,
    /// Complex samples per frame
    #[arg(long, value_name = "N", default_value_t = 1 << 22, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    samples: u32,
    /// Channels of the computed signal, or those that are divided among ranks; they must divide the samples [default: those
    /// of `onebuf demo`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    channels: Option<u32>,
    /// Rate: MB of samples per second (100, 1.5GB/s), frames per second (30fps), or `max`
    #[arg(long, value_name = "RATE", default_value = "100")]
    rate: Rate,
    /// Send a file, repeatedly if it has fewer frames than --frames
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Maximum payload of a packet in bytes [default: what fits the path's MTU, 8192 at most]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..))]
    payload: Option<u16>,
    /// Number of threads that send, each from a port of its own; for more than one core can send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Divide the channels among N ranks: the first to --to, the others to the ports after it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Option<u16>,
    /// Send only the channels of one rank of several, to --to, such as 0/4
    #[arg(long, value_name = "RANK/RANKS", conflicts_with = "ranks")]
    share: Option<Share>,
    /// Fault injection: fraction of packets to drop, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = part)]
    lose: f64,
    /// Fault injection: fraction of packets to send twice, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = part)]
    duplicate: f64,
    /// Fault injection: reorder packets of a frame by up to N positions
    #[arg(long, value_name = "N", default_value_t = 0)]
    reorder: usize,
    /// Number of the stream [default: random]
    #[arg(long, value_name = "N")]
    stream: Option<u32>,
}

fn address(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("udp:").filter(|rest| rest.contains(':'));
    address.map(str::to_owned).ok_or_else(|| "write udp:HOST:PORT".into())
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "a number from 0 to 1 is needed".into())
}

/// Opens a file, to be read once or repeatedly.
fn open(path: &Path, forever: bool) -> Result<AnySource> {
    Ok(match path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npy")) {
        true if forever => Box::new(Npy::open(path)?.forever()),
        true => Box::new(Npy::open(path)?),
        false if forever => Box::new(File::open(path)?.forever()),
        false => Box::new(File::open(path)?),
    })
}

type AnySource = Box<dyn FrameSource<Complex32> + Send>;

/// The signal that `onebuf demo` makes.
const BEAMS: usize = 16;

/// Default number of frames of the computed signal.
const FRAMES: u64 = 64;

/// The computed signal repeats after this many frames, or this many bytes.
const COMPUTED: u64 = 64;
const COMPUTED_BYTES: u64 = 256 << 20;

/// A file of at most this many bytes is kept in memory.
const FILE_BYTES: u64 = 2 << 30;

impl SendArgs {
    /// A socket for each port that gets a part of the frames.
    fn sink(&self) -> Result<Shares> {
        let (ranks, whole) = (self.ranks.map(usize::from), self.samples as usize);
        let parts = match self.divides() {
            true => divide(&self.to, self.shape()?, ranks, self.share)?,
            false => vec![Destination { to: self.to.clone(), samples: 0..whole }],
        };
        let sent = parts.iter().map(|part| part.samples.len()).sum();
        let stream = self.stream();
        let open = |(number, part): (usize, Destination)| {
            Ok((self.udp(&part, sent, number, stream)?, part))
        };
        let parts = parts.into_iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
        Ok(Shares::new(parts.into_iter().map(|(udp, part)| (part, udp)).collect()))
    }

    /// The socket of one of several ports, which together get this many samples of each frame.
    fn udp(
        &self,
        part: &Destination,
        sent: usize,
        number: usize,
        stream: Option<u32>,
    ) -> Result<Udp> {
        let mut udp = Udp::connect(&*part.to)?.threads(self.threads.into())?;
        if let Some(payload) = self.payload {
            udp = udp.payload(payload.into())?;
        }
        if let Some(stream) = stream {
            udp = udp.stream(stream);
        }
        if let Some(rate) = self.rate.bytes_per_s((sent * size_of::<Complex32>()) as u64) {
            udp = udp.rate(rate * part.samples.len() as f64 / sent as f64)?;
        }
        let SendArgs { lose, duplicate, reorder, .. } = *self;
        let seed = Faults::default().seed + number as u64;
        Ok(udp.faults(Faults { lose, duplicate, reorder, seed }))
    }

    /// The number of all streams. `None` if a socket may draw its own.
    fn stream(&self) -> Option<u32> {
        let drawn = match (self.ranks, self.share) {
            (Some(_), _) => Some(common::for_all_ranks()),
            (None, Some(_)) => Some(common::for_one_rank()),
            (None, None) => None,
        };
        self.stream.or(drawn)
    }

    /// Whether ranks get parts of the frames.
    fn divides(&self) -> bool {
        self.ranks.is_some() || self.share.is_some()
    }

    fn frame_bytes(&self) -> u64 {
        u64::from(self.samples) * size_of::<Complex32>() as u64
    }

    /// The frames: loaded, if they are computed or the file is small enough.
    fn play(&self) -> Result<Play> {
        let samples = self.samples as usize;
        let Some(path) = &self.file else {
            let most = (COMPUTED_BYTES / self.frame_bytes()).clamp(2, COMPUTED);
            return Play::load(self.synthetic()?, samples, most.min(self.frames.unwrap_or(FRAMES)));
        };
        let is_large = std::fs::metadata(path).is_ok_and(|file| file.len() > FILE_BYTES);
        let source = open(path, is_large && self.frames.is_some())?;
        match is_large {
            true => Ok(Play::Streamed(source)),
            false => Play::load(source, samples, u64::MAX),
        }
    }

    fn synthetic(&self) -> Result<AnySource> {
        let (channels, length) = self.shape()?;
        // From the directions of the default beams of `onebuf demo`.
        Ok(Box::new(signal(&Shape { length, channels, beams: BEAMS })))
    }

    /// The channels, and their length.
    fn shape(&self) -> Result<(usize, usize)> {
        let samples = self.samples as usize;
        let channels = match self.channels {
            Some(channels) => channels as usize,
            None => Shape::of(samples, 1).map_err(Failure::new)?.channels,
        };
        if !samples.is_multiple_of(channels) {
            let what = format!("--channels {channels} do not divide --samples {samples}");
            return Err(Failure::new(what));
        }
        Ok((channels, samples / channels))
    }

    /// Number of frames; none if the file determines it.
    fn limit(&self) -> Option<u64> {
        self.frames.or(self.file.is_none().then_some(FRAMES))
    }
}

pub fn run(args: &SendArgs) -> Result<Answer> {
    if args.channels.is_some() && args.file.is_some() && !args.divides() {
        wrong_usage("--channels cannot be used with --file, except with --ranks or --share");
    }
    let (play, mut sink, limit) = (args.play()?, args.sink()?, args.limit());
    let bar = doctor::progress_bar()?;
    bar.set_length(limit.unwrap_or(0));
    bar.set_message(format!("frames to udp:{}", args.to));
    let clock = Instant::now();
    play.run(&mut sink, args.samples as usize, limit, |number| bar.set_position(number))?;
    let took = clock.elapsed();
    bar.finish_and_clear();
    sink.finish()?;
    Ok(answer(args, &sink, took))
}

fn answer(args: &SendArgs, sink: &Shares, took: Duration) -> Answer {
    let (sent, to, seconds) = (sink.sent(), &args.to, took.as_secs_f64().max(1e-9));
    let UdpSent { frames, packets, bytes, lost_packets, duplicate_packets, refused, .. } = sent;
    let (mb_per_s, fps) = (bytes as f64 / 1e6 / seconds, frames as f64 / seconds);
    if refused > 0 {
        warn(format!("no receiver at udp:{to} for at least some packets: {refused} were refused"));
    }
    let json = json!({
        "to": format!("udp:{to}"),
        "frames": frames,
        "samples": args.samples,
        "bytes": bytes,
        "packets": packets,
        "payload_bytes": sink.payload_bytes(),
        "ports": sink.ports(),
        "threads": args.threads,
        "lost_packets": lost_packets,
        "duplicate_packets": duplicate_packets,
        "refused": refused,
        "seconds": seconds,
        "mb_per_s": mb_per_s,
        "frames_per_s": fps,
    });
    let mut text = format!(
        "{frames} frames of {} to udp:{to} in {}: {mb_per_s:.1} MB/s, {fps:.1} frames/s, {packets} packets\n",
        units::bytes(bytes / frames.max(1)),
        units::time(seconds * 1e6),
    );
    if lost_packets + duplicate_packets > 0 {
        let deeds = format!("{lost_packets} packets dropped, {duplicate_packets} sent twice");
        text.push_str(&format!("fault injection: {deeds}\n"));
    }
    Answer { json, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        send: SendArgs,
    }

    #[test]
    fn all_ranks_have_one_number_unless_another_is_asked_for() {
        let stream = |more: &str| {
            let line = format!("send --to udp:127.0.0.1:9 {more}");
            Line::try_parse_from(line.split_whitespace()).ok().unwrap().send.stream()
        };
        assert!(stream("--ranks 3").is_some_and(common::is_for_all_ranks));
        assert!(stream("--share 1/3").is_some_and(|number| !common::is_for_all_ranks(number)));
        assert_eq!((stream(""), stream("--ranks 3 --stream 7")), (None, Some(7)));
    }
}
