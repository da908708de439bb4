//! Frames without pause: a source, the stages, detections at the end, and a ring of slots between them.

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
    pipeline::{self, Builder, Filled, Report, source::UdpCounts},
};
use onebuf_demo::{Beams, Detection, Frame, Pipeline, Spectrum, detect};
use std::{sync::mpsc::channel, thread, time::Instant};

/// How frames shall go through.
pub struct Stream<'s> {
    pub pipeline: &'s Pipeline,
    /// The memory that the stages share.
    pub request: BufferBuilder<'s, Complex32>,
    pub frames: u64,
    /// Slots of the ring.
    pub ring: usize,
    /// Frames that go through a stage before the next has its turn.
    pub batch: usize,
    /// Kernels may run in the other stage's queue.
    pub grafts: bool,
    /// Who else looks.
    pub watched: &'s Watched<'s>,
}

/// Where they come from.
pub enum Feed {
    Frames(Frames),
    Wire(Wire),
}

/// How they did.
pub struct Streamed {
    pub report: Report,
    pub frames_per_s: f64,
    pub ring: usize,
    pub batch: usize,
    /// What was copied although nobody asked.
    pub bytes_copied: u64,
    pub findings: Findings,
    /// What came over UDP.
    pub network: Option<UdpCounts>,
    /// What stood out, in all frames.
    pub detected: u64,
    /// The same in the last one.
    pub detections: Vec<Detection>,
}

/// What stood out so far.
#[derive(Default)]
struct Detected {
    /// How many frames have come out.
    frames: u64,
    /// When as many had as the ring holds, and when the last did. Before that, frames come out that were all there at once.
    times: Option<[Instant; 2]>,
    count: u64,
    last: Vec<Detection>,
}

impl Detected {
    fn note_frame(&mut self, ring: usize) {
        self.frames += 1;
        if self.frames >= ring as u64 {
            let now = Instant::now();
            self.times.get_or_insert([now; 2])[1] = now;
        }
    }

    /// Frames in a second once the ring was full: who waited for the first does not count. Since the start, where there
    /// were no more than the ring holds.
    fn rate(&self, ring: usize, report: &Report) -> f64 {
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
            return Err(Failure::new(format!("no whole frame came, {incomplete} incomplete ones")));
        }
        let network = if let Feed::Wire(wire) = feed { wire.counts() } else { None };
        Ok(Streamed {
            frames_per_s: seen.rate(self.ring, &report),
            report,
            network,
            ring: self.ring,
            batch: self.batch,
            bytes_copied: hub.ledger().implied_bytes() - before,
            findings,
            detected: seen.count,
            detections: seen.last,
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
        builder.source(move |slot, number| {
            if number == self.frames {
                return Ok(Filled::End);
            }
            if frames.are_known() {
                let (samples, expected) =
                    frames.frame(number as usize, self.ring).map_err(plain)?;
                slot.signal.write(samples)?;
                judge.expects(number, expected);
            } else {
                let samples = frames.samples(number as usize, self.ring).map_err(plain)?;
                slot.signal.write(samples)?;
                judge.sees(number, samples);
            }
            Ok(Filled::Frame)
        })
    }

    /// One for each device; where that is the same, one for both. Kernels that are grafted are their compiler's, and the
    /// pipeline sees by itself that they run in the other stage's queue.
    fn stages<'f>(&'f self, builder: Builder<'f, Frame>) -> Builder<'f, Frame> {
        let (pipeline, shape) = (self.pipeline, self.pipeline.shape());
        let product = pipeline.setup.product();
        let [first, second] = &pipeline.devices;
        let first = pipeline.grafted_from.as_ref().unwrap_or(first);
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
                // Now, and not when the second stage asks: by then the GPU may be with that one.
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
            seen.count += found.len() as u64;
            seen.last.clone_from(&found);
            let wrong = judge.judge(number, beams, found);
            wrong.map_or(Ok(()), |why| Err(Error::invalid(why)))
        })
    }
}

/// In the library's words.
fn plain(failure: Failure) -> Error {
    Error::invalid(failure.to_string())
}
