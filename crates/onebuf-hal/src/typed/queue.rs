//! The queue trait that a backend implements.
//!
//! # Safety
//! The unsafe trait and methods are contracts for backends.

#![allow(unsafe_code)]

use super::{ApiTypes, Args, EventOf, Events, KernelOf, MemoryOf, SemaphoreOf};
use crate::{AccessState, DeviceInfo, Domain, Error, Event, Grid, HostSignal, Result};
use std::{any::Any, fmt};

/// A stream of work. Calls enqueue work and return. Only calls documented to wait do so. [`Queue`](crate::Queue) documents the
/// methods in full.
///
/// Memories, kernels and semaphores that are passed in belong to this queue's device, and ranges lie inside their memories.
/// Empty transfers are not passed in.
///
/// # Safety
/// The contract of [`Queue`](crate::Queue), except for the argument checks, which the caller makes.
pub unsafe trait TypedQueue: Any + Send + Sync + fmt::Debug + Sized {
    /// The types of its API.
    type Types: ApiTypes<Queue = Self>;

    /// The domain of its objects.
    fn domain(&self) -> Domain;

    /// The description of its device.
    fn info(&self) -> &DeviceInfo;

    /// Enqueues an event that completes when all work enqueued so far has completed.
    fn mark(&self) -> Result<EventOf<Self>>;

    /// Makes later work wait for events.
    fn wait_for(&self, events: Events<'_, Self>) -> Result<()>;

    /// Copies from device memory to the host. The copy is complete when the event completes.
    ///
    /// # Safety
    /// The memory belongs to this queue's device and contains the range. `into` is not null, stays valid for writes, and is not
    /// accessed otherwise, until the event completes.
    unsafe fn read(
        &self,
        from: &MemoryOf<Self>,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<EventOf<Self>>;

    /// Copies from the host to device memory. `from` has been read when the event completes.
    ///
    /// # Safety
    /// The memory belongs to this queue's device and contains the range. `from` is not null, stays valid for reads, and is not
    /// written, until the event completes.
    unsafe fn write(
        &self,
        to: &MemoryOf<Self>,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<EventOf<Self>>;

    /// Fills a range with a repeated pattern. Offset and length are multiples of the pattern's length. The pattern is the
    /// shortest that gives the same result.
    ///
    /// # Safety
    /// The memory belongs to this queue's device and contains the range. The pattern is not empty, and its length divides
    /// offset and length.
    unsafe fn fill(
        &self,
        memory: &MemoryOf<Self>,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()>;

    /// Copies between memories of this queue's device, each given with an offset. The ranges do not overlap.
    ///
    /// # Safety
    /// The memories belong to this queue's device and contain the ranges, which do not overlap.
    unsafe fn copy(
        &self,
        from: (&MemoryOf<Self>, usize),
        to: (&MemoryOf<Self>, usize),
        bytes: usize,
    ) -> Result<()>;

    /// Enqueues a kernel. It waits for `after` in addition to the queue's own order. The number of arguments is the kernel's
    /// number of parameters. Returns the kernel's own event if `wants_event`.
    ///
    /// # Safety
    /// The kernel belongs to this queue's device. It accesses only the given memories, and each only as its access states.
    unsafe fn launch(
        &self,
        kernel: &KernelOf<Self>,
        grid: &Grid,
        args: Args<'_, Self>,
        after: Events<'_, Self>,
        wants_event: bool,
    ) -> Result<Option<EventOf<Self>>>;

    /// Submits enqueued work, so that it starts without further calls. Does nothing by default, for queues that submit by
    /// themselves.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Whether its calls return only after their work is done, so that no wait is ever needed.
    fn runs_at_once(&self) -> bool {
        false
    }

    /// Checks that the calling thread may use the queue: a queue may belong to one thread.
    fn check_thread(&self) -> Result<()> {
        Ok(())
    }

    /// Like [`TypedQueue::mark`], and flushes the queue: the event completes without a further call.
    fn mark_and_flush(&self) -> Result<EventOf<Self>> {
        let mark = self.mark()?;
        self.flush().map(|()| mark)
    }

    /// Enqueues an event for a caller that only monitors progress: see [`Queue::watch`](crate::Queue::watch).
    fn watch(&self) -> Result<EventOf<Self>> {
        self.mark_and_flush()
    }

    /// Whether [`TypedQueue::wait_for`] accepts this event without blocking the calling thread.
    fn takes(&self, event: &dyn Event) -> bool {
        event.domain() == self.domain()
    }

    /// Makes later work wait for a host signal.
    fn host_signal(&self) -> Result<Box<dyn HostSignal>> {
        let what = format!("a host signal on {}", self.info().name);
        Err(Error::unsupported(what, "an API whose queues wait for the host"))
    }

    /// Whether enqueued work may wait for a host signal, or be behind one that failed.
    fn has_host_signals(&self) -> bool {
        false
    }

    /// Whether a launch's own event takes a driver call of its own.
    fn events_take_calls(&self) -> bool {
        false
    }

    /// Polls for a moment whether all work enqueued so far has completed successfully, without an event.
    fn drains_soon(&self) -> bool {
        false
    }

    /// Records that other code is about to enqueue work that uses the memory, so that it is not freed before that work ends.
    fn note_use(&self, memory: &MemoryOf<Self>) -> Result<()> {
        let _ = memory;
        Ok(())
    }

    /// Makes later work wait until a 32-bit word in memory has reached a value. Only a write to the word ends the wait.
    ///
    /// # Safety
    /// The memory belongs to this queue's device and contains the word.
    unsafe fn wait_value(&self, memory: &MemoryOf<Self>, offset: usize, value: u32) -> Result<()> {
        let _ = (memory, offset, value);
        Err(Error::unsupported("a wait for a value in memory", "a queue that supports wait values"))
    }

    /// Signals a semaphore: see [`Queue::signal`](crate::Queue::signal).
    ///
    /// # Safety
    /// The semaphore belongs to this queue's device.
    unsafe fn signal(&self, semaphore: &SemaphoreOf<Self>) -> Result<()> {
        let _ = semaphore;
        Err(Error::unsupported("a semaphore's signal", "queues that import semaphores"))
    }

    /// Makes later work wait for a signal: see [`Queue::wait_signal`](crate::Queue::wait_signal).
    ///
    /// # Safety
    /// The semaphore belongs to this queue's device.
    unsafe fn wait_signal(&self, semaphore: &SemaphoreOf<Self>) -> Result<()> {
        let _ = semaphore;
        Err(Error::unsupported("a wait for a signal", "queues that import semaphores"))
    }

    /// Changes the memory's access state. Returns whether anything was enqueued.
    ///
    /// # Safety
    /// The memory belongs to this queue's device.
    unsafe fn reside(&self, memory: &MemoryOf<Self>, to: AccessState) -> Result<bool> {
        let _ = (memory, to);
        Ok(false)
    }

    /// Moves the pages of these bytes: see [`Queue::move_pages`](crate::Queue::move_pages).
    ///
    /// # Safety
    /// The memory belongs to this queue's device and contains the range.
    unsafe fn move_pages(
        &self,
        memory: &MemoryOf<Self>,
        offset: usize,
        bytes: usize,
        to: AccessState,
    ) -> Result<()> {
        let _ = (memory, offset, bytes, to);
        Err(Error::unsupported("a move of pages", "managed memory"))
    }

    /// Copies directly from memory of another device of this backend, after all work enqueued to that device's queue so far.
    /// `None` if the two devices cannot copy directly.
    ///
    /// # Safety
    /// The destination belongs to this queue's device, the source to the device of its queue. Both contain the range.
    unsafe fn copy_from_peer(
        &self,
        from: PeerSource<'_, Self>,
        to: (&MemoryOf<Self>, usize),
        bytes: usize,
    ) -> Result<Option<EventOf<Self>>> {
        let _ = (from, to, bytes);
        Ok(None)
    }

    /// Calls a third-party library with the native queue, after making current whatever such a call needs. The memories that it
    /// will use were recorded by [`TypedQueue::note_use`].
    fn call_native(&self, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let _ = call;
        Err(Error::unsupported("a library's call on this queue", "a queue with a stream"))
    }

    /// The native queue, as an integer; zero if there is none.
    fn raw(&self) -> usize {
        0
    }
}

/// The source of a copy from another device of the same backend. The range lies inside the memory.
pub struct PeerSource<'a, Q: TypedQueue> {
    /// A queue of that device. The copy runs after the work that it was given so far.
    pub queue: &'a Q,
    /// The memory to copy from.
    pub memory: &'a MemoryOf<Q>,
    /// Offset of the first byte.
    pub offset: usize,
}
