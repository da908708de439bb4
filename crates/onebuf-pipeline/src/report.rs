//! Statistics of a pipeline, during and after a run.

use super::{
    batching::Batching,
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

/// Counters of one run. They are updated one by one, so a reader may see a frame counted in some of them only.
#[derive(Default)]
pub(super) struct RunCounters {
    pub frames: AtomicU64,
    pub dropped: AtomicU64,
    pub incomplete: AtomicU64,
    pub latency: Times,
    pub source: Times,
    pub stages: Vec<StageCounters>,
    pub sink: Times,
    /// Frames that the source has filled.
    pub entered: AtomicU64,
    pub beats: Beats,
    /// A handle asked the pipeline to stop.
    pub stop: AtomicBool,
    /// Why the pipeline runs on one thread, if it does.
    pub alone: Option<String>,
    pub batching: Batching,
}

/// Counters of one stage.
pub(super) struct StageCounters {
    pub name: String,
    pub device: String,
    pub graft: Option<Graft>,
    /// From a frame's arrival before the stage to its being passed on.
    pub times: Times,
    /// Time spent in the stage's function.
    pub busy: Times,
    pub frames: AtomicU64,
}

/// Statistics of a run: frames, losses and latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Frames that came out at the sink.
    pub frames: u64,
    /// Frames dropped because the stages or the sink were slower than the source.
    pub dropped: u64,
    /// Frames that the source could not complete. They were not passed on.
    pub incomplete: u64,
    /// Frames in flight.
    pub on_the_way: u64,
    /// The run's duration, up to now or to its end.
    pub elapsed: Duration,
    /// From the moment the source filled a frame until the sink returned.
    pub latency: Latency,
    /// The source's function, for each frame.
    pub source: Latency,
    /// The stages, in their order.
    pub stages: Vec<StageReport>,
    /// The sink's function, for each frame.
    pub sink: Latency,
    /// Why everything ran on one thread: the caller asked for it, or a stage's driver crashes when two threads call it.
    /// `None` if each part had its own thread.
    pub one_thread: Option<String>,
}

/// One stage's part of a [`Report`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageReport {
    /// The stage's name.
    pub name: String,
    /// The device that runs it.
    pub device: String,
    /// Whether the stage's kernels were grafted onto a neighbour; `None` if no neighbour could run them.
    pub graft: Option<Graft>,
    /// Frames that the stage passed on.
    pub frames: u64,
    /// From a frame's arrival to its being passed on, measured on the host. The device may still be working on it.
    pub latency: Latency,
    /// Total time spent in the stage's function.
    pub busy: Duration,
}

/// Quantiles of a duration, at most an eighth too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The median; `None` without samples.
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
    /// Frames per second since the start. [`Handle::pulse`](super::Handle::pulse) has the current rate.
    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A few lines for people: the run, then one line for the source, each stage and the sink.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, dropped, incomplete, on_the_way, elapsed, .. } = self;
        let rate = self.frames_per_second();
        write!(f, "{frames} frames in {elapsed:.2?}, {rate:.1}/s; latency {}", self.latency)?;
        for (count, what) in
            [(dropped, "dropped"), (incomplete, "incomplete"), (on_the_way, "in flight")]
        {
            if *count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        write!(f, "\n  source: {}", self.source)?;
        for StageReport { name, device, frames, latency, .. } in &self.stages {
            write!(f, "\n  {name} on {device}: {frames} frames, {latency}")?;
        }
        write!(f, "\n  sink: {}", self.sink)?;
        self.one_thread.iter().try_for_each(|why| write!(f, "\n  on one thread: {why}"))
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.p50, self.p99) {
            (Some(p50), Some(p99)) => write!(f, "median {p50:.1?}, 99th percentile {p99:.1?}"),
            _ => f.write_str("not measured"),
        }
    }
}

impl RunCounters {
    pub fn new(
        stages: impl IntoIterator<Item = (String, Placement)>,
        alone: Option<String>,
        batching: Batching,
    ) -> Self {
        let place = |(name, Placement { device, graft, .. }): (_, Placement)| StageCounters {
            name,
            device: device.id().into(),
            graft,
            times: Times::default(),
            busy: Times::default(),
            frames: AtomicU64::new(0),
        };
        let stages = stages.into_iter().map(place).collect();
        Self { stages, alone, batching, ..Self::default() }
    }

    /// Resets everything before another run.
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
        let stage = |place: &StageCounters| StageReport {
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

/// Why a pipeline stopped, and how far it got.
#[derive(Debug)]
pub struct Failure {
    /// The part that failed: `source`, a stage's name, or `sink`.
    pub at: String,
    /// The frame at which it failed.
    pub frame: u64,
    /// The cause.
    pub error: Error,
    /// The statistics up to the failure.
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

/// Keeps the cause alone.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_report_prints_what_happened_and_leaves_out_what_did_not() {
        let millis = |ms| Some(Duration::from_millis(ms));
        let latency = Latency { p50: millis(2), p99: millis(5) };
        let stage = StageReport {
            name: "beams".into(),
            device: "cuda:0".into(),
            frames: 8,
            latency,
            ..StageReport::default()
        };
        let report = Report {
            frames: 8,
            dropped: 1,
            elapsed: Duration::from_secs(2),
            latency,
            stages: vec![stage],
            one_thread: Some("clover".into()),
            ..Report::default()
        };
        let expected = "8 frames in 2.00s, 4.0/s; latency median 2.0ms, 99th percentile 5.0ms; 1 dropped\n  \
            source: not measured\n  beams on cuda:0: 8 frames, median 2.0ms, 99th percentile 5.0ms\n  \
            sink: not measured\n  on one thread: clover";
        assert_eq!(report.to_string(), expected);
    }
}
