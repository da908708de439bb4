//! A pipeline's current activity: running, stalled or ended, and its current frame rate.

use onebuf_core::observe::RunState;
use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// All states, indexed by their discriminants.
const STATES: [RunState; 4] =
    [RunState::Ready, RunState::Running, RunState::Finished, RunState::Failed];

/// A pipeline's current activity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Pulse {
    /// The lifecycle state.
    pub state: RunState,
    /// Frames per second over the last five seconds, or since the start if that is shorter; 0 unless running.
    pub frames_per_second: f64,
    /// Time since the last frame came out, or since the start if none has; zero unless running.
    pub since_last: Duration,
    /// `since_last` if the pipeline has stalled: it is running, frames have come out, and none has for at least two seconds
    /// and for at least three times the average interval.
    pub stalled: Option<Duration>,
}

/// The rate is counted in intervals of this many nanoseconds.
const PART: u64 = 250_000_000;
/// The rate covers this many complete intervals and the current one.
const PARTS: u64 = 20;

/// The shortest silence, in nanoseconds, that counts as a stall.
const SHORTEST_STALL: u64 = 2_000_000_000;
/// A silence counts as a stall only if it is at least this many times the average interval.
const UNUSUAL: u64 = 3;

/// This event has not happened yet.
const NEVER: u64 = u64::MAX;

/// Timestamps in nanoseconds since `epoch`. Only the sink's thread counts frames; any thread may read.
pub(super) struct Beats {
    epoch: Instant,
    state: AtomicU8,
    began: AtomicU64,
    ended: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    frames: AtomicU64,
    /// One entry per interval, in a ring: the low half of the interval's number, and the number of frames in it.
    parts: [AtomicU64; PARTS as usize + 1],
}

impl Default for Beats {
    fn default() -> Self {
        let moment = || AtomicU64::new(NEVER);
        Self {
            epoch: Instant::now(),
            state: AtomicU8::new(RunState::Ready as u8),
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            first: moment(),
            last: moment(),
            frames: AtomicU64::new(0),
            parts: Default::default(),
        }
    }
}

/// A run in progress. Dropping it records a failure unless `finish` was called.
pub(super) struct Life<'b>(&'b Beats, RunState);

impl Life<'_> {
    pub fn finish(mut self) {
        self.1 = RunState::Finished;
    }
}

impl Drop for Life<'_> {
    fn drop(&mut self) {
        self.0.end(self.0.now(), self.1);
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

impl Beats {
    /// Records the start of a run.
    pub fn live(&self) -> Life<'_> {
        self.begin(self.now());
        Life(self, RunState::Failed)
    }

    /// Records that a frame came out.
    pub fn note(&self) {
        self.beat(self.now());
    }

    pub fn pulse(&self) -> Pulse {
        self.at(self.now())
    }

    /// The run's duration, up to now or to its end.
    pub fn elapsed(&self) -> Duration {
        self.elapsed_at(self.now())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(NEVER - 1)
    }

    fn state(&self) -> RunState {
        STATES[usize::from(self.state.load(Ordering::Relaxed)) % STATES.len()]
    }

    fn begin(&self, now: u64) {
        self.parts.iter().chain([&self.frames]).for_each(|counter| set(counter, 0));
        [&self.first, &self.last].into_iter().for_each(|moment| set(moment, NEVER));
        set(&self.began, now);
        self.state.store(RunState::Running as u8, Ordering::Relaxed);
    }

    fn end(&self, now: u64, state: RunState) {
        set(&self.ended, now);
        self.state.store(state as u8, Ordering::Relaxed);
    }

    fn beat(&self, now: u64) {
        let (number, at) = self.part(now / PART);
        let before = get(at);
        let count = if before >> 32 == number { before + 1 } else { number << 32 | 1 };
        set(at, count);
        if get(&self.first) == NEVER {
            set(&self.first, now);
        }
        set(&self.last, now);
        set(&self.frames, get(&self.frames) + 1);
    }

    /// The low half of an interval's number, and its counter.
    fn part(&self, number: u64) -> (u64, &AtomicU64) {
        (number & 0xffff_ffff, &self.parts[(number % (PARTS + 1)) as usize])
    }

    fn elapsed_at(&self, now: u64) -> Duration {
        let end = match self.state() {
            RunState::Ready => return Duration::ZERO,
            RunState::Running => now,
            _ => get(&self.ended),
        };
        Duration::from_nanos(end.saturating_sub(get(&self.began)))
    }

    fn at(&self, now: u64) -> Pulse {
        let state = self.state();
        if state != RunState::Running {
            return Pulse { state, ..Pulse::default() };
        }
        let last = Some(get(&self.last)).filter(|&last| last != NEVER);
        let since_last = now.saturating_sub(last.unwrap_or(get(&self.began)));
        let stalled = last.is_some_and(|last| since_last >= self.shortest_stall(last));
        let since_last = Duration::from_nanos(since_last);
        let stalled = stalled.then_some(since_last);
        Pulse { state, frames_per_second: self.rate(now), since_last, stalled }
    }

    fn shortest_stall(&self, last: u64) -> u64 {
        let gaps = get(&self.frames).saturating_sub(1).max(1);
        let usual = last.saturating_sub(get(&self.first)) / gaps;
        SHORTEST_STALL.max(usual.saturating_mul(UNUSUAL))
    }

    fn rate(&self, now: u64) -> f64 {
        let current = now / PART;
        let first = current.saturating_sub(PARTS);
        let frames = (first..=current).map(|number| {
            let (number, at) = self.part(number);
            let counted = get(at);
            if counted >> 32 == number { counted & 0xffff_ffff } else { 0 }
        });
        let start = get(&self.began).max(first * PART);
        frames.sum::<u64>() as f64 * 1e9 / now.saturating_sub(start).max(1_000_000) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Records frames at a steady rate between two times, in seconds.
    fn frames(beats: &Beats, per_s: u64, from: u64, to: u64) {
        (from * per_s..to * per_s).for_each(|n| beats.beat(n * S / per_s));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_decays() {
        let beats = Beats::default();
        assert_eq!(beats.at(3 * S), Pulse::default());
        beats.begin(10 * S);
        assert_eq!(beats.at(10 * S).frames_per_second, 0.0);
        frames(&beats, 1000, 10, 12);
        let rate = |at: u64| beats.at(at).frames_per_second.round();
        assert_eq!(rate(12 * S), 1000.0, "since the start");
        frames(&beats, 1000, 12, 30);
        assert_eq!(rate(30 * S), 1000.0);
        frames(&beats, 200, 30, 40);
        assert_eq!(rate(40 * S), 200.0, "not since the start");
        let rates: Vec<f64> = (40..47).map(|second| rate(second * S)).collect();
        assert!(rates.is_sorted_by(|before, after| before >= after), "{rates:?}");
        assert!((1.0..180.0).contains(&rates[3]), "{rates:?}");
        assert_eq!((rates[6], rate(56 * S)), (0.0, 0.0), "nothing came for so long");
        // Only the low 32 bits of an interval's number are stored. An interval 2^32 later must not match.
        assert_eq!(rate(40 * S + (PART << 32)), 0.0);
    }

    #[test]
    fn a_stall_is_told_from_a_slow_pipeline_and_from_one_that_is_over() {
        let beats = Beats::default();
        beats.begin(0);
        let before = beats.at(16 * S);
        assert_eq!((before.state, before.stalled), (RunState::Running, None), "no frame yet");
        assert_eq!(before.since_last, Duration::from_secs(16));
        frames(&beats, 60_000, 16, 18);
        assert_eq!(beats.at(19 * S).stalled, None);
        let stalled = beats.at(34 * S).stalled.expect("a stall").as_secs();
        assert_eq!((stalled, beats.elapsed_at(34 * S)), (16, Duration::from_secs(34)));
        frames(&beats, 1, 34, 35);
        assert_eq!(beats.at(35 * S).stalled, None, "it goes on");
        beats.end(36 * S, RunState::Finished);
        let after = Pulse { state: RunState::Finished, ..Pulse::default() };
        assert_eq!((beats.at(99 * S), beats.elapsed_at(99 * S)), (after, Duration::from_secs(36)));

        // At one frame in five seconds, ten seconds of silence are no stall, but twenty are.
        beats.begin(100 * S);
        (0..4).for_each(|n| beats.beat((100 + 5 * n) * S));
        assert_eq!((beats.at(125 * S).stalled, beats.at(135 * S).stalled.is_some()), (None, true));
        drop(beats.live());
        assert_eq!(beats.pulse().state, RunState::Failed, "the pipeline did not report its end");
        beats.live().finish();
        assert_eq!(beats.pulse().state, RunState::Finished);
    }
}
