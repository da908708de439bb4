//! Sending, and sending and receiving at the same time, over the loopback interface: compared with a bare sender, and with as
//! many pairs of a bare sender and a bare receiver as onebuf has sockets.
//!
//! The socket's buffers hold all packets of a batch, so that both sides can be as fast as they are. Afterwards frames stream
//! at 90 % of the bare pairs' speed, and losses are reported.

use crate::{
    Bar, Bench, Case, RawPair, RawSender, Row, Stop, Unit, Workload, abba::compare,
    raw::lost_packets,
};
use onebuf::{
    Buffer, Error, Result,
    pipeline::{
        Filled,
        sink::{self, Sink},
        source::{self, FrameSource},
    },
};
use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

const SEND_NAME: &str = "udp_send";

pub const SEND: Workload = Workload {
    name: SEND_NAME,
    about: "GB/s of a UDP sink on one thread, over a bare sender (UDP_SEGMENT, sendmmsg)",
    cases: |_| vec![Case::new(SEND_NAME, send)],
};

pub const LOOPBACK: Workload = Workload {
    name: "udp_loopback_<n>sockets",
    about: "GB/s from a UDP sink to a UDP source, over pairs of bare senders and receivers",
    cases: |_| {
        let case = |&sockets: &usize| {
            let name = format!("udp_loopback_{sockets}sockets");
            Case::new(name.clone(), move |bench| retried(|| loopback(bench, &name, sockets)))
        };
        numbers_of_sockets().iter().map(case).collect()
    },
};

/// As many as this machine has processors for.
pub(super) fn numbers_of_sockets() -> &'static [usize] {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors < 8 { &[1, 2] } else { &[1, 2, 4] }
}

/// Payload bytes and header bytes of a packet.
pub(super) const PAYLOAD: usize = 8192;
pub(super) const HEAD: usize = 40;

/// What the kernel counts for a packet that waits: a power of two above its size, and less than as much again.
const COUNTED: usize = 3 * PAYLOAD;

/// Frames of one measurement of the sender.
const SENDS: usize = 4;

/// Size of the receive buffers.
pub(super) const ROOM: usize = 32 << 20;

/// Maximum number of packets of a frame, for each socket, and how many frames of a batch.
pub(super) const PACKETS: usize = 512;
pub(super) const FRAMES: usize = 4;

/// How often it is tried until no packet is lost: another program may have held a receiver's processor.
pub(super) const TRIES: usize = 3;

/// How long frames stream, and at which fraction of the bare pairs' speed.
pub(super) const STREAM: Duration = Duration::from_millis(500);
pub(super) const PART: f64 = 0.9;

/// Sends to a socket that is never read. Its buffer is full soon, and then the kernel drops what has been sent.
///
/// The frame is as large as the memory that the bare sender sends again and again. A larger one would not be in the same cache, and
/// the row would compare caches: from 4 MiB a bare sender is a third slower, too.
fn send(bench: &Bench) -> Result<Row, Stop> {
    let receiver =
        UdpSocket::bind("127.0.0.1:0").map_err(|error| Error::invalid(error.to_string()))?;
    let to = receiver.local_addr().map_err(|error| Error::invalid(error.to_string()))?;
    let mut ours = sink::Udp::connect(to)?.payload(PAYLOAD)?;
    let mut bare = RawSender::connect(to, HEAD + PAYLOAD)?;
    let packets = bare.packets();
    let frame = vec![1u8; packets * PAYLOAD];
    let found = compare(
        bench.effort,
        || {
            let clock = Instant::now();
            (0..SENDS).try_for_each(|_| ours.take(&frame, 0))?;
            Ok::<_, Error>(clock.elapsed().as_nanos() as f64 / SENDS as f64)
        },
        || {
            let clock = Instant::now();
            (0..SENDS).try_for_each(|_| bare.send(packets).map(drop))?;
            Ok(clock.elapsed().as_nanos() as f64 / SENDS as f64)
        },
    )?;
    let unit = Unit::GbPerS(frame.len() as u64);
    Ok(found.row(SEND_NAME, unit).bar(Bar::RatioAtLeast(0.9)))
}

/// Our sender and receiver.
struct Ours {
    udp: source::Udp,
    sender: sink::Udp,
    slot: Buffer<u8>,
}

impl Ours {
    fn open(bench: &Bench, sockets: usize) -> Result<Self> {
        let udp = source::Udp::bind("127.0.0.1:0")?.receive_buffer(ROOM).sockets(sockets)?;
        let sender = sink::Udp::connect(udp.address()?)?.threads(sockets)?.payload(PAYLOAD)?;
        let packets = packets_of_a_frame(&udp, sockets);
        let slot = bench.hub.buffer(packets * PAYLOAD).build()?;
        Ok(Self { udp, sender, slot })
    }

    /// Sends and receives frames at the same time; returns the nanoseconds of one.
    fn round(&mut self, frame: &[u8]) -> Result<f64, Stop> {
        let Self { udp, sender, slot } = self;
        let clock = Instant::now();
        thread::scope(|threads| {
            let sent = threads.spawn(|| (0..FRAMES).try_for_each(|_| sender.take(frame, 0)));
            for _ in 0..FRAMES {
                whole(udp, slot)?;
            }
            Ok::<_, Stop>(joined(sent.join())?)
        })?;
        Ok(clock.elapsed().as_nanos() as f64 / FRAMES as f64)
    }

    /// Streams at a speed, and returns the losses as text.
    fn stream(self, frame: &[u8], bytes_per_s: f64) -> Result<String> {
        let Self { mut udp, sender, slot } = self;
        let (sender, meter) = (sender.rate(bytes_per_s)?, udp.meter());
        let (before, clock) = (meter.counts(), Instant::now());
        let seconds = thread::scope(|threads| {
            let sent = threads.spawn(move || play(sender, frame));
            let mut seconds = Duration::ZERO;
            loop {
                match udp.fill(&mut slot.map_mut()?[..]) {
                    Ok(Filled::Idle) => {}
                    Ok(Filled::End) => break,
                    Ok(_) => seconds = clock.elapsed(),
                    // Packets that announce the end can be lost, too.
                    Err(Error::Timeout { .. }) if sent.is_finished() => break,
                    Err(error) => return Err(error),
                }
            }
            joined(sent.join()).map(|()| seconds)
        })?;
        let after = meter.counts();
        let lost = after.lost_packets - before.lost_packets;
        let came = after.packets - before.packets;
        let gb_per_s = came as f64 * PAYLOAD as f64 / seconds.as_nanos() as f64;
        Ok(format!("streamed at {gb_per_s:.2} GB/s: {lost} of {} packets lost", lost + came))
    }
}

/// How many packets a frame may have, so that those of a batch fit into the sockets' buffers.
pub(super) fn packets_of_a_frame(udp: &source::Udp, sockets: usize) -> usize {
    let room = udp.meter().counts().receive_buffer_bytes as usize / sockets;
    (room / (FRAMES * COUNTED)).clamp(1, PACKETS) * sockets
}

/// Receives one frame.
fn whole(udp: &mut source::Udp, slot: &Buffer<u8>) -> Result<(), Stop> {
    loop {
        match udp.fill(&mut slot.map_mut()?[..])? {
            Filled::Frame => return Ok(()),
            Filled::Idle => {}
            _ => return Err(lost_packets()),
        }
    }
}

pub(super) fn joined(result: thread::Result<Result<()>>) -> Result<()> {
    result.unwrap_or_else(|_| Err(Error::invalid("the sender panicked")))
}

/// Sends one frame repeatedly for a while.
fn play(mut sender: sink::Udp, frame: &[u8]) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < STREAM {
        sender.take(frame, 0)?;
    }
    sender.finish()
}

/// Retries a comparison that lost packets: it measured the kernel's queue, not the two programs.
pub(super) fn retried(attempt: impl Fn() -> Result<Row, Stop>) -> Result<Row, Stop> {
    let mut left = TRIES;
    loop {
        left -= 1;
        match attempt() {
            Err(Stop::Absent(_)) if left > 0 => {}
            ended => return ended,
        }
    }
}

fn loopback(bench: &Bench, name: &str, sockets: usize) -> Result<Row, Stop> {
    let mut ours = Ours::open(bench, sockets)?;
    let mut bare = RawPair::open(sockets, HEAD + PAYLOAD, ROOM)?;
    let frame: Vec<u8> = (0..ours.slot.len()).map(|at| (at / 3 % 251) as u8).collect();
    let packets = frame.len() / PAYLOAD;
    let found = compare(
        bench.effort,
        || ours.round(&frame),
        || {
            let clock = Instant::now();
            let went = bare.run(FRAMES * packets / sockets)?;
            Ok(clock.elapsed().as_nanos() as f64 * packets as f64 / went as f64)
        },
    )?;
    if ours.slot.map()?[..] != frame[..] {
        return Err(Error::invalid("a frame was complete but its contents are wrong").into());
    }
    let speed = frame.len() as f64 * 1e9 / found.baseline_ns;
    let row = found.row(name, Unit::GbPerS(frame.len() as u64)).bar(Bar::RatioAtLeast(0.9));
    Ok(row.remark(ours.stream(&frame, speed * PART)?))
}
