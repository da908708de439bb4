//! The streaming run: a source, the stages, detections at the end, and a ring of slots between them.

use super::{
    judge::{Findings, Judge},
    live::{Live, Scale},
    signal::Frames,
    watched::Watched,
    wire::Wire,
};
use crate::out::{Failure, Result};
use onebuf::{
    Access, BufferBuilder, Complex32, Error,
    bytemuck::{cast_slice, cast_slice_mut},
    pipeline::{self, Builder, Filled, Report, source::UdpCounts},
};
use onebuf_demo::{Beams, Detection, Frame, Pipeline, Spectrum, detect};
use std::{sync::mpsc::channel, thread, time::Instant};

/// Parameters of the run.
pub struct Stream<'s> {
    pub pipeline: &'s Pipeline,
    /// The memory that the stages share.
    pub request: BufferBuilder<'s, Complex32>,
    pub frames: u64,
    /// Slots of the ring.
    pub ring: usize,
    /// Frames that a stage processes before the next takes over.
    pub batch: usize,
    /// Kernels may run in the other stage's queue.
    pub grafts: bool,
    /// Whether the last frame's beams are kept.
    pub keep: bool,
    /// An additional observer.
    pub watched: &'s Watched<'s>,
}

/// The source of frames.
pub enum Feed {
    Frames(Frames),
    Wire(Wire),
}

/// The results of the run.
pub struct Streamed {
    pub report: Report,
    pub frames_per_s: f64,
    pub ring: usize,
    pub batch: usize,
    /// Implied copies.
    pub bytes_copied: u64,
    pub findings: Findings,
    /// The counters of UDP.
    pub network: Option<UdpCounts>,
    /// Those of each socket.
    pub sockets: Vec<UdpCounts>,
    /// Detections in all frames.
    pub detected: u64,
    /// Detections in the last frame.
    pub detections: Vec<Detection>,
    /// The beams of the last frame, if they are kept.
    pub beams: Option<Vec<Complex32>>,
}

/// The detections so far.
#[derive(Default)]
pub struct Detected {
    /// Number of frames that have come out.
    frames: u64,
    /// When the number of frames that came out reached the ring's size, and when the last frame came out. The first frames of a
    /// full ring come out together.
    times: Option<[Instant; 2]>,
    pub count: u64,
    pub last: Vec<Detection>,
    /// The beams of the last frame, if they are kept.
    beams: Option<Vec<Complex32>>,
}

impl Detected {
    pub fn note_frame(&mut self, ring: usize) {
        self.frames += 1;
        if self.frames >= ring as u64 {
            let now = Instant::now();
            self.times.get_or_insert([now; 2])[1] = now;
        }
    }

    pub fn found(&mut self, found: &[Detection]) {
        self.count += found.len() as u64;
        self.last = found.to_vec();
    }

    /// Frames per second once the ring was full, so that the wait for the first frame does not count. Since the start,
    /// if there were no more frames than the ring holds.
    pub fn rate(&self, ring: usize, report: &Report) -> f64 {
        let more = self.frames.saturating_sub(ring as u64) as f64;
        match self.times.map(|[full, last]| last.duration_since(full).as_secs_f64()) {
            Some(seconds) if seconds > 0.0 => more / seconds,
            _ => report.frames_per_second(),
        }
    }
}

impl Stream<'_> {
    fn scale(&self) -> Scale {
        let frame_bytes = (self.pipeline.shape().samples() * size_of::<Complex32>()) as u64;
        Scale { frames: self.frames, frame_bytes, ring: self.ring }
    }

    pub fn run(&self, feed: &mut Feed) -> Result<Streamed> {
        let hub = self.pipeline.devices[0].hub();
        let before = hub.ledger().implied_bytes();
        let ((judge, jobs), mut seen) = (Judge::new(), Detected::default());
        let builder = self.source(self.slots(), feed, &judge);
        let builder = self.sink(self.stages(builder), &judge, &mut seen);
        let mut running = builder.build()?;
        let live = Live::new(running.handle(), hub, self.scale());
        self.watched.pipeline(running.handle());
        let (done, over) = channel();
        let report = thread::scope(|threads| {
            let _open = (judge.until_dropped(), done);
            threads.spawn(|| judge.work(&self.pipeline.setup, jobs));
            threads.spawn(|| live.watch(over));
            running.run()
        });
        drop(running);
        let (findings, report) = (judge.sum_up()?, report?);
        if report.frames == 0 {
            let incomplete = report.incomplete;
            return Err(Failure::new(format!(
                "no complete frame arrived, {incomplete} incomplete"
            )));
        }
        let (network, sockets) = match feed {
            Feed::Wire(wire) => (wire.counts(), wire.socket_counts()),
            Feed::Frames(_) => (None, Vec::new()),
        };
        Ok(Streamed {
            frames_per_s: seen.rate(self.ring, &report),
            report,
            network,
            sockets,
            ring: self.ring,
            batch: self.batch,
            bytes_copied: hub.ledger().implied_bytes() - before,
            findings,
            detected: seen.count,
            detections: seen.last,
            beams: seen.beams,
        })
    }

    fn slots<'f>(&'f self) -> Builder<'f, Frame> {
        let slot = |_| self.pipeline.frame(&self.request);
        pipeline::Pipeline::builder(self.ring, slot).batch(self.batch)
    }

    fn source<'f>(
        &'f self,
        builder: Builder<'f, Frame>,
        feed: &'f mut Feed,
        judge: &'f Judge,
    ) -> Builder<'f, Frame> {
        let frames = match feed {
            Feed::Frames(frames) => frames,
            Feed::Wire(wire) => {
                let builder = builder.when_full(wire.when_full());
                return builder.feed(wire.frames(self.frames, judge), |slot: &Frame| &slot.signal);
            }
        };
        let (hub, mut number) = (self.pipeline.devices[0].hub(), 0);
        let fill = move |memory: &mut [Complex32]| {
            if number == self.frames {
                return Ok(Filled::End);
            }
            let mut copy =
                |samples: &[Complex32]| hub.copy_slice(cast_slice(samples), cast_slice_mut(memory));
            if frames.are_known() {
                let (samples, expected) =
                    frames.frame(number as usize, self.ring).map_err(plain)?;
                copy(samples);
                judge.expects(number, expected);
            } else {
                let samples = frames.samples(number as usize, self.ring).map_err(plain)?;
                copy(samples);
                judge.sees(number, samples);
            }
            number += 1;
            Ok(Filled::Frame)
        };
        builder.feed(fill, |slot: &Frame| &slot.signal)
    }

    /// One stage per device, or one stage for both if it is the same device. The pipeline itself detects that grafted
    /// kernels run in the other stage's queue.
    fn stages<'f>(&'f self, builder: Builder<'f, Frame>) -> Builder<'f, Frame> {
        let (pipeline, shape) = (self.pipeline, self.pipeline.shape());
        let product = pipeline.setup.product();
        let [first, second] = &pipeline.devices;
        let first = pipeline.compiler(0).unwrap_or(first);
        let transform = move |queue: &_, slot: &Frame| {
            pipeline.spectrum().run_on(queue, &slot.signal, shape.channels)
        };
        let multiply = move |queue: &_, slot: &Frame| {
            pipeline.beams().run_on(queue, &product, &slot.signal, &slot.beams)
        };
        if first.index() == second.index() {
            let name = format!("{}+{}", Spectrum::NAME, Beams::NAME);
            return builder.stage(name, first, move |work| {
                transform(work.queue, work.slot)?;
                multiply(work.queue, work.slot).map(drop)
            });
        }
        let builder = if self.grafts { builder } else { builder.no_graft() };
        builder
            .stage(Spectrum::NAME, first, move |work| {
                transform(work.queue, work.slot)?;
                // Releases now, not when the second stage takes the view: by then the GPU may have switched to that stage.
                work.slot.signal.release_to(second, Access::ReadWrite)
            })
            .launches(pipeline.spectrum().kernels())
            .stage(Beams::NAME, second, move |work| multiply(work.queue, work.slot).map(drop))
    }

    fn sink<'f>(
        &'f self,
        builder: Builder<'f, Frame>,
        judge: &'f Judge,
        seen: &'f mut Detected,
    ) -> Builder<'f, Frame> {
        builder.sink(move |slot, number| {
            let beams = slot.beams.to_vec()?;
            let found = detect(&beams, self.pipeline.shape().length);
            seen.note_frame(self.ring);
            seen.found(&found);
            seen.beams = self.keep.then(|| beams.clone());
            let wrong = judge.judge(number, beams, found);
            wrong.map_or(Ok(()), |why| Err(Error::invalid(why)))
        })
    }
}

/// Converts an error to the library's type.
pub fn plain(failure: Failure) -> Error {
    Error::invalid(failure.to_string())
}
