//! Continuous streaming: a source, stages on devices, a sink, and a ring of slots between them.
//!
//! ```text
//!            ┌──────────────── free slots ◄───────────────┐
//!            ▼                                            │
//!   source ─ fills ─► stage ─ enqueues ─► stage ─ … ─► sink reads
//! ```
//!
//! A slot holds what one frame needs: one buffer, or a struct of several. Slots are allocated once. The source, each stage
//! and the sink run on their own threads, each on a different slot. The fences of the buffers order the stages' queues, so
//! only a thread that reads the bytes waits for a device. [`Builder::batch`] lets a stage take several frames at once, for
//! devices that are slow to switch from one API to another.
//!
//! ```
//! use onebuf::{Each, Source, pipeline::{Filled, Pipeline}, prelude::*};
//!
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let device = hub.host();
//! let twice = Source::opencl_c("kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }")
//!     .with_native("twice", |args| {
//!         args.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= 2.0);
//!         Ok(())
//!     });
//! // SAFETY: work-item i touches x[i] only.
//! let twice = unsafe { device.kernel::<(Each<&mut f32>,)>(twice, "twice")? };
//!
//! let mut sum = 0.0;
//! let mut pipeline = Pipeline::builder(3, |_| hub.buffer::<f32>(256).shared_with([&device]).build())
//!     .source(|slot, frame| {
//!         if frame == 10 {
//!             return Ok(Filled::End);
//!         }
//!         slot.map_mut()?.fill(frame as f32);
//!         Ok(Filled::Frame)
//!     })
//!     .stage("twice", &device, |work| twice.launch_on(work.queue, [256], (&*work.slot,)))
//!     .sink(|slot, _frame| {
//!         sum += slot.map()?[255];
//!         Ok(())
//!     })
//!     .build()?;
//! let report = pipeline.run()?;
//! drop(pipeline);
//! assert_eq!((report.frames, sum), (10, 90.0));
//! assert_eq!(hub.ledger().implied_bytes(), 0);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

/// Tests of parsers measure what they allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;

mod batching;
mod graft;
mod host_side;
mod net;
mod npy;
mod overlap;
#[cfg(all(test, not(onebuf_shuttle)))]
mod overlap_tests;
mod pulse;
mod report;
mod run;
pub mod sink;
mod slot_ring;
pub mod source;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod times;

#[doc(hidden)]
pub use batching::smallest_batch;
pub use graft::Graft;
pub use host_side::{HostMemory, HostSlots};
pub use npy::NpyElement;
pub use onebuf_core::observe::RunState;
pub use overlap::{Flight, Overlapped};
pub use pulse::Pulse;
pub use report::{Failure, Latency, Report, StageReport};
pub use slot_ring::WhenFull;

use batching::Batching;
use graft::Placement;
use onebuf_core::{
    Device, Kernel, Queue,
    observe::{Progress, ProgressSource, StageProgress},
};
use onebuf_hal::{Error, Result};
use report::RunCounters;
use run::Run;
use slot_ring::{Failed, SlotRing};
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

/// What a source did with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The slot holds the next frame.
    Frame,
    /// Part of the frame is missing. The frame is counted and not passed on.
    Incomplete,
    /// No data arrived for a while. The source is called again, unless the pipeline was asked to stop.
    Idle,
    /// The source has no more frames.
    End,
}

/// The input of one stage call.
#[derive(Debug)]
pub struct Work<'w, S> {
    /// The slot. No other part of the pipeline uses it during the call.
    pub slot: &'w S,
    /// The stage's queue.
    pub queue: &'w Queue,
    /// The frame's number, from zero. Numbers of dropped and incomplete frames are skipped.
    pub frame: u64,
}

type MakeFn<'f, S> = dyn FnMut(usize) -> Result<S> + 'f;
type SourceFn<'f, S> = dyn FnMut(&S, u64) -> Result<Filled> + Send + 'f;
type StageFn<'f, S> = dyn FnMut(Work<'_, S>) -> Result<()> + Send + 'f;
type SinkFn<'f, S> = dyn FnMut(&S, u64) -> Result<()> + Send + 'f;
/// Describes how frames come from the source, or go to the sink.
type EndFn<'f, S> = dyn FnOnce(&S) -> String + 'f;

/// A part of a pipeline: a function that handles one slot, or one that works on several at a time.
enum Part<'f, S, F: ?Sized> {
    Function(Box<F>),
    Overlapped(Box<dyn Overlapped<S> + Send + 'f>),
}

type SourcePart<'f, S> = Part<'f, S, SourceFn<'f, S>>;
type StagePart<'f, S> = Part<'f, S, StageFn<'f, S>>;
type SinkPart<'f, S> = Part<'f, S, SinkFn<'f, S>>;

struct Stage<'f, S> {
    queue: Queue,
    run: StagePart<'f, S>,
}

/// A stage as requested, before its placement is known.
struct Wanted<'f, S> {
    name: String,
    device: Device,
    /// All kernels that the stage launches, if declared with [`Builder::launches`].
    kernels: Vec<Kernel>,
    run: StagePart<'f, S>,
}

impl<S, F: ?Sized> Part<'_, S, F> {
    /// How frames come or go, if the part tells.
    fn explain(&self, slots: &[S]) -> Option<String> {
        match self {
            Part::Function(_) => None,
            Part::Overlapped(part) => part.explain(slots.first()?),
        }
    }
}

/// Configures a [`Pipeline`].
#[must_use = "nothing is made until `build`"]
pub struct Builder<'f, S> {
    depth: usize,
    make: Box<MakeFn<'f, S>>,
    source: Option<SourcePart<'f, S>>,
    stages: Vec<Wanted<'f, S>>,
    sink: Option<SinkPart<'f, S>>,
    /// For the source and the sink, if [`Builder::feed`] and [`Builder::drain`] set them.
    ends: [Option<Box<EndFn<'f, S>>>; 2],
    batch: Option<usize>,
    when_full: WhenFull,
    /// Set by `one_thread` and `threads`; `None` lets the devices decide.
    one_thread: Option<bool>,
    grafts: bool,
    /// A builder call that came before the stage it applies to.
    too_early: Option<&'static str>,
}

impl<'f, S: Send + Sync> Builder<'f, S> {
    /// Sets the function that fills a slot with the frame of the given number. It runs on its own thread.
    pub fn source(mut self, fill: impl FnMut(&S, u64) -> Result<Filled> + Send + 'f) -> Self {
        self.source = Some(Part::Function(Box::new(fill)));
        self.ends[0] = None;
        self
    }

    /// Sets a source that fills several slots at a time. It gets every slot that is free. A full ring makes it wait, so the
    /// dropping policies of [`Builder::when_full`] are refused.
    pub fn source_overlapped(mut self, source: impl Overlapped<S> + Send + 'f) -> Self {
        self.source = Some(Part::Overlapped(Box::new(source)));
        self.ends[0] = None;
        self
    }

    /// Sets the description of an end.
    fn end(mut self, which: usize, explain: impl FnOnce(&S) -> String + 'f) -> Self {
        self.ends[which] = Some(Box::new(explain));
        self
    }

    /// Appends a stage: a function that enqueues one frame's work on a queue of the device. It runs on its own thread and
    /// should not wait for the device.
    pub fn stage(
        mut self,
        name: impl Into<String>,
        device: &Device,
        run: impl FnMut(Work<'_, S>) -> Result<()> + Send + 'f,
    ) -> Self {
        let (name, device, kernels) = (name.into(), device.clone(), Vec::new());
        self.stages.push(Wanted { name, device, kernels, run: Part::Function(Box::new(run)) });
        self
    }

    /// Appends a stage that works on several frames at a time, such as an exchange with other processes. `device` is where that
    /// work runs, the host in most cases; the stage gets no queue of it.
    pub fn stage_overlapped(
        mut self,
        name: impl Into<String>,
        device: &Device,
        stage: impl Overlapped<S> + Send + 'f,
    ) -> Self {
        let (name, device, kernels) = (name.into(), device.clone(), Vec::new());
        self.stages.push(Wanted { name, device, kernels, run: Part::Overlapped(Box::new(stage)) });
        self
    }

    /// Declares which kernels the preceding stage launches, and that it uses its queue for nothing else. The stage may then
    /// run on a neighbour's device: OpenCL kernels next to a CUDA or HIP stage on the same chip run in that stage's queue, if
    /// the doctor has proven that they compute the same results there ([`Kernel::graft_if_proven`]). This saves the hand-over
    /// and the chip's context switch between the two APIs. The stage's buffers must be shared with both devices; the stage's
    /// code does not change. [`StageReport::graft`] and [`Pipeline::explain`] report the outcome.
    ///
    /// ```
    /// # use onebuf::{Buffer, Hub, Kernel, Result, args, libs::{Blas, Gemm}, pipeline::{Filled, Pipeline}};
    /// # fn run(hub: &Hub, fft: &Kernel, weights: &Buffer<f32>, out: &Buffer<f32>) -> Result<()> {
    /// let (cl, cuda) = (hub.device("opencl:0")?, hub.device("cuda:0")?);
    /// let slot = |_| hub.buffer::<f32>(1 << 20).shared_with([&cl, &cuda]).build();
    /// let pipeline = Pipeline::builder(4, slot)
    ///     .stage("fft", &cl, |work| work.queue.launch(fft, [1 << 20], args![work.slot.write_on(work.queue)?]))
    ///     .launches([fft])
    ///     .stage("beams", &cuda, |work| {
    ///         let (x, w) = (work.slot.read_on(work.queue)?, weights.read_on(work.queue)?);
    ///         Blas::on(work.queue)?.gemm(&Gemm::new(1024, 16, 1024), &x, &w, &mut out.write_on(work.queue)?)
    ///     })
    /// #   .source(|_, _| Ok(Filled::End)).sink(|_, _| Ok(()))
    ///     // …
    ///     .build()?;
    /// println!("{}", pipeline.explain()); // fft on cuda:0: opencl:0's kernels, grafted: no hand-over
    /// # Ok(())
    /// # }
    /// ```
    pub fn launches<'k>(mut self, kernels: impl IntoIterator<Item = &'k Kernel>) -> Self {
        match self.stages.last_mut() {
            Some(stage) => stage.kernels.extend(kernels.into_iter().cloned()),
            None => self.too_early = Some("`launches` must follow a `stage`"),
        }
        self
    }

    /// Runs every stage's kernels on the stage's own device, even where a graft is proven.
    pub fn no_graft(mut self) -> Self {
        self.grafts = false;
        self
    }

    /// Sets the function that consumes the results, in frame order. It runs on the thread that calls [`Pipeline::run`].
    pub fn sink(mut self, take: impl FnMut(&S, u64) -> Result<()> + Send + 'f) -> Self {
        self.sink = Some(Part::Function(Box::new(take)));
        self.ends[1] = None;
        self
    }

    /// Sets a sink that works on several frames at a time: it keeps a slot until it reports that the frame is done.
    pub fn sink_overlapped(mut self, sink: impl Overlapped<S> + Send + 'f) -> Self {
        self.sink = Some(Part::Overlapped(Box::new(sink)));
        self.ends[1] = None;
        self
    }

    /// Sets how many frames a stage enqueues before it passes them on. The default is one, unless two neighbouring stages use two
    /// APIs of one chip: then the first frames are timed, and the size is the smallest of 1, 2, 4 and 8 at which changing there and
    /// back, as the doctor measured it, takes less than a tenth of the stages' own time.
    pub fn batch(mut self, frames: usize) -> Self {
        self.batch = Some(frames);
        self
    }

    /// Sets what happens when the source is faster than the stages and the sink. By default the source blocks.
    pub fn when_full(mut self, what: WhenFull) -> Self {
        self.when_full = what;
        self
    }

    /// Runs everything on the thread that calls [`Pipeline::run`]. Frames are still enqueued ahead of the one that the sink
    /// waits for, but the functions do not run in parallel. Use it for cheap functions, or if the slots' buffers are shared
    /// with a device whose driver crashes when two threads call it and no stage runs on that device. A pipeline with a stage
    /// on such a device (`caps.one_thread` of its info) switches to one thread by itself and logs a warning. The source is
    /// called only when a slot is free, so no frame is dropped.
    pub fn one_thread(mut self) -> Self {
        self.one_thread = Some(true);
        self
    }

    /// Runs each part on its own thread, even if a stage's driver is known to crash when two threads call it at once. The
    /// caller's functions must then ensure that only one of them is inside that driver at a time.
    pub fn threads(mut self) -> Self {
        self.one_thread = Some(false);
        self
    }

    /// Creates the queues and the slots.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the source, the sink or the slots are missing, or if the batch is larger than the ring;
    /// errors from creating slots and queues.
    pub fn build(mut self) -> Result<Pipeline<'f, S>> {
        if let Some(what) = self.too_early {
            return Err(Error::invalid(what));
        }
        let placements = graft::placements(&self.stages, self.grafts);
        let batching = self.batch_for(&placements)?;
        let missing = |what: &str| Error::invalid(format!("a pipeline without a {what}"));
        let source = self.source.take().ok_or_else(|| missing("source"))?;
        let sink = self.sink.take().ok_or_else(|| missing("sink"))?;
        if matches!(source, Part::Overlapped(_)) && self.when_full != WhenFull::Block {
            return Err(Error::invalid(
                "a source that fills several slots at a time cannot drop frames",
            ));
        }
        // With a dropping policy the source must always have a slot to fill: that takes one more.
        let slots = self.depth + usize::from(self.when_full != WhenFull::Block);
        let slots = (0..slots).map(&mut self.make).collect::<Result<Vec<S>>>()?;
        let end = |end: Option<Box<EndFn<'f, S>>>| Some(end?(slots.first()?));
        let [come, go] = std::mem::take(&mut self.ends).map(end);
        let ends = [come.or_else(|| source.explain(&slots)), go.or_else(|| sink.explain(&slots))];
        let queues = graft::queues(&placements)?;
        let alone = self.alone(&placements);
        let names = self.stages.iter().map(|stage| stage.name.clone());
        graft::tell(names.clone(), &placements, &queues);
        let counters = Arc::new(RunCounters::new(names.zip(placements), alone, batching));
        let runs = self.stages.into_iter().map(|stage| stage.run);
        let stages =
            queues.into_iter().zip(runs).map(|(queue, run)| Stage { queue, run }).collect();
        let when_full = self.when_full;
        Ok(Pipeline { slots, source, stages, sink, ends, when_full, counters })
    }

    /// Why everything must run on one thread; `None` if each part gets its own thread.
    fn alone(&self, placements: &[Placement]) -> Option<String> {
        let fragile = placements.iter().find(|placement| placement.device.info().caps.one_thread);
        let crashes = fragile.map(|Placement { device, .. }| {
            let platform = device.info().platform.trim();
            format!("{platform}'s driver of {} crashes when two threads call it", device.id())
        });
        match (self.one_thread, crashes) {
            (Some(true), _) => Some("asked for".into()),
            (None, Some(why)) => {
                tracing::warn!("the pipeline runs on one thread: {why}");
                Some(why)
            }
            (Some(false), _) | (None, None) => None,
        }
    }

    fn batch_for(&self, placements: &[Placement]) -> Result<Batching> {
        let depth = self.depth;
        if depth == 0 {
            return Err(Error::invalid(
                "a pipeline needs at least one slot, two for double buffering",
            ));
        }
        match self.batch {
            Some(batch) if batch == 0 || batch > depth => Err(Error::invalid(format!(
                "a batch of {batch} frames in a ring of {depth} slots: the batch must be 1 to {depth}"
            ))),
            Some(batch) => Ok(Batching::fixed(batch)),
            None => Ok(Batching::measured(placements, depth)),
        }
    }
}

/// A source, stages, a sink, and the ring between them; see the [module](self).
///
/// A pipeline can run repeatedly. It keeps its slots.
pub struct Pipeline<'f, S> {
    slots: Vec<S>,
    source: SourcePart<'f, S>,
    stages: Vec<Stage<'f, S>>,
    sink: SinkPart<'f, S>,
    /// How frames come and go, if known.
    ends: [Option<String>; 2],
    when_full: WhenFull,
    counters: Arc<RunCounters>,
}

impl<'f, S: Send + Sync> Pipeline<'f, S> {
    /// Starts a pipeline with a ring of `depth` slots (two is double buffering). `make` creates each slot once and receives
    /// its number.
    pub fn builder(depth: usize, make: impl FnMut(usize) -> Result<S> + 'f) -> Builder<'f, S> {
        Builder {
            depth,
            make: Box::new(make),
            source: None,
            stages: Vec::new(),
            sink: None,
            ends: [None, None],
            batch: None,
            when_full: WhenFull::default(),
            one_thread: None,
            grafts: true,
            too_early: None,
        }
    }

    /// How many frames a stage enqueues before it passes them on; one while the first frames are timed.
    pub fn batch(&self) -> usize {
        self.counters.batching.frames()
    }

    /// Describes how the frames of [`Builder::feed`] and [`Builder::drain`] come and go, where each stage runs and why, one line each;
    /// the size of batches, and why the pipeline runs on one thread, if there is something to tell.
    pub fn explain(&self) -> String {
        let stage = |place: &report::StageCounters| {
            let why = place.graft.as_ref().map_or_else(String::new, |graft| format!(": {graft}"));
            format!("{} on {}{why}\n", place.name, place.device)
        };
        let alone = self.counters.alone.iter().map(|why| format!("on one thread: {why}\n"));
        let [come, go] = self.ends.each_ref().map(|end| end.iter().map(|end| format!("{end}\n")));
        let batch = self.counters.batching.explain().map(|why| why + "\n");
        let stages = self.counters.stages.iter().map(stage);
        come.chain(stages).chain(go).chain(batch).chain(alone).collect()
    }

    /// The slots, between runs.
    pub fn slots(&self) -> &[S] {
        &self.slots
    }

    /// Returns a handle that stops or observes the pipeline from another thread.
    pub fn handle(&self) -> Handle {
        Handle(self.counters.clone())
    }

    /// Runs until the source ends, a [`Handle`] stops the pipeline, or a part fails. Frames in flight are finished first,
    /// unless a part failed.
    ///
    /// # Errors
    /// The first failure, with the part and the frame. The slots remain usable as far as their buffers do.
    ///
    /// # Panics
    /// If one of the functions panics. All other threads have ended by then.
    pub fn run(&mut self) -> Result<Report, Failure> {
        let Self { slots, source, stages, sink, when_full, counters, .. } = self;
        counters.clear();
        let life = counters.beats.live();
        let slot_ring = SlotRing::new(slots.len(), stages.len());
        let tracer = stages.first().map(|stage| stage.queue.tracer().clone()).unwrap_or_default();
        let run = Run { slots, slot_ring: &slot_ring, counters, tracer: &tracer };
        if counters.alone.is_some() {
            run.alone(source, stages, sink);
        } else {
            run.beside_each_other(source, stages, sink, *when_full);
        }
        counters.stop.store(false, Ordering::Relaxed);
        match slot_ring.into_failed() {
            Some(Failed { at, frame, error }) => {
                drop(life);
                Err(Failure { at, frame, error, report: counters.report().into() })
            }
            None => {
                life.finish();
                Ok(counters.report())
            }
        }
    }
}

impl<S> fmt::Debug for Pipeline<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages: Vec<_> = self.counters.stages.iter().map(|place| &place.name).collect();
        f.debug_struct("Pipeline")
            .field("slots", &self.slots.len())
            .field("stages", &stages)
            .field("batch", &self.counters.batching.frames())
            .finish_non_exhaustive()
    }
}

/// Stops or observes a [`Pipeline`] from another thread. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<RunCounters>);

impl Handle {
    /// Asks a running pipeline to stop: the source is not called again, and frames in flight are finished.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// The counters and latencies so far.
    pub fn report(&self) -> Report {
        self.0.report()
    }

    /// How many frames a stage enqueues before it passes them on; see [`Builder::batch`].
    pub fn batch(&self) -> usize {
        self.0.batching.frames()
    }

    /// The current state: lifecycle state, frame rate over the last seconds, and whether the pipeline has stalled.
    pub fn pulse(&self) -> Pulse {
        self.0.beats.pulse()
    }
}

/// What the live view shows of the pipeline.
impl ProgressSource for Handle {
    fn progress(&self) -> Progress {
        let (report, pulse) = (self.report(), self.pulse());
        let average_per_second = report.frames_per_second();
        let stage = |stage: StageReport| StageProgress {
            name: stage.name,
            device: stage.device,
            frames: stage.frames,
            p50: stage.latency.p50,
            p99: stage.latency.p99,
            busy: stage.busy,
        };
        Progress {
            state: pulse.state,
            frames: report.frames,
            dropped: report.dropped,
            incomplete: report.incomplete,
            on_the_way: report.on_the_way,
            elapsed: report.elapsed,
            frames_per_second: pulse.frames_per_second,
            average_per_second,
            since_last: pulse.since_last,
            stalled: pulse.stalled,
            p50: report.latency.p50,
            p99: report.latency.p99,
            stages: report.stages.into_iter().map(stage).collect(),
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt(f)
    }
}
