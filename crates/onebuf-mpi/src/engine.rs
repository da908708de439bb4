//! The communication thread: it alone calls MPI.
//!
//! Other threads post *actors*, which own a part of the communication: a message, a stream, a corner turn. An actor begins
//! transfers when it is woken, and is told when each has ended. What its owner waits for is the actor's own state.
//!
//! ```text
//!   owner ── post, wake ──► engine ── begin, start ──► transport (MPI)
//!     ▲                       │  ▲                         │
//!     └── state, condvar ── actor └────── poll ◄───────────┘
//! ```

#![allow(unsafe_code)] // Contracts alone: see `Transport`.

mod pace;

use crate::{
    board::{Board, Progress},
    deadline::Deadline,
    greet,
    process::PeerState,
    ranks::Ranks,
    transport::{Address, Key, Outcome, Prepared, Transfer, Transport, Way},
};
use onebuf_hal::{Error, Result};
use onebuf_sys::mpi::{Comm, Mpi};
use pace::Pace;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

/// How often the processes that something is expected from are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How much longer than the limit an answer of the thread is waited for.
const GRACE: Duration = Duration::from_secs(2);

/// After so many polls in a row that have found something a burst is over, too.
const LONGEST_BURST: u32 = 4;

/// After this many polls in a row that MPI refused, everything under way has failed.
const MOST_REFUSALS: u32 = 3;

/// A part of the communication. All methods are called by the communication thread.
pub(crate) trait Actor: Send + Sync {
    /// It was posted, or its owner has woken it.
    fn woken(&self, io: &mut Io<'_>);
    /// A transfer has ended.
    fn ended(&self, io: &mut Io<'_>, mark: u64, outcome: Outcome);
    /// A rank that it waits for is gone, or MPI has failed as a whole.
    fn failed(&self, io: &mut Io<'_>, error: &Error);
    /// Nothing more ends now: see [`Io::tell_later`].
    fn calm(&self) {}
}

/// An actor that does one thing, which its owner waits for.
pub(crate) trait Call: Actor {
    fn progress(&self) -> &Board<Progress>;
    /// What is late, for the error of a wait.
    fn late(&self) -> String;
}

/// A function that calls MPI itself; `None` without MPI.
type RunOnThread = Box<dyn FnOnce(Option<(&Mpi, Comm)>) + Send>;

enum Command {
    Post(u64, Arc<dyn Actor>),
    Wake(u64),
    /// Runs a function on the thread that calls MPI.
    Run(RunOnThread),
    Close {
        until: Deadline,
        failed: bool,
        reply: Sender<Result<()>>,
    },
    Shrink {
        until: Deadline,
        options: BTreeMap<String, String>,
        reply: Sender<Result<Arc<Ranks>>>,
    },
}

/// The other threads' way to the communication thread.
#[derive(Clone)]
pub(crate) struct Link {
    commands: Sender<Command>,
    next: Arc<AtomicU64>,
}

impl Link {
    /// Gives an actor to the communication thread.
    pub fn post(&self, actor: Arc<dyn Actor>) -> Posted {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        // Without a thread the actor never ends, and its owner's wait does.
        let _ = self.commands.send(Command::Post(id, actor));
        Posted { id, link: self.clone() }
    }

    /// Runs a function on the thread, and waits for its result without a limit.
    pub fn run<R: Send + 'static>(
        &self,
        run: impl FnOnce(Option<(&Mpi, Comm)>) -> R + Send + 'static,
    ) -> Result<R> {
        let (reply, answer) = mpsc::channel();
        let run = Box::new(move |raw: Option<(&Mpi, Comm)>| drop(reply.send(run(raw))));
        let gone = || Error::PeerLost { reason: "the communication thread has ended".into() };
        self.commands.send(Command::Run(run)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }

    /// Ends the thread; see [`Transport::close`].
    pub fn close(&self, until: Deadline, failed: bool) -> Result<()> {
        self.ask(until, "MPI to end", |reply| Command::Close { until, failed, reply })
    }

    /// Goes on with the ranks that are left; see [`Transport::shrink`].
    pub fn shrink(&self, until: Deadline, options: BTreeMap<String, String>) -> Result<Arc<Ranks>> {
        self.ask(until, "the remaining ranks to agree", |reply| Command::Shrink {
            until,
            options,
            reply,
        })
    }

    fn ask<R>(
        &self,
        until: Deadline,
        what: &str,
        command: impl FnOnce(Sender<Result<R>>) -> Command,
    ) -> Result<R> {
        let (reply, answer) = mpsc::channel();
        let gone = || Error::PeerLost { reason: "the communication thread has ended".into() };
        self.commands.send(command(reply)).map_err(|_| gone())?;
        // The thread itself keeps to the limit, unless MPI does not return.
        match answer.recv_timeout(until.left() + GRACE) {
            Ok(answer) => answer,
            Err(_) => Err(until.error(what)),
        }
    }
}

/// An actor that was posted.
pub(crate) struct Posted {
    id: u64,
    link: Link,
}

impl Posted {
    pub fn wake(&self) {
        let _ = self.link.commands.send(Command::Wake(self.id));
    }
}

/// A transfer that is under way.
struct Pending {
    actor: u64,
    mark: u64,
    /// `None` for a call of all ranks.
    peer: Option<usize>,
    receives: bool,
}

struct Entry {
    actor: Arc<dyn Actor>,
    /// Transfers under way.
    open: usize,
    /// It has nothing more to do.
    retired: bool,
}

/// What an actor works with.
pub(crate) struct Io<'e> {
    core: &'e mut Core,
    actor: u64,
    retired: bool,
}

struct Core {
    transport: Box<dyn Transport>,
    pending: Vec<Option<Pending>>,
    free: Vec<Key>,
    /// Ranks that are gone, and how that was noticed.
    lost: BTreeMap<usize, Error>,
    pace: Pace,
    /// Transfers that the actor which is called now has begun.
    opened: usize,
    /// Actors that tell their owners something when nothing more ends.
    later: Vec<u64>,
}

/// A prepared transfer, and what the engine must know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    prepared: Prepared,
    peer: usize,
    receives: bool,
}

impl Core {
    fn note(&mut self, pending: Pending) -> Key {
        self.opened += 1;
        match self.free.pop() {
            Some(key) => {
                self.pending[key] = Some(pending);
                key
            }
            None => {
                self.pending.push(Some(pending));
                self.pending.len() - 1
            }
        }
    }

    /// Forgets a transfer that could not be begun.
    fn unnote(&mut self, key: Key) {
        self.opened -= 1;
        self.pending[key] = None;
        self.free.push(key);
    }

    fn is_idle(&self) -> bool {
        self.pending.len() == self.free.len()
    }

    fn check(&self, peer: usize) -> Result<()> {
        self.lost.get(&peer).map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Io<'_> {
    /// Begins a transfer. Its end is reported with `mark`.
    ///
    /// # Safety
    /// See [`Transport`].
    pub unsafe fn begin(&mut self, mark: u64, transfer: &Transfer) -> Result<()> {
        self.core.check(transfer.peer)?;
        let receives = transfer.way == Way::Receive;
        let (actor, peer) = (self.actor, Some(transfer.peer));
        let key = self.core.note(Pending { actor, mark, peer, receives });
        // SAFETY: the caller's guarantee.
        let begun = unsafe { self.core.transport.begin(transfer, key) };
        begun.inspect_err(|_| self.core.unnote(key))
    }

    /// Prepares a transfer that is started later.
    ///
    /// # Safety
    /// See [`Transport`].
    pub unsafe fn prepare(&mut self, transfer: &Transfer) -> Result<Standing> {
        // SAFETY: the caller's guarantee.
        let prepared = unsafe { self.core.transport.prepare(transfer) }?;
        Ok(Standing { prepared, peer: transfer.peer, receives: transfer.way == Way::Receive })
    }

    /// Starts a prepared transfer. Its end is reported with `mark`.
    ///
    /// # Safety
    /// See [`Transport`].
    pub unsafe fn start(&mut self, mark: u64, standing: Standing) -> Result<()> {
        let Standing { prepared, peer, receives } = standing;
        self.core.check(peer)?;
        let key = self.core.note(Pending { actor: self.actor, mark, peer: Some(peer), receives });
        // SAFETY: the caller's guarantee.
        let started = unsafe { self.core.transport.start(prepared, key) };
        started.inspect_err(|_| self.core.unnote(key))
    }

    /// Frees a prepared transfer that is not under way.
    pub fn release(&mut self, standing: Standing) {
        self.core.transport.release(standing.prepared);
    }

    /// Begins a broadcast.
    ///
    /// # Safety
    /// See [`Transport`].
    pub unsafe fn broadcast(
        &mut self,
        mark: u64,
        at: Address,
        bytes: usize,
        root: usize,
    ) -> Result<()> {
        // SAFETY: the caller's guarantee.
        self.collective(mark, |transport, key| unsafe { transport.broadcast(at, bytes, root, key) })
    }

    /// Begins to gather every rank's bytes on all ranks.
    ///
    /// # Safety
    /// See [`Transport`].
    pub unsafe fn all_gather(
        &mut self,
        mark: u64,
        from: Address,
        into: Address,
        each: usize,
    ) -> Result<()> {
        // SAFETY: the caller's guarantee.
        self.collective(mark, |transport, key| unsafe {
            transport.all_gather(from, into, each, key)
        })
    }

    fn collective(
        &mut self,
        mark: u64,
        begin: impl FnOnce(&mut dyn Transport, Key) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = self.core.lost.values().next() {
            return Err(error.clone());
        }
        let key = self.core.note(Pending { actor: self.actor, mark, peer: None, receives: false });
        let begun = begin(&mut *self.core.transport, key);
        begun.inspect_err(|_| self.core.unnote(key))
    }

    /// Cancels a receive of this actor, if it is under way. Its end is reported all the same.
    pub fn cancel(&mut self, mark: u64) {
        let mine = |pending: &Option<Pending>| {
            pending.as_ref().is_some_and(|p| p.actor == self.actor && p.mark == mark && p.receives)
        };
        if let Some(key) = self.core.pending.iter().position(mine) {
            self.core.transport.cancel(key);
        }
    }

    /// Refuses everything with a rank from now on: what it gets and what it is told no longer belong together.
    pub fn give_up_on(&mut self, rank: usize, error: &Error) {
        self.core.lost.entry(rank).or_insert_with(|| error.clone());
    }

    /// Says that this many bytes are on their way now: the thread does not sleep meanwhile.
    pub fn expect(&mut self, bytes: usize) {
        self.core.pace.expect(bytes);
    }

    /// Has [`Actor::calm`] called when nothing more ends at the moment.
    pub fn tell_later(&mut self) {
        if !self.core.later.contains(&self.actor) {
            self.core.later.push(self.actor);
        }
    }

    /// Removes the actor, once its last transfer has ended.
    pub fn retire(&mut self) {
        self.retired = true;
    }
}

/// The communication thread's state.
pub(crate) struct Engine {
    core: Core,
    commands: Receiver<Command>,
    actors: HashMap<u64, Entry>,
    ranks: Arc<Ranks>,
    looked: Instant,
    refusals: u32,
    /// Polls in a row that have found something.
    burst: u32,
    /// The ends of transfers that were polled, reused.
    ended: Vec<(Key, Outcome)>,
}

impl Engine {
    pub fn new(transport: Box<dyn Transport>, ranks: Arc<Ranks>) -> (Self, Link) {
        let (sender, commands) = mpsc::channel();
        let core = Core {
            transport,
            pending: Vec::new(),
            free: Vec::new(),
            lost: BTreeMap::new(),
            pace: Pace::new(),
            opened: 0,
            later: Vec::new(),
        };
        let engine = Self {
            core,
            commands,
            actors: HashMap::new(),
            ranks,
            looked: Instant::now(),
            refusals: 0,
            burst: 0,
            ended: Vec::new(),
        };
        (engine, Link { commands: sender, next: Arc::default() })
    }

    /// Works until it is closed, or until no handle is left that could close it.
    pub fn run(mut self) {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => Some(command),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) if self.core.is_idle() => {
                    self.calm();
                    match self.commands.recv() {
                        Ok(command) => Some(command),
                        Err(_) => return,
                    }
                }
                Err(TryRecvError::Empty) => self.poll_or_nap(),
            };
            match command {
                Some(Command::Close { until, failed, reply }) => {
                    let _ = reply.send(self.close(until, failed));
                    return;
                }
                Some(Command::Shrink { until, options, reply }) => {
                    let _ = reply.send(self.shrink(until, &options));
                }
                Some(Command::Post(id, actor)) => {
                    self.actors.insert(id, Entry { actor, open: 0, retired: false });
                    self.call(id, |actor, io| actor.woken(io));
                }
                Some(Command::Run(run)) => run(self.core.transport.raw()),
                Some(Command::Wake(id)) => self.call(id, |actor, io| actor.woken(io)),
                None => {}
            }
        }
    }

    /// Polls. Without progress it lets other threads run, or sleeps until a command comes.
    fn poll_or_nap(&mut self) -> Option<Command> {
        let progress = self.poll();
        self.look();
        if progress {
            self.core.pace.progress();
            self.burst += 1;
            if self.burst >= LONGEST_BURST {
                self.calm();
            }
            return None;
        }
        self.calm();
        let Some(nap) = self.core.pace.nap() else {
            thread::yield_now();
            return None;
        };
        self.commands.recv_timeout(nap).ok()
    }

    /// Nothing more ends at the moment: tells what was left for later.
    fn calm(&mut self) {
        self.burst = 0;
        for id in self.core.later.drain(..) {
            if let Some(entry) = self.actors.get(&id) {
                entry.actor.calm();
            }
        }
    }

    /// Calls an actor, and removes it if it has nothing more to do.
    fn call(&mut self, id: u64, call: impl FnOnce(&dyn Actor, &mut Io<'_>)) {
        let Some(entry) = self.actors.get_mut(&id) else { return };
        let mut io = Io { core: &mut self.core, actor: id, retired: entry.retired };
        call(&*entry.actor, &mut io);
        entry.retired = io.retired;
        entry.open += mem::take(&mut self.core.opened);
        if entry.retired && entry.open == 0 {
            self.actors.remove(&id);
        }
    }

    /// Asks for transfers that have ended, and tells their actors. Returns whether there were any.
    fn poll(&mut self) -> bool {
        let mut ended = mem::take(&mut self.ended);
        match self.core.transport.poll(&mut ended) {
            Ok(()) => self.refusals = 0,
            Err(error) => self.note_refusal(&error),
        }
        let progress = !ended.is_empty();
        for (key, outcome) in ended.drain(..) {
            let Some(pending) = self.core.pending.get_mut(key).and_then(Option::take) else {
                continue;
            };
            self.core.free.push(key);
            if let Some(entry) = self.actors.get_mut(&pending.actor) {
                entry.open -= 1;
            }
            self.call(pending.actor, |actor, io| actor.ended(io, pending.mark, outcome));
        }
        self.ended = ended;
        progress
    }

    /// MPI has refused to poll. What it does again and again ends everything under way.
    fn note_refusal(&mut self, error: &Error) {
        self.refusals += 1;
        if self.refusals >= MOST_REFUSALS {
            self.refusals = 0;
            self.fail(|_| true, error);
        }
    }

    /// Tells the actors whose transfers match that these have failed.
    fn fail(&mut self, matches: impl Fn(&Pending) -> bool, error: &Error) {
        let pending = self.core.pending.iter().flatten().filter(|pending| matches(pending));
        let actors: BTreeSet<u64> = pending.map(|pending| pending.actor).collect();
        actors.into_iter().for_each(|id| self.call(id, |actor, io| actor.failed(io, error)));
    }

    /// Looks, now and then, whether the ranks of this machine that something is expected from are still there.
    fn look(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let pending = self.core.pending.iter().flatten();
        let all: BTreeSet<usize> = match pending.clone().any(|pending| pending.peer.is_none()) {
            true => (0..self.ranks.all.len()).collect(),
            false => pending.filter_map(|pending| pending.peer).collect(),
        };
        let gone = |rank: &usize| self.ranks.state(*rank) == PeerState::Gone;
        let known: Vec<usize> = self.core.lost.keys().copied().collect();
        let found: Vec<usize> =
            all.into_iter().filter(|rank| !known.contains(rank)).filter(gone).collect();
        for rank in found {
            let error = Error::PeerLost { reason: self.ranks.describe(rank) };
            tracing::warn!(rank, "a rank is gone");
            self.core.lost.insert(rank, error.clone());
            self.fail(|pending| pending.peer.is_none_or(|peer| peer == rank), &error);
        }
    }

    /// Ends the work with MPI. With `failed`, or with something still under way, no other rank is waited for.
    fn close(&mut self, until: Deadline, failed: bool) -> Result<()> {
        while !self.core.is_idle() && !failed && !until.is_over() {
            self.poll();
            thread::sleep(Duration::from_micros(50));
        }
        let orderly = !failed && self.core.is_idle() && self.core.lost.is_empty();
        let met = match orderly {
            true => self.meet(until),
            false => Err(Error::PeerLost {
                reason: "the ranks do not end together: MPI is left as it is".into(),
            }),
        };
        self.core.transport.close(met.is_ok(), until).and(met)
    }

    /// Waits for all ranks.
    fn meet(&mut self, until: Deadline) -> Result<()> {
        let key = self.core.pending.len();
        self.core.transport.barrier(key)?;
        greet::complete(&mut *self.core.transport, key, "all ranks to end", until)
    }

    /// Goes on with the ranks that are left. Everything under way fails.
    fn shrink(
        &mut self,
        until: Deadline,
        options: &BTreeMap<String, String>,
    ) -> Result<Arc<Ranks>> {
        let why = "this MPI cannot go on without a rank";
        let lost = Error::PeerLost { reason: "the world goes on with fewer ranks".into() };
        self.fail(|_| true, &lost);
        let left = self.core.transport.shrink(until)?;
        let mut left =
            left.ok_or_else(|| Error::unsupported(why, "a library with ULFM (MPIX_Comm_shrink)"))?;
        // What was under way in the old communicator ends now, with errors.
        let settle = Deadline::after(GRACE.min(until.left()));
        while !self.core.is_idle() && !settle.is_over() {
            self.poll();
            thread::sleep(Duration::from_micros(50));
        }
        let ranks = Arc::new(greet::greet(&mut *left, options, until)?);
        // The old one keeps the requests that did not end, and their memory is never given back.
        mem::forget(mem::replace(&mut self.core.transport, left));
        self.actors.retain(|_, entry| entry.open > 0);
        self.core.pending.clear();
        self.core.free.clear();
        self.core.lost.clear();
        self.ranks = ranks.clone();
        Ok(ranks)
    }
}
