//! Queues, as the rest of the library knows them.

pub(super) use super::work::{RawQueue, State};

use super::{
    device::Context, event::Event, host_signal::HostSignal, kernel, memory::Memory,
    semaphore::Semaphore, transfer,
};
use onebuf_hal::{self as hal, AccessState, Arg, Domain, Error, Grid, Result, locks::Arc};
use onebuf_sys::vulkan::vk;

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub raw: Arc<RawQueue>,
}

impl Queue {
    pub fn new(context: Arc<Context>, profiling: bool) -> Result<Queue> {
        if profiling && context.driver.family.clock_bits == 0 {
            let what = format!("a profiled queue on {}", context.driver.info.name);
            return Err(Error::unsupported(what, "a driver whose queues have a clock"));
        }
        Ok(Queue { raw: RawQueue::new(context, profiling)? })
    }

    /// A memory of this queue's device.
    #[inline]
    pub fn own<'a>(&self, memory: &'a dyn hal::Memory) -> Result<&'a Memory> {
        let driver = self.raw.driver();
        let own = memory.as_any().downcast_ref::<Memory>();
        let own = own.ok_or_else(|| driver.foreign("memory", None))?;
        driver.same_domain("memory", own.domain)?;
        Ok(own)
    }

    /// Makes later work wait.
    pub fn wait_for_all(&self, events: &[Arc<dyn hal::Event>]) -> Result<()> {
        let driver = self.raw.driver();
        for event in events {
            driver.same_domain("an event", event.domain())?;
            let own = event.as_any().downcast_ref::<Event>();
            self.raw.wait_for(own.ok_or_else(|| driver.foreign("an event", None))?)?;
        }
        Ok(())
    }
}

impl hal::Queue for Queue {
    fn domain(&self) -> Domain {
        self.raw.driver().domain
    }

    fn mark(&self) -> Result<Arc<dyn hal::Event>> {
        Ok(Arc::new(self.raw.mark()?))
    }

    fn watch(&self) -> Result<Arc<dyn hal::Event>> {
        let mark = self.raw.mark()?.without_host_signals();
        hal::Queue::flush(self).map(|()| Arc::new(mark) as _)
    }

    fn wait_for(&self, events: &[Arc<dyn hal::Event>]) -> Result<()> {
        self.wait_for_all(events)
    }

    fn host_signal(&self) -> Result<Box<dyn hal::HostSignal>> {
        Ok(Box::new(HostSignal::new(&self.raw)?))
    }

    fn has_host_signals(&self) -> bool {
        self.raw.host_signals.any()
    }

    fn signal(&self, semaphore: &dyn hal::Semaphore) -> Result<()> {
        self.raw.signal(Semaphore::own(self.raw.driver(), semaphore)?)
    }

    fn wait_signal(&self, semaphore: &dyn hal::Semaphore) -> Result<()> {
        self.raw.take(Semaphore::own(self.raw.driver(), semaphore)?)
    }

    fn flush(&self) -> Result<()> {
        self.raw.flush(&mut self.raw.lock())
    }

    fn reside(&self, memory: &dyn hal::Memory, _to: AccessState) -> Result<bool> {
        self.own(memory).map(|_| false)
    }

    unsafe fn read(
        &self,
        from: &dyn hal::Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn hal::Event>> {
        // SAFETY: the caller's promise about `into`.
        Ok(Arc::new(unsafe { transfer::read(&self.raw, self.own(from)?, offset, into, bytes) }?))
    }

    unsafe fn write(
        &self,
        to: &dyn hal::Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn hal::Event>> {
        // SAFETY: the caller's promise about `from`.
        Ok(Arc::new(unsafe { transfer::write(&self.raw, self.own(to)?, offset, from, bytes) }?))
    }

    fn fill(
        &self,
        memory: &dyn hal::Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        transfer::fill(&self.raw, self.own(memory)?, offset, bytes, pattern)
    }

    fn copy(
        &self,
        from: &dyn hal::Memory,
        from_offset: usize,
        to: &dyn hal::Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        transfer::copy(&self.raw, (from, from_offset), (to, to_offset), bytes)
    }

    unsafe fn launch(
        &self,
        kernel: &dyn hal::Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn hal::Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn hal::Event>>> {
        // SAFETY: the caller's promise about the kernel.
        unsafe { kernel::launch(self, kernel, grid, args, after, wants_event) }
    }

    /// What was recorded is submitted first: who gets this gives the native queue work of their own. Several of our
    /// queues may share it, and Vulkan wants it to be used by one thread at a time.
    fn raw(&self) -> usize {
        if let Err(why) = hal::Queue::flush(self) {
            tracing::warn!(device = %self.raw.driver().info.name, "{why}");
        }
        self.raw.context().lane(self.raw.lane, |queue| vk::Handle::as_raw(queue) as usize)
    }
}
