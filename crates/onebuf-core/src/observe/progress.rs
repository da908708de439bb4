//! How something that runs does, as plain data: what a live view shows of a pipeline.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Something that can be asked at any time how it does, from any thread: a pipeline, by its handle.
pub trait ProgressSource: Send + Sync {
    /// How it does now. Must not wait for the work.
    fn progress(&self) -> Progress;
}

/// Where a pipeline is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunState {
    /// It has not been run.
    #[default]
    Ready,
    /// It runs, though no frame may be coming.
    Running,
    /// Its source ended, or it was stopped, and every frame came out.
    Finished,
    /// A part of it failed, or panicked.
    Failed,
}

/// How something that runs does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Where it is in its life.
    pub state: RunState,
    /// Frames that came out.
    pub frames: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Frames that were incomplete.
    pub incomplete: u64,
    /// Frames that are on their way.
    pub on_the_way: u64,
    /// How long it has been running; how long it ran, when it is over.
    pub elapsed: Duration,
    /// Over the last few seconds; 0 unless it runs.
    pub frames_per_second: f64,
    /// Since its start, up to now or to its end.
    pub average_per_second: f64,
    /// How long ago the last frame came out, or it was started before one did; zero unless it runs.
    pub since_last: Duration,
    /// How long no frame has come out, where that is a stall.
    pub stalled: Option<Duration>,
    /// Half of all frames took no longer.
    pub p50: Option<Duration>,
    /// 99 of 100 took no longer.
    pub p99: Option<Duration>,
    /// Its stages, in their order.
    pub stages: Vec<StageProgress>,
}

/// How one stage does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageProgress {
    /// Its name.
    pub name: String,
    /// The id of its device.
    pub device: String,
    /// Frames that it passed on.
    pub frames: u64,
    /// Half of all frames took no longer in it, on the host.
    pub p50: Option<Duration>,
    /// 99 of 100.
    pub p99: Option<Duration>,
    /// All the time that its function ran.
    pub busy: Duration,
}
