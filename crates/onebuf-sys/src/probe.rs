//! Fault injection: makes one chosen driver call fail, and proves that nothing leaked.
//!
//! A test of all error paths runs its work once for each `n`, until no call is left to fail:
//!
//! ```
//! # use onebuf_sys::Probe;
//! # fn work() {}
//! let probe = Probe::new(); // given to the table when it is loaded
//! for n in 1.. {
//!     probe.fail_nth(n, -6);
//!     work(); // must return an error, or cope
//!     assert!(probe.live().is_empty());
//!     if probe.failed().is_none() {
//!         break;
//!     }
//! }
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Number of calls that are recorded: a wait may poll its driver a thousand times.
const TRACE_LEN: usize = 1 << 14;

/// Calls that poll for progress. How often a wait repeats one depends on timing.
const POLLS: [&str; 9] = [
    "MPI_Testsome",
    "clGetEventInfo",
    "cuEventQuery",
    "cuStreamQuery",
    "glClientWaitSync",
    "hipEventQuery",
    "hipStreamQuery",
    "vkGetSemaphoreCounterValue",
    "vkWaitSemaphores",
];

/// Records every call made through a table, and can make one of them fail.
///
/// A create, enqueue or query chosen to fail does not reach the driver. A release does, and so does completing a user
/// event, before the code is returned: otherwise the injection itself would leak the object, or hang the work that
/// waits for the event.
#[derive(Debug, Default)]
pub struct Probe(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: u64,
    /// The number of calls without repeated polls.
    steps: u64,
    /// The value of `steps` at which to fail, and the code.
    fail_at: Option<(u64, i32)>,
    /// The call that fails every time, and the code.
    fail_always: Option<(&'static str, i32)>,
    failed: Option<&'static str>,
    live: BTreeMap<&'static str, i64>,
    trace: VecDeque<&'static str>,
    times: Option<Times>,
}

/// The time of calls, each until the next one of the same thread.
#[derive(Debug, Default)]
struct Times {
    sums: BTreeMap<&'static str, (u64, Duration)>,
    last: HashMap<ThreadId, (&'static str, Instant)>,
}

impl Times {
    fn note(&mut self, call: Option<&'static str>) {
        let (thread, now) = (thread::current().id(), Instant::now());
        if let Some((last, began)) = self.last.remove(&thread) {
            let sum = self.sums.entry(last).or_default();
            *sum = (sum.0 + 1, sum.1 + (now - began));
        }
        if let Some(call) = call {
            // Excludes the time of this bookkeeping.
            self.last.insert(thread, (call, Instant::now()));
        }
    }
}

impl Probe {
    /// A probe that lets every call through.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes the `n`-th call from now fail with `code`, once; 1 is the next call, 0 is none.
    ///
    /// A poll that follows the same poll is not counted, so that the `n`-th call is the same in every run, however long
    /// the waits take.
    pub fn fail_nth(&self, n: u64, code: i32) {
        let mut state = self.state();
        state.failed = None;
        state.fail_at = (n > 0).then(|| (state.steps.saturating_add(n), code));
    }

    /// Makes every call of that C name fail with `code`, until [`reset`](Self::reset).
    pub fn fail_always(&self, call: &'static str, code: i32) {
        let mut state = self.state();
        state.failed = None;
        state.fail_always = Some((call, code));
    }

    /// The number of calls since the start or the last [`reset`](Self::reset).
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The call that was made to fail since the last [`fail_nth`](Self::fail_nth) or
    /// [`fail_always`](Self::fail_always), by its C name.
    pub fn failed(&self) -> Option<&'static str> {
        self.state().failed
    }

    /// References held, by kind (`context`, `queue`, `mem`, `program`, `kernel`, `event`, `svm`): creates and retains
    /// minus the releases that really happened. Balanced kinds are left out, so that *nothing leaked* reads
    /// `live().is_empty()`.
    pub fn live(&self) -> BTreeMap<&'static str, i64> {
        self.state().live.clone()
    }

    /// The latest calls by their C names, oldest first; at most 16,384.
    pub fn trace(&self) -> Vec<&'static str> {
        self.state().trace.iter().copied().collect()
    }

    /// Clears calls, trace and failure, but not the count of live objects.
    pub fn reset(&self) {
        let mut state = self.state();
        let (live, times) = (std::mem::take(&mut state.live), state.times.take());
        *state = State { live, times, ..State::default() };
    }

    /// Records a call about to be made; `Err` if it is the one to fail.
    pub fn enter(&self, call: &'static str) -> Result<(), i32> {
        let mut state = self.state();
        state.calls += 1;
        if let Some(times) = &mut state.times {
            times.note(Some(call));
        }
        let again = POLLS.contains(&call) && state.trace.back() == Some(&call);
        state.steps += u64::from(!again);
        if state.trace.len() == TRACE_LEN {
            state.trace.pop_front();
        }
        state.trace.push_back(call);
        let steps = state.steps;
        let always = state.fail_always.filter(|(name, _)| *name == call).map(|(_, code)| (0, code));
        match state.fail_at.take_if(|(at, _)| *at == steps).or(always) {
            Some((_, code)) => {
                state.failed = Some(call);
                Err(code)
            }
            None => Ok(()),
        }
    }

    /// Starts measuring the time from each call to the next one of the same thread. This shows calls that block,
    /// without a profiler; the caller's own work between two calls counts with the first.
    pub fn time_calls(&self) {
        self.state().times = Some(Times::default());
    }

    /// Ends the time of the thread's last call here, because the thread does something else now.
    pub fn pause(&self) {
        if let Some(times) = &mut self.state().times {
            times.note(None);
        }
    }

    /// How often each call was made since [`time_calls`](Self::time_calls), and its total time; the longest first.
    pub fn times(&self) -> Vec<(&'static str, u64, Duration)> {
        let state = self.state();
        let sums = state.times.iter().flat_map(|times| &times.sums);
        let mut all: Vec<_> = sums.map(|(call, (count, time))| (*call, *count, *time)).collect();
        all.sort_by_key(|(_, _, time)| std::cmp::Reverse(*time));
        all
    }

    /// Counts `change` references of `kind`; negative for releases.
    pub fn count(&self, kind: &'static str, change: i64) {
        let mut state = self.state();
        let live = state.live.entry(kind).or_default();
        *live += change;
        if *live == 0 {
            state.live.remove(kind);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before the lock is released, so a panic elsewhere leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_once() {
        let probe = Probe::new();
        assert_eq!(probe.enter("a"), Ok(()));
        probe.fail_nth(2, -5);
        assert_eq!(probe.enter("b"), Ok(()));
        assert_eq!(probe.failed(), None);
        assert_eq!(probe.enter("c"), Err(-5));
        assert_eq!(probe.enter("d"), Ok(()));
        assert_eq!((probe.failed(), probe.calls()), (Some("c"), 4));
        assert_eq!(probe.trace(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn polls_in_a_row_are_one() {
        for polls in [1, 2, 100] {
            let probe = Probe::new();
            probe.fail_nth(4, -5);
            probe.enter("a").unwrap();
            (0..polls).for_each(|_| probe.enter("cuEventQuery").unwrap());
            (0..polls).for_each(|_| probe.enter("hipEventQuery").unwrap());
            assert_eq!(probe.enter("b"), Err(-5), "after {polls} polls");
            assert_eq!(probe.calls(), 2 + 2 * polls);
        }
        let probe = Probe::new();
        probe.fail_nth(3, -5);
        let calls = ["cuEventQuery", "a", "cuEventQuery", "cuEventQuery"];
        let failed = calls.map(|call| probe.enter(call).is_err());
        assert_eq!(failed, [false, false, true, false], "a poll fails once");
    }

    #[test]
    fn a_call_fails_until_reset() {
        let probe = Probe::new();
        probe.fail_always("b", -5);
        assert_eq!(
            (probe.enter("a"), probe.enter("b"), probe.enter("b")),
            (Ok(()), Err(-5), Err(-5))
        );
        assert_eq!(probe.failed(), Some("b"));
        probe.reset();
        assert_eq!((probe.enter("b"), probe.failed()), (Ok(()), None));
    }

    #[test]
    fn zero_disarms() {
        let probe = Probe::new();
        probe.fail_nth(1, -5);
        probe.fail_nth(0, -5);
        assert_eq!(probe.enter("a"), Ok(()));
    }

    #[test]
    fn reset_keeps_what_is_live() {
        let probe = Probe::new();
        probe.count("mem", 2);
        probe.count("event", 1);
        probe.count("event", -1);
        probe.fail_nth(1, -5);
        probe.reset();
        assert_eq!(probe.enter("a"), Ok(()));
        assert_eq!(probe.live(), BTreeMap::from([("mem", 2)]));
        assert_eq!((probe.calls(), probe.failed()), (1, None));
    }

    #[test]
    fn calls_are_timed_until_the_next_or_a_pause() {
        let probe = Probe::new();
        probe.enter("before").unwrap();
        assert!(probe.times().is_empty());
        probe.time_calls();
        for call in ["slow", "fast", "fast"] {
            probe.enter(call).unwrap();
            thread::sleep(Duration::from_millis(if call == "slow" { 20 } else { 1 }));
        }
        probe.pause();
        thread::sleep(Duration::from_millis(20));
        probe.enter("last").unwrap();
        let times = probe.times();
        let calls: Vec<_> = times.iter().map(|(call, count, _)| (*call, *count)).collect();
        assert_eq!(calls, [("slow", 1), ("fast", 2)], "{times:?}");
        assert!(times[0].2 >= Duration::from_millis(20) && times[1].2 < times[0].2, "{times:?}");
    }

    #[test]
    fn the_trace_is_bounded() {
        let probe = Probe::new();
        (0..TRACE_LEN + 7).for_each(|_| probe.enter("x").unwrap());
        assert_eq!(probe.trace().len(), TRACE_LEN);
        assert_eq!(probe.calls(), TRACE_LEN as u64 + 7);
    }

    #[test]
    fn one_thread_of_many_sees_the_failure() {
        let probe = Probe::new();
        probe.fail_nth(500, -5);
        let failures = std::thread::scope(|scope| {
            let count = || (0..250).filter(|_| probe.enter("x").is_err()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!((failures, probe.calls()), (1, 1000));
    }
}
