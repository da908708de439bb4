//! Pipelines
//!
//! A pipeline processes a continuous stream of frames: a source fills a slot, stages enqueue work on it, a sink
//! consumes the result, and the slot is reused. A slot has one or more buffers, created once. The source and each stage
//! have a thread of their own; the sink runs on the thread that runs the pipeline. Fences of the buffers order the
//! stages' queues, so only a callback that needs the bytes waits for a device.

use crate::{
    buffer::{Asked, onebuf_buffer_options},
    callback::{Callback, FrameFn, NO_QUEUE, QueueHandle, Ring, Said, SourceFn, frame},
    claim::{Claim, Drain, Feed, PipelineEnd},
    device::onebuf_device,
    entry::{entry, free},
    fault::{Fault, Result},
    frame::{onebuf_frame_function, onebuf_source_function},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, array, give, options, out, text},
    kernel::onebuf_kernel,
    sink::onebuf_sink,
    source::onebuf_source,
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{
    Device, Error, Hub, Kernel,
    pipeline::{Builder, Handle, Pipeline, Report, WhenFull, Work},
};
use std::{
    ffi::{c_char, c_void},
    sync::{Arc, Mutex, PoisonError, TryLockError},
    time::Duration,
};

/// A pipeline. Free it with onebuf_pipeline_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pipeline {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_pipeline, BuiltPipeline, 18);

/// What to do if the source is faster than the stages.
pub type onebuf_when_full = u32;
/// The source waits.
pub const ONEBUF_WHEN_FULL_BLOCK: onebuf_when_full = 0;
/// The oldest frame that waits for the first stage is dropped and counted.
pub const ONEBUF_WHEN_FULL_DROP_OLDEST: onebuf_when_full = 1;
/// The newest frame is dropped and counted.
pub const ONEBUF_WHEN_FULL_DROP_NEWEST: onebuf_when_full = 2;

/// A buffer of each slot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_slot_buffer {
    /// Size in bytes.
    pub bytes: usize,
    /// Options of the buffer; list all devices of stages that use it. NULL: only the host uses it. Host memory and
    /// contents are not allowed.
    pub options: *const onebuf_buffer_options,
}

/// A stage.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_stage {
    /// Name for reports and messages.
    pub name: *const c_char,
    /// The device of the stage's queue.
    pub device: onebuf_device,
    /// The callback.
    pub run: onebuf_frame_function,
    /// The first argument of `run`.
    pub user: *mut c_void,
    /// NULL, or all kernels that the stage launches, if it does nothing else with its queue. OpenCL kernels then run in
    /// the queue of a neighbouring CUDA or HIP stage on the same chip, if the doctor has proven that this works: no
    /// hand-over is needed. The slots' buffers must be shared with both devices. `onebuf_pipeline_json` reports the
    /// result.
    pub kernels: *const onebuf_kernel,
    /// Number of kernels.
    pub kernel_count: usize,
}

/// Options of a pipeline. Zero in every field means the default, except for `depth`, `buffers`, `source` or `feed`, and
/// `sink` or `drain`. Pointers must be valid during the call; each `user` must be valid while the pipeline runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pipeline_options {
    /// `sizeof(onebuf_pipeline_options)`.
    pub size: usize,
    /// Number of slots; two is double buffering.
    pub depth: usize,
    /// The buffers of each slot.
    pub buffers: *const onebuf_slot_buffer,
    /// Number of buffers.
    pub buffer_count: usize,
    /// The callback that produces frames.
    pub source: onebuf_source_function,
    /// The first argument of `source`.
    pub source_user: *mut c_void,
    /// The stages, in order.
    pub stages: *const onebuf_stage,
    /// Number of stages; may be zero.
    pub stage_count: usize,
    /// The callback that consumes frames, in order.
    pub sink: onebuf_frame_function,
    /// The first argument of `sink`.
    pub sink_user: *mut c_void,
    /// Number of frames that a stage enqueues before it passes them on; zero: the value measured to be best on this
    /// machine.
    pub batch: usize,
    /// What to do if the source is faster than the stages.
    pub when_full: onebuf_when_full,
    /// Not zero: everything runs on the thread that runs the pipeline. This is automatic, with a warning in the log, if
    /// a stage's driver is known to crash when two threads call it at once.
    pub one_thread: u32,
    /// A source of the library, instead of `source`; null: `source` is used.
    pub feed: onebuf_source,
    /// The index of the slot's buffer that `feed` fills: in place if the host can access it, otherwise by one upload.
    pub feed_buffer: usize,
    /// A sink of the library, instead of `sink`; null: `sink` is used.
    pub drain: onebuf_sink,
    /// The index of the slot's buffer that `drain` takes: in place if the host can access it, otherwise by one
    /// download.
    pub drain_buffer: usize,
    /// Not zero: every stage's kernels run on the stage's own device, even if a graft is proven.
    pub no_graft: u32,
    /// Ignored: programs built against an earlier version have undefined bytes here, which their `size` includes.
    pub reserved: u32,
    /// Not zero: the source and each stage have their own thread, even if a stage's driver is known to crash then.
    /// `one_thread` takes precedence.
    pub threads: u32,
}
// SAFETY: plain numbers and pointers, the size first; functions may be null; handles are numbers.
unsafe impl Options for onebuf_pipeline_options {}

/// Progress of a pipeline. Times are in nanoseconds, and zero before the first frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pipeline_report {
    /// `sizeof(onebuf_pipeline_report)`.
    pub size: usize,
    /// Frames that the sink has consumed.
    pub frames: u64,
    /// Frames that were dropped because the stages were slower than the source.
    pub dropped: u64,
    /// Incomplete frames, which were not passed on.
    pub incomplete: u64,
    /// Frames in flight.
    pub on_the_way: u64,
    /// How long it has been running.
    pub elapsed_ns: u64,
    /// Median latency of a frame, from the end of the source's callback to the end of the sink's.
    pub latency_p50_ns: u64,
    /// 99th percentile of that latency.
    pub latency_p99_ns: u64,
    /// Not zero: everything ran on one thread, because it was requested or a stage's driver does not support two.
    pub one_thread: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_pipeline_report {}

/// A pipeline, and what callbacks need while it runs.
#[doc(hidden)]
pub struct BuiltPipeline {
    pipeline: Mutex<Pipeline<'static, Ring>>,
    pub(crate) handle: Handle,
    /// Where each stage runs and why.
    pub(crate) explained: String,
    /// Where the last run failed: the part, and the number of the frame.
    pub(crate) failed: Mutex<Option<(String, u64)>>,
    said: Arc<Said>,
}

/// A larger depth was not initialised.
const MOST_SLOTS: usize = 1 << 16;

/// The options after validation.
struct Plan {
    given: onebuf_pipeline_options,
    source: PipelineEnd<SourceFn, Claim<Feed>>,
    sink: PipelineEnd<FrameFn, Claim<Drain>>,
    stages: Vec<Stage>,
}

struct Stage {
    name: String,
    device: Arc<Device>,
    run: FrameFn,
    user: *mut c_void,
    kernels: Vec<Kernel>,
}

impl Stage {
    /// # Safety
    /// As for [`onebuf_pipeline_create`].
    unsafe fn read(given: &onebuf_stage) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(given.name, "name")? }.to_owned();
        // SAFETY: as above.
        let kernels = unsafe { array(given.kernels, given.kernel_count, "kernels")? };
        let kernels = kernels.iter().map(|kernel| Ok(kernel.get()?.kernel().clone()));
        let (device, run) = (given.device.get()?, given.run.ok_or(Fault::Null("run"))?);
        Ok(Self { name, device, run, user: given.user, kernels: kernels.collect::<Result<_>>()? })
    }
}

impl Plan {
    /// # Safety
    /// As for [`onebuf_pipeline_create`].
    unsafe fn read(given: *const onebuf_pipeline_options) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let given = unsafe { options(given)? };
        // SAFETY: as above.
        let stages = unsafe { array(given.stages, given.stage_count, "stages")? };
        // SAFETY: as above.
        let stage = |stage: &onebuf_stage| unsafe { Stage::read(stage) };
        Ok(Self {
            given,
            source: PipelineEnd::choose("source", given.source, given.feed, |feed| feed.claim())?
                .of(given.feed_buffer, given.buffer_count)?,
            sink: PipelineEnd::choose("sink", given.sink, given.drain, |drain| drain.claim())?
                .of(given.drain_buffer, given.buffer_count)?,
            stages: stages.iter().map(stage).collect::<Result<_>>()?,
        })
    }

    /// The buffers of the slots.
    ///
    /// # Safety
    /// As for [`onebuf_pipeline_create`].
    unsafe fn slot(&self, hub: &Hub) -> Result<Ring> {
        // SAFETY: guaranteed by the caller.
        let parts = unsafe { array(self.given.buffers, self.given.buffer_count, "buffers")? };
        if parts.is_empty() {
            return Err(Fault::invalid("a pipeline whose slots have no buffer"));
        }
        // Buffers created before a failure are freed with this.
        let mut slot = Ring::default();
        for part in parts {
            // SAFETY: as above.
            let asked = unsafe { Asked::read(part.options)? };
            if asked.brings_bytes() {
                return Err(Fault::invalid("`contents` or `host_memory` for a pipeline's slots"));
            }
            // SAFETY: as above.
            let built = unsafe { asked.builder(hub, part.bytes)?.build()? };
            slot.add(built)?;
        }
        Ok(slot)
    }

    fn when_full(&self) -> Result<WhenFull> {
        match self.given.when_full {
            ONEBUF_WHEN_FULL_BLOCK => Ok(WhenFull::Block),
            ONEBUF_WHEN_FULL_DROP_OLDEST => Ok(WhenFull::DropOldest),
            ONEBUF_WHEN_FULL_DROP_NEWEST => Ok(WhenFull::DropNewest),
            other => Err(Fault::invalid(format!("when_full {other}: choose one of 0 to 2"))),
        }
    }

    /// # Safety
    /// As for [`onebuf_pipeline_create`].
    unsafe fn build(self, hub: &Hub) -> Result<BuiltPipeline> {
        let (said, when_full) = (Arc::new(Said::default()), self.when_full()?);
        if self.given.depth > MOST_SLOTS {
            let depth = self.given.depth;
            return Err(Fault::invalid(format!("depth {depth}: {MOST_SLOTS} slots at most")));
        }
        // Dropping frames needs one slot more.
        let slots = self.given.depth + usize::from(when_full != WhenFull::Block);
        // SAFETY: guaranteed by the caller.
        let slots = (0..slots).map(|_| unsafe { self.slot(hub) }).collect::<Result<Vec<_>>>()?;
        let mut slots = slots.into_iter();
        let make = move |_| slots.next().ok_or_else(|| Error::invalid("more slots than were made"));
        let mut builder = Pipeline::builder(self.given.depth, make).when_full(when_full);
        builder = with_source(builder, self.source, self.given.source_user, &said);
        builder = with_sink(builder, self.sink, self.given.sink_user, &said);
        for Stage { name, device, run, user, kernels } in self.stages {
            let callback = Callback { run, user, said: said.clone() };
            let (at, mut queue) = (name.clone(), QueueHandle::default());
            builder = builder.stage(name, &device, move |work: Work<'_, Ring>| {
                callback.take(&at, &frame(work.slot, work.frame, queue.of(work.queue)?))
            });
            builder = builder.launches(&kernels);
        }
        if self.given.no_graft != 0 {
            builder = builder.no_graft();
        }
        if self.given.batch > 0 {
            builder = builder.batch(self.given.batch);
        }
        if self.given.threads != 0 {
            builder = builder.threads();
        }
        if self.given.one_thread != 0 {
            builder = builder.one_thread();
        }
        let pipeline = builder.build()?;
        let handle = pipeline.handle();
        let explained = pipeline.explain();
        let failed = Mutex::new(None);
        Ok(BuiltPipeline { pipeline: Mutex::new(pipeline), handle, explained, failed, said })
    }
}

fn with_source(
    builder: Builder<'static, Ring>,
    source: PipelineEnd<SourceFn, Claim<Feed>>,
    user: *mut c_void,
    said: &Arc<Said>,
) -> Builder<'static, Ring> {
    match source {
        PipelineEnd::Claim(feed, buffer) => {
            builder.feed(feed, move |slot: &Ring| slot.buffer(buffer))
        }
        PipelineEnd::Function(run) => {
            let source = Callback { run, user, said: said.clone() };
            builder.source(move |slot, number| source.fill(slot, number))
        }
    }
}

fn with_sink(
    builder: Builder<'static, Ring>,
    sink: PipelineEnd<FrameFn, Claim<Drain>>,
    user: *mut c_void,
    said: &Arc<Said>,
) -> Builder<'static, Ring> {
    match sink {
        PipelineEnd::Claim(drain, buffer) => {
            builder.drain(drain, move |slot: &Ring| slot.buffer(buffer))
        }
        PipelineEnd::Function(run) => {
            let sink = Callback { run, user, said: said.clone() };
            builder.sink(move |slot, number| sink.take("sink", &frame(slot, number, NO_QUEUE)))
        }
    }
}

impl BuiltPipeline {
    fn run(&self) -> Result<Report> {
        let mut pipeline = match self.pipeline.try_lock() {
            Ok(pipeline) => pipeline,
            Err(TryLockError::Poisoned(pipeline)) => pipeline.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Busy { what: "this pipeline runs already".into() }.into());
            }
        };
        let ran = pipeline.run();
        let place = ran.as_ref().err().map(|failure| (failure.at.clone(), failure.frame));
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = place;
        ran.map_err(|failure| self.said.fault(failure))
    }
}

fn plain(report: &Report) -> onebuf_pipeline_report {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    onebuf_pipeline_report {
        size: size_of::<onebuf_pipeline_report>(),
        frames: report.frames,
        dropped: report.dropped,
        incomplete: report.incomplete,
        on_the_way: report.on_the_way,
        elapsed_ns: ns(report.elapsed),
        latency_p50_ns: report.latency.p50.map_or(0, ns),
        latency_p99_ns: report.latency.p99.map_or(0, ns),
        one_thread: report.one_thread.is_some().into(),
    }
}

/// Creates a pipeline: opens the stages' queues and allocates the slots. ONEBUF_INVALID_ARGUMENT for zero slots, or for
/// a batch that does not fit the ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_create(
    hub: onebuf_hub,
    options: *const onebuf_pipeline_options,
    pipeline: Slot<'_, onebuf_pipeline>,
) -> onebuf_status {
    entry(|| {
        let pipeline = out(pipeline, "pipeline")?;
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        *pipeline = onebuf_pipeline::put(unsafe { Plan::read(options)?.build(&hub.hub)? })?;
        Ok(())
    })
}

/// Runs until the source ends, onebuf_pipeline_stop() is called, or something fails. Frames in flight are completed
/// first, unless something failed. The pipeline may be run again with the same slots. ONEBUF_BUSY while it runs.
/// `report` may be NULL; it is also filled in after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_run(
    pipeline: onebuf_pipeline,
    report: *mut onebuf_pipeline_report,
) -> onebuf_status {
    entry(|| {
        let line = pipeline.get()?;
        let ran = line.run().map(drop);
        if !report.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { give(plain(&line.handle.report()), report, "report")? };
        }
        ran
    })
}

/// Asks a running pipeline to end, from any thread: the source is not called again, and frames in flight are completed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_stop(pipeline: onebuf_pipeline) -> onebuf_status {
    entry(|| {
        pipeline.get()?.handle.stop();
        Ok(())
    })
}

/// Reports the progress, from any thread, also while the pipeline runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_get_report(
    pipeline: onebuf_pipeline,
    report: *mut onebuf_pipeline_report,
) -> onebuf_status {
    // SAFETY: guaranteed by the caller.
    entry(|| unsafe { give(plain(&pipeline.get()?.handle.report()), report, "report") })
}

/// Reports the progress and the times of each stage as JSON.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_json(
    pipeline: onebuf_pipeline,
    json: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(json, || {
            let report = pipeline.get()?.handle.report();
            serde_json::to_vec(&report).map_err(|why| Fault::invalid(why.to_string()))
        })
    })
}

/// Frees a pipeline, its queues and its slots. A running pipeline is asked to end, and is freed when it has.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_free(pipeline: onebuf_pipeline) -> onebuf_status {
    if let Ok(line) = pipeline.get() {
        line.handle.stop();
    }
    free(pipeline)
}
