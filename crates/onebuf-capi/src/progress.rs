//! Progress of pipelines
//!
//! What a pipeline is doing, from any thread, also while it runs. Times are in nanoseconds.

use crate::{
    entry::entry,
    fault::Fault,
    handle::Noun,
    input::{Options, Slot, give, out},
    pipeline::onebuf_pipeline,
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{observe::RunState, pipeline::Graft};
use std::{sync::PoisonError, time::Duration};

/// The state of a pipeline.
pub type onebuf_run_state = u32;
/// It has not been run.
pub const ONEBUF_RUN_READY: onebuf_run_state = 0;
/// It is running, even if no frame arrives.
pub const ONEBUF_RUN_RUNNING: onebuf_run_state = 1;
/// Its source ended, or it was stopped, and every frame has left it.
pub const ONEBUF_RUN_FINISHED: onebuf_run_state = 2;
/// One of its parts failed.
pub const ONEBUF_RUN_FAILED: onebuf_run_state = 3;

/// Whether frames come out. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pulse {
    /// `sizeof(onebuf_pulse)`.
    pub size: usize,
    /// The state of the pipeline.
    pub state: onebuf_run_state,
    /// Not zero: it is running, frames have come out, and none has for unusually long.
    pub stalled: u32,
    /// Frames per second over the last five seconds; zero unless it is running.
    pub frames_per_second: f64,
    /// Time since the last frame came out, or since the start; zero unless it is running.
    pub since_last_ns: u64,
    /// Number of frames that a stage enqueues before it passes them on.
    pub batch: usize,
    /// Number of stages.
    pub stage_count: usize,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_pulse {}

/// The progress of one stage. Set `size`; the call fills in the rest. Its name is the one in `onebuf_stage`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_stage_report {
    /// `sizeof(onebuf_stage_report)`.
    pub size: usize,
    /// Frames that it has passed on.
    pub frames: u64,
    /// Median time from a frame's arrival to its being passed on, on the host; zero before the first.
    pub latency_p50_ns: u64,
    /// 99th percentile of that time.
    pub latency_p99_ns: u64,
    /// Total time that its function ran.
    pub busy_ns: u64,
    /// Whether its kernels were grafted onto a neighbour's queue: 1 or 0; -1 if no neighbour could run them.
    pub grafted: i32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_stage_report {}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Describes where each stage runs and why, one line per stage, and why everything runs on one thread if it does.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_explain(
    pipeline: onebuf_pipeline,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(pipeline.get()?.explained.clone().into_bytes())))
}

/// Reports whether frames come out, and how fast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_get_pulse(
    pipeline: onebuf_pipeline,
    pulse: *mut onebuf_pulse,
) -> onebuf_status {
    entry(|| {
        let line = pipeline.get()?;
        let found = line.handle.pulse();
        let told = onebuf_pulse {
            size: 0,
            state: match found.state {
                RunState::Running => ONEBUF_RUN_RUNNING,
                RunState::Finished => ONEBUF_RUN_FINISHED,
                RunState::Failed => ONEBUF_RUN_FAILED,
                _ => ONEBUF_RUN_READY,
            },
            stalled: found.stalled.is_some().into(),
            frames_per_second: found.frames_per_second,
            since_last_ns: ns(found.since_last),
            batch: line.handle.batch(),
            stage_count: line.handle.report().stages.len(),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(told, pulse, "pulse") }
    })
}

/// Reports the progress of the stage at an index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pipeline_get_stage(
    pipeline: onebuf_pipeline,
    index: usize,
    report: *mut onebuf_stage_report,
) -> onebuf_status {
    entry(|| {
        let all = pipeline.get()?.handle.report().stages;
        let stage = all.get(index).ok_or_else(|| {
            Fault::invalid(format!("stage {index} of a pipeline that has {}", all.len()))
        })?;
        let told = onebuf_stage_report {
            size: 0,
            frames: stage.frames,
            latency_p50_ns: stage.latency.p50.map_or(0, ns),
            latency_p99_ns: stage.latency.p99.map_or(0, ns),
            busy_ns: ns(stage.busy),
            grafted: stage
                .graft
                .as_ref()
                .map_or(-1, |graft| matches!(graft, Graft::From(_)).into()),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(told, report, "report") }
    })
}

/// Where the last run failed: the stage's name, `source` or `sink`, and the number of the frame. `frame` may be NULL. If the last run
/// did not fail, the string is null and the status is ONEBUF_OK.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pipeline_failure(
    pipeline: onebuf_pipeline,
    at: Slot<'_, onebuf_string>,
    frame: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        let at = out(at, "at")?;
        let frame = frame.map(|frame| out(Some(frame), "frame")).transpose()?;
        let line = pipeline.get()?;
        let failed = line.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((part, number)) = failed else { return Ok(()) };
        *at = string::of(part.into_bytes())?;
        if let Some(frame) = frame {
            *frame = number;
        }
        Ok(())
    })
}
