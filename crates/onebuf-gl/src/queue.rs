//! Queues. A context is one stream of work, so all queues of a device are that stream: work of each runs after all work
//! enqueued earlier in any of them.

use super::{
    GlBackend,
    context::Context,
    event::Event,
    kernel::{self, Kernel},
    memory::Memory,
    semaphore::{self, Semaphore},
    transfer,
};
use onebuf_hal::{
    AccessState, DeviceInfo, Domain, Grid, Result,
    locks::Arc,
    typed::{Args, Events, TypedQueue},
};

/// A queue: the stream of a context.
#[derive(Debug)]
pub struct Queue {
    pub(super) context: Arc<Context>,
    /// Whether launches record times.
    pub profiles: bool,
}

impl Queue {
    pub(super) fn new(context: Arc<Context>, profiles: bool) -> Queue {
        Queue { context, profiles }
    }
}

// SAFETY: a context runs its commands in order and keeps the buffers that they use.
unsafe impl TypedQueue for Queue {
    type Types = GlBackend;

    fn domain(&self) -> Domain {
        self.context.driver.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.context.driver.info
    }

    fn mark(&self) -> Result<Event> {
        self.context.mark()
    }

    /// Events of this context need no wait; those of a context that shares with it are waited for on the device; others
    /// are refused.
    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        events.iter().try_for_each(|event| event?.hold(&self.context))
    }

    unsafe fn signal(&self, semaphore: &Semaphore) -> Result<()> {
        semaphore::signal(&self.context, semaphore)
    }

    unsafe fn wait_signal(&self, semaphore: &Semaphore) -> Result<()> {
        semaphore::wait(&self.context, semaphore)
    }

    fn flush(&self) -> Result<()> {
        // SAFETY: the context is current.
        self.context.run(|gl| unsafe { gl.flush() })
    }

    unsafe fn reside(&self, memory: &Memory, to: AccessState) -> Result<bool> {
        let flushed = memory.reside(to)?;
        if flushed && self.context.is_inline() {
            // The flush ran in our context beside this one.
            self.context.ours().mark()?.hold(&self.context)?;
        }
        Ok(flushed)
    }

    unsafe fn read(
        &self,
        from: &Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Event> {
        // SAFETY: the caller guarantees that `into` is valid.
        unsafe { transfer::read(&self.context, from, offset, into, bytes) }
    }

    unsafe fn write(
        &self,
        to: &Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Event> {
        // SAFETY: the caller guarantees that `from` is valid.
        unsafe { transfer::write(&self.context, to, offset, from, bytes) }
    }

    unsafe fn fill(
        &self,
        memory: &Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        transfer::fill(&self.context, memory, offset, bytes, pattern)
    }

    unsafe fn copy(
        &self,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        transfer::copy(&self.context, from, to, bytes)
    }

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
}
