//! Queues of work, and the events that report their progress.
//!
//! # Safety
//! The unsafe traits and methods are contracts between backends and the crates that use them: callers keep host memory alive
//! until the event completes, and a completed event means that the device no longer uses that memory.

#![allow(unsafe_code)]

use super::{AccessState, Arg, Domain, Grid, Kernel, Memory, Semaphore};
use crate::{Result, locks::Arc};
use std::{any::Any, fmt, time::Duration};

/// The order in which a queue runs its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueOrder {
    /// One command after the other.
    #[default]
    InOrder,
    /// Any order that the dependencies allow.
    OutOfOrder,
}

/// How to open a queue. The default is in order, without profiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueSpec {
    /// The order in which it runs its work.
    pub order: QueueOrder,
    /// Whether its fences record when their work ran.
    pub profiling: bool,
}

impl QueueSpec {
    /// An out-of-order queue, without profiling.
    pub fn out_of_order() -> Self {
        Self { order: QueueOrder::OutOfOrder, profiling: false }
    }

    /// The same queue with profiling: its fences record when their work ran.
    pub fn profiled(self) -> Self {
        Self { profiling: true, ..self }
    }
}

/// When a piece of work ran, in nanoseconds of the device's clock. Only differences are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// When it was enqueued.
    pub queued_ns: u64,
    /// When it was submitted to the device.
    pub submitted_ns: u64,
    /// When it began to run.
    pub started_ns: u64,
    /// When it ended.
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

/// A stream of work. Calls enqueue work and return. Only calls documented to wait do so.
///
/// Memory passed in belongs to this queue's device and is `Acquired`, unless stated otherwise. [`dynamic`](crate::dynamic)
/// implements this trait for every [`TypedQueue`](crate::typed::TypedQueue).
///
/// # Safety
/// - Objects of other backends and devices, and ranges outside a memory, are refused before anything is enqueued.
/// - A transfer accesses exactly the given bytes on both sides, and none after its event has completed. If a call fails, no
///   part of it accesses the caller's memory, unless the error is [`Error::Timeout`](crate::Error::Timeout): then the transfer
///   may be in flight without an event, and the memory must not be reused.
/// - Work runs in the order that [`QueueSpec::order`] states, and after what it was made to wait for. What it wrote is visible
///   to work and to host threads that are ordered after its event.
/// - Memory, kernels and events that enqueued work uses stay alive until it has ended, even if the caller drops them.
/// - [`Queue::domain`] never changes; an event of an equal domain can be waited for.
pub unsafe trait Queue: Any + Send + Sync + fmt::Debug {
    /// The domain of its objects.
    fn domain(&self) -> Domain;

    /// Whether its calls return only after their work is done, so that no wait is ever needed.
    fn runs_at_once(&self) -> bool;

    /// Checks that the calling thread may use the queue: a queue may belong to one thread.
    fn check_thread(&self) -> Result<()> {
        Ok(())
    }

    /// Enqueues an event that completes when all work enqueued so far has completed.
    fn mark(&self) -> Result<Arc<dyn Event>>;

    /// Like [`Queue::mark`], and flushes the queue: the event completes without a further call.
    fn mark_and_flush(&self) -> Result<Arc<dyn Event>>;

    /// Like [`Queue::mark_and_flush`], for a caller that only monitors progress, possibly of work enqueued long before. The
    /// event does not report failed host signals, so that other events enqueued behind them still do.
    fn watch(&self) -> Result<Arc<dyn Event>>;

    /// Makes later work wait for events of the same domain.
    fn wait_for(&self, events: &[Arc<dyn Event>]) -> Result<()>;

    /// Whether [`Queue::wait_for`] accepts this event without blocking the calling thread: events of the same domain, unless
    /// the driver cannot wait for them, and events of other domains if the API allows it.
    fn takes(&self, event: &dyn Event) -> bool;

    /// Makes later work wait for a host signal.
    fn host_signal(&self) -> Result<Box<dyn HostSignal>>;

    /// Whether enqueued work may wait for a host signal, or be behind one that failed. Only an event reports such a failure.
    fn has_host_signals(&self) -> bool;

    /// Whether a launch's own event takes a driver call of its own, so that it is not requested without need.
    fn events_take_calls(&self) -> bool;

    /// Polls for a moment whether all work enqueued so far has completed, for a thread that waits. It costs less than an event
    /// where the driver reports an idle queue. False if the work still runs, has failed, or waits for other queues: then an
    /// event reports how it ends.
    fn drains_soon(&self) -> bool;

    /// Records that other code is about to enqueue work that uses the memory, so that it is not freed before that work ends.
    fn note_use(&self, memory: &dyn Memory) -> Result<()>;

    /// Makes later work wait until a 32-bit word in memory has reached a value. Only a write to the word ends the wait.
    fn wait_value(&self, memory: &dyn Memory, offset: usize, value: u32) -> Result<()>;

    /// Signals a semaphore of this queue's domain after all work enqueued so far, and flushes the queue. If the call fails, it
    /// is unknown whether the signal will come.
    fn signal(&self, semaphore: &dyn Semaphore) -> Result<()>;

    /// Makes later work wait for the one signal of a semaphore that was enqueued before. Only that signal ends the wait. If the
    /// call fails, it is unknown whether the wait will consume the signal.
    fn wait_signal(&self, semaphore: &dyn Semaphore) -> Result<()>;

    /// Submits enqueued work, so that it starts without further calls.
    fn flush(&self) -> Result<()>;

    /// Changes the memory's access state. Returns whether anything was enqueued.
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

    /// Copies from device memory to the host. The copy is complete when the event completes.
    ///
    /// # Safety
    /// `into` must stay valid for writes, and must not be accessed otherwise, until the event completes.
    unsafe fn read(
        &self,
        from: &dyn Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>>;

    /// Copies from the host to device memory. `from` has been read when the event completes.
    ///
    /// # Safety
    /// `from` must stay valid for reads, and must not be written, until the event completes.
    unsafe fn write(
        &self,
        to: &dyn Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>>;

    /// Fills a range with a repeated pattern. Offset and length are multiples of the pattern's length.
    fn fill(&self, memory: &dyn Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()>;

    /// Copies between memories of this queue's device. The ranges do not overlap.
    fn copy(
        &self,
        from: &dyn Memory,
        from_offset: usize,
        to: &dyn Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()>;

    /// Copies directly from memory of another device, without staging through the host, after all work enqueued to that
    /// device's queue so far. `None` if the two devices cannot copy directly.
    fn copy_from_peer(
        &self,
        from: PeerStretch<'_>,
        to: &dyn Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<Option<Arc<dyn Event>>>;

    /// Enqueues a kernel. It waits for `after`, events of the same domain, in addition to the queue's own order. Returns the
    /// kernel's own event if `wants_event`.
    ///
    /// # Safety
    /// The kernel must access only the given memories, and each only as its access states.
    unsafe fn launch(
        &self,
        kernel: &dyn Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>>;

    /// Calls a third-party library with the native queue, after making current whatever such a call needs. `uses` are the
    /// memories that the library will use: they are kept alive until its work is done.
    fn call_native(
        &self,
        uses: &[&dyn Memory],
        call: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()>;

    /// The native queue, as an integer; zero if there is none.
    fn raw(&self) -> usize;
}

impl dyn Queue {
    /// Lets a backend downcast to its own type.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The source of a copy from another device.
#[derive(Clone, Copy, Debug)]
pub struct PeerStretch<'a> {
    /// A queue of that device. The copy runs after the work that it was given so far.
    pub queue: &'a dyn Queue,
    /// The memory to copy from.
    pub memory: &'a dyn Memory,
    /// Offset of the first byte.
    pub offset: usize,
}

/// A completion callback: runs once, with the outcome of the work. It may run on a driver's thread and must not block.
pub type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A point in a queue. `poll` and `wait` report an error when the work itself failed.
///
/// # Safety
/// Memory is freed and reused when an event has completed.
/// - Once [`Event::poll`] returns `Ok(true)`, [`Event::is_over`] returns true, [`Event::wait`] returns `Ok` or the callback is
///   called, all work that the event covers has ended: it accesses no memory any more, and what it wrote is visible to the
///   caller.
/// - [`Event::native_in`] returns a live native event that completes no earlier than this one.
pub unsafe trait Event: Any + Send + Sync + fmt::Debug {
    /// The domain that it belongs to.
    fn domain(&self) -> Domain;

    /// Whether it has completed.
    fn poll(&self) -> Result<bool>;

    /// Whether its work is known to have ended, successfully or not. False if the driver's query fails.
    fn is_over(&self) -> bool;

    /// Blocks the calling thread until completion. [`crate::Error::Timeout`] if it takes longer than `timeout`.
    fn wait(&self, timeout: Duration) -> Result<()>;

    /// Returns when the work ran. [`crate::Error::Unsupported`] unless its queue was opened for profiling;
    /// [`crate::Error::Busy`] before the work is done.
    fn profile(&self) -> Result<Profile>;

    /// Registers a callback for completion; it is called immediately if the event has completed. If registration fails, the
    /// callback is returned with the error.
    fn on_complete(&self, callback: Callback) -> Result<(), (crate::Error, Callback)>;

    /// The native event, as an integer; zero if there is none.
    fn raw(&self) -> usize {
        0
    }

    /// The equivalent native event in the domain that its runtime is built on, already submitted. It lives as long as this
    /// event and must not be kept longer.
    fn native_in(&self, domain: Domain) -> Result<Option<usize>> {
        let _ = domain;
        Ok(None)
    }
}

impl dyn Event {
    /// Lets a backend downcast to its own type.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An event that the host completes and a queue waits for. If it is dropped without being opened, the work behind it fails, so
/// that no work waits forever.
pub trait HostSignal: Send {
    /// Completes it: the work behind it runs, or fails if `outcome` is an error.
    fn open(self: Box<Self>, outcome: Result<()>);

    /// Whether opening or dropping it may call its driver. If not, another driver's callback may open it.
    fn calls_driver(&self) -> bool {
        true
    }
}
