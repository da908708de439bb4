//! The thread behind a queue, and the commands that wait for it.

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

/// The name of every queue's thread, so that a queue dropped on such a thread does not wait for it.
const THREAD_NAME: &str = "onebuf-fake";

/// What a command does. It owns what it needs.
pub(super) type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// One entry of a queue.
pub(super) enum Step {
    /// Wait for these; nothing overtakes it.
    Wait(Vec<Arc<Signal>>),
    /// Runs in its place even after a failure: the memory's state must stay what was enqueued.
    Always(Work),
    /// Completes when all before has; nothing overtakes it.
    Mark,
    /// Runs when its turn comes; an out-of-order queue may choose another first.
    Run(Work),
    /// The same, but not before these.
    After(Vec<Arc<Signal>>, Work),
}

struct Command {
    number: u64,
    step: Step,
    signal: Option<Arc<Signal>>,
}

impl Command {
    /// Whether nothing that it waits for is left.
    fn is_ready(&self) -> bool {
        match &self.step {
            Step::After(signals, _) => signals.iter().all(|signal| signal.outcome().is_some()),
            _ => true,
        }
    }
}

/// Commands, and how far their thread is.
#[derive(Default)]
pub(super) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Command>,
    /// How many commands were enqueued so far.
    count: u64,
    /// Nothing more will come.
    closed: bool,
    running: bool,
    /// The thread waits for somebody else.
    held: bool,
    fault: Option<Fault>,
}

/// A failure, and the commands it takes along.
struct Fault {
    error: Error,
    /// The first command that was enqueued after an event had told of the failure.
    until: Option<u64>,
}

impl Fault {
    fn covers(&self, number: u64) -> bool {
        self.until.is_none_or(|until| number < until)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({} pending)", lock(&self.state).pending.len())
    }
}

impl Line {
    /// Appends a command.
    pub(super) fn push(&self, step: Step, signal: Option<Arc<Signal>>) {
        let mut state = lock(&self.state);
        let number = state.count;
        state.count += 1;
        state.pending.push_back(Command { number, step, signal });
        drop(state);
        self.changed.notify_all();
    }

    /// Says that nothing more will come, and waits until all is done or the thread waits for somebody
    /// else, who may never come: then it finishes by itself. Returns whether all is done.
    fn close(&self) -> bool {
        let mut state = lock(&self.state);
        state.closed = true;
        self.changed.notify_all();
        while (state.running || !state.pending.is_empty()) && !state.held {
            state = self.wait(state);
        }
        !state.held
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next command; `None` when no more will come.
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

    /// Waits for all of them, whatever becomes of each.
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

    /// The failure that this command shares.
    fn fault(&self, number: u64) -> Option<Error> {
        let state = lock(&self.state);
        state.fault.as_ref().filter(|fault| fault.covers(number)).map(|fault| fault.error.clone())
    }

    /// Remembers a failure. From the moment an event tells of it, new commands are free of it; so this
    /// comes before the event completes.
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

impl State {
    /// In-order queues take the first; others any that nothing orders.
    fn choose(&mut self, pace: &mut Pace) -> Option<Command> {
        let free = |command: &&Command| matches!(command.step, Step::Run(_) | Step::After(..));
        let first_ones = self.pending.iter().take_while(free).enumerate();
        let ready = first_ones.filter(|(_, command)| command.is_ready()).map(|(index, _)| index);
        let choices: Vec<usize> = if pace.shuffles { ready.collect() } else { Vec::new() };
        // With none ready the first will do: what it waits for cannot be behind it.
        let chosen = choices.get(pace.below(choices.len() as u64) as usize).copied().unwrap_or(0);
        self.pending.remove(chosen)
    }
}

/// A panic of the command's must not take the thread with it.
fn perform(work: Work, pace: &mut Pace) -> Result<()> {
    pace.rest();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Error::invalid(format!("a command of {API} panicked: {}", panic_text(&*panic))))
    })
}

/// How fast a queue works, and in which order.
#[derive(Debug)]
pub(super) struct Pace {
    delay: Delay,
    shuffles: bool,
    random: u64,
}

impl Pace {
    /// `number` gives each queue a sequence of its own.
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

    /// A random number below the limit; 0 when that is 0. (splitmix64)
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).checked_rem(limit).unwrap_or(0)
    }
}

/// A line and its thread.
#[derive(Debug)]
pub(super) struct Worker {
    line: Arc<Line>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(mut pace: Pace) -> Result<Self> {
        let line = Arc::new(Line::default());
        let commands = line.clone();
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
        Ok(Worker { line, thread: Some(thread) })
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if onebuf_sys::fork::is_child() {
            // Its thread is the parent's.
            return;
        }
        // A callback may drop the last reference to its own queue, or two callbacks to each other's.
        if thread::current().name() == Some(THREAD_NAME) {
            lock(&self.line.state).closed = true;
            self.line.changed.notify_all();
            return;
        }
        if self.line.close()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a fake queue panicked");
        }
    }
}
