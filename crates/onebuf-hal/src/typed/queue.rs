//! A queue, as its backend implements it.
//!
//! # Safety
//! The unsafe trait and methods are contracts for backends.

#![allow(unsafe_code)]

use super::{ApiTypes, Args, EventOf, Events, KernelOf, MemoryOf, SemaphoreOf};
use crate::{AccessState, DeviceInfo, Domain, Error, Event, Grid, HostSignal, Result};
use std::{any::Any, fmt};

/// A stream of work. Calls enqueue and return; nothing here waits for the device but what says so. Methods without a word
/// of their own are those of [`Queue`](crate::Queue).
///
/// Memories, kernels and semaphores that are passed in are of this queue's device, and ranges lie inside their memories. Nothing
/// is asked of empty transfers.
///
/// # Safety
/// The contract of [`Queue`](crate::Queue), except for the checks of arguments: those are the caller's.
pub unsafe trait TypedQueue: Any + Send + Sync + fmt::Debug + Sized {
    /// The types of its API.
    type Types: ApiTypes<Queue = Self>;

    /// Where its objects belong.
    fn domain(&self) -> Domain;

    /// What is known of its device.
    fn info(&self) -> &DeviceInfo;

    /// An event that completes when all work enqueued so far has.
    fn mark(&self) -> Result<EventOf<Self>>;

    /// Makes later work wait for events.
    fn wait_for(&self, events: Events<'_, Self>) -> Result<()>;

    /// Copies from device memory to the host; the bytes are there when the event completes.
    ///
    /// # Safety
    /// Memory of this queue's device that has the range. `into` is not null and stays valid for writes, and touched by
    /// nobody, until the event completes.
    unsafe fn read(
        &self,
        from: &MemoryOf<Self>,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<EventOf<Self>>;

    /// Copies from the host to device memory; `from` has been read when the event completes.
    ///
    /// # Safety
    /// Memory of this queue's device that has the range. `from` is not null and stays valid for reads, and written by
    /// nobody, until the event completes.
    unsafe fn write(
        &self,
        to: &MemoryOf<Self>,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<EventOf<Self>>;

    /// Repeats a pattern over a range; both are multiples of the pattern's length. The pattern is the shortest that looks
    /// the same when it is repeated.
    ///
    /// # Safety
    /// Memory of this queue's device that has the range; a pattern that is not empty and divides offset and length.
    unsafe fn fill(
        &self,
        memory: &MemoryOf<Self>,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()>;

    /// Copies between memories of this queue's device, each from a byte on. The ranges do not overlap.
    ///
    /// # Safety
    /// Memories of this queue's device that have the ranges, which do not overlap.
    unsafe fn copy(
        &self,
        from: (&MemoryOf<Self>, usize),
        to: (&MemoryOf<Self>, usize),
        bytes: usize,
    ) -> Result<()>;

    /// Starts a kernel, after events beside what the queue's order says. As many arguments are given as the kernel has
    /// parameters. Gives an event of its own when asked for one.
    ///
    /// # Safety
    /// A kernel of this queue's device. It must stay inside the memories given and do to each only what its access says.
    unsafe fn launch(
        &self,
        kernel: &KernelOf<Self>,
        grid: &Grid,
        args: Args<'_, Self>,
        after: Events<'_, Self>,
        wants_event: bool,
    ) -> Result<Option<EventOf<Self>>>;

    /// Sees to it that enqueued work starts without further calls. Nothing is to be done where it does so by itself.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Whether its calls return when their work is done, so that nobody ever waits for it.
    fn runs_at_once(&self) -> bool {
        false
    }

    /// The same as [`TypedQueue::mark`], on its way when this returns: it is reached without a further call.
    fn mark_and_flush(&self) -> Result<EventOf<Self>> {
        let mark = self.mark()?;
        self.flush().map(|()| mark)
    }

    /// A mark for somebody who only watches: see [`Queue::watch`](crate::Queue::watch).
    fn watch(&self) -> Result<EventOf<Self>> {
        self.mark_and_flush()
    }

    /// Whether [`TypedQueue::wait_for`] takes this event without the calling thread having to wait.
    fn takes(&self, event: &dyn Event) -> bool {
        event.domain() == self.domain()
    }

    /// Makes later work wait at a host signal that the host opens.
    fn host_signal(&self) -> Result<Box<dyn HostSignal>> {
        let what = format!("a host signal on {}", self.info().name);
        Err(Error::unsupported(what, "an API whose queues wait for the host"))
    }

    /// Whether work that it was given may wait at a host signal, or be behind one that failed.
    fn has_host_signals(&self) -> bool {
        false
    }

    /// Somebody else is about to give this queue work with the memory, so that it must not be freed before.
    fn note_use(&self, memory: &MemoryOf<Self>) {
        let _ = memory;
    }

    /// Makes later work wait until a word of memory has reached a number. Nothing but whoever writes it ends that wait.
    ///
    /// # Safety
    /// Memory of this queue's device that has the word.
    unsafe fn wait_value(&self, memory: &MemoryOf<Self>, offset: usize, value: u32) -> Result<()> {
        let _ = (memory, offset, value);
        Err(Error::unsupported("a wait for a number in memory", "queues that can"))
    }

    /// Signals a semaphore: see [`Queue::signal`](crate::Queue::signal).
    ///
    /// # Safety
    /// A semaphore of this queue's device.
    unsafe fn signal(&self, semaphore: &SemaphoreOf<Self>) -> Result<()> {
        let _ = semaphore;
        Err(Error::unsupported("a semaphore's signal", "queues that import semaphores"))
    }

    /// Makes later work wait for a signal: see [`Queue::wait_signal`](crate::Queue::wait_signal).
    ///
    /// # Safety
    /// A semaphore of this queue's device.
    unsafe fn wait_signal(&self, semaphore: &SemaphoreOf<Self>) -> Result<()> {
        let _ = semaphore;
        Err(Error::unsupported("a wait for a signal", "queues that import semaphores"))
    }

    /// Changes who may use the memory. Returns whether anything was enqueued.
    ///
    /// # Safety
    /// Memory of this queue's device.
    unsafe fn reside(&self, memory: &MemoryOf<Self>, to: AccessState) -> Result<bool> {
        let _ = (memory, to);
        Ok(false)
    }

    /// Moves the pages of these bytes: see [`Queue::move_pages`](crate::Queue::move_pages).
    ///
    /// # Safety
    /// Memory of this queue's device that has the range.
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

    /// Copies from a memory of another device of this backend, behind everything that its queue was given. `None` where the
    /// two have no such way.
    ///
    /// # Safety
    /// The destination is of this queue's device, the source of its queue's; both have the range.
    unsafe fn copy_from_peer(
        &self,
        from: PeerSource<'_, Self>,
        to: (&MemoryOf<Self>, usize),
        bytes: usize,
    ) -> Result<Option<EventOf<Self>>> {
        let _ = (from, to, bytes);
        Ok(None)
    }

    /// Runs a call of somebody else's library, which is given the native queue, with everything current that such a call
    /// needs. The memories that it will use were noted by [`TypedQueue::note_use`].
    fn call_native(&self, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let _ = call;
        Err(Error::unsupported("a library's call on this queue", "a queue with a stream"))
    }

    /// The native queue, as an integer; zero where there is none.
    fn raw(&self) -> usize {
        0
    }
}

/// Where a copy from another device of the same backend comes from; the range lies inside the memory.
pub struct PeerSource<'a, Q: TypedQueue> {
    /// What was enqueued there comes first.
    pub queue: &'a Q,
    /// What to copy from.
    pub memory: &'a MemoryOf<Q>,
    /// From which byte on.
    pub offset: usize,
}
