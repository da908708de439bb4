//! Frames from UDP sockets through a device, over the loopback interface: compared with as many pairs of a bare sender and a bare
//! receiver, without a device, as onebuf has sockets.
//!
//! The sender waits while the sockets' buffers may be full, so that both sides can be as fast as they are. Afterwards frames stream
//! at 90 % of the bare pairs' speed, without waiting, and losses are reported.

use super::{
    stream::{self, NO_DEVICE, PAGE},
    udp_loopback::{
        FRAMES, HEAD, PART, PAYLOAD, ROOM, STREAM, joined, numbers_of_sockets, packets_of_a_frame,
        retried,
    },
};
use crate::{
    Bar, Bench, Case, Effort, RawPair, Row, Stop, Unit, Workload, abba::compare, raw::lost_packets,
};
use onebuf::{
    Device, Error, Kernel, Result,
    hal::DeviceKind,
    pipeline::{
        Filled,
        sink::{self, Sink},
        source::{self, FrameSource},
    },
};
use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

pub const UDP: Workload = Workload {
    name: "stream_udp_<a>_<n>sockets",
    about: "frames of UDP packets through a kernel, each page stamped before and checked after, over pairs of bare sockets without a device",
    cases,
};

/// Frames of a run on a GPU, and on CPUs and for `--quick`.
const MANY: u64 = 200;
const FEW: u64 = 40;
/// How long the sender waits before it looks again whether frames have come.
const PAUSE: Duration = Duration::from_micros(20);
/// The stamp of frames that are not numbered.
const STAMP: u32 = 7;

fn cases(bench: &Bench) -> Vec<Case> {
    let devices = stream::devices(bench);
    if devices.is_empty() {
        return vec![Case::absent(UDP.name, NO_DEVICE)];
    }
    let of = |device: &Device| {
        let device = device.clone();
        numbers_of_sockets().iter().map(move |&sockets| {
            let name = format!("stream_udp_{}_{sockets}sockets", device.id());
            let device = device.clone();
            Case::new(name.clone(), move |bench| {
                retried(|| compared(bench, &name, &device, sockets))
            })
        })
    };
    devices.iter().flat_map(of).collect()
}

/// Sockets on both sides of the loopback interface, and what the sender sends.
struct Line {
    udp: source::Udp,
    sender: sink::Udp,
    frame: Vec<u32>,
}

impl Line {
    fn open(sockets: usize) -> Result<Self> {
        let udp = source::Udp::bind("127.0.0.1:0")?.receive_buffer(ROOM).sockets(sockets)?;
        let sender = sink::Udp::connect(udp.address()?)?.threads(sockets)?.payload(PAYLOAD)?;
        let frame = vec![STAMP; packets_of_a_frame(&udp, sockets) * PAYLOAD / size_of::<u32>()];
        Ok(Self { udp, sender, frame })
    }
}

/// What the source tells the others of a run.
#[derive(Default)]
struct Progress {
    came: AtomicU64,
    has_lost: AtomicBool,
}

/// The source of a run: it ends after some frames, and counts them for the sender.
struct Counted<'c> {
    udp: source::Udp,
    frames: u64,
    left: u64,
    progress: &'c Progress,
}

impl FrameSource<u32> for Counted<'_> {
    fn fill(&mut self, frame: &mut [u32]) -> Result<Filled> {
        if self.left == 0 {
            self.left = self.frames;
            return Ok(Filled::End);
        }
        match self.udp.fill(frame)? {
            Filled::Frame => {}
            Filled::Idle => return Ok(Filled::Idle),
            _ => {
                self.progress.has_lost.store(true, Ordering::Relaxed);
                return Err(Error::invalid("the loopback interface lost packets"));
            }
        }
        self.left -= 1;
        self.progress.came.fetch_add(1, Ordering::Release);
        Ok(Filled::Frame)
    }
}

fn compared(bench: &Bench, name: &str, device: &Device, sockets: usize) -> Result<Row, Stop> {
    let cpu = device.info().kind == DeviceKind::Cpu;
    let frames = if cpu || bench.effort == Effort::QUICK { FEW } else { MANY };
    let kernel = stream::stamps(device)?;
    let Line { udp, sender, frame } = Line::open(sockets)?;
    let (pages, packets) = (frame.len() / PAGE, size_of_val(&frame[..]) / PAYLOAD);
    let progress = Progress::default();
    let counted = Counted { udp, frames, left: frames, progress: &progress };
    let mut pipeline = stream::through(device, &kernel, pages, counted, |number| number as u32)?;
    let remark = pipeline.explain().lines().next().unwrap_or_default().to_owned();
    let mut bare = RawPair::open(sockets, HEAD + PAYLOAD, ROOM)?;
    let ends = RefCell::new((sender, frame));
    let found = compare(
        bench.effort.at_most(25),
        || {
            let came = || progress.came.load(Ordering::Acquire);
            let (over, start) = (AtomicBool::new(false), came());
            let mut ends = ends.borrow_mut();
            let (sender, frame) = &mut *ends;
            let may_send = |number| {
                while number >= came() - start + FRAMES as u64 {
                    if over.load(Ordering::Relaxed) {
                        return false;
                    }
                    thread::sleep(PAUSE);
                }
                true
            };
            let clock = Instant::now();
            thread::scope(|threads| {
                let sent = threads.spawn(|| numbered(sender, frame, frames, may_send));
                let ran = pipeline.run();
                over.store(true, Ordering::Relaxed);
                joined(sent.join())?;
                // A run that lost packets measured the kernel's queue.
                ran.map_err(|failure| match progress.has_lost.load(Ordering::Relaxed) {
                    true => lost_packets(),
                    false => failure.error.into(),
                })
            })?;
            Ok::<_, Stop>(clock.elapsed().as_nanos() as f64 / frames as f64)
        },
        || {
            let clock = Instant::now();
            let went = bare.run(FRAMES * packets / sockets)?;
            Ok(clock.elapsed().as_nanos() as f64 * packets as f64 / went as f64)
        },
    )?;
    drop(pipeline);
    let bytes = (packets * PAYLOAD) as u64;
    let per_second = 1e9 / found.ours_ns;
    let speed = bytes as f64 * 1e9 / found.baseline_ns;
    let streamed = streamed(device, &kernel, sockets, speed * PART)?;
    let row = found.row(name, Unit::GbPerS(bytes));
    let row = row.remark(format!("{per_second:.0} frames/s; {streamed}; {remark}"));
    Ok(if cpu { row } else { row.bar(Bar::RatioAtLeast(0.9)) })
}

/// Sends frames whose every page has the frame's number, each as soon as it may.
fn numbered(
    sender: &mut sink::Udp,
    frame: &mut [u32],
    frames: u64,
    may_send: impl Fn(u64) -> bool,
) -> Result<()> {
    for number in 0..frames {
        if !may_send(number) {
            break;
        }
        stream::stamp(frame, number as u32);
        sender.take(frame, number)?;
    }
    Ok(())
}

/// Streams for a while at a speed, whatever is lost; every page that comes is checked. Returns the losses as text.
fn streamed(device: &Device, kernel: &Kernel, sockets: usize, bytes_per_s: f64) -> Result<String> {
    let Line { mut udp, sender, frame } = Line::open(sockets)?;
    let (sender, meter) = (sender.rate(bytes_per_s)?, udp.meter());
    let bytes = size_of_val(&frame[..]);
    let source = move |frame: &mut [u32]| udp.fill(frame);
    let mut pipeline = stream::through(device, kernel, frame.len() / PAGE, source, |_| STAMP)?;
    let clock = Instant::now();
    let report = thread::scope(|threads| {
        let sent = threads.spawn(|| played(sender, &frame));
        let ran = pipeline.run();
        joined(sent.join())?;
        ran.map_err(Error::from)
    })?;
    let seconds = clock.elapsed().as_secs_f64();
    let counts = meter.counts();
    let gb_per_s = report.frames as f64 * bytes as f64 / seconds / 1e9;
    let all = counts.lost_packets + counts.packets;
    Ok(format!("streamed at {gb_per_s:.2} GB/s: {} of {all} packets lost", counts.lost_packets))
}

/// Sends one frame repeatedly for a while, and the stream's end.
fn played(mut sender: sink::Udp, frame: &[u32]) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < STREAM {
        sender.take(frame, 0)?;
    }
    sender.finish()
}
