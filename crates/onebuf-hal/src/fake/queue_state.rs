//! A queue's thread, and its pending commands.

use super::{API, Delay, event::Signal};
use crate::{
    Error, Result,
    locks::{Arc, Condvar, Mutex, MutexGuard, lock, thread},
    native::panic_text,
};
use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// The name of every queue's thread. A queue that is dropped on such a thread does not wait.
const THREAD_NAME: &str = "onebuf-fake";

/// The work of a command. It owns what it needs.
pub(super) type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// One entry of a queue.
pub(super) enum Step {
    /// Waits for these signals; later commands stay behind it.
    Wait(Vec<Arc<Signal>>),
    /// Runs in order, even after a failure: the memory's access state must match what was enqueued.
    Always(Work),
    /// Completes when all earlier commands have; later commands stay behind it.
    Mark,
    /// Runs in order; an out-of-order queue may run others first.
    Run(Work),
    /// Like `Run`, after these signals.
    After(Vec<Arc<Signal>>, Work),
}

struct Command {
    number: u64,
    step: Step,
    signal: Option<Arc<Signal>>,
}

impl Command {
    /// Whether everything that it waits for has completed.
    fn is_ready(&self) -> bool {
        match &self.step {
            Step::After(signals, _) => signals.iter().all(|signal| signal.outcome().is_some()),
            _ => true,
        }
    }
}

/// The commands of a queue, and the state of its thread.
#[derive(Default)]
pub(super) struct QueueState {
    state: Mutex<CommandList>,
    changed: Condvar,
}

#[derive(Default)]
struct CommandList {
    pending: VecDeque<Command>,
    /// How many commands were enqueued so far.
    count: u64,
    /// Whether the queue is closed for new commands.
    closed: bool,
    running: bool,
    /// Whether the thread waits for a signal.
    held: bool,
    fault: Option<Fault>,
}

/// A failure, and the range of commands that fail with it.
struct Fault {
    error: Error,
    /// The first command that was enqueued after an event had reported the failure.
    until: Option<u64>,
}

impl Fault {
    fn covers(&self, number: u64) -> bool {
        self.until.is_none_or(|until| number < until)
    }
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueState({} pending)", lock(&self.state).pending.len())
    }
}

impl QueueState {
    /// Appends a command.
    pub(super) fn push(&self, step: Step, signal: Option<Arc<Signal>>) {
        let mut state = lock(&self.state);
        let number = state.count;
        state.count += 1;
        state.pending.push_back(Command { number, step, signal });
        drop(state);
        self.changed.notify_all();
    }

    /// Closes the queue, and waits until all commands are done or the thread waits for a signal that may never come; then the
    /// thread finishes by itself. Returns whether all commands are done.
    fn close(&self) -> bool {
        let mut state = lock(&self.state);
        state.closed = true;
        self.changed.notify_all();
        while (state.running || !state.pending.is_empty()) && !state.held {
            state = self.wait(state);
        }
        !state.held
    }

    fn wait<'a>(&self, state: MutexGuard<'a, CommandList>) -> MutexGuard<'a, CommandList> {
        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next command; `None` if the queue is closed and empty.
    fn next(&self, pace: &mut Pace) -> Option<Command> {
        let mut state = lock(&self.state);
        state.running = false;
        self.changed.notify_all();
        loop {
            if let Some(command) = state.choose(pace) {
                state.running = true;
                return Some(command);
            }
            if state.closed {
                return None;
            }
            state = self.wait(state);
        }
    }

    fn execute(&self, command: Command, pace: &mut Pace) {
        let Command { number, step, signal } = command;
        let fault = self.fault(number);
        if let Some(signal) = &signal {
            signal.start();
        }
        let outcome = match (step, fault) {
            (Step::Wait(signals), _) => self.hold(&signals),
            (Step::Always(work), _) => perform(work, pace),
            (Step::Run(work), None) => perform(work, pace),
            (Step::After(signals, work), None) => {
                self.hold(&signals).and_then(|()| perform(work, pace))
            }
            (Step::Mark, None) => Ok(()),
            (Step::Run(_) | Step::After(..) | Step::Mark, Some(error)) => Err(error),
        };
        self.note(number, &outcome, signal.is_some());
        if let Some(signal) = signal {
            signal.complete(outcome);
        }
    }

    /// Waits for all signals, even if one fails.
    fn hold(&self, signals: &[Arc<Signal>]) -> Result<()> {
        let mut outcome = Ok(());
        for signal in signals {
            if signal.outcome().is_none() {
                self.set_held(true);
            }
            outcome = outcome.and(signal.wait());
        }
        self.set_held(false);
        outcome
    }

    fn set_held(&self, held: bool) {
        lock(&self.state).held = held;
        self.changed.notify_all();
    }

    /// The failure that applies to this command.
    fn fault(&self, number: u64) -> Option<Error> {
        let state = lock(&self.state);
        state.fault.as_ref().filter(|fault| fault.covers(number)).map(|fault| fault.error.clone())
    }

    /// Records a failure. Commands that are enqueued after an event reported it do not fail with it, so this is called before
    /// the event completes.
    fn note(&self, number: u64, outcome: &Result<()>, told: bool) {
        let Err(error) = outcome else { return };
        let mut state = lock(&self.state);
        let count = state.count;
        state.fault.take_if(|fault| !fault.covers(number));
        let fault = state.fault.get_or_insert_with(|| Fault { error: error.clone(), until: None });
        if told && fault.until.is_none() {
            fault.until = Some(count);
        }
    }
}

impl CommandList {
    /// In-order queues take the first command, others any that is not ordered behind another.
    fn choose(&mut self, pace: &mut Pace) -> Option<Command> {
        let free = |command: &&Command| matches!(command.step, Step::Run(_) | Step::After(..));
        let first_ones = self.pending.iter().take_while(free).enumerate();
        let ready = first_ones.filter(|(_, command)| command.is_ready()).map(|(index, _)| index);
        let choices: Vec<usize> = if pace.shuffles { ready.collect() } else { Vec::new() };
        // If none is ready, take the first: what it waits for cannot be behind it.
        let chosen = choices.get(pace.below(choices.len() as u64) as usize).copied().unwrap_or(0);
        self.pending.remove(chosen)
    }
}

/// Runs a command. Its panic must not end the thread.
fn perform(work: Work, pace: &mut Pace) -> Result<()> {
    pace.rest();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Error::invalid(format!("a command of {API} panicked: {}", panic_text(&*panic))))
    })
}

/// The speed of a queue, and its order.
#[derive(Debug)]
pub(super) struct Pace {
    delay: Delay,
    shuffles: bool,
    random: u64,
}

impl Pace {
    /// `number` gives each queue its own random sequence.
    pub(super) fn new(delay: Delay, shuffles: bool, number: u64) -> Self {
        let seed = if let Delay::Random { seed, .. } = delay { seed } else { 0 };
        Pace { delay, shuffles, random: seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95) }
    }

    fn rest(&mut self) {
        let delay = match self.delay {
            Delay::None => Duration::ZERO,
            Delay::Fixed(delay) => delay,
            Delay::Random { max, .. } => {
                let limit = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
                Duration::from_nanos(self.below(limit.saturating_add(1)))
            }
        };
        if !delay.is_zero() {
            thread::sleep(delay);
        }
    }

    /// A random number below the limit; 0 if the limit is 0. (splitmix64)
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).checked_rem(limit).unwrap_or(0)
    }
}

/// A queue's commands and its thread.
#[derive(Debug)]
pub(super) struct Worker {
    state: Arc<QueueState>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(mut pace: Pace) -> Result<Self> {
        let state = Arc::new(QueueState::default());
        let commands = state.clone();
        let run = move || {
            while let Some(command) = commands.next(&mut pace) {
                commands.execute(command, &mut pace);
            }
        };
        let thread = thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::Driver {
            api: API.0,
            call: "fake_queue",
            code: error.raw_os_error().unwrap_or(-1),
            name: error.to_string(),
        })?;
        Ok(Worker { state, thread: Some(thread) })
    }

    pub(super) fn state(&self) -> &QueueState {
        &self.state
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if onebuf_sys::fork::is_child() {
            // The thread exists only in the parent.
            return;
        }
        // Do not join: a callback may drop the last reference to its own queue, or two callbacks to each other's.
        if thread::current().name() == Some(THREAD_NAME) {
            lock(&self.state.state).closed = true;
            self.state.changed.notify_all();
            return;
        }
        if self.state.close()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a fake queue panicked");
        }
    }
}
