//! Whether what came out is right: against double precision on the CPU, beside the pipeline that runs.
//!
//! A thread does so, that the pipeline's own times are its own. Where the reference is known, every frame is checked. Where
//! it has to be computed, which takes longer than the frame itself, as many are as the thread manages: nobody waits.

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

/// What a frame's reference is made of.
enum Wanted {
    Known(Arc<Expected>),
    Samples(Vec<Complex32>),
}

/// A frame that came out.
struct Job {
    number: u64,
    wanted: Wanted,
    beams: Vec<Complex32>,
    found: Vec<Detection>,
}

/// Frames that wait to be checked; then the pipeline waits.
const WAITING: usize = 4;

/// What was found so far.
#[derive(Default)]
pub struct Findings {
    /// Frames that were checked.
    pub checked: u64,
    /// The largest error of any number.
    pub max_rel_error: f64,
    wrong: Option<String>,
}

/// Sees frames go in and come out.
pub struct Judge {
    /// What must come out of frames that are on their way, in their order.
    wanted: Mutex<VecDeque<(u64, Wanted)>>,
    findings: Mutex<Findings>,
    jobs: SyncSender<Option<Job>>,
    /// Whether nobody computes a reference.
    idle: Mutex<bool>,
}

impl Judge {
    /// And what a thread is to [work on](Self::work).
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

    /// A frame goes in of which it is known what must come out.
    pub fn expects(&self, number: u64, expected: Arc<Expected>) {
        lock(&self.wanted).push_back((number, Wanted::Known(expected)));
    }

    /// A frame goes in of which it is not: it is looked at if nothing else is.
    pub fn sees(&self, number: u64, samples: &[Complex32]) {
        let mut idle = lock(&self.idle);
        if std::mem::take(&mut *idle) {
            lock(&self.wanted).push_back((number, Wanted::Samples(samples.to_vec())));
        }
    }

    /// A frame came out. Says what was wrong, with this one or one before.
    pub fn judge(
        &self,
        number: u64,
        beams: Vec<Complex32>,
        found: Vec<Detection>,
    ) -> Option<String> {
        if let Some(wanted) = self.take(number) {
            // Refused only where nobody works any more: then fewer frames count as checked.
            let _ = self.jobs.send(Some(Job { number, wanted, beams, found }));
        }
        lock(&self.findings).wrong.clone()
    }

    /// What must come out of a frame; those before it were lost on the way.
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
                    let why = "samples that are not finite; f32 I and Q are wanted, little-endian";
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
            so_far.wrong = Some(format!("frame {number} was judged wrong: {why}"));
        }
    }

    /// When this is dropped no more frames come, also if that is because of a panic.
    pub fn until_dropped(&self) -> Open<'_> {
        Open(self)
    }

    /// Whoever works ends with what there is.
    fn end(&self) {
        // Refused only where nobody works any more.
        let _ = self.jobs.send(None);
    }

    /// What was found, when everybody has ended.
    pub fn sum_up(self) -> Result<Findings> {
        let found = self.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        match found.wrong {
            Some(why) => Err(Failure::new(why)),
            None => Ok(found),
        }
    }
}

/// References to be computed.
pub struct Jobs(Receiver<Option<Job>>);

/// Frames may come.
pub struct Open<'j>(&'j Judge);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A thread that panicked has said so itself.
fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn wrong(number: u64, error: f64) -> Failure {
    Failure::new(format!(
        "frame {number} came out wrong: a beam is off by {error:.1e}, {TOLERANCE:.0e} is allowed; \
         `onebuf doctor --fresh` tries the routes again"
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
            assert_eq!(told.is_some_and(|why| why.contains("frame 2 came out wrong")), errors);
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
