//! Queues: each call appends a command that owns everything it needs.
//!
//! # Safety
//!
//! A command holds the [`Block`]s that it uses, so their bytes outlive it. It accesses them only in ranges that were checked
//! when it was enqueued, and only under a claim. Host memory given to `read` and `write` is used until the event completes, as
//! their contracts allow.

#![allow(unsafe_code)]

use super::{
    FakeBackend, FakeConfig,
    claim::Claim,
    event::{FakeEvent, FakeHostSignal, Signal},
    memory::{Block, FakeMemory},
    program::FakeKernel,
    queue_state::{Pace, QueueState, Step, Worker},
    watch::{Live, Watch},
};
use crate::{
    Access, AccessState, DeviceInfo, Domain, Error, Grid, HostSignal, NativeArg, QueueOrder,
    QueueSpec, Result,
    locks::{Arc, lock},
    native::{self, NativeCode},
    typed::{Args, Events, TypedArg, TypedQueue},
};
use std::{ops::Range, time::Instant};

/// A queue with a thread of its own.
#[derive(Debug)]
pub struct FakeQueue {
    domain: Domain,
    info: Arc<DeviceInfo>,
    callbacks: bool,
    host_signals: bool,
    /// The start of the clock, on a queue with profiling.
    clock: Option<Instant>,
    watch: Watch,
    worker: Worker,
    _live: Live,
}

impl FakeQueue {
    pub(super) fn new(
        config: &FakeConfig,
        info: &Arc<DeviceInfo>,
        spec: QueueSpec,
        number: u64,
        watch: &Watch,
    ) -> Result<Self> {
        let shuffles = spec.order == QueueOrder::OutOfOrder;
        Ok(FakeQueue {
            domain: config.domain,
            info: info.clone(),
            callbacks: config.callbacks,
            host_signals: config.host_signals,
            clock: spec.profiling.then(Instant::now),
            watch: watch.clone(),
            worker: Worker::start(Pace::new(config.delay, shuffles, number))?,
            _live: watch.object("queue", "fake_release_queue"),
        })
    }

    fn state(&self) -> &QueueState {
        self.worker.state()
    }

    fn run(&self, work: impl FnOnce() -> Result<()> + Send + 'static) {
        self.state().push(Step::Run(Box::new(work)), None);
    }

    /// Appends a step and returns an event for its completion.
    fn with_event(&self, step: Step) -> FakeEvent {
        let event = FakeEvent::new(self.domain, self.callbacks, self.clock, &self.watch);
        self.state().push(step, Some(event.signal().clone()));
        event
    }

    fn signals(&self, events: Events<'_, FakeQueue>) -> Result<Vec<Arc<Signal>>> {
        events.iter().map(|event| Ok(event?.signal().clone())).collect()
    }
}

// SAFETY: a command holds the blocks that it uses until it has run, and accesses only ranges that were checked.
unsafe impl TypedQueue for FakeQueue {
    type Types = FakeBackend;

    fn domain(&self) -> Domain {
        self.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn mark(&self) -> Result<FakeEvent> {
        self.watch.call("fake_mark")?;
        Ok(self.with_event(Step::Mark))
    }

    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        self.watch.call("fake_wait_for")?;
        let signals = self.signals(events)?;
        self.state().push(Step::Wait(signals), None);
        Ok(())
    }

    fn host_signal(&self) -> Result<Box<dyn HostSignal>> {
        self.watch.call("fake_host_signal")?;
        if !self.host_signals {
            return Err(Error::unsupported(
                "a host signal on this fake device",
                "`FakeConfig::host_signals`",
            ));
        }
        let host_signal = FakeHostSignal::new(&self.watch);
        self.state().push(Step::Wait(vec![host_signal.signal().clone()]), None);
        Ok(Box::new(host_signal))
    }

    fn flush(&self) -> Result<()> {
        self.watch.call("fake_flush")
    }

    unsafe fn reside(&self, memory: &FakeMemory, to: AccessState) -> Result<bool> {
        let block = memory.block();
        if !block.has_two_sides() {
            return Ok(false);
        }
        // Locked while enqueueing, so that the value is that of the last enqueued command.
        let mut enqueued = lock(block.enqueued());
        if *enqueued == to {
            return Ok(false);
        }
        self.watch.call("fake_reside")?;
        let moving = block.clone();
        self.state().push(Step::Always(Box::new(move || moving.move_to(to))), None);
        *enqueued = to;
        Ok(true)
    }

    unsafe fn read(
        &self,
        from: &FakeMemory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<FakeEvent> {
        self.watch.call("fake_read")?;
        let from = Part::of(from, offset..offset + bytes);
        let into = HostPointer(into);
        Ok(self.with_event(Step::Run(Box::new(move || {
            let _claim = from.claim("fake_read", false)?;
            // SAFETY: the range lies in the block and is claimed; the caller keeps `into` valid until the event completes.
            unsafe { from.pointer().copy_to(into.get(), from.range.len()) };
            Ok(())
        }))))
    }

    unsafe fn write(
        &self,
        to: &FakeMemory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<FakeEvent> {
        self.watch.call("fake_write")?;
        let to = Part::of(to, offset..offset + bytes);
        let from = HostPointer(from.cast_mut());
        Ok(self.with_event(Step::Run(Box::new(move || {
            let _claim = to.claim("fake_write", true)?;
            // SAFETY: the range lies in the block and is claimed; the caller keeps `from` valid until the event completes.
            unsafe { to.pointer().copy_from(from.get().cast_const(), to.range.len()) };
            Ok(())
        }))))
    }

    unsafe fn fill(
        &self,
        memory: &FakeMemory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        self.watch.call("fake_fill")?;
        let part = Part::of(memory, offset..offset + bytes);
        let pattern = Box::<[u8]>::from(pattern);
        self.run(move || {
            let _claim = part.claim("fake_fill", true)?;
            let start = part.range.start;
            // SAFETY: the range lies in the block and is claimed; the command owns the pattern.
            unsafe { native::fill(part.block.device().add(start), part.range.len(), &pattern) };
            Ok(())
        });
        Ok(())
    }

    unsafe fn copy(
        &self,
        (from, from_offset): (&FakeMemory, usize),
        (to, to_offset): (&FakeMemory, usize),
        bytes: usize,
    ) -> Result<()> {
        self.watch.call("fake_copy")?;
        let from = Part::of(from, from_offset..from_offset + bytes);
        let to = Part::of(to, to_offset..to_offset + bytes);
        self.run(move || {
            let _from = from.claim("fake_copy", false)?;
            let _to = to.claim("fake_copy", true)?;
            // SAFETY: both ranges lie in their blocks and are claimed.
            unsafe { to.pointer().copy_from(from.pointer(), from.range.len()) };
            Ok(())
        });
        Ok(())
    }

    unsafe fn launch(
        &self,
        kernel: &FakeKernel,
        grid: &Grid,
        args: Args<'_, Self>,
        after: Events<'_, Self>,
        wants_event: bool,
    ) -> Result<Option<FakeEvent>> {
        self.watch.call("fake_launch")?;
        kernel.code.check(grid)?;
        let args = args.iter().map(|arg| OwnedArg::new(arg?)).collect::<Result<Vec<_>>>()?;
        let (code, grid) = (kernel.code.clone(), *grid);
        let signals = self.signals(after)?;
        let work = Box::new(move || launch(&code, &grid, &args));
        let step = if signals.is_empty() { Step::Run(work) } else { Step::After(signals, work) };
        if wants_event {
            return Ok(Some(self.with_event(step)));
        }
        self.state().push(step, None);
        Ok(None)
    }
}

/// A checked range of a memory.
struct Part {
    block: Arc<Block>,
    range: Range<usize>,
}

impl Part {
    /// A range of a memory, which may be a region of its block.
    fn of(memory: &FakeMemory, range: Range<usize>) -> Part {
        let start = memory.range().start;
        Part { block: memory.block().clone(), range: start + range.start..start + range.end }
    }

    fn claim(&self, call: &'static str, writes: bool) -> Result<Claim<'_>> {
        self.block.claims().of_command(call, self.range.clone(), writes)
    }

    fn pointer(&self) -> *mut u8 {
        // The range was checked before the part was created, so this stays within the block.
        self.block.device().as_ptr().wrapping_add(self.range.start)
    }
}

/// A host address that is sent to the queue's thread.
struct HostPointer(*mut u8);

// SAFETY: the callers of `read` and `write` keep the memory valid until the event completes, for any thread.
unsafe impl Send for HostPointer {}

impl HostPointer {
    /// A method, so that closures capture the whole value and not only the pointer in it.
    fn get(&self) -> *mut u8 {
        self.0
    }
}

/// A kernel argument, owned by a command.
enum OwnedArg {
    Memory(Part, Access),
    Bytes(Box<[u8]>),
}

impl OwnedArg {
    fn new(arg: TypedArg<'_, FakeMemory>) -> Result<OwnedArg> {
        match arg {
            TypedArg::Memory(memory, access, bytes) => {
                Ok(OwnedArg::Memory(Part::of(memory, 0..bytes), access))
            }
            TypedArg::Bytes(bytes) => Ok(OwnedArg::Bytes(bytes.into())),
            TypedArg::Local(_) => Err(Error::unsupported(
                "a group-local argument of a native kernel",
                "a device with work-groups",
            )),
        }
    }

    fn claim(&self) -> Result<Option<Claim<'_>>> {
        match self {
            OwnedArg::Memory(part, access) => part.claim("fake_launch", access.writes()).map(Some),
            OwnedArg::Bytes(_) => Ok(None),
        }
    }

    fn native(&self) -> NativeArg<'_> {
        match self {
            OwnedArg::Memory(part, access) => NativeArg::Buffer {
                pointer: part.pointer(),
                bytes: part.range.len(),
                writes: access.writes(),
            },
            OwnedArg::Bytes(bytes) => NativeArg::Value(bytes),
        }
    }
}

fn launch(code: &NativeCode, grid: &Grid, args: &[OwnedArg]) -> Result<()> {
    let _claims = args.iter().map(OwnedArg::claim).collect::<Result<Vec<_>>>()?;
    // SAFETY: `args` holds the blocks, and their bytes are claimed according to their accesses until this returns.
    unsafe { code.run(grid, &args.iter().map(OwnedArg::native).collect::<Vec<_>>()) }
}
