//! The progress of a pipeline, as plain data for a live view.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Reports its progress at any time and from any thread: for example a pipeline's handle.
pub trait ProgressSource: Send + Sync {
    /// The current progress. Must not wait for the work.
    fn progress(&self) -> Progress;
}

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunState {
    /// It has not been run.
    #[default]
    Ready,
    /// It is running, even if no frame arrives.
    Running,
    /// Its source ended, or it was stopped, and every frame has left it.
    Finished,
    /// One of its parts failed or panicked.
    Failed,
}

/// The progress of a pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Its state.
    pub state: RunState,
    /// Frames that reached the sink.
    pub frames: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Frames that were incomplete.
    pub incomplete: u64,
    /// Frames in flight.
    pub on_the_way: u64,
    /// How long it has been running, or how long it ran if it has ended.
    pub elapsed: Duration,
    /// Frames per second over the last few seconds; 0 unless it is running.
    pub frames_per_second: f64,
    /// Frames per second since its start, until now or its end.
    pub average_per_second: f64,
    /// Time since the last frame came out, or since the start before the first one; zero unless it is running.
    pub since_last: Duration,
    /// How long no frame has come out, if that counts as a stall.
    pub stalled: Option<Duration>,
    /// Median latency of a frame.
    pub p50: Option<Duration>,
    /// 99th percentile of the latency of a frame.
    pub p99: Option<Duration>,
    /// Its stages, in their order.
    pub stages: Vec<StageProgress>,
}

/// The progress of one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageProgress {
    /// Its name.
    pub name: String,
    /// The id of its device.
    pub device: String,
    /// Frames that it has completed.
    pub frames: u64,
    /// Median time that a frame takes in it, on the host.
    pub p50: Option<Duration>,
    /// 99th percentile of the time that a frame takes in it, on the host.
    pub p99: Option<Duration>,
    /// Total time that its function ran.
    pub busy: Duration,
}
