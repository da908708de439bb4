//! The backend's queue type, over the queue of `work`.

pub(super) use super::work::{RawQueue, State};

use super::{
    VulkanBackend, access_state,
    device::Context,
    event::Event,
    host_signal::HostSignal,
    kernel::{self, Kernel},
    memory::Memory,
    semaphore::Semaphore,
    transfer,
};
use onebuf_hal::{
    self as hal, AccessState, DeviceInfo, Domain, Error, Grid, Result,
    locks::Arc,
    typed::{Args, Events, TypedQueue},
};

/// A Vulkan queue.
#[derive(Debug)]
pub struct Queue {
    pub(super) raw: Arc<RawQueue>,
}

impl Queue {
    pub(super) fn new(context: Arc<Context>, profiling: bool) -> Result<Queue> {
        if profiling && context.driver.family.clock_bits == 0 {
            let what = format!("a profiled queue on {}", context.driver.info.name);
            return Err(Error::unsupported(what, "a driver whose queues have a clock"));
        }
        let lane = context.next_lane();
        Ok(Queue { raw: RawQueue::new(context, lane, profiling)? })
    }

    /// The native queue as the application's: what it submits there is in order with onebuf's work.
    pub(super) fn on_lane(context: Arc<Context>, lane: usize) -> Result<Queue> {
        let raw = RawQueue::new(context, lane, false)?;
        raw.give()?;
        Ok(Queue { raw })
    }
}

// SAFETY: a timeline orders its batches, and each batch keeps the objects that it uses until it has ended.
unsafe impl TypedQueue for Queue {
    type Types = VulkanBackend;

    fn domain(&self) -> Domain {
        self.raw.driver().domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.raw.driver().info
    }

    fn mark(&self) -> Result<Event> {
        self.raw.mark()
    }

    fn watch(&self) -> Result<Event> {
        let mark = self.raw.mark()?.without_host_signals();
        self.flush().map(|()| mark)
    }

    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        events.iter().try_for_each(|event| self.raw.wait_for(event?))
    }

    fn host_signal(&self) -> Result<Box<dyn hal::HostSignal>> {
        if self.raw.is_given() {
            let what = format!("a host signal on {}", self.raw.driver().info.name);
            let needs =
                "a queue that only onebuf submits to: the application's work is not held back";
            return Err(Error::unsupported(what, needs));
        }
        Ok(Box::new(HostSignal::new(&self.raw)?))
    }

    fn has_host_signals(&self) -> bool {
        self.raw.host_signals.any()
    }

    fn note_use(&self, memory: &Memory) -> Result<()> {
        self.raw.note_use(&memory.inner)
    }

    unsafe fn reside(&self, memory: &Memory, to: AccessState) -> Result<bool> {
        access_state::reside(&memory.inner, &self.raw, to)
    }

    unsafe fn signal(&self, semaphore: &Semaphore) -> Result<()> {
        self.raw.signal(semaphore.raw)
    }

    unsafe fn wait_signal(&self, semaphore: &Semaphore) -> Result<()> {
        self.raw.take(semaphore.raw)
    }

    fn flush(&self) -> Result<()> {
        self.raw.flush(&mut self.raw.lock())
    }

    unsafe fn read(
        &self,
        from: &Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Event> {
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
        transfer::fill(&self.raw, memory, offset, bytes, pattern)
    }

    unsafe fn copy(
        &self,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        transfer::copy(&self.raw, from, to, bytes)
    }

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

    /// Returns the native queue. Submits recorded work first, because the caller may submit its own. Several of onebuf's queues
    /// may share the native queue, and Vulkan allows only one thread at a time to use it.
    fn raw(&self) -> usize {
        if let Err(why) = self.raw.give() {
            tracing::warn!(device = %self.raw.driver().info.name, "{why}");
        }
        self.raw.context().lane(self.raw.lane).raw()
    }
}
