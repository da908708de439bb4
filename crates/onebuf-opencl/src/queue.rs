//! Queues: their order, markers and barriers.

use super::{
    OpenClBackend,
    conv::Version,
    device::{Context, Driver},
    event::{COMMAND, Event},
    host_signal::HostSignal,
    kernel::{self, Kernel},
    memory::Memory,
    semaphore::{self, Semaphore},
    transfer,
};
use onebuf_hal::{
    self as hal, AccessState, DeviceInfo, Domain, Error, Grid, QueueOrder, QueueSpec, Result,
    host_signals::HostSignals,
    locks::{Arc, AtomicBool, Ordering},
    typed::{Args, Events, TypedQueue, own_event},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClEvent, ClQueue, consts as cl},
};
use std::{ffi::c_void, ptr, time::Duration};

/// How long `hold` waits for the queue if the driver refuses a callback.
const HOLD_WAIT: Duration = Duration::from_secs(10);

/// A `cl_command_queue`, released once. Events, host signals and mapped memory keep it alive.
#[derive(Debug)]
pub(super) struct RawQueue {
    pub context: Arc<Context>,
    /// The context's driver, copied here because every launch uses it.
    driver: Arc<Driver>,
    pub raw: ClQueue,
    /// Identifies this queue in the memories that it has used.
    pub id: u64,
    order: QueueOrder,
    pub profiling: bool,
    pub host_signals: HostSignals,
    /// Whether a kernel of this queue has used memory unknown to the driver.
    pub loose: AtomicBool,
}

impl RawQueue {
    fn new(context: Arc<Context>, spec: QueueSpec) -> Result<RawQueue> {
        let raw = match context.driver.version >= Version::V2_0 {
            true => with_properties(&context, spec),
            false => before_2_0(&context, spec),
        }?;
        Ok(RawQueue::of(context, raw, spec))
    }

    /// A foreign queue, with one more reference.
    ///
    /// # Safety
    /// `raw` is a live queue of the context and its device.
    pub unsafe fn retained(
        context: Arc<Context>,
        raw: ClQueue,
        spec: QueueSpec,
    ) -> Result<RawQueue> {
        let driver = &context.driver;
        // SAFETY: the caller's promise.
        driver.check("clRetainCommandQueue", unsafe { driver.cl.retain_command_queue(raw) })?;
        Ok(RawQueue::of(context, raw, spec))
    }

    /// Takes ownership of one reference to `raw`.
    fn of(context: Arc<Context>, raw: ClQueue, spec: QueueSpec) -> RawQueue {
        let QueueSpec { order, profiling } = spec;
        let id = context.new_id();
        RawQueue {
            driver: context.driver.clone(),
            context,
            raw,
            id,
            order,
            profiling,
            host_signals: HostSignals::default(),
            loose: AtomicBool::new(false),
        }
    }

    #[inline]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Submits all enqueued commands.
    pub fn flush(&self) -> Result<()> {
        // SAFETY: a live queue.
        self.driver().slow("clFlush", || unsafe { self.driver().cl.flush(self.raw) })
    }

    /// Enqueues a command and returns its event.
    ///
    /// # Safety
    /// `enqueue` stores the event of one command of this queue in its argument.
    pub unsafe fn enqueue(
        self: &Arc<Self>,
        call: &'static str,
        enqueue: impl FnOnce(*mut ClEvent) -> Result<(), ClStatus>,
    ) -> Result<Event> {
        let mut event = ClEvent::NULL;
        self.driver().check(call, enqueue(&mut event))?;
        self.event(call, event)
    }

    /// Wraps the event of an enqueued command.
    pub fn event(self: &Arc<Self>, call: &'static str, event: ClEvent) -> Result<Event> {
        if event.is_null() {
            // The command runs but cannot be waited for; its memory must not be freed before it ends.
            self.finish()?;
            return self.driver().check(call, Err(ClStatus::NULL_HANDLE));
        }
        Ok(Event::new(self.clone(), event))
    }

    fn finish(&self) -> Result<()> {
        // SAFETY: a live queue.
        self.driver().slow("clFinish", || unsafe { self.driver().cl.finish(self.raw) })
    }

    /// Enqueues a marker after all work so far, and returns its event.
    pub fn mark(self: &Arc<Self>) -> Result<Event> {
        let cl = &self.driver().cl;
        if self.driver().version >= Version::V1_2 {
            // SAFETY: a live queue; an empty list means all work so far.
            return unsafe {
                self.enqueue("clEnqueueMarkerWithWaitList", |event| {
                    cl.enqueue_marker_with_wait_list(self.raw, 0, ptr::null(), event)
                })
            };
        }
        // SAFETY: a live queue.
        unsafe { self.enqueue("clEnqueueMarker", |event| cl.enqueue_marker(self.raw, event)) }
    }

    /// Prepares this queue to wait for an event of this context. Flushes the event's queue if it is another one. Waits for
    /// the event here if this queue's commands [cannot wait](super::quirks::Quirks::waits_hang).
    pub fn prepare(&self, event: &Event) -> Result<()> {
        if event.is_of(self) {
            return Ok(());
        }
        match self.driver().quirks.waits_hang {
            true => hal::Event::wait(event, self.driver().post.limit()),
            // The specification requires a flush of the other queue before this one waits for it.
            false => event.flush(),
        }
    }

    /// Makes later work wait for events of the same context; the list is not empty.
    pub fn wait_list(&self, events: &[ClEvent]) -> Result<()> {
        let (cl, count, list) = (&self.driver().cl, events.len() as u32, events.as_ptr());
        if self.driver().version >= Version::V1_2 {
            // SAFETY: a live queue, live events; no event is requested.
            let waits = unsafe {
                cl.enqueue_barrier_with_wait_list(self.raw, count, list, ptr::null_mut())
            };
            return self.driver().check("clEnqueueBarrierWithWaitList", waits);
        }
        // SAFETY: a live queue, live events.
        let waits = unsafe { cl.enqueue_wait_for_events(self.raw, count, list) };
        self.driver().check("clEnqueueWaitForEvents", waits)
    }

    /// Enqueues a barrier before every kernel but the first that uses memory unknown to the driver. AMD's driver omits the barrier
    /// between two such kernels, because it sees no dependency. An out-of-order queue is ordered by events alone.
    pub fn part_kernels(&self) -> Result<()> {
        if self.order == QueueOrder::OutOfOrder || !self.loose.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // SAFETY: a live queue; an empty list means all work so far, and no event is requested.
        let parted = unsafe {
            let (none, no) = (ptr::null(), ptr::null_mut());
            self.driver().cl.enqueue_barrier_with_wait_list(self.raw, 0, none, no)
        };
        self.driver().check("clEnqueueBarrierWithWaitList", parted)
    }

    /// Orders later work after earlier work on an out-of-order queue. Does nothing on an in-order queue.
    pub fn keep_order(self: &Arc<Self>) -> Result<()> {
        match self.order {
            QueueOrder::InOrder => Ok(()),
            QueueOrder::OutOfOrder => self.wait_list(&[self.mark()?.handle()]),
        }
    }

    /// Enqueues a command after all earlier work and before all later work, also on an out-of-order queue. If ordering
    /// the later work fails, waits until the command has ended before it returns the error, because callers then free the
    /// memory that it uses.
    pub fn in_order<T>(self: &Arc<Self>, enqueue: impl FnOnce() -> Result<T>) -> Result<T> {
        self.keep_order()?;
        let done = enqueue()?;
        if let Err(why) = self.keep_order() {
            self.finish()?;
            return Err(why);
        }
        Ok(done)
    }

    /// Waits until all work so far has completed or failed.
    pub fn drain(self: &Arc<Self>, timeout: Duration) -> Result<()> {
        let timeout = self.driver().post.limit().min(timeout);
        match hal::Event::wait(&self.mark()?, timeout) {
            Err(Error::Driver { call: COMMAND, .. } | Error::DeviceLost { .. }) => Ok(()),
            waited => waited,
        }
    }

    /// Drops a value once all work so far has completed or failed, on a driver's thread if possible.
    pub fn hold(self: &Arc<Self>, thing: impl Send + 'static) {
        let let_go: hal::Callback = Box::new(move |_| drop(thing));
        let let_go = match self.mark() {
            Ok(mark) => match hal::Event::on_complete(&mark, let_go) {
                Ok(()) => return,
                Err((_, let_go)) => let_go,
            },
            Err(_) => let_go,
        };
        if let Err(why) = self.drain(HOLD_WAIT) {
            // Nothing reports when the work ends: leaked, rather than freed while a command uses it.
            tracing::error!(device = %self.driver().info.name, "leaked: {why}");
            std::mem::forget(let_go);
        }
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let driver = self.driver();
        // The specification says that releasing flushes. Not every driver does it.
        // SAFETY: a live queue.
        driver.note("clFlush", unsafe { driver.cl.flush(self.raw) });
        // SAFETY: this struct owns one reference.
        let release = || unsafe { driver.cl.release_command_queue(self.raw) };
        driver.note("clReleaseCommandQueue", driver.post.watch("clReleaseCommandQueue", release));
    }
}

/// The value of `CL_QUEUE_PROPERTIES`, and the argument of the older call.
fn bits(spec: QueueSpec) -> u64 {
    let order = match spec.order {
        QueueOrder::InOrder => 0,
        QueueOrder::OutOfOrder => cl::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
    };
    order | if spec.profiling { cl::CL_QUEUE_PROFILING_ENABLE } else { 0 }
}

fn with_properties(context: &Context, spec: QueueSpec) -> Result<ClQueue> {
    let driver = &context.driver;
    let list = [u64::from(cl::CL_QUEUE_PROPERTIES), bits(spec), 0];
    // SAFETY: a live context and its device; the list ends with 0.
    let made = driver.post.watch("clCreateCommandQueueWithProperties", || unsafe {
        driver.cl.create_command_queue_with_properties(context.raw, driver.device, list.as_ptr())
    });
    made.map_err(|status| refused("clCreateCommandQueueWithProperties", status, spec.order, driver))
}

fn before_2_0(context: &Context, spec: QueueSpec) -> Result<ClQueue> {
    let driver = &context.driver;
    // SAFETY: a live context and its device.
    let made = driver.post.watch("clCreateCommandQueue", || unsafe {
        driver.cl.create_command_queue(context.raw, driver.device, bits(spec))
    });
    made.map_err(|status| refused("clCreateCommandQueue", status, spec.order, driver))
}

fn refused(call: &'static str, status: ClStatus, order: QueueOrder, driver: &Driver) -> Error {
    match (status, order) {
        (ClStatus::INVALID_QUEUE_PROPERTIES | ClStatus::INVALID_VALUE, QueueOrder::OutOfOrder) => {
            let what = format!("an out-of-order queue on {}", driver.info.name);
            Error::unsupported(what, "CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE")
        }
        _ => super::conv::status(call, status, &driver.info.name),
    }
}

/// A command queue.
#[derive(Debug)]
pub struct Queue {
    pub(super) raw: Arc<RawQueue>,
}

impl Queue {
    pub(super) fn new(context: Arc<Context>, spec: QueueSpec) -> Result<Queue> {
        Ok(Queue { raw: Arc::new(RawQueue::new(context, spec)?) })
    }

    /// Converts events to a command's wait list: each is flushed, and none depends on a failed host signal.
    pub fn waits(&self, events: Events<'_, Queue>) -> Result<Vec<ClEvent>> {
        let ready = |event: &Arc<dyn hal::Event>| {
            // Not retained: the driver reads the wait list before the call returns.
            if let Some(native) = event.native_in(self.domain())? {
                if self.raw.driver().quirks.waits_hang {
                    event.wait(self.raw.driver().post.limit())?;
                }
                return Ok(ClEvent(native as *mut c_void));
            }
            let event = own_event(self, &**event)?;
            self.raw.prepare(event)?;
            event.check_host_signals()?;
            Ok(event.handle())
        };
        events.untyped().iter().map(ready).collect()
    }

    /// Makes later work depend on the host signals of the events that were waited for.
    pub fn waited(&self, events: Events<'_, Queue>) {
        let own = events.iter().filter_map(Result::ok);
        own.for_each(|event| self.raw.host_signals.extend(event.behind()));
    }
}

// SAFETY: the driver orders its work and keeps the objects that it uses; memory that it does not keep records its queues.
unsafe impl TypedQueue for Queue {
    type Types = OpenClBackend;

    #[inline]
    fn domain(&self) -> Domain {
        self.raw.driver().domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.raw.driver().info
    }

    fn mark(&self) -> Result<Event> {
        self.raw.mark()
    }

    /// The event records the flush, so it does not flush again.
    fn mark_and_flush(&self) -> Result<Event> {
        let mark = self.raw.mark()?;
        mark.flush()?;
        Ok(mark)
    }

    fn watch(&self) -> Result<Event> {
        let mark = self.raw.mark()?.without_host_signals();
        mark.flush()?;
        Ok(mark)
    }

    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        let handles = self.waits(events)?;
        if !handles.is_empty() {
            self.raw.wait_list(&handles)?;
            self.waited(events);
        }
        Ok(())
    }

    fn takes(&self, event: &dyn hal::Event) -> bool {
        if self.raw.driver().quirks.waits_hang {
            let own = event.as_any().downcast_ref::<Event>();
            return own.is_some_and(|own| own.is_of(&self.raw));
        }
        let domain = self.domain();
        event.domain() == domain || event.native_in(domain).is_ok_and(|native| native.is_some())
    }

    fn host_signal(&self) -> Result<Box<dyn hal::HostSignal>> {
        Ok(Box::new(HostSignal::new(&self.raw)?))
    }

    fn has_host_signals(&self) -> bool {
        self.raw.host_signals.any()
    }

    fn note_use(&self, memory: &Memory) -> Result<()> {
        memory.note_use(&self.raw);
        Ok(())
    }

    unsafe fn signal(&self, semaphore: &Semaphore) -> Result<()> {
        semaphore::signal(&self.raw, semaphore)
    }

    unsafe fn wait_signal(&self, semaphore: &Semaphore) -> Result<()> {
        semaphore::wait(&self.raw, semaphore)
    }

    fn flush(&self) -> Result<()> {
        self.raw.flush()
    }

    unsafe fn reside(&self, memory: &Memory, to: AccessState) -> Result<bool> {
        memory.reside(&self.raw, to)
    }

    unsafe fn read(
        &self,
        from: &Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Event> {
        // SAFETY: the caller's promise about `into`.
        let read = || unsafe { transfer::read(&self.raw, from, offset, into, bytes) };
        self.raw.in_order(read)
    }

    unsafe fn write(
        &self,
        to: &Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Event> {
        // SAFETY: the caller's promise about `from`.
        let write = || unsafe { transfer::write(&self.raw, to, offset, from, bytes) };
        self.raw.in_order(write)
    }

    unsafe fn fill(
        &self,
        memory: &Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        self.raw.in_order(|| transfer::fill(&self.raw, memory, offset, bytes, pattern))
    }

    unsafe fn copy(
        &self,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        self.raw.in_order(|| transfer::copy(&self.raw, from, to, bytes))
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

    fn raw(&self) -> usize {
        self.raw.raw.0 as usize
    }
}
