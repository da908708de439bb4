//! Frames that come without pause: a source, stages on devices, a sink, and a ring of slots between them.
//!
//! ```text
//!            ┌──────────────── free slots ◄───────────────┐
//!            ▼                                            │
//!   source ─ fills ─► stage ─ enqueues ─► stage ─ … ─► sink reads
//! ```
//!
//! A slot is whatever one frame needs: a buffer, or a structure of several, made once. Each part has a thread of its own
//! and works on another slot; nobody waits for a device but who needs the bytes, since a buffer's own fences order the
//! stages' queues. Stages can take several frames at once ([`Builder::batch`]), for devices that are slow to change
//! from one API to another.
//!
//! ```
//! use onebuf::{Access, Signature, Source, args, pipeline::{Filled, Pipeline}};
//!
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let device = hub.host();
//! let twice = Source::opencl_c("kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }")
//!     .with_native("twice", |args| {
//!         args.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= 2.0);
//!         Ok(())
//!     });
//! let fits = Signature::new().buffer::<f32>(Access::ReadWrite).require(|call| {
//!     if call.global()[0] <= call.len(0) { Ok(()) } else { Err("more work-items than elements".into()) }
//! });
//! // SAFETY: work-item i touches x[i] only, and there are no more of them than elements.
//! let twice = unsafe { device.program(&twice)?.kernel("twice", fits)? };
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
//!     .stage("twice", &device, |work| {
//!         work.queue.launch(&twice, [256], args![work.slot.write_on(work.queue)?])
//!     })
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

mod graft;
mod net;
mod npy;
mod pulse;
mod report;
mod run;
pub mod sink;
mod slot_ring;
pub mod source;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod times;

pub use graft::Graft;
pub use npy::NpyElement;
pub use onebuf_core::observe::RunState as State;
pub use pulse::Pulse;
pub use report::{Failure, Latency, Report, StageReport};
pub use slot_ring::WhenFull;

use graft::Placement;
use onebuf_core::{
    Device, Kernel, Queue,
    observe::{Progress, ProgressSource, StageProgress},
};
use onebuf_hal::{Error, Result};
use report::Counters;
use run::Run;
use slot_ring::{Failed, SlotRing};
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

/// A hand-over on one chip that is slower than this is a change of context, which is worth a batch.
const SWITCH_US: f64 = 50.0;
/// Frames for one change of context: measured on an H200, where more gained little.
const BATCH: usize = 8;

/// What a source did with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It holds the next frame.
    Frame,
    /// Something of the frame is missing: it is counted, and not passed on.
    Incomplete,
    /// Nothing came for a while. The source is asked again, unless somebody wants to stop.
    Idle,
    /// There are no more.
    End,
}

/// What a stage works on.
#[derive(Debug)]
pub struct Work<'w, S> {
    /// The slot, which nobody else has.
    pub slot: &'w S,
    /// The stage's queue.
    pub queue: &'w Queue,
    /// The frame's number, from zero. Those of frames that were dropped or incomplete are left out.
    pub frame: u64,
}

type MakeFn<'f, S> = dyn FnMut(usize) -> Result<S> + 'f;
type SourceFn<'f, S> = dyn FnMut(&S, u64) -> Result<Filled> + Send + 'f;
type StageFn<'f, S> = dyn FnMut(Work<'_, S>) -> Result<()> + Send + 'f;
type SinkFn<'f, S> = dyn FnMut(&S, u64) -> Result<()> + Send + 'f;

struct Stage<'f, S> {
    queue: Queue,
    run: Box<StageFn<'f, S>>,
}

/// A stage as it was asked for.
struct Wanted<'f, S> {
    name: String,
    device: Device,
    /// All that it launches, where it says so.
    kernels: Vec<Kernel>,
    run: Box<StageFn<'f, S>>,
}

/// What a [`Pipeline`] shall be.
#[must_use = "nothing is made until `build`"]
pub struct Builder<'f, S> {
    depth: usize,
    make: Box<MakeFn<'f, S>>,
    source: Option<Box<SourceFn<'f, S>>>,
    stages: Vec<Wanted<'f, S>>,
    sink: Option<Box<SinkFn<'f, S>>>,
    batch: Option<usize>,
    when_full: WhenFull,
    /// Whether on one thread, where that was said.
    one_thread: Option<bool>,
    grafts: bool,
    /// What was said before there was anything to say it of.
    too_early: Option<&'static str>,
}

impl<'f, S: Send + Sync> Builder<'f, S> {
    /// What fills a slot with the frame of this number. It runs on a thread of its own.
    pub fn source(mut self, fill: impl FnMut(&S, u64) -> Result<Filled> + Send + 'f) -> Self {
        self.source = Some(Box::new(fill));
        self
    }

    /// The next stage: a function that enqueues one frame's work on a queue of the device. It runs on a thread of its
    /// own, and waits for nothing.
    pub fn stage(
        mut self,
        name: impl Into<String>,
        device: &Device,
        run: impl FnMut(Work<'_, S>) -> Result<()> + Send + 'f,
    ) -> Self {
        let (name, device, kernels) = (name.into(), device.clone(), Vec::new());
        self.stages.push(Wanted { name, device, kernels, run: Box::new(run) });
        self
    }

    /// Which kernels the stage before launches, and that it does nothing else with its queue. Then it need not be its
    /// own device's: kernels of OpenCL beside a stage of CUDA or HIP on the same chip run in that stage's queue, where
    /// the doctor has proven that they compute the same there ([`Kernel::graft_if_proven`]). Nothing is handed over then,
    /// and the chip does not change from one API to the other. The stage's buffers have to be shared with both devices;
    /// its code stays as it is. [`StageReport::graft`] and [`Pipeline::explain`] tell what became of it.
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
            None => self.too_early = Some("kernels that are launched before there is a stage"),
        }
        self
    }

    /// Every stage's kernels run on its own device, whatever is proven.
    pub fn no_graft(mut self) -> Self {
        self.grafts = false;
        self
    }

    /// What takes the results, in the order of the frames. It runs on the thread that calls [`Pipeline::run`].
    pub fn sink(mut self, take: impl FnMut(&S, u64) -> Result<()> + Send + 'f) -> Self {
        self.sink = Some(Box::new(take));
        self
    }

    /// How many frames a stage enqueues before it passes them on. Otherwise eight where two neighbours are two APIs of
    /// one chip that the doctor found slow to change between, and one elsewhere.
    pub fn batch(mut self, frames: usize) -> Self {
        self.batch = Some(frames);
        self
    }

    /// What to do when the source is faster than the rest; it waits, unless something else is said.
    pub fn when_full(mut self, what: WhenFull) -> Self {
        self.when_full = what;
        self
    }

    /// Everything runs on the thread that calls [`Pipeline::run`]: frames are still enqueued ahead of those that the
    /// sink waits for, but the functions do not run beside each other. For functions that are cheap, and for slots whose
    /// buffers are shared with a device that two threads at once crash while no stage is on it: a pipeline with a stage on
    /// such a device (`caps.one_thread` of its info) does so by itself, with a warning. The source is asked when there is
    /// a slot, so nothing is dropped.
    pub fn one_thread(mut self) -> Self {
        self.one_thread = Some(true);
        self
    }

    /// Each part has a thread of its own, also where a stage's driver is known to crash when two threads call it at once.
    /// For functions that see to it themselves that only one of them is inside of that driver at a time.
    pub fn threads(mut self) -> Self {
        self.one_thread = Some(false);
        self
    }

    /// Opens the queues and makes the slots.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without a source, a sink or a slot, or for a batch that the ring has no room for;
    /// those of the slots and queues.
    pub fn build(mut self) -> Result<Pipeline<'f, S>> {
        if let Some(what) = self.too_early {
            return Err(Error::invalid(what));
        }
        let placements = graft::placements(&self.stages, self.grafts);
        let batch = self.batch_for(&placements)?;
        let missing = |what: &str| Error::invalid(format!("a pipeline without a {what}"));
        let source = self.source.take().ok_or_else(|| missing("source"))?;
        let sink = self.sink.take().ok_or_else(|| missing("sink"))?;
        // Whoever drops always has a slot to fill: that is one more.
        let slots = self.depth + usize::from(self.when_full != WhenFull::Block);
        let slots = (0..slots).map(&mut self.make).collect::<Result<Vec<S>>>()?;
        let queues = graft::queues(&placements)?;
        let alone = self.alone(&placements);
        let names = self.stages.iter().map(|stage| stage.name.clone());
        graft::tell(names.clone(), &placements, &queues);
        let counters = Arc::new(Counters::new(names.zip(placements), alone));
        let runs = self.stages.into_iter().map(|stage| stage.run);
        let stages =
            queues.into_iter().zip(runs).map(|(queue, run)| Stage { queue, run }).collect();
        let when_full = self.when_full;
        Ok(Pipeline { slots, source, stages, sink, batch, when_full, counters })
    }

    /// Why everything is to run on one thread; none where it is not.
    fn alone(&self, placements: &[Placement]) -> Option<String> {
        let fragile = placements.iter().find(|placement| placement.device.info().caps.one_thread);
        let crashes = fragile.map(|Placement { device, .. }| {
            let platform = device.info().platform.trim();
            format!(
                "{platform}'s driver of {} does not survive calls from two threads",
                device.id()
            )
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

    fn batch_for(&self, placements: &[Placement]) -> Result<usize> {
        let depth = self.depth;
        if depth == 0 {
            return Err(Error::invalid("a pipeline without a slot: two or more keep it busy"));
        }
        match self.batch {
            Some(batch) if batch == 0 || batch > depth => Err(Error::invalid(format!(
                "batches of {batch} frames in a ring of {depth} slots: from 1 to {depth} fit"
            ))),
            Some(batch) => Ok(batch),
            None if placements
                .windows(2)
                .any(|two| is_slow_to_change(&two[0].device, &two[1].device)) =>
            {
                Ok(BATCH.min(depth.div_ceil(2)))
            }
            None => Ok(1),
        }
    }
}

/// Whether two APIs of one chip were measured to take long for changing between them.
fn is_slow_to_change(a: &Device, b: &Device) -> bool {
    if a.id() == b.id() || !a.info().physical.same_chip(&b.info().physical) {
        return false;
    }
    let routes = a.hub().topology().between(a.index(), b.index()).iter();
    let mut proven = routes.filter(|route| route.verdict.zero_copy == Some(true));
    proven.any(|route| route.verdict.handoff_us.is_some_and(|us| us > SWITCH_US))
}

/// A source, stages, a sink, and the ring between them; see the [module](self).
///
/// It can be run again and again: the slots stay.
pub struct Pipeline<'f, S> {
    slots: Vec<S>,
    source: Box<SourceFn<'f, S>>,
    stages: Vec<Stage<'f, S>>,
    sink: Box<SinkFn<'f, S>>,
    batch: usize,
    when_full: WhenFull,
    counters: Arc<Counters>,
}

impl<'f, S: Send + Sync> Pipeline<'f, S> {
    /// A ring of so many slots (two are double buffering), each made once by a function that is given its number.
    pub fn builder(depth: usize, make: impl FnMut(usize) -> Result<S> + 'f) -> Builder<'f, S> {
        Builder {
            depth,
            make: Box::new(make),
            source: None,
            stages: Vec::new(),
            sink: None,
            batch: None,
            when_full: WhenFull::default(),
            one_thread: None,
            grafts: true,
            too_early: None,
        }
    }

    /// How many frames a stage enqueues before it passes them on.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Where each stage runs, and why there, a line for each; and why all of it runs on one thread, where it does.
    pub fn explain(&self) -> String {
        let stage = |place: &report::Place| {
            let why = place.graft.as_ref().map_or_else(String::new, |graft| format!(": {graft}"));
            format!("{} on {}{why}\n", place.name, place.device)
        };
        let alone = self.counters.alone.iter().map(|why| format!("on one thread: {why}\n"));
        self.counters.stages.iter().map(stage).chain(alone).collect()
    }

    /// The slots, between runs.
    pub fn slots(&self) -> &[S] {
        &self.slots
    }

    /// For whoever wants to stop it, or to see how it does, from another thread.
    pub fn handle(&self) -> Handle {
        Handle(self.counters.clone())
    }

    /// Runs until the source ends, somebody stops it, or something fails. What is on its way then comes out first,
    /// unless something failed.
    ///
    /// # Errors
    /// The first failure, with where it was; the slots can be used again as far as their buffers can.
    ///
    /// # Panics
    /// When one of the functions does; the others have ended then.
    pub fn run(&mut self) -> Result<Report, Failure> {
        let Self { slots, source, stages, sink, batch, when_full, counters } = self;
        counters.clear();
        let life = counters.beats.live();
        let (slot_ring, batch) = (SlotRing::new(slots.len(), stages.len()), *batch);
        let tracer = stages.first().map(|stage| stage.queue.tracer().clone()).unwrap_or_default();
        let run = Run { slots, slot_ring: &slot_ring, counters, tracer: &tracer };
        if counters.alone.is_some() {
            run.alone(&mut **source, stages, &mut **sink, batch);
        } else {
            run.beside_each_other(&mut **source, stages, &mut **sink, batch, *when_full);
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
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

/// Stops a [`Pipeline`] and sees how it does. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<Counters>);

impl Handle {
    /// Asks the pipeline that runs to end: the source is not asked again, and what is on its way comes out.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// How it has done so far.
    pub fn report(&self) -> Report {
        self.0.report()
    }

    /// How it does now: its state, its rate in the last seconds, and whether it has stalled.
    pub fn pulse(&self) -> Pulse {
        self.0.beats.pulse()
    }
}

/// What a live view shows of it.
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
