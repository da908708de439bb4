//! Queues: streams that wait for other streams only when a call requests it.

use super::{
    CudaLikeBackend,
    deferred_free::is_pending,
    device::{Context, Current, Driver},
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
    patience,
    typed::{Args, Events, PeerSource, TypedQueue},
};
use onebuf_sys::{
    Refused,
    cuda_like::{CuEvent, CuStatus, CuStream, consts},
};
use std::{
    any::Any,
    sync::OnceLock,
    thread::ThreadId,
    time::{Duration, Instant},
};

/// A stream. Events and memories that it uses keep it alive.
#[derive(Debug)]
pub(super) struct RawQueue {
    pub context: Arc<Context>,
    pub raw: CuStream,
    owner: StreamOwner,
    /// Identifies the queue in `Users`; never zero.
    pub id: u64,
    /// The host signals that later work waits for.
    pub host_signals: HostSignals,
    /// Whether work so far waits for other APIs.
    pub waits_outside: AtomicBool,
    /// The reference event for the times of a profiled queue.
    pub base: Option<CuEvent>,
    /// The base API's queue under this stream, if the hub uses that device too.
    pub below: Option<Below>,
    /// What the stream's owner gave to keep. Last: it may be the stream.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The owner of a stream.
#[derive(Debug)]
pub(super) enum StreamOwner {
    /// This library, which destroys the stream.
    Queue,
    /// The application.
    Application,
    /// One thread of the application: the handle means another stream on every other thread.
    Thread(ThreadStream),
}

/// The default stream of a thread.
#[derive(Debug)]
pub(super) struct ThreadStream {
    thread: ThreadId,
    /// An event behind the stream's work, for other threads.
    tail: CuEvent,
    /// Whether there may be work behind the event.
    is_behind: AtomicBool,
}

impl RawQueue {
    fn new(context: Arc<Context>, profiling: bool) -> Result<RawQueue> {
        context.sweep();
        let driver = context.driver.clone();
        let _current = context.enter()?;
        // Not ordered with the default stream of other code that uses this context.
        // SAFETY: the context is current.
        let made = unsafe { driver.table.create_stream(consts::STREAM_NON_BLOCKING) };
        let mut queue = RawQueue::of(&context, driver.check(made)?, StreamOwner::Queue);
        queue.below = Below::of(&queue)?;
        if profiling {
            queue.base = Some(driver.check(context.event(&queue, consts::EVENT_DEFAULT))?);
        }
        Ok(queue)
    }

    fn of(context: &Arc<Context>, raw: CuStream, owner: StreamOwner) -> RawQueue {
        RawQueue {
            context: context.clone(),
            raw,
            owner,
            id: context.new_id(),
            host_signals: HostSignals::default(),
            waits_outside: AtomicBool::new(false),
            base: None,
            below: None,
            kept: OnceLock::new(),
        }
    }

    /// A stream of the application.
    ///
    /// # Safety
    /// A live stream of this context; a default stream of a thread is that of the calling thread.
    unsafe fn foreign(context: Arc<Context>, raw: CuStream) -> Result<RawQueue> {
        context.sweep();
        let _current = context.enter()?;
        let driver = &context.driver;
        let owner = match raw.0.addr() {
            consts::STREAM_PER_THREAD => {
                // SAFETY: the context is current.
                let tail = unsafe { driver.table.create_event(consts::EVENT_DISABLE_TIMING) };
                let (tail, thread) = (driver.check(tail)?, std::thread::current().id());
                StreamOwner::Thread(ThreadStream { thread, tail, is_behind: AtomicBool::new(true) })
            }
            _ => StreamOwner::Application,
        };
        let mut queue = RawQueue::of(&context, raw, owner);
        queue.below = Below::of(&queue)?;
        Ok(queue)
    }

    /// Makes the context current, for calls that use the stream.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] if it is the default stream of another thread.
    #[inline]
    pub fn enter(&self) -> Result<Current<'_>> {
        if let StreamOwner::Thread(of) = &self.owner {
            of.check()?;
            of.is_behind.store(true, Ordering::Release);
        }
        self.context.enter()
    }

    /// Whether the stream has no unfinished work. The context is current.
    pub fn query(&self) -> Result<(), Refused> {
        let table = &self.driver().table;
        match &self.owner {
            StreamOwner::Thread(of) if of.is_elsewhere() => {
                if of.is_behind.load(Ordering::Acquire) {
                    return Err(Refused { call: "a stream's query", status: CuStatus::NOT_READY });
                }
                // SAFETY: a live event.
                unsafe { table.query_event(of.tail) }
            }
            // SAFETY: a live stream.
            _ => unsafe { table.stream_query(self.raw) },
        }
    }

    /// Records the event behind all work so far. The context is current.
    pub fn record(&self, event: CuEvent) -> Result<(), Refused> {
        let table = &self.driver().table;
        match &self.owner {
            StreamOwner::Thread(of) if of.is_elsewhere() => {
                if of.is_behind.load(Ordering::Acquire) {
                    return Err(Refused { call: "an event's record", status: CuStatus::NOT_READY });
                }
                self.context.record_behind(of.tail, event)
            }
            // SAFETY: live events, and a live stream of the current context.
            StreamOwner::Thread(of) => unsafe {
                table.record_event(event, self.raw)?;
                table.record_event(of.tail, self.raw)?;
                of.is_behind.store(false, Ordering::Release);
                Ok(())
            },
            // SAFETY: as above.
            _ => unsafe { table.record_event(event, self.raw) },
        }
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.context.driver
    }

    /// Enqueues work, between two events if the queue is profiled. The context is current and stays so.
    pub fn timed(self: &Arc<Self>, enqueue: impl FnOnce() -> Result<(), Refused>) -> Result<Event> {
        let start = self.base.map(|_| self.context.event(self, consts::EVENT_DEFAULT));
        let start = self.driver().check(start.transpose())?;
        let ended = enqueue().and_then(|()| self.end());
        let ended =
            ended.inspect_err(|_| start.into_iter().for_each(|s| self.context.destroy_event(s)));
        Ok(Event::new(self.clone(), self.driver().check(ended)?, start))
    }

    /// Records an event after all work so far, with timing if the queue is profiled.
    fn end(&self) -> Result<CuEvent, Refused> {
        let timed = self.base.is_some();
        let flags = if timed { consts::EVENT_DEFAULT } else { consts::EVENT_DISABLE_TIMING };
        self.context.event(self, flags)
    }

    /// Records an event after all work so far. The context is current.
    pub fn mark(self: &Arc<Self>) -> Result<Event> {
        Ok(Event::new(self.clone(), self.driver().check(self.end())?, None))
    }

    /// Enqueues a wait for work of another API. Sets the flag before and after, because another thread may find the
    /// stream idle in between.
    fn wait_outside<T>(self: &Arc<Self>, enqueue: impl FnOnce() -> Result<T>) -> Result<T> {
        self.waits_outside.store(true, Ordering::Release);
        self.context.waits_outside(self);
        let enqueued = enqueue();
        self.waits_outside.store(true, Ordering::Release);
        enqueued
    }

    /// Whether the queue's work may wait for work of another API.
    pub fn may_wait_outside(&self) -> bool {
        let below = self.below.as_ref().is_some_and(Below::is_waiting);
        below || self.waits_outside.load(Ordering::Acquire)
    }

    /// Waits until all work so far has run. The context is current.
    pub fn drain(self: &Arc<Self>, timeout: Duration) -> Result<()> {
        match self.query() {
            // The runtime does not track work that was enqueued in the queue below.
            Ok(()) if self.below.as_ref().is_none_or(|below| !below.is_waiting()) => Ok(()),
            Err(refused) if !is_pending(&refused) => self.driver().check(Err(refused)),
            _ => hal::Event::wait(&self.mark()?, timeout),
        }
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let Some(_current) = self.context.enter_to_free() else { return };
        if let StreamOwner::Thread(of) = &self.owner {
            self.context.destroy_event(of.tail);
        }
        if !matches!(self.owner, StreamOwner::Queue) {
            return;
        }
        // Host signals need no wait: their words live as long as the context.
        if self.may_wait_outside() && !self.context.outwaits(self) {
            tracing::error!(device = %self.driver().info.name, "work does not end: queue leaked");
            std::mem::forget(self.context.clone());
            return;
        }
        if let Some(base) = self.base.take() {
            self.context.destroy_event(base);
        }
        // Running work continues: the driver destroys the stream when the work is done.
        // SAFETY: made by `new`, destroyed once.
        self.driver().note(unsafe { self.driver().table.destroy_stream(self.raw) });
    }
}

impl ThreadStream {
    fn is_elsewhere(&self) -> bool {
        std::thread::current().id() != self.thread
    }

    fn check(&self) -> Result<()> {
        match self.is_elsewhere() {
            false => Ok(()),
            true => Err(Error::ForeignContext {
                have: "another thread".to_owned(),
                want: "the thread whose default stream was wrapped".to_owned(),
            }),
        }
    }
}

/// A queue: a CUDA or HIP stream.
#[derive(Debug)]
pub struct Queue {
    pub(super) raw: Arc<RawQueue>,
}

impl Queue {
    pub(super) fn new(context: Arc<Context>, profiling: bool) -> Result<Queue> {
        Ok(Queue { raw: Arc::new(RawQueue::new(context, profiling)?) })
    }

    /// A stream of the application.
    ///
    /// # Safety
    /// A live stream of this context; a default stream of a thread is that of the calling thread.
    pub(super) unsafe fn foreign(context: Arc<Context>, raw: CuStream) -> Result<Queue> {
        // SAFETY: the caller's promise.
        Ok(Queue { raw: Arc::new(unsafe { RawQueue::foreign(context, raw) }?) })
    }

    /// Keeps an object of the stream's owner as long as anything uses the stream: programs and events do so longer than this queue.
    /// One object for each queue; a further one is dropped.
    pub fn keep_owner(&self, object: Box<dyn Any + Send + Sync>) {
        let _ = self.raw.kept.set(object);
    }

    /// Whether it is the default stream of one thread.
    pub fn is_of_thread(&self) -> bool {
        matches!(self.raw.owner, StreamOwner::Thread(_))
    }

    /// Makes later work wait for the events. The context is current.
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
                // This context's frees would also wait for that event's work, which this context does not track.
                false => self.raw.wait_outside(|| driver.check(wait()))?,
            }
            self.raw.host_signals.extend(event.behind());
        }
        Ok(())
    }
}

// SAFETY: streams are in order; memory records the streams that use it, and is freed after them.
unsafe impl TypedQueue for Queue {
    type Types = CudaLikeBackend;

    #[inline]
    fn domain(&self) -> Domain {
        self.raw.driver().domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.raw.driver().info
    }

    fn check_thread(&self) -> Result<()> {
        match &self.raw.owner {
            StreamOwner::Thread(of) => of.check(),
            StreamOwner::Queue | StreamOwner::Application => Ok(()),
        }
    }

    fn mark(&self) -> Result<Event> {
        let _current = self.raw.enter()?;
        self.raw.mark()
    }

    fn watch(&self) -> Result<Event> {
        let _current = self.raw.enter()?;
        Ok(self.raw.mark()?.without_host_signals())
    }

    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        let _current = self.raw.enter()?;
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
        let _current = self.raw.enter()?;
        let host_signal = self.raw.wait_outside(|| HostSignal::new(&self.raw))?;
        Ok(Box::new(host_signal))
    }

    fn has_host_signals(&self) -> bool {
        self.raw.host_signals.any()
    }

    fn events_take_calls(&self) -> bool {
        true
    }

    /// Not for a runtime that is layered on another API, which may need these cores for the work.
    fn drains_soon(&self) -> bool {
        if self.raw.below.is_some() || self.raw.host_signals.any() {
            return false;
        }
        let (start, Ok(_current)) = (Instant::now(), self.raw.enter()) else { return false };
        loop {
            match self.raw.query() {
                Err(refused) if is_pending(&refused) && start.elapsed() < patience::AT_ONCE => {
                    std::hint::spin_loop();
                }
                answer => {
                    self.raw.context.sweep();
                    return answer.is_ok();
                }
            }
        }
    }

    fn note_use(&self, memory: &Memory) -> Result<()> {
        memory.note_use(&self.raw);
        Ok(())
    }

    unsafe fn wait_value(&self, memory: &Memory, offset: usize, value: u32) -> Result<()> {
        let (at, driver) = (memory.byte(offset), self.raw.driver());
        let _current = self.raw.enter()?;
        memory.note_use(&self.raw);
        self.raw.wait_outside(|| {
            // SAFETY: a live stream of the current context, and a word of a memory that is freed after the stream's
            // work.
            driver.check(unsafe { host_signal::wait_value(&driver.table, self.raw.raw, at, value) })
        })
    }

    unsafe fn signal(&self, semaphore: &Semaphore) -> Result<()> {
        let _current = self.raw.enter()?;
        semaphore.signal(&self.raw)
    }

    unsafe fn wait_signal(&self, semaphore: &Semaphore) -> Result<()> {
        let _current = self.raw.enter()?;
        self.raw.wait_outside(|| semaphore.wait(&self.raw))
    }

    /// Streams start by themselves, unless they are queues of another API whose queues must be flushed.
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
        let _current = self.raw.enter()?;
        memory.move_pages(&self.raw, offset, bytes, to)
    }

    unsafe fn read(
        &self,
        from: &Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Event> {
        let _current = self.raw.enter()?;
        // SAFETY: the caller guarantees that `into` is valid.
        unsafe { transfer::read(&self.raw, from, offset, into, bytes) }
    }

    unsafe fn write(
        &self,
        to: &Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Event> {
        let _current = self.raw.enter()?;
        // SAFETY: the caller guarantees that `from` is valid.
        unsafe { transfer::write(&self.raw, to, offset, from, bytes) }
    }

    unsafe fn fill(
        &self,
        memory: &Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        let _current = self.raw.enter()?;
        transfer::fill(&self.raw, memory, offset, bytes, pattern)
    }

    unsafe fn copy(
        &self,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        let _current = self.raw.enter()?;
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
        // SAFETY: the caller guarantees what the kernel does.
        unsafe { kernel::launch(self, kernel, grid, args, after, wants_event) }
    }

    fn call_native(&self, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let _current = self.raw.enter()?;
        call(self.raw())
    }

    fn raw(&self) -> usize {
        self.raw.raw.0 as usize
    }
}
