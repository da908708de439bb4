//! Checks the results against double precision on the CPU, while the pipeline runs.
//!
//! The check runs on its own thread, so that it does not add to the pipeline's times. If the reference is known, every
//! frame is checked. If it must be computed, which takes longer than the frame itself, the thread checks as many frames
//! as it can: the pipeline does not wait for it.

use crate::out::{Failure, Result};
use onebuf::Complex32;
use onebuf_demo::{Detection, Expected, Setup};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

/// Single precision is good for 1e-5 here; a lost page is wrong by a thousand times that.
pub const TOLERANCE: f64 = 1e-4;

/// What the reference of a frame is computed from.
enum Wanted {
    Known(Arc<Expected>),
    Samples(Vec<Complex32>),
}

/// A result frame.
struct Job {
    number: u64,
    wanted: Wanted,
    beams: Vec<Complex32>,
    found: Vec<Detection>,
}

/// Number of frames that may wait to be checked; then the pipeline waits.
const WAITING: usize = 4;

/// The findings so far.
#[derive(Default)]
pub struct Findings {
    /// Number of frames that were checked.
    pub checked: u64,
    /// The largest error of any number.
    pub max_rel_error: f64,
    wrong: Option<String>,
}

/// Observes frames that go in and come out.
pub struct Judge {
    /// The expected results of frames in flight, in order.
    wanted: Mutex<VecDeque<(u64, Wanted)>>,
    findings: Mutex<Findings>,
    jobs: SyncSender<Option<Job>>,
    /// Whether the worker can compute another reference.
    idle: Mutex<bool>,
}

impl Judge {
    /// Also returns the queue that a thread must [work on](Self::work).
    pub fn new() -> (Self, Jobs) {
        let (jobs, queue) = sync_channel(WAITING);
        let judge = Self {
            wanted: Mutex::default(),
            findings: Mutex::default(),
            jobs,
            idle: Mutex::new(true),
        };
        (judge, Jobs(queue))
    }

    /// Registers a frame whose result is known.
    pub fn expects(&self, number: u64, expected: Arc<Expected>) {
        lock(&self.wanted).push_back((number, Wanted::Known(expected)));
    }

    /// Whether a frame whose result must be computed would be checked.
    pub fn is_idle(&self) -> bool {
        *lock(&self.idle)
    }

    /// Registers a frame whose result must be computed: it is checked if the worker is idle.
    pub fn sees(&self, number: u64, samples: &[Complex32]) {
        let mut idle = lock(&self.idle);
        if std::mem::take(&mut *idle) {
            lock(&self.wanted).push_back((number, Wanted::Samples(samples.to_vec())));
        }
    }

    /// Checks the result of a frame. Returns an error of this frame or of an earlier one.
    pub fn judge(
        &self,
        number: u64,
        beams: Vec<Complex32>,
        found: Vec<Detection>,
    ) -> Option<String> {
        if let Some(wanted) = self.take(number) {
            // Fails only if the worker has ended: then fewer frames count as checked.
            let _ = self.jobs.send(Some(Job { number, wanted, beams, found }));
        }
        lock(&self.findings).wrong.clone()
    }

    /// The expected result of a frame. Expectations of earlier frames, which were lost on the way, are removed.
    fn take(&self, number: u64) -> Option<Wanted> {
        let mut wanted = lock(&self.wanted);
        while let Some((next, _)) = wanted.front()
            && *next <= number
        {
            let (next, what) = wanted.pop_front()?;
            if next == number {
                return Some(what);
            }
            *lock(&self.idle) |= matches!(what, Wanted::Samples(_));
        }
        None
    }

    /// Computes references until no more frames [come](Self::until_dropped).
    pub fn work(&self, setup: &Setup, Jobs(jobs): Jobs) {
        while let Ok(Some(Job { number, wanted, beams, found })) = jobs.recv() {
            match wanted {
                Wanted::Known(expected) => self.check(number, &expected, &beams, &found),
                Wanted::Samples(samples) if !samples.iter().all(|x| x.is_finite()) => {
                    let why =
                        "samples that are not finite; the format is little-endian f32 I and Q";
                    lock(&self.findings).wrong = Some(format!("frame {number}: {why}"));
                }
                Wanted::Samples(samples) => {
                    self.check(number, &Expected::of(setup, &samples), &beams, &found);
                    *lock(&self.idle) = true;
                }
            }
        }
    }

    fn check(&self, number: u64, expected: &Expected, beams: &[Complex32], found: &[Detection]) {
        let error = expected.max_rel_error(beams);
        let mut so_far = lock(&self.findings);
        so_far.checked += 1;
        so_far.max_rel_error = so_far.max_rel_error.max(error);
        if error.is_nan() || error > TOLERANCE {
            so_far.wrong = Some(wrong(number, error).to_string());
        } else if let Some(why) = expected.wrong_detection(found) {
            so_far.wrong = Some(format!("frame {number} has wrong detections: {why}"));
        }
    }

    /// Returns a guard; dropping it, also by a panic, means that no more frames come.
    pub fn until_dropped(&self) -> Open<'_> {
        Open(self)
    }

    /// Ends the worker after the queued frames.
    fn end(&self) {
        // Fails only if the worker has ended.
        let _ = self.jobs.send(None);
    }

    /// The findings, after all threads have ended.
    pub fn sum_up(self) -> Result<Findings> {
        let found = self.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        match found.wrong {
            Some(why) => Err(Failure::new(why)),
            None => Ok(found),
        }
    }
}

/// Frames whose references must be computed.
pub struct Jobs(Receiver<Option<Job>>);

/// While this lives, more frames may come.
pub struct Open<'j>(&'j Judge);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Ignores poisoning: a thread that panicked has printed its message itself.
fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn wrong(number: u64, error: f64) -> Failure {
    Failure::new(format!(
        "frame {number} is wrong: a beam has an error of {error:.1e}, {TOLERANCE:.0e} is allowed; \
         `onebuf doctor --fresh` tests the routes again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf_demo::{Interpolator, Shape, detect};

    const SHAPE: Shape = Shape { length: 8, channels: 2, beams: 1 };

    fn setup() -> Setup {
        Setup::new(SHAPE, Interpolator::new(3).expect("an order"))
    }

    #[test]
    fn wrong_beams_are_told_and_right_ones_counted() {
        let silence = [Complex32::ZERO; 16];
        let expected = Arc::new(Expected::of(&setup(), &silence));
        for (last, errors) in [(Complex32::ZERO, false), (Complex32::ONE, true)] {
            let (judge, jobs) = Judge::new();
            (0..3).for_each(|number| judge.expects(number, expected.clone()));
            judge.judge(0, vec![Complex32::ZERO; 8], vec![]);
            judge.judge(2, vec![last; 8], vec![]);
            drop(judge.until_dropped());
            judge.work(&setup(), jobs);
            assert_eq!(lock(&judge.findings).checked, 2, "the second was lost");
            let told = judge.judge(3, vec![], vec![]);
            assert_eq!(told.is_some_and(|why| why.contains("frame 2 is wrong")), errors);
            assert_eq!(judge.sum_up().is_err(), errors);
        }
    }

    #[test]
    fn unknown_frames_are_checked_beside() {
        let (judge, jobs) = Judge::new();
        let silence = [Complex32::ZERO; 16];
        judge.sees(0, &silence);
        judge.sees(1, &silence);
        let beams = vec![Complex32::ONE; 8];
        assert_eq!(judge.judge(0, beams.clone(), detect(&beams, 8)), None, "not known yet");
        assert_eq!(judge.judge(1, beams.clone(), vec![]), None, "one at a time");
        drop(judge.until_dropped());
        judge.work(&setup(), jobs);
        assert_eq!(lock(&judge.findings).checked, 1);
        assert!(judge.judge(2, beams, vec![]).is_some_and(|why| why.contains("frame 0")));
    }
}
