//! A thread that runs calls passed by other threads, one after another.
//!
//! A passed call may borrow: the caller does not continue before the call has run or was withdrawn. A call can be
//! withdrawn while it is queued, so a thread stuck in a driver blocks others at most for a timeout. A call that has
//! begun cannot be withdrawn.

use onebuf_hal::{Error, Result, watchdog::Post};
use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    // The driver's thread is real, even when shuttle explores schedules.
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, ThreadId},
    time::{Duration, Instant},
};

/// Most calls are over within this time, and a sleep costs two thread switches.
const SPIN: Duration = Duration::from_micros(20);
/// How often a caller wakes up while its call is running.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

enum Phase {
    Queued(Job),
    Running,
    Over,
}

/// A passed job. Once it is `Over`, nothing of the job is left.
struct Ticket {
    phase: Mutex<Phase>,
    is_over: AtomicBool,
    ended: Condvar,
}

impl Ticket {
    fn new(job: Job) -> Arc<Ticket> {
        let (phase, is_over) = (Mutex::new(Phase::Queued(job)), AtomicBool::new(false));
        Arc::new(Ticket { phase, is_over, ended: Condvar::new() })
    }

    /// Runs the job unless it was withdrawn.
    fn run(&self) {
        let mut phase = locked(&self.phase);
        let Phase::Queued(job) = std::mem::replace(&mut *phase, Phase::Running) else {
            *phase = Phase::Over;
            return;
        };
        drop(phase);
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a call on OpenGL's thread panicked");
        }
        *locked(&self.phase) = Phase::Over;
        self.is_over.store(true, Ordering::Release);
        self.ended.notify_all();
    }

    /// Waits for the job. Returns whether it has run; otherwise it is withdrawn and never runs.
    fn wait(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            if self.is_over.load(Ordering::Acquire) {
                return true;
            }
            thread::yield_now();
        }
        let mut phase = locked(&self.phase);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match &*phase {
                Phase::Over => return true,
                Phase::Queued(_) if left.is_zero() => {
                    *phase = Phase::Over;
                    return false;
                }
                Phase::Queued(_) => phase = self.sleep(phase, left),
                Phase::Running => phase = self.sleep(phase, LOOK_AGAIN),
            }
        }
    }

    fn sleep<'t>(&self, phase: MutexGuard<'t, Phase>, longest: Duration) -> MutexGuard<'t, Phase> {
        self.ended.wait_timeout(phase, longest).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[derive(Default)]
struct Line {
    tickets: VecDeque<Arc<Ticket>>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    line: Mutex<Line>,
    wake: Condvar,
}

impl Shared {
    /// Waits for the next job; `None` after the end.
    fn next(&self) -> Option<Arc<Ticket>> {
        let start = Instant::now();
        loop {
            let mut line = locked(&self.line);
            if let Some(ticket) = line.tickets.pop_front() {
                return Some(ticket);
            }
            if line.is_closed {
                return None;
            }
            if start.elapsed() >= SPIN {
                drop(self.wake.wait(line).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(line);
            thread::yield_now();
        }
    }

    /// Runs all queued jobs, on the thread itself.
    fn drain(&self) {
        let pop = || locked(&self.line).tickets.pop_front();
        std::iter::from_fn(pop).for_each(|ticket| ticket.run());
    }

    /// Queues a job. Returns whether it will run; after the end it does not.
    fn push(&self, ticket: Arc<Ticket>) -> bool {
        let mut line = locked(&self.line);
        if !line.is_closed {
            line.tickets.push_back(ticket);
            self.wake.notify_one();
        }
        !line.is_closed
    }
}

/// A handle to the thread.
pub(super) struct Executor {
    shared: Arc<Shared>,
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
    id: ThreadId,
}

impl Executor {
    /// Starts the thread.
    pub fn start(post: Arc<Post>) -> Result<Executor> {
        let shared = Arc::<Shared>::default();
        let works = shared.clone();
        let run = move || {
            while let Some(ticket) = works.next() {
                ticket.run();
            }
        };
        let thread = thread::Builder::new().name("onebuf-gl".into()).spawn(run);
        let thread = thread.map_err(|why| Error::Unavailable {
            what: "a thread for OpenGL".into(),
            tried: Vec::new(),
            reason: format!("{why}: does a limit on threads or memory stand in the way?"),
        })?;
        let id = thread.thread().id();
        Ok(Executor { shared, post, thread: Some(thread), id })
    }

    /// Runs a call on the thread; directly if this is that thread. The hub's timeout limits the wait in the queue.
    pub fn run<T: Send>(&self, call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.run_within(self.post.limit(), call)
    }

    /// Like `run`, with another timeout for waiting in the queue.
    pub fn run_within<T: Send>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        if thread::current().id() == self.id {
            return call();
        }
        if onebuf_sys::fork::is_child() {
            // The thread exists only in the parent process.
            return Err(Error::forked("gl"));
        }
        let mut outcome: Option<Result<Result<T>, Box<dyn Any + Send>>> = None;
        let place = &mut outcome;
        let job: Box<dyn FnOnce() + Send + '_> =
            Box::new(move || *place = Some(catch_unwind(AssertUnwindSafe(call))));
        // SAFETY: the job is gone before this function returns: `wait` ensures that it has run, or drops it; a closed
        // queue drops it too. So nothing that it borrows is used later.
        let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        let ticket = Ticket::new(job);
        let taken = self.shared.push(ticket.clone());
        let has_run =
            taken && self.post.watch("a call on OpenGL's thread", || ticket.wait(timeout));
        drop(ticket);
        match outcome {
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => resume_unwind(panic),
            None if taken && !has_run => {
                Err(Error::timeout("waiting for OpenGL's busy thread", timeout))
            }
            None => Err(Error::DeviceLost {
                device: "gl".into(),
                reason: "its thread has ended".into(),
            }),
        }
    }

    /// Queues a call without waiting. After the end it is dropped.
    pub fn post(&self, call: impl FnOnce() + Send + 'static) {
        self.shared.push(Ticket::new(Box::new(call)));
    }

    /// Runs a last call after all queued ones, and ends the thread; if this is that thread, it ends by itself.
    pub fn finish(&mut self, last: impl FnOnce() + Send) {
        let ran = self.run(|| {
            // Queued calls have run by now, unless this is the thread itself.
            self.shared.drain();
            last();
            Ok(())
        });
        locked(&self.shared.line).is_closed = true;
        self.shared.wake.notify_one();
        let Some(thread) = self.thread.take() else { return };
        match ran {
            Err(why) => tracing::error!("OpenGL's thread was not joined: {why}"),
            Ok(()) if thread.thread().id() == thread::current().id() => {}
            // The thread ends, because its last call has run.
            Ok(()) => drop(thread.join()),
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.finish(|| ());
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executor({:?})", self.id)
    }
}

/// Locks, ignoring poisoning: every guarded state is valid between statements.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;
    use std::sync::{Barrier, mpsc};

    #[test]
    fn calls_run_there_in_order_and_borrow() {
        let executor = Executor::start(Post::new("gl", "a test")).unwrap();
        let mut seen = Vec::new();
        for n in 0..100 {
            let call = || {
                seen.push(n);
                Ok(())
            };
            executor.run(call).unwrap();
        }
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        let there = executor.run(|| Ok(thread::current().id())).unwrap();
        assert_eq!(there, executor.id);
        assert_ne!(there, thread::current().id());
    }

    #[test]
    fn calls_of_many_threads_are_all_run() {
        let executor = Executor::start(Post::new("gl", "a test")).unwrap();
        let sum = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..200 {
                        let call = || {
                            *locked(&sum) += n;
                            Ok(())
                        };
                        executor.run(call).unwrap();
                    }
                });
            }
        });
        assert_eq!(*locked(&sum), 8 * 199 * 100);
    }

    #[test]
    fn a_call_made_there_runs_inline() {
        let executor = Executor::start(Post::new("gl", "a test")).unwrap();
        let inner = executor.run(|| executor.run(|| Ok(7))).unwrap();
        assert_eq!(inner, 7);
    }

    #[test]
    fn a_turn_that_does_not_come_is_a_timeout_and_the_call_is_taken_back() {
        let executor = Executor::start(Post::new("gl", "a test")).unwrap();
        let (open, host_signal) = mpsc::channel::<()>();
        executor.post(move || {
            let _ = host_signal.recv();
        });
        let mut ran = false;
        let outcome = executor.run_within(Duration::from_millis(10), || {
            ran = true;
            Ok(())
        });
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        drop(open);
        executor.run(|| Ok(())).unwrap();
        assert!(!ran, "a call that was taken back has run");
    }

    #[test]
    fn a_panic_comes_home_and_the_thread_goes_on() {
        let executor = Executor::start(Post::new("gl", "a test")).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            executor.run(|| -> Result<()> { panic!("here") }).unwrap();
        }));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"here"));
        executor.post(|| panic!("there"));
        assert_eq!(executor.run(|| Ok(1)), Ok(1));
    }

    #[test]
    fn the_last_reference_may_go_on_the_thread_itself() {
        let executor = Arc::new(Executor::start(Post::new("gl", "a test")).unwrap());
        let (met, done) = (Arc::new(Barrier::new(2)), mpsc::channel());
        let (held, there, ended) = (executor.clone(), met.clone(), done.0);
        let late = Arc::new(AtomicBool::new(false));
        let ran = late.clone();
        executor.post(move || {
            there.wait();
            there.wait();
            held.post(move || ran.store(true, Ordering::Release));
            drop(held);
            let _ = ended.send(late.load(Ordering::Acquire));
        });
        met.wait();
        drop(executor);
        met.wait();
        let ended = done.1.recv_timeout(Duration::from_secs(10));
        assert_eq!(
            ended,
            Ok(true),
            "what was left there runs before the end, and nothing waits for itself"
        );
    }
}
