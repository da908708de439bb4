//! Pipelines
//!
//! Frames that come without pause: a source fills a slot, stages enqueue work on it, a sink takes the result, and the
//! slots go round. A slot is one buffer or several, made once. The source and each stage have a thread of their own; the
//! sink is called on the thread that runs the pipeline. Only a caller that needs the bytes waits for a device: a buffer's
//! own fences order the stages' queues.

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
    sync::{Arc, Mutex, TryLockError},
    time::Duration,
};

/// A pipeline. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pipeline {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_pipeline, BuiltPipeline, 18);

/// What to do when the source is faster than the rest.
pub type onebuf_when_full = u32;
/// The source waits.
pub const ONEBUF_WHEN_FULL_BLOCK: onebuf_when_full = 0;
/// The frame that has waited longest before the first stage is dropped, and counted.
pub const ONEBUF_WHEN_FULL_DROP_OLDEST: onebuf_when_full = 1;
/// The frame that has just come is dropped, and counted.
pub const ONEBUF_WHEN_FULL_DROP_NEWEST: onebuf_when_full = 2;

/// A buffer that each slot has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_slot_buffer {
    /// How many bytes.
    pub bytes: usize,
    /// What it shall be: with all devices of the stages that use it. NULL: the host alone uses it. It brings neither
    /// memory nor contents.
    pub options: *const onebuf_buffer_options,
}

/// A stage.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_stage {
    /// Its name, for reports and messages.
    pub name: *const c_char,
    /// The device that its queue is of.
    pub device: onebuf_device,
    /// What it does.
    pub run: onebuf_frame_function,
    /// What `run` is given first.
    pub user: *mut c_void,
    /// Null, or all kernels that it launches, where it does nothing else with its queue. Beside a stage of CUDA or HIP on the
    /// same chip, kernels of OpenCL then run in that stage's queue, where the doctor has proven that they can: nothing is
    /// handed over. The slots' buffers have to be shared with both devices. `onebuf_pipeline_json` tells what became of it.
    pub kernels: *const onebuf_kernel,
    /// How many kernels.
    pub kernel_count: usize,
}

/// What a pipeline shall be. Zeroes are the defaults, but for `depth`, `buffers`, `source` or `feed`, and `sink` or
/// `drain`. Pointers need to be valid during the call only, `user`s as long as the pipeline runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pipeline_options {
    /// `sizeof(onebuf_pipeline_options)`.
    pub size: usize,
    /// How many slots go round; two are double buffering.
    pub depth: usize,
    /// What each slot has.
    pub buffers: *const onebuf_slot_buffer,
    /// How many buffers.
    pub buffer_count: usize,
    /// Where frames come from.
    pub source: onebuf_source_function,
    /// What `source` is given first.
    pub source_user: *mut c_void,
    /// What is done with them, in this order.
    pub stages: *const onebuf_stage,
    /// How many stages; none is fine.
    pub stage_count: usize,
    /// Where they go, in their order.
    pub sink: onebuf_frame_function,
    /// What `sink` is given first.
    pub sink_user: *mut c_void,
    /// How many frames a stage enqueues before it passes them on; zero: as was measured to be best here.
    pub batch: usize,
    /// What to do when the source is faster than the rest.
    pub when_full: onebuf_when_full,
    /// Not zero: everything runs on the thread that runs the pipeline. A pipeline with a stage on a device whose driver is
    /// known to crash when two threads call it at once does so by itself, with a warning in the log.
    pub one_thread: u32,
    /// Where frames come from, instead of `source`; null: from there.
    pub feed: onebuf_source,
    /// Which buffer of a slot it fills: in place where the host sees that, else by one upload.
    pub feed_buffer: usize,
    /// Where they go, instead of `sink`; null: there.
    pub drain: onebuf_sink,
    /// Which buffer of a slot it takes: in place where the host sees that, else by one download.
    pub drain_buffer: usize,
    /// Not zero: every stage's kernels run on its own device, whatever is proven.
    pub no_graft: u32,
    /// Ignored: programs of an earlier version have undefined bytes here, which their `size` covers.
    pub reserved: u32,
    /// Not zero: each part has a thread of its own, also where a stage's driver is known to crash then. `one_thread` is
    /// stronger.
    pub threads: u32,
}
// SAFETY: plain numbers and pointers, the size first; functions may be null; handles are numbers.
unsafe impl Options for onebuf_pipeline_options {}

/// How a pipeline does, or did. Times are in nanoseconds; those of a pipeline that had no frame yet are zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pipeline_report {
    /// `sizeof(onebuf_pipeline_report)`.
    pub size: usize,
    /// Frames that came out at the sink.
    pub frames: u64,
    /// Frames that were dropped because the rest was slower than the source.
    pub dropped: u64,
    /// Frames that the source could not complete; they were not passed on.
    pub incomplete: u64,
    /// Frames that are on their way.
    pub on_the_way: u64,
    /// How long it has been running.
    pub elapsed_ns: u64,
    /// Half of the frames took no longer from the source's having filled them to the sink's being done.
    pub latency_p50_ns: u64,
    /// The same for 99 of 100.
    pub latency_p99_ns: u64,
    /// Not zero: everything ran on one thread, because that was asked for or a stage's driver does not survive two.
    pub one_thread: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_pipeline_report {}

/// A pipeline, and what is needed of it while it runs.
#[doc(hidden)]
pub struct BuiltPipeline {
    pipeline: Mutex<Pipeline<'static, Ring>>,
    handle: Handle,
    said: Arc<Said>,
}

/// Deeper rings were not initialised.
const MOST_SLOTS: usize = 1 << 16;

/// What the options say, their pointers read.
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
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
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

    /// The slot's buffers.
    ///
    /// # Safety
    /// As for [`onebuf_pipeline_create`].
    unsafe fn slot(&self, hub: &Hub) -> Result<Ring> {
        // SAFETY: the caller's promise.
        let parts = unsafe { array(self.given.buffers, self.given.buffer_count, "buffers")? };
        if parts.is_empty() {
            return Err(Fault::invalid("a pipeline whose slots have no buffer"));
        }
        // What is made before one fails is freed with this.
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
        // Whoever drops has one slot more.
        let slots = self.given.depth + usize::from(when_full != WhenFull::Block);
        // SAFETY: the caller's promise.
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
        Ok(BuiltPipeline { pipeline: Mutex::new(pipeline), handle, said })
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
        pipeline.run().map_err(|failure| self.said.fault(failure))
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

/// Opens the stages' queues and makes the slots. ONEBUF_INVALID_ARGUMENT without a slot, or for a batch that the ring has
/// no room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_create(
    hub: onebuf_hub,
    options: *const onebuf_pipeline_options,
    pipeline: Slot<'_, onebuf_pipeline>,
) -> onebuf_status {
    entry(|| {
        let pipeline = out(pipeline, "pipeline")?;
        let hub = hub.get()?;
        // SAFETY: the caller's promise, also about what the options point at.
        *pipeline = onebuf_pipeline::put(unsafe { Plan::read(options)?.build(&hub.hub)? })?;
        Ok(())
    })
}

/// Runs until the source ends, somebody stops it, or something fails; what is on its way then comes out first, unless
/// something failed. It may be run again: the slots stay. ONEBUF_BUSY while it runs. `report` may be NULL; it is written
/// after a failure, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_run(
    pipeline: onebuf_pipeline,
    report: *mut onebuf_pipeline_report,
) -> onebuf_status {
    entry(|| {
        let line = pipeline.get()?;
        let ran = line.run().map(drop);
        if !report.is_null() {
            // SAFETY: the caller's promise.
            unsafe { give(plain(&line.handle.report()), report, "report")? };
        }
        ran
    })
}

/// Asks the pipeline that runs to end, from any thread: the source is not asked again, and what is on its way comes out.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_stop(pipeline: onebuf_pipeline) -> onebuf_status {
    entry(|| {
        pipeline.get()?.handle.stop();
        Ok(())
    })
}

/// How it does, from any thread, also while it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_get_report(
    pipeline: onebuf_pipeline,
    report: *mut onebuf_pipeline_report,
) -> onebuf_status {
    // SAFETY: the caller's promise.
    entry(|| unsafe { give(plain(&pipeline.get()?.handle.report()), report, "report") })
}

/// The same with each stage's own times, as JSON.
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

/// Frees a pipeline, its queues and its slots. One that runs is asked to end, and goes when it has.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_free(pipeline: onebuf_pipeline) -> onebuf_status {
    if let Ok(line) = pipeline.get() {
        line.handle.stop();
    }
    free(pipeline)
}
