//! Queues: streams that wait for no other stream unless told to.

use super::{
    CudaLikeBackend,
    deferred_free::is_pending,
    device::{Context, Driver},
    event::Event,
    host_signal::{self, HostSignal},
    kernel::{self, Kernel},
    layered::Below,
    memory::Memory,
    semaphore::Semaphore,
    transfer,
};
use onebuf_hal::{
    self as hal, AccessState, DeviceInfo, Domain, Error, Grid, Result,
    host_signals::HostSignals,
    locks::{Arc, AtomicBool, Ordering},
    typed::{Args, Events, PeerSource, TypedQueue},
};
use onebuf_sys::{
    Refused,
    cuda_like::{CuEvent, CuStream, consts},
};
use std::time::Duration;

/// A stream that is destroyed once. Events and what it uses keep it.
#[derive(Debug)]
pub(super) struct RawQueue {
    pub context: Arc<Context>,
    pub raw: CuStream,
    /// By which a memory knows that this queue has used it; never zero.
    pub id: u64,
    /// What later work waits for.
    pub host_signals: HostSignals,
    /// Whether work so far waits for what other APIs do.
    pub waits_outside: AtomicBool,
    /// From where a profiled queue's times are counted.
    pub base: Option<CuEvent>,
    /// What it is beneath, where another API's device is used there too.
    pub below: Option<Below>,
}

impl RawQueue {
    fn new(context: Arc<Context>, profiling: bool) -> Result<RawQueue> {
        context.sweep();
        let driver = context.driver.clone();
        let _current = context.enter()?;
        // Not ordered with the default stream of whoever else uses this context.
        // SAFETY: the context is current.
        let made = unsafe { driver.table.create_stream(consts::STREAM_NON_BLOCKING) };
        let (raw, id) = (driver.check(made)?, context.new_id());
        let (host_signals, waits_outside) = (HostSignals::default(), AtomicBool::new(false));
        let (base, below) = (None, None);
        let mut queue = RawQueue {
            context: context.clone(),
            raw,
            id,
            host_signals,
            waits_outside,
            base,
            below,
        };
        queue.below = Below::of(&queue)?;
        if profiling {
            queue.base = Some(driver.check(context.event(&queue, consts::EVENT_DEFAULT))?);
        }
        Ok(queue)
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.context.driver
    }

    /// Enqueues something between two events, where the queue is profiled. The context is current, and
    /// stays so.
    pub fn timed(self: &Arc<Self>, enqueue: impl FnOnce() -> Result<(), Refused>) -> Result<Event> {
        let start = self.base.map(|_| self.context.event(self, consts::EVENT_DEFAULT));
        let start = self.driver().check(start.transpose())?;
        let ended = enqueue().and_then(|()| self.end());
        let ended =
            ended.inspect_err(|_| start.into_iter().for_each(|s| self.context.destroy_event(s)));
        Ok(Event::new(self.clone(), self.driver().check(ended)?, start))
    }

    /// An event behind everything so far, with times where the queue has them.
    fn end(&self) -> Result<CuEvent, Refused> {
        let timed = self.base.is_some();
        let flags = if timed { consts::EVENT_DEFAULT } else { consts::EVENT_DISABLE_TIMING };
        self.context.event(self, flags)
    }

    /// An event behind everything so far. The context is current.
    pub fn mark(self: &Arc<Self>) -> Result<Event> {
        Ok(Event::new(self.clone(), self.driver().check(self.end())?, None))
    }

    /// Enqueues a wait for what another API does. Noted on both sides of it: another thread may find the stream
    /// idle in between.
    fn wait_outside<T>(self: &Arc<Self>, enqueue: impl FnOnce() -> Result<T>) -> Result<T> {
        self.waits_outside.store(true, Ordering::Release);
        self.context.waits_outside(self);
        let enqueued = enqueue();
        self.waits_outside.store(true, Ordering::Release);
        enqueued
    }

    /// Whether its work may wait for what another API does.
    pub fn may_wait_outside(&self) -> bool {
        let below = self.below.as_ref().is_some_and(Below::is_waiting);
        below || self.waits_outside.load(Ordering::Acquire)
    }

    /// Waits until everything so far has run. The context is current.
    pub fn drain(self: &Arc<Self>, timeout: Duration) -> Result<()> {
        // SAFETY: a live stream.
        match unsafe { self.driver().table.stream_query(self.raw) } {
            // What was enqueued beneath the runtime does not know.
            Ok(()) if self.below.as_ref().is_none_or(|below| !below.is_waiting()) => Ok(()),
            Err(refused) if !is_pending(&refused) => self.driver().check(Err(refused)),
            _ => hal::Event::wait(&self.mark()?, timeout),
        }
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let Some(_current) = self.context.enter_to_free() else { return };
        // A host signal's word is the context's, and goes with it.
        if self.may_wait_outside() && !self.context.outwaits(self) {
            tracing::error!(device = %self.driver().info.name, "work does not end: queue leaked");
            std::mem::forget(self.context.clone());
            return;
        }
        if let Some(base) = self.base.take() {
            self.context.destroy_event(base);
        }
        // Work that is under way goes on: by the contract the stream goes when it is done.
        // SAFETY: made by `new`, destroyed once.
        self.driver().note(unsafe { self.driver().table.destroy_stream(self.raw) });
    }
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    pub(super) raw: Arc<RawQueue>,
}

impl Queue {
    pub(super) fn new(context: Arc<Context>, profiling: bool) -> Result<Queue> {
        Ok(Queue { raw: Arc::new(RawQueue::new(context, profiling)?) })
    }

    /// Makes later work wait. The context is current.
    pub fn wait_for_all(&self, events: Events<'_, Queue>) -> Result<()> {
        for event in events.untyped() {
            if let Some(below) = self.raw.below.as_ref().filter(|below| below.takes(&**event)) {
                let own = event.as_any().downcast_ref::<Event>();
                own.map_or(Ok(()), Event::check_host_signals)?;
                self.raw.context.waits_outside(&self.raw);
                below.wait_for(event)?;
                own.into_iter().for_each(|own| self.raw.host_signals.extend(own.behind()));
                continue;
            }
            let event = self.own_event(&**event)?;
            event.check_host_signals()?;
            let (driver, stream) = (self.raw.driver(), self.raw.raw);
            // SAFETY: a live stream of the current context, a live event of this library.
            let wait = || unsafe { driver.table.stream_wait_event(stream, event.handle(), 0) };
            match event.driver().domain == driver.domain {
                true => driver.check(wait())?,
                // What that waits for, this context's frees would wait for too, and do not know.
                false => self.raw.wait_outside(|| driver.check(wait()))?,
            }
            self.raw.host_signals.extend(event.behind());
        }
        Ok(())
    }
}

// SAFETY: streams are in order; memory notes the streams that use it, and is freed behind them.
unsafe impl TypedQueue for Queue {
    type Types = CudaLikeBackend;

    #[inline]
    fn domain(&self) -> Domain {
        self.raw.driver().domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.raw.driver().info
    }

    fn mark(&self) -> Result<Event> {
        let _current = self.raw.context.enter()?;
        self.raw.mark()
    }

    fn watch(&self) -> Result<Event> {
        let _current = self.raw.context.enter()?;
        Ok(self.raw.mark()?.without_host_signals())
    }

    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        let _current = self.raw.context.enter()?;
        self.wait_for_all(events)
    }

    fn takes(&self, event: &dyn hal::Event) -> bool {
        self.is_ours(event) || self.raw.below.as_ref().is_some_and(|below| below.takes(event))
    }

    fn host_signal(&self) -> Result<Box<dyn hal::HostSignal>> {
        let driver = self.raw.driver();
        if !driver.info.caps.host_signals {
            let what = format!("a host signal on {}", driver.info.name);
            return Err(Error::unsupported(what, "a driver whose streams wait for values"));
        }
        let _current = self.raw.context.enter()?;
        let host_signal = self.raw.wait_outside(|| HostSignal::new(&self.raw))?;
        Ok(Box::new(host_signal))
    }

    fn has_host_signals(&self) -> bool {
        self.raw.host_signals.any()
    }

    fn note_use(&self, memory: &Memory) {
        memory.note_use(&self.raw);
    }

    unsafe fn wait_value(&self, memory: &Memory, offset: usize, value: u32) -> Result<()> {
        let (at, driver) = (memory.byte(offset), self.raw.driver());
        let _current = self.raw.context.enter()?;
        memory.note_use(&self.raw);
        self.raw.wait_outside(|| {
            // SAFETY: a live stream of the current context, and a word of a memory that waits for it when it goes.
            driver.check(unsafe { host_signal::wait_value(&driver.table, self.raw.raw, at, value) })
        })
    }

    unsafe fn signal(&self, semaphore: &Semaphore) -> Result<()> {
        let _current = self.raw.context.enter()?;
        semaphore.signal(&self.raw)
    }

    unsafe fn wait_signal(&self, semaphore: &Semaphore) -> Result<()> {
        let _current = self.raw.context.enter()?;
        self.raw.wait_outside(|| semaphore.wait(&self.raw))
    }

    /// Streams start by themselves, unless they are queues of an API where queues do not.
    fn flush(&self) -> Result<()> {
        self.raw.below.as_ref().map_or(Ok(()), Below::flush)
    }

    unsafe fn reside(&self, memory: &Memory, to: AccessState) -> Result<bool> {
        memory.reside(&self.raw, to)
    }

    unsafe fn move_pages(
        &self,
        memory: &Memory,
        offset: usize,
        bytes: usize,
        to: AccessState,
    ) -> Result<()> {
        let _current = self.raw.context.enter()?;
        memory.move_pages(&self.raw, offset, bytes, to)
    }

    unsafe fn read(
        &self,
        from: &Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Event> {
        let _current = self.raw.context.enter()?;
        // SAFETY: the caller's promise about `into`.
        unsafe { transfer::read(&self.raw, from, offset, into, bytes) }
    }

    unsafe fn write(
        &self,
        to: &Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Event> {
        let _current = self.raw.context.enter()?;
        // SAFETY: the caller's promise about `from`.
        unsafe { transfer::write(&self.raw, to, offset, from, bytes) }
    }

    unsafe fn fill(
        &self,
        memory: &Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        let _current = self.raw.context.enter()?;
        transfer::fill(&self.raw, memory, offset, bytes, pattern)
    }

    unsafe fn copy(
        &self,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        let _current = self.raw.context.enter()?;
        transfer::copy(&self.raw, from, to, bytes)
    }

    unsafe fn copy_from_peer(
        &self,
        from: PeerSource<'_, Self>,
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<Option<Event>> {
        self.copy_peer(from, to, bytes)
    }

    #[inline]
    unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: &Grid,
        args: Args<'_, Self>,
        after: Events<'_, Self>,
        wants_event: bool,
    ) -> Result<Option<Event>> {
        // SAFETY: the caller's promise about the kernel.
        unsafe { kernel::launch(self, kernel, grid, args, after, wants_event) }
    }

    fn call_native(&self, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let _current = self.raw.context.enter()?;
        call(self.raw())
    }

    fn raw(&self) -> usize {
        self.raw.raw.0 as usize
    }
}
