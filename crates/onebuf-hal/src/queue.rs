//! Queues of work, and the events that tell how far they are.
//!
//! # Safety
//! The unsafe traits and methods are contracts between backends and what stands above them: callers keep host memory alive
//! until the event, and an event that is complete means that nobody uses it any more.

#![allow(unsafe_code)]

use super::{AccessState, Arg, Domain, Grid, Kernel, Memory, Semaphore};
use crate::{Result, locks::Arc};
use std::{any::Any, fmt, time::Duration};

/// In which order a queue runs its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueOrder {
    /// One after the other.
    #[default]
    InOrder,
    /// As dependencies allow.
    OutOfOrder,
}

/// What queue to open: in order and without profiling, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueSpec {
    /// In which order it runs its work.
    pub order: QueueOrder,
    /// Whether its fences know when their work ran.
    pub profiling: bool,
}

impl QueueSpec {
    /// Work runs as dependencies allow.
    pub fn out_of_order() -> Self {
        Self { order: QueueOrder::OutOfOrder, profiling: false }
    }

    /// Fences know when their work ran.
    pub fn profiled(self) -> Self {
        Self { profiling: true, ..self }
    }
}

/// When a piece of work ran, in nanoseconds of its device's clock. Only differences mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// It was enqueued.
    pub queued_ns: u64,
    /// It was handed to the device.
    pub submitted_ns: u64,
    /// It began to run.
    pub started_ns: u64,
    /// It ended.
    pub ended_ns: u64,
}

impl Profile {
    /// How long it ran.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.ended_ns.saturating_sub(self.started_ns))
    }

    /// How long it waited before it ran.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.started_ns.saturating_sub(self.queued_ns))
    }
}

/// A stream of work. Calls enqueue and return; nothing here waits for the device but what says so.
///
/// Memory passed in belongs to this queue's device and is `Acquired`, unless said otherwise. [`dynamic`](crate::dynamic) implements
/// it for every [`TypedQueue`](crate::typed::TypedQueue).
///
/// # Safety
/// - Objects of other backends and devices, and ranges outside a memory, are refused before anything is enqueued.
/// - A transfer touches exactly the bytes that it was given, on both sides, and none after its event is complete. Where a
///   call fails, nothing of it will touch the caller's memory.
/// - Work runs in the order that [`QueueSpec::order`] says and behind what it was told to wait for; what it wrote is visible to
///   work and to hosts that its event orders behind it.
/// - Memory, kernels and events that enqueued work uses stay alive until it has ended, whatever the caller drops.
/// - [`Queue::domain`] never changes; an event of an equal domain can be waited for.
pub unsafe trait Queue: Any + Send + Sync + fmt::Debug {
    /// Where its objects belong.
    fn domain(&self) -> Domain;

    /// Whether its calls return when their work is done, so that nobody ever waits for it.
    fn runs_at_once(&self) -> bool;

    /// An event that completes when all work enqueued so far has.
    fn mark(&self) -> Result<Arc<dyn Event>>;

    /// The same, on its way when this returns: it is reached without a further call.
    fn mark_and_flush(&self) -> Result<Arc<dyn Event>>;

    /// The same for somebody who only watches, later than what is asked after: it says nothing of host signals, and leaves their
    /// news to those behind them.
    fn watch(&self) -> Result<Arc<dyn Event>>;

    /// Makes later work wait for events of the same domain.
    fn wait_for(&self, events: &[Arc<dyn Event>]) -> Result<()>;

    /// Whether [`Queue::wait_for`] takes this event without the calling thread having to wait: one of the same domain, unless
    /// the driver cannot, and of other domains where the API says so.
    fn takes(&self, event: &dyn Event) -> bool;

    /// Makes later work wait at a host signal that the host opens.
    fn host_signal(&self) -> Result<Box<dyn HostSignal>>;

    /// Whether work that it was given may wait at a host signal, or be behind one that failed: an event tells of that, and nothing
    /// else does.
    fn has_host_signals(&self) -> bool;

    /// Somebody else is about to give this queue work with the memory, so that it must not be freed before.
    fn note_use(&self, memory: &dyn Memory) -> Result<()>;

    /// Makes later work wait until a word of memory has reached a number. Nothing but whoever writes it ends
    /// that wait.
    fn wait_value(&self, memory: &dyn Memory, offset: usize, value: u32) -> Result<()>;

    /// Signals a semaphore of this queue's domain, behind everything that the queue was given; it is on its way when this
    /// returns. Where it fails, nobody knows whether the signal will come.
    fn signal(&self, semaphore: &dyn Semaphore) -> Result<()>;

    /// Makes later work wait for the one signal of a semaphore that was enqueued before. Nothing but that signal ends the
    /// wait. Where it fails, nobody knows whether the signal will be taken.
    fn wait_signal(&self, semaphore: &dyn Semaphore) -> Result<()>;

    /// Sees to it that enqueued work starts without further calls.
    fn flush(&self) -> Result<()>;

    /// Changes who may use the memory. Returns whether anything was enqueued.
    fn reside(&self, memory: &dyn Memory, to: AccessState) -> Result<bool>;

    /// Moves the pages of these bytes to the device (`Acquired`) or to the host, in order with the queue: see
    /// [`Memory::misplaced`].
    fn move_pages(
        &self,
        memory: &dyn Memory,
        offset: usize,
        bytes: usize,
        to: AccessState,
    ) -> Result<()>;

    /// Copies from device memory to the host; the bytes are there when the event completes.
    ///
    /// # Safety
    /// `into` must stay valid for writes, and be touched by nobody, until the event completes.
    unsafe fn read(
        &self,
        from: &dyn Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>>;

    /// Copies from the host to device memory; `from` has been read when the event completes.
    ///
    /// # Safety
    /// `from` must stay valid for reads, and be written by nobody, until the event completes.
    unsafe fn write(
        &self,
        to: &dyn Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>>;

    /// Repeats a pattern over a range; both are multiples of the pattern's length.
    fn fill(&self, memory: &dyn Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()>;

    /// Copies between memories of this queue's device; ranges do not overlap.
    fn copy(
        &self,
        from: &dyn Memory,
        from_offset: usize,
        to: &dyn Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()>;

    /// Copies from a memory of another device, behind everything that its queue was given, without a detour over the
    /// host. `None` where the two have no such way.
    fn copy_from_peer(
        &self,
        from: PeerStretch<'_>,
        to: &dyn Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<Option<Arc<dyn Event>>>;

    /// Starts a kernel, after events of the same domain beside what the queue's order says. Gives an
    /// event of its own when asked for one.
    ///
    /// # Safety
    /// The kernel must stay inside the memories given and do to each only what its access says.
    unsafe fn launch(
        &self,
        kernel: &dyn Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>>;

    /// Runs a call of somebody else's library, which is given the native queue, with everything current that
    /// such a call needs. The memories are those that it will use: they are kept until its work is done.
    fn call_native(
        &self,
        uses: &[&dyn Memory],
        call: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()>;

    /// The native queue, as an integer; zero where there is none.
    fn raw(&self) -> usize;
}

impl dyn Queue {
    /// For the backend's own downcasts.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A queue of another device, memory of that device, and from where on.
#[derive(Clone, Copy, Debug)]
pub struct PeerStretch<'a> {
    /// What was enqueued there comes first.
    pub queue: &'a dyn Queue,
    /// What to copy from.
    pub memory: &'a dyn Memory,
    /// From which byte on.
    pub offset: usize,
}

/// Runs once, with how the work ended. It may run on a driver's thread and must not block.
pub type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A point in a queue. `poll` and `wait` report an error when the work itself failed.
///
/// # Safety
/// Memory is freed, and given to others, because an event said so.
/// - Once [`Event::poll`] is `Ok(true)`, [`Event::is_over`] true, [`Event::wait`] `Ok` or the callback called, all work that
///   the event stands for has ended: it uses no memory any more, and what it wrote is visible to the caller.
/// - [`Event::native_in`] returns a live native event that completes no earlier than this one.
pub unsafe trait Event: Any + Send + Sync + fmt::Debug {
    /// Where it belongs.
    fn domain(&self) -> Domain;

    /// Whether it was reached.
    fn poll(&self) -> Result<bool>;

    /// Whether its work has certainly ended, well or not. A question that failed is no answer: false.
    fn is_over(&self) -> bool;

    /// Waits on the calling thread; [`crate::Error::Timeout`] when time runs out.
    fn wait(&self, timeout: Duration) -> Result<()>;

    /// When the work ran. [`crate::Error::Unsupported`] unless its queue was opened for profiling;
    /// [`crate::Error::Busy`] before the work is done.
    fn profile(&self) -> Result<Profile>;

    /// Calls back when it is reached, at once if it was. A refused callback is given back.
    fn on_complete(&self, callback: Callback) -> Result<(), (crate::Error, Callback)>;

    /// The native event, as an integer; zero where there is none.
    fn raw(&self) -> usize {
        0
    }

    /// What it is in another domain, which its runtime is built on: a native event there, on its way, that lives as long as
    /// this does and must not be kept longer.
    fn native_in(&self, domain: Domain) -> Result<Option<usize>> {
        let _ = domain;
        Ok(None)
    }
}

impl dyn Event {
    /// For the backend's own downcasts.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Something a queue waits at. Dropped unopened, it fails the work behind it: nothing waits forever.
pub trait HostSignal: Send {
    /// Lets the work behind it run, or fail.
    fn open(self: Box<Self>, outcome: Result<()>);
}
