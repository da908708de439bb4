//! Threads that work in rounds: all run one function at once, and the round ends when all have returned.
//!
//! # Safety
//! The function is borrowed for the round. Its address is handed to the threads without its lifetime, and the round does
//! not end, even by a panic, before every thread has returned from it.

#![allow(unsafe_code)]

use onebuf_hal::{
    Error, Result,
    locks::{Arc, AtomicU64, Condvar, Mutex, Ordering, lock, thread},
};
use std::{
    fmt, hint,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// What a round runs, with the number of the thread.
type Task<'w> = dyn Fn(usize) + Sync + 'w;

/// The work of the present round. Its lifetime is checked by [`Crew::run`] alone.
#[derive(Clone, Copy)]
struct Job(*const Task<'static>);

// SAFETY: `Task` is `Sync`, so the address may be used by other threads.
unsafe impl Send for Job {}

#[derive(Default)]
struct Plan {
    /// The number of the round.
    round: u64,
    job: Option<Job>,
    /// A thread panicked.
    failed: bool,
    is_over: bool,
}

struct Shared {
    plan: Mutex<Plan>,
    begun: Condvar,
    ended: Condvar,
    /// The number of the round, for threads that look without the lock.
    round: AtomicU64,
    /// How many threads still work.
    working: AtomicU64,
    /// How often a thread looks before it sleeps.
    looks: u32,
}

/// The threads. The caller of [`Crew::run`] is the first of them.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Crew {
    /// Starts `many` - 1 threads, which sleep until the first round. `begin` runs first on each of them.
    pub fn new(
        many: usize,
        name: &'static str,
        begin: impl Fn(usize) + Clone + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            plan: Mutex::default(),
            begun: Condvar::new(),
            ended: Condvar::new(),
            round: AtomicU64::new(0),
            working: AtomicU64::new(0),
            looks: looks(many),
        });
        let mut crew = Self { shared, threads: Vec::with_capacity(many) };
        for number in 1..many {
            let (shared, begin) = (crew.shared.clone(), begin.clone());
            let work = move || {
                begin(number);
                attend(&shared, number);
            };
            crew.threads.push(spawn(name, number, work)?);
        }
        Ok(crew)
    }

    /// Runs one round. It panics if the work panicked on any thread, after all have returned.
    pub fn run(&mut self, work: &Task<'_>) {
        if self.threads.is_empty() {
            return work(0);
        }
        self.begin(work);
        let wait = WaitForAll(&self.shared);
        work(0);
        drop(wait);
        assert!(!lock(&self.shared.plan).failed, "a thread of the crew panicked");
    }

    fn begin(&self, work: &Task<'_>) {
        // SAFETY: only the lifetime changes. `run` waits for all threads before it returns or unwinds, so none uses the
        // address afterwards.
        let job =
            Job(unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(work) });
        let mut plan = lock(&self.shared.plan);
        self.shared.working.store(self.threads.len() as u64, Ordering::Release);
        plan.round += 1;
        plan.job = Some(job);
        self.shared.round.store(plan.round, Ordering::Release);
        self.shared.begun.notify_all();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let mut plan = lock(&self.shared.plan);
        plan.is_over = true;
        plan.round += 1;
        self.shared.round.store(plan.round, Ordering::Release);
        self.shared.begun.notify_all();
        drop(plan);
        for thread in self.threads.drain(..) {
            // A panic of the work was reported by `run`.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("threads", &(self.threads.len() + 1)).finish()
    }
}

/// Waits for all threads when dropped, so that a panic of the caller's own part waits, too.
struct WaitForAll<'s>(&'s Shared);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        let working = || shared.working.load(Ordering::Acquire) > 0;
        if look(shared.looks, || !working()) {
            return;
        }
        let mut plan = lock(&shared.plan);
        while working() {
            plan = shared.ended.wait(plan).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// A thread's life: one round after another.
fn attend(shared: &Shared, number: usize) {
    let mut seen = 0;
    while let Some((round, job)) = next(shared, seen) {
        seen = round;
        // SAFETY: the round lasts until `working` is counted down below.
        let work = unsafe { &*job.0 };
        let result = catch_unwind(AssertUnwindSafe(|| work(number)));
        if result.is_err() {
            lock(&shared.plan).failed = true;
        }
        if shared.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The lock orders this after the caller's last look.
            let _plan = lock(&shared.plan);
            shared.ended.notify_all();
        }
    }
}

/// Waits for the round after `seen`; `None` at the end.
fn next(shared: &Shared, seen: u64) -> Option<(u64, Job)> {
    look(shared.looks, || shared.round.load(Ordering::Acquire) != seen);
    let mut plan = lock(&shared.plan);
    while plan.round == seen {
        plan = shared.begun.wait(plan).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
    if plan.is_over {
        return None;
    }
    plan.job.map(|job| (plan.round, job))
}

/// Looks a number of times; true once it is so.
fn look(times: u32, mut is_so: impl FnMut() -> bool) -> bool {
    (0..times).any(|_| {
        let so = is_so();
        if !so {
            hint::spin_loop();
        }
        so
    })
}

/// Looking pays only if every thread has a processor of its own: some tens of microseconds.
#[cfg(not(onebuf_shuttle))]
fn looks(many: usize) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors > many { 2000 } else { 0 }
}

#[cfg(onebuf_shuttle)]
fn looks(_many: usize) -> u32 {
    1
}

#[cfg(not(onebuf_shuttle))]
fn spawn(
    name: &'static str,
    number: usize,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>> {
    let builder = thread::Builder::new().name(format!("{name}-{number}"));
    builder.spawn(work).map_err(|error| Error::Driver {
        api: "host",
        call: "pthread_create",
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    })
}

#[cfg(onebuf_shuttle)]
fn spawn(
    _name: &'static str,
    _number: usize,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>> {
    Ok::<_, Error>(thread::spawn(work))
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;
    use std::sync::{Mutex, atomic::AtomicUsize};

    #[test]
    fn all_work_in_every_round_and_borrow_what_they_need() {
        for many in [1, 2, 5] {
            let mut crew = Crew::new(many, "test", |_| ()).unwrap();
            for round in 0..50 {
                let seen = Mutex::new(vec![0; many]);
                crew.run(&|number| seen.lock().unwrap()[number] += round);
                assert_eq!(seen.into_inner().unwrap(), vec![round; many]);
            }
        }
    }

    #[test]
    fn a_panic_is_passed_on_after_all_have_returned() {
        let mut crew = Crew::new(3, "test", |_| ()).unwrap();
        let returned = AtomicUsize::new(0);
        let work = |number| {
            if number == 1 {
                panic!("on purpose");
            }
            returned.fetch_add(1, Ordering::SeqCst);
        };
        assert!(catch_unwind(AssertUnwindSafe(|| crew.run(&work))).is_err());
        assert_eq!(returned.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn each_thread_begins_once() {
        let begun = Arc::new(Mutex::new(Vec::new()));
        let theirs = begun.clone();
        let crew = Crew::new(4, "test", move |number| theirs.lock().unwrap().push(number));
        drop(crew.unwrap());
        let mut begun = begun.lock().unwrap().clone();
        begun.sort_unstable();
        assert_eq!(begun, [1, 2, 3]);
    }
}

#[cfg(all(test, onebuf_shuttle))]
mod shuttle_tests {
    use super::*;

    /// No schedule loses a wake-up, and no thread works after the round's end.
    #[test]
    fn rounds_end_with_all_work_done() {
        let run = || {
            let mut crew = Crew::new(3, "test", |_| ()).unwrap();
            for _ in 0..2 {
                let done = AtomicU64::new(0);
                crew.run(&|_| {
                    done.fetch_add(1, Ordering::SeqCst);
                });
                assert_eq!(done.load(Ordering::SeqCst), 3);
            }
        };
        shuttle::check_random(run, 1000);
        shuttle::check_pct(run, 1000, 3);
    }
}
