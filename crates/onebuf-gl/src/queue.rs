//! Queues. A context is one stream of work, so all queues of a device are that one: each comes behind
//! everything that any of them was given.

use super::{context::Context, event::Event, kernel, memory::Memory, semaphore, transfer};
use onebuf_hal::{self as hal, AccessState, Arg, Domain, Error, Grid, Result, locks::Arc};

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub context: Arc<Context>,
    /// Whether launches take the time.
    pub profiles: bool,
}

impl Queue {
    pub fn new(context: Arc<Context>, profiles: bool) -> Queue {
        Queue { context, profiles }
    }

    /// A memory of this queue's context.
    pub fn own<'a>(&self, memory: &'a dyn hal::Memory) -> Result<&'a Memory> {
        let driver = &self.context.driver;
        let own = memory.as_any().downcast_ref::<Memory>();
        let own = own.ok_or_else(|| driver.foreign("memory", None))?;
        driver.same_domain("memory", own.domain)?;
        Ok(own)
    }

    /// Events of this context are behind everything already; those of one that shares with it are waited for on the
    /// device; others cannot be.
    pub fn wait_for_all(&self, events: &[Arc<dyn hal::Event>]) -> Result<()> {
        let driver = &self.context.driver;
        for event in events {
            driver.same_domain("an event", event.domain())?;
            let own = event.as_any().downcast_ref::<Event>();
            own.ok_or_else(|| driver.foreign("an event", None))?.hold(&self.context)?;
        }
        Ok(())
    }
}

impl hal::Queue for Queue {
    fn domain(&self) -> Domain {
        self.context.driver.domain
    }

    fn mark(&self) -> Result<Arc<dyn hal::Event>> {
        Ok(Arc::new(self.context.mark()?))
    }

    fn wait_for(&self, events: &[Arc<dyn hal::Event>]) -> Result<()> {
        self.wait_for_all(events)
    }

    fn host_signal(&self) -> Result<Box<dyn hal::HostSignal>> {
        let what = format!("a host signal on {}", self.context.driver.info.name);
        Err(Error::unsupported(what, "an API whose queues wait for the host"))
    }

    fn signal(&self, semaphore: &dyn hal::Semaphore) -> Result<()> {
        semaphore::signal(&self.context, semaphore)
    }

    fn wait_signal(&self, semaphore: &dyn hal::Semaphore) -> Result<()> {
        semaphore::wait(&self.context, semaphore)
    }

    fn flush(&self) -> Result<()> {
        // SAFETY: the context is current.
        self.context.run(|gl| unsafe { gl.flush() })
    }

    fn reside(&self, memory: &dyn hal::Memory, to: AccessState) -> Result<bool> {
        let flushed = self.own(memory)?.reside(to)?;
        if flushed && self.context.is_inline() {
            // It was done in our context beside this one.
            let done: Arc<dyn hal::Event> = Arc::new(self.context.ours().mark()?);
            self.wait_for_all(&[done])?;
        }
        Ok(flushed)
    }

    unsafe fn read(
        &self,
        from: &dyn hal::Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn hal::Event>> {
        let from = self.own(from)?;
        // SAFETY: the caller's promise about `into`.
        Ok(Arc::new(unsafe { transfer::read(&self.context, from, offset, into, bytes) }?))
    }

    unsafe fn write(
        &self,
        to: &dyn hal::Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn hal::Event>> {
        let to = self.own(to)?;
        // SAFETY: the caller's promise about `from`.
        Ok(Arc::new(unsafe { transfer::write(&self.context, to, offset, from, bytes) }?))
    }

    fn fill(
        &self,
        memory: &dyn hal::Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        transfer::fill(&self.context, self.own(memory)?, offset, bytes, pattern)
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
        transfer::copy(&self.context, (from, from_offset), (to, to_offset), bytes)
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

    /// There is no native queue beside the context.
    fn raw(&self) -> usize {
        0
    }
}
