//! What a pipeline tells of itself, while it runs and afterwards.

use super::{
    graft::{Graft, Placement},
    pulse::Beats,
    times::Times,
};
use onebuf_hal::Error;
use serde::Serialize;
use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

/// Counters of one run. Whoever works counts; whoever looks may see frames half-way.
#[derive(Default)]
pub(super) struct Counters {
    pub frames: AtomicU64,
    pub dropped: AtomicU64,
    pub incomplete: AtomicU64,
    pub latency: Times,
    pub source: Times,
    pub stages: Vec<Place>,
    pub sink: Times,
    /// Frames that the source has filled.
    pub entered: AtomicU64,
    pub beats: Beats,
    /// Somebody wants it to stop.
    pub stop: AtomicBool,
    /// Why it runs on one thread, where it does.
    pub alone: Option<String>,
}

/// One stage's.
pub(super) struct Place {
    pub name: String,
    pub device: String,
    pub graft: Option<Graft>,
    /// From coming before the stage to being passed on.
    pub times: Times,
    /// In the stage's own function.
    pub busy: Times,
    pub frames: AtomicU64,
}

/// How a pipeline did: frames, what was lost, and how long they took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Frames that came out at the sink.
    pub frames: u64,
    /// Frames that were dropped because the rest was slower than the source.
    pub dropped: u64,
    /// Frames that the source could not complete; they were not passed on.
    pub incomplete: u64,
    /// Frames that are on their way.
    pub on_the_way: u64,
    /// How long it has been running, up to now; how long it ran, when it is over.
    pub elapsed: Duration,
    /// From the source's having filled a frame to the sink's being done with it.
    pub latency: Latency,
    /// The source's function, for each frame.
    pub source: Latency,
    /// The stages, in their order.
    pub stages: Vec<StageReport>,
    /// The sink's function, for each frame.
    pub sink: Latency,
    /// Why everything ran on one thread: it was asked for, or a stage's driver does not survive two. None where each part
    /// had its own.
    pub one_thread: Option<String>,
}

/// One stage's part of a [`Report`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// The device that runs it.
    pub device: String,
    /// Whether that is its neighbour's, where it could be.
    pub graft: Option<Graft>,
    /// Frames that it passed on.
    pub frames: u64,
    /// From a frame's coming to its being passed on, on the host: the device's work may still be under way.
    pub latency: Latency,
    /// All the time that its function ran.
    pub busy: Duration,
}

/// Half of all times, and 99 of 100, were no longer than this; an eighth too long at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The median; none before there was anything.
    pub p50: Option<Duration>,
    /// The 99th percentile.
    pub p99: Option<Duration>,
}

impl From<&Times> for Latency {
    fn from(times: &Times) -> Self {
        Self { p50: times.quantile(0.5), p99: times.quantile(0.99) }
    }
}

impl Report {
    /// Frames in a second, since the start. [`Handle::pulse`](super::Handle::pulse) has the rate of the last seconds.
    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Counters {
    pub fn new(
        stages: impl IntoIterator<Item = (String, Placement)>,
        alone: Option<String>,
    ) -> Self {
        let place = |(name, Placement { device, graft, .. }): (_, Placement)| Place {
            name,
            device: device.id().into(),
            graft,
            times: Times::default(),
            busy: Times::default(),
            frames: AtomicU64::new(0),
        };
        Self { stages: stages.into_iter().map(place).collect(), alone, ..Self::default() }
    }

    /// Before another run.
    pub fn clear(&self) {
        let Self { frames, dropped, incomplete, entered, .. } = self;
        let stages = self.stages.iter().map(|place| &place.frames);
        [frames, dropped, incomplete, entered]
            .into_iter()
            .chain(stages)
            .for_each(|counter| counter.store(0, Ordering::Relaxed));
        let times = self.stages.iter().flat_map(|place| [&place.times, &place.busy]);
        [&self.latency, &self.source, &self.sink].into_iter().chain(times).for_each(Times::clear);
    }

    pub fn report(&self) -> Report {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stage = |place: &Place| StageReport {
            name: place.name.clone(),
            device: place.device.clone(),
            graft: place.graft.clone(),
            frames: get(&place.frames),
            latency: (&place.times).into(),
            busy: place.busy.total(),
        };
        let (frames, dropped) = (get(&self.frames), get(&self.dropped));
        Report {
            frames,
            dropped,
            incomplete: get(&self.incomplete),
            on_the_way: get(&self.entered).saturating_sub(frames + dropped),
            elapsed: self.beats.elapsed(),
            latency: (&self.latency).into(),
            source: (&self.source).into(),
            stages: self.stages.iter().map(stage).collect(),
            sink: (&self.sink).into(),
            one_thread: self.alone.clone(),
        }
    }
}

/// What stopped a pipeline, and how far it had come.
#[derive(Debug)]
pub struct Failure {
    /// Which part of it: `source`, a stage's name, or `sink`.
    pub at: String,
    /// At which frame.
    pub frame: u64,
    /// What went wrong.
    pub error: Error,
    /// What had been done.
    pub report: Box<Report>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at frame {}: {}", self.at, self.frame, self.error)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The cause alone.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}
