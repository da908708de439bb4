//! A queue: each call sends a command that owns everything it uses; one thread runs the commands in order.

#![allow(unsafe_code)] // See the head of `lib.rs`.

use crate::{
    API, backend::ToyBackend, device::Facts, event::ToyEvent, memory::ToyMemory, program::ToyKernel,
};
use onebuf_hal::{
    DeviceInfo, Domain, Error, Event, Grid, NativeArg, Profile, Result, native,
    typed::{Args, Events, TypedArg, TypedMemory, TypedQueue},
};
use std::sync::{Arc, atomic::AtomicPtr, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a command waits for events of other queues.
const LONGEST: Duration = Duration::from_secs(600);

/// The work of a command, run on the queue's thread.
type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// One command: the thread waits for `after`, does the work, and completes the event.
struct Command {
    queued: Instant,
    after: Vec<Arc<dyn Event>>,
    work: Work,
    event: ToyEvent,
}

/// An in-order queue with its own thread, which ends after the queue is dropped and its work is done.
#[derive(Debug)]
pub struct ToyQueue {
    device: Arc<Facts>,
    commands: mpsc::Sender<Command>,
}

/// The queue's thread. After a command fails, every later command fails too.
fn run(commands: mpsc::Receiver<Command>, profiling: bool) {
    let clock = Instant::now();
    let ns = |at: Instant| at.saturating_duration_since(clock).as_nanos() as u64;
    let mut so_far = Ok(());
    for Command { queued, after, work, event } in commands {
        let ready = after.iter().try_for_each(|event| event.wait(LONGEST));
        let [queued_ns, started_ns] = [queued, Instant::now()].map(ns);
        so_far = so_far.and(ready).and_then(|()| work());
        let (submitted_ns, ended_ns) = (queued_ns, ns(Instant::now()));
        let profile = Profile { queued_ns, submitted_ns, started_ns, ended_ns };
        event.complete(so_far.clone(), profiling.then_some(profile));
    }
}

fn lost(why: impl std::fmt::Display) -> Error {
    Error::DeviceLost { device: API.to_string(), reason: format!("a queue's thread: {why}") }
}

impl ToyQueue {
    pub(crate) fn open(device: &Arc<Facts>, profiling: bool) -> Result<Self> {
        let (commands, received) = mpsc::channel();
        let thread = thread::Builder::new().name("onebuf-toy".into());
        let started = thread.spawn(move || run(received, profiling));
        started.map(|_| Self { device: device.clone(), commands }).map_err(lost)
    }

    fn send(&self, after: &[Arc<dyn Event>], work: Work) -> Told {
        let (queued, event) = (Instant::now(), ToyEvent::new(self.device.domain));
        let command = Command { queued, after: after.to_vec(), work, event: event.clone() };
        self.commands.send(command).map_err(lost).map(|()| event)
    }

    /// Sends a command that cannot fail.
    fn transfer(&self, transfer: impl FnOnce() + Send + 'static) -> Told {
        self.send(
            &[],
            Box::new(move || {
                transfer();
                Ok(())
            }),
        )
    }
}

/// Results of calls: `Told` is the work's event, `Done` has no value.
type Told = Result<ToyEvent>;
type Done = Result<()>;

// SAFETY: commands run in order and hold the memory that they use.
unsafe impl TypedQueue for ToyQueue {
    type Types = ToyBackend;

    fn domain(&self) -> Domain {
        self.device.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn mark(&self) -> Told {
        self.transfer(|| ())
    }

    fn wait_for(&self, events: Events<'_, Self>) -> Done {
        events.iter().try_for_each(|event| event.map(drop))?; // checks that all are of this domain
        self.send(events.untyped(), Box::new(|| Ok(()))).map(drop)
    }

    unsafe fn read(&self, from: &ToyMemory, offset: usize, into: *mut u8, bytes: usize) -> Told {
        let (from, into) = (from.cut(offset, bytes)?, AtomicPtr::new(into));
        // SAFETY: the region has that many bytes, and the caller vouches for as many at `into`.
        self.transfer(move || unsafe { from.pointer().as_ptr().copy_to(into.into_inner(), bytes) })
    }

    unsafe fn write(&self, to: &ToyMemory, offset: usize, from: *const u8, bytes: usize) -> Told {
        let (to, from) = (to.cut(offset, bytes)?, AtomicPtr::new(from.cast_mut()));
        // SAFETY: the region has that many bytes, and the caller vouches for as many at `from`.
        self.transfer(move || unsafe { to.pointer().as_ptr().copy_from(from.into_inner(), bytes) })
    }

    unsafe fn fill(&self, memory: &ToyMemory, offset: usize, bytes: usize, pattern: &[u8]) -> Done {
        let (to, pattern) = (memory.cut(offset, bytes)?, pattern.to_vec());
        // SAFETY: the region has that many bytes, and the command owns the pattern.
        self.transfer(move || unsafe { native::fill(to.pointer(), bytes, &pattern) }).map(drop)
    }

    unsafe fn copy(
        &self,
        from: (&ToyMemory, usize),
        to: (&ToyMemory, usize),
        bytes: usize,
    ) -> Done {
        let (from, to) = (from.0.cut(from.1, bytes)?, to.0.cut(to.1, bytes)?);
        // SAFETY: both regions have that many bytes.
        self.transfer(move || unsafe { to.pointer().copy_from(from.pointer(), bytes) }).map(drop)
    }

    unsafe fn launch(
        &self,
        kernel: &ToyKernel,
        grid: &Grid,
        args: Args<'_, Self>,
        after: Events<'_, Self>,
        wants_event: bool,
    ) -> Result<Option<ToyEvent>> {
        kernel.check(grid)?;
        let args = args.iter().map(|arg| OwnedArg::new(arg?));
        let (code, grid, args) = (kernel.clone(), *grid, args.collect::<Result<Vec<_>>>()?);
        // SAFETY: `args` keeps the memory alive, and the caller holds views of it with the declared access.
        let work = move || unsafe {
            code.run(&grid, &args.iter().map(OwnedArg::native).collect::<Vec<_>>())
        };
        self.send(after.untyped(), Box::new(work)).map(|event| wants_event.then_some(event))
    }
}

/// A kernel argument that a command owns; for memory, whether the kernel writes it.
enum OwnedArg {
    Memory(ToyMemory, bool),
    Bytes(Box<[u8]>),
}

impl OwnedArg {
    fn new(arg: TypedArg<'_, ToyMemory>) -> Result<Self> {
        match arg {
            TypedArg::Memory(memory, access, bytes) => {
                Ok(Self::Memory(memory.cut(0, bytes)?, access.writes()))
            }
            TypedArg::Bytes(bytes) => Ok(Self::Bytes(bytes.into())),
            TypedArg::Local(_) => Err(Error::unsupported("a group-local argument", "work-groups")),
        }
    }

    fn native(&self) -> NativeArg<'_> {
        match self {
            Self::Bytes(bytes) => NativeArg::Value(bytes),
            Self::Memory(memory, writes) => {
                let (pointer, bytes) = (memory.pointer().as_ptr(), memory.bytes());
                NativeArg::Buffer { pointer, bytes, writes: *writes }
            }
        }
    }
}
