//! A queue: each call checks its arguments and sends a command that owns all it needs; one thread runs them in order.
//!
//! # Safety
//! A command keeps the memory that it uses, in a range that was checked when it was made. Nobody else uses those bytes in
//! conflict meanwhile, and the host's memory of `read` and `write` stays: both are the caller's part, by the contracts of `hal`.

#![allow(unsafe_code)]

use crate::{API, event::ToyEvent, memory::ToyMemory, program::ToyKernel};
use onebuf_hal::{
    AccessState, Arg, Domain, Error, Event, Grid, HostSignal, Kernel, Memory, NativeArg, Profile,
    Queue, Result, checks, native,
};
use std::sync::{Arc, atomic::AtomicPtr, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// What a command does, on the queue's thread.
type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// What the thread does next: waits for events, works, and completes an event.
struct Command {
    queued: Instant,
    after: Vec<Arc<dyn Event>>,
    work: Work,
    event: Arc<ToyEvent>,
}

/// An in-order queue with a thread of its own, which ends when the queue is dropped and its work is done.
#[derive(Debug)]
pub(crate) struct ToyQueue {
    domain: Domain,
    commands: mpsc::Sender<Command>,
}

/// After a command that failed the queue is lost: everything behind it fails, too.
fn run(commands: mpsc::Receiver<Command>, profiling: bool) {
    let clock = Instant::now();
    let ns = |at: Instant| at.saturating_duration_since(clock).as_nanos() as u64;
    let mut so_far = Ok(());
    for Command { queued, after, work, event } in commands {
        let ready = after.iter().try_for_each(|event| event.wait(Duration::MAX));
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
    pub(crate) fn open(domain: Domain, profiling: bool) -> Result<Self> {
        let (commands, received) = mpsc::channel();
        let thread = thread::Builder::new().name("onebuf-toy".into());
        let started = thread.spawn(move || run(received, profiling));
        started.map(|_| Self { domain, commands }).map_err(lost)
    }

    fn send(&self, after: &[Arc<dyn Event>], work: Work) -> Told {
        let (queued, event) = (Instant::now(), Arc::new(ToyEvent::new(self.domain)));
        let command = Command { queued, after: after.to_vec(), work, event: event.clone() };
        self.commands.send(command).map_err(lost).map(|()| event as _)
    }

    /// Sends a command that cannot fail.
    fn transfer(&self, transfer: impl FnOnce() + Send + 'static) -> Told {
        let work = move || {
            transfer();
            Ok(())
        };
        self.send(&[], Box::new(work))
    }

    fn part(&self, memory: &dyn Memory, offset: usize, bytes: usize) -> Result<ToyMemory> {
        ToyMemory::of(memory, self.domain)?.part(offset, bytes)
    }
}

/// What calls return: an event that tells of the work's end, or nothing.
type Told = Result<Arc<dyn Event>>;
type Done = Result<()>;

impl Queue for ToyQueue {
    fn domain(&self) -> Domain {
        self.domain
    }

    fn mark(&self) -> Told {
        self.transfer(|| ())
    }

    fn wait_for(&self, events: &[Arc<dyn Event>]) -> Result<()> {
        self.send(events, Box::new(|| Ok(()))).map(drop)
    }

    fn host_signal(&self) -> Result<Box<dyn HostSignal>> {
        Err(Error::unsupported(format!("a host signal on {API}"), "`Caps::host_signals`"))
    }

    fn flush(&self) -> Result<()> {
        Ok(()) // a command is on its way as soon as it is sent
    }

    fn reside(&self, memory: &dyn Memory, _to: AccessState) -> Result<bool> {
        ToyMemory::of(memory, self.domain).map(|_| false)
    }

    unsafe fn read(&self, from: &dyn Memory, offset: usize, into: *mut u8, bytes: usize) -> Told {
        checks::host_pointer(into, bytes)?;
        let (from, into) = (self.part(from, offset, bytes)?, AtomicPtr::new(into));
        // SAFETY: the part has so many bytes, and the caller vouches for as many.
        self.transfer(move || unsafe { from.pointer().as_ptr().copy_to(into.into_inner(), bytes) })
    }

    unsafe fn write(&self, to: &dyn Memory, offset: usize, from: *const u8, bytes: usize) -> Told {
        checks::host_pointer(from, bytes)?;
        let (to, from) = (self.part(to, offset, bytes)?, AtomicPtr::new(from.cast_mut()));
        // SAFETY: the part has so many bytes, and the caller vouches for as many.
        self.transfer(move || unsafe { to.pointer().as_ptr().copy_from(from.into_inner(), bytes) })
    }

    fn fill(&self, memory: &dyn Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Done {
        checks::fill(memory.bytes(), offset, bytes, pattern)?;
        let (to, pattern) = (self.part(memory, offset, bytes)?, pattern.to_vec());
        // SAFETY: the part has so many bytes, and the pattern is the command's own.
        self.transfer(move || unsafe { native::fill(to.pointer(), bytes, &pattern) }).map(drop)
    }

    fn copy(&self, from: &dyn Memory, at: usize, to: &dyn Memory, to_at: usize, n: usize) -> Done {
        let (from, to) = (self.part(from, at, n)?, self.part(to, to_at, n)?);
        checks::apart(from.pointer().addr().get(), to.pointer().addr().get(), n)?;
        // SAFETY: both parts have so many bytes.
        self.transfer(move || unsafe { to.pointer().copy_from(from.pointer(), n) }).map(drop)
    }

    unsafe fn launch(
        &self,
        kernel: &dyn Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let want = || format!("a kernel of {API}");
        let foreign = || Error::ForeignContext { have: format!("{kernel:?}"), want: want() };
        let ToyKernel(code) = kernel.as_any().downcast_ref().ok_or_else(foreign)?;
        code.check(grid, args.len())?;
        let args = args.iter().map(|arg| OwnedArg::new(arg, self.domain));
        let (code, grid, args) = (code.clone(), *grid, args.collect::<Result<Vec<_>>>()?);
        // SAFETY: `args` keeps the memory, of which the caller holds views as the accesses say.
        let work = move || unsafe {
            code.run(&grid, &args.iter().map(OwnedArg::native).collect::<Vec<_>>())
        };
        self.send(after, Box::new(work)).map(|event| wants_event.then_some(event))
    }

    fn raw(&self) -> usize {
        0
    }
}

/// A kernel's argument as a command keeps it; of memory, whether it is written.
enum OwnedArg {
    Memory(ToyMemory, bool),
    Bytes(Box<[u8]>),
}

impl OwnedArg {
    fn new(arg: &Arg<'_>, domain: Domain) -> Result<Self> {
        match *arg {
            Arg::Memory(memory, access, bytes) => {
                let memory = ToyMemory::of(memory, domain)?;
                Ok(Self::Memory(memory.part(0, bytes.min(memory.bytes()))?, access.writes()))
            }
            Arg::Bytes(bytes) => Ok(Self::Bytes(bytes.into())),
            Arg::Local(_) => Err(Error::unsupported("a group-local argument", "work-groups")),
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
