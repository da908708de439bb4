//! Receiving packets from the loopback interface into a slot's memory, compared with two plain `recvmmsg` loops: one
//! that leaves packets as they come, and one that forms frames if none is lost.
//!
//! A frame is sent first and then received, so that only the receiver is timed and the sender's speed does not matter.
//! Afterwards frames stream at half the measured speed, and losses are reported.

use crate::{Bar, Bench, Case, RawUdp, Row, Stop, Unit, Workload, abba::compare};
use onebuf::{
    Buffer, Error, Result,
    pipeline::{
        Filled,
        sink::{self, Sink},
        source::{self, FrameSource},
    },
};
use std::{
    thread,
    time::{Duration, Instant},
};

const PLAIN: &str = "udp_ingest_ratio";
const FRAMES: &str = "udp_frames_ratio";

pub const INGEST: Workload = Workload {
    name: PLAIN,
    about: "GB/s of a UDP source into host pages, over a plain recvmmsg loop",
    cases: |_| vec![Case::new(PLAIN, |bench| run(bench, PLAIN, false))],
};

pub const IN_FRAMES: Workload = Workload {
    name: FRAMES,
    about: "GB/s of a UDP source into host pages, over a recvmmsg loop that forms frames unchecked",
    cases: |_| vec![Case::new(FRAMES, |bench| run(bench, FRAMES, true))],
};

/// Payload bytes and header bytes of a packet.
const PAYLOAD: usize = 8192;
const HEAD: usize = 40;

/// Maximum number of packets of a frame: eight calls.
const PACKETS: usize = 512;

/// Size of the receive buffer.
const ROOM: usize = 32 << 20;

/// How long frames stream, and at which fraction of the measured speed.
const STREAM: Duration = Duration::from_millis(300);
const PART: f64 = 0.5;

/// A receiver and its sender.
struct OurReceiver {
    udp: source::Udp,
    sender: sink::Udp,
    slot: Buffer<u8>,
}

impl OurReceiver {
    fn open(bench: &Bench) -> Result<Self> {
        let udp = source::Udp::bind("127.0.0.1:0")?.receive_buffer(ROOM);
        let sender = sink::Udp::connect(udp.address()?)?.payload(PAYLOAD)?;
        // The kernel also counts its own overhead per packet, up to the same size again.
        let room = udp.meter().counts().receive_buffer_bytes as usize / (4 * PAYLOAD);
        let slot = bench.hub.buffer(room.clamp(4, PACKETS) * PAYLOAD).build()?;
        Ok(Self { udp, sender, slot })
    }

    /// Sends and receives one frame; returns the nanoseconds of receiving it.
    fn round(&mut self, frame: &[u8]) -> Result<f64> {
        self.sender.take(frame, 0)?;
        let clock = Instant::now();
        let filled = self.udp.fill(&mut self.slot.map_mut()?)?;
        let took = clock.elapsed().as_nanos() as f64;
        match filled {
            Filled::Frame => Ok(took),
            other => Err(Error::unsupported(
                format!("measuring a loopback interface that loses packets ({other:?})"),
                "more room for those that wait: see net.core.rmem_max",
            )),
        }
    }

    /// Streams at a speed, and returns the losses as text.
    fn stream(self, frame: &[u8], bytes_per_s: f64) -> Result<String> {
        let Self { mut udp, sender, slot } = self;
        let (sender, meter) = (sender.rate(bytes_per_s)?, udp.meter());
        let (before, clock) = (meter.counts(), Instant::now());
        thread::scope(|threads| {
            let sent = threads.spawn(move || play(sender, frame));
            while udp.fill(&mut slot.map_mut()?[..])? != Filled::End {}
            sent.join().unwrap_or_else(|_| Err(Error::invalid("the sender panicked")))
        })?;
        let after = meter.counts();
        let lost = after.lost_packets - before.lost_packets;
        let came = after.packets - before.packets;
        let gb_per_s = came as f64 * PAYLOAD as f64 / clock.elapsed().as_nanos() as f64;
        Ok(format!("streamed at {gb_per_s:.2} GB/s: {lost} of {} packets lost", lost + came))
    }
}

/// Sends one frame repeatedly for a while.
fn play(mut sender: sink::Udp, frame: &[u8]) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < STREAM {
        sender.take(frame, 0)?;
    }
    sender.finish()
}

/// The plain loop.
struct Plain {
    raw: RawUdp,
    sender: sink::Udp,
}

impl Plain {
    fn open(frame: &[u8], apart: bool) -> Result<Self> {
        let raw = RawUdp::bind(frame.len() / PAYLOAD, [HEAD, PAYLOAD], ROOM, apart)?;
        let sender = sink::Udp::connect(raw.address()?)?.payload(PAYLOAD)?;
        Ok(Self { raw, sender })
    }

    fn round(&mut self, frame: &[u8]) -> Result<f64> {
        self.sender.take(frame, 0)?;
        let clock = Instant::now();
        self.raw.take()?;
        Ok(clock.elapsed().as_nanos() as f64)
    }
}

fn run(bench: &Bench, name: &'static str, apart: bool) -> Result<Row, Stop> {
    let mut ours = OurReceiver::open(bench)?;
    let frame: Vec<u8> = (0..ours.slot.len()).map(|at| (at / 3 % 251) as u8).collect();
    let mut plain = Plain::open(&frame, apart)?;
    let found = compare(bench.effort, || ours.round(&frame), || plain.round(&frame))?;
    if ours.slot.map()?[..] != frame[..] {
        return Err(Error::invalid("a frame was complete but its contents are wrong").into());
    }
    let speed = frame.len() as f64 * 1e9 / found.ours_ns;
    let row = found.row(name, Unit::GbPerS(frame.len() as u64)).bar(Bar::RatioAtLeast(0.95));
    Ok(row.remark(ours.stream(&frame, speed * PART)?))
}
