//! opencl3's objects on a hub.
//!
//! # Safety
//! An object of opencl3 owns a reference to a live handle: dropping it releases that without a check, so a wrong one is an error
//! of the code that made it. `check` ensures that the handle belongs to drivers that the hub has loaded.

#![allow(unsafe_code)]

use crate::check::Object;
use bytemuck::Pod;
use onebuf::{Borrowed, Fence, ForeignContext, Hub, Queue, Result, WrapBuilder, prelude::*};
use opencl3::{
    command_queue::CommandQueue,
    context::Context,
    event::Event,
    memory::{Buffer, ClMem},
};

/// Objects of opencl3 on a [`Hub`].
pub trait OpenCl3HubExt {
    /// Registers a context. Its devices become devices of the hub, such as `opencl:0@1`; buffers, queues and programs can be
    /// made there.
    ///
    /// # Errors
    /// [`Error::ForeignContext`](onebuf::Error::ForeignContext) for a platform that the hub has not found, and those of
    /// [`OpenClHubExt::foreign_context`].
    fn opencl3_context(&self, context: &Context) -> Result<ForeignContext>;

    /// Makes a queue of the hub of a program's queue, which both use: see [`OpenClHubExt::wrap_queue`].
    ///
    /// # Errors
    /// As for [`OpenCl3HubExt::opencl3_context`].
    fn opencl3_queue(&self, queue: &CommandQueue) -> Result<Queue>;

    /// Makes a fence of an event: see [`OpenClHubExt::wrap_event`].
    ///
    /// # Errors
    /// As for [`OpenCl3HubExt::opencl3_context`].
    fn opencl3_event(&self, event: &Event) -> Result<Fence>;

    /// Wraps a program's buffer, without a copy, for as long as it is borrowed. onebuf's work on it comes after `after`, which
    /// is where the program's work on it ends: the fence of its queue ([`OpenCl3HubExt::opencl3_queue`]) or of an event
    /// ([`OpenCl3HubExt::opencl3_event`]).
    ///
    /// Commands that the program enqueued elsewhere by opencl3's `unsafe` functions have ended before, or are declared with
    /// [`WrapBuilder::after`]: the memory belongs to them until then.
    ///
    /// # Errors
    /// As for [`OpenCl3HubExt::opencl3_context`].
    fn opencl3_buffer<'h, 'm, T: Pod>(
        &'h self,
        buffer: &'m mut Buffer<T>,
        after: &'h Fence,
    ) -> Result<BufferWrap<'h, 'm, T>>;
}

/// A program's buffer that is being wrapped.
#[must_use = "nothing is wrapped before `build`"]
pub struct BufferWrap<'h, 'm, T: Pod> {
    wrap: WrapBuilder<'h, T>,
    owner: &'m Buffer<T>,
}

impl<'h, 'm, T: Pod> BufferWrap<'h, 'm, T> {
    /// Sets options: [`WrapBuilder::shared_with`], [`WrapBuilder::copies`], [`WrapBuilder::after`] and so on.
    pub fn with(self, set: impl FnOnce(WrapBuilder<'h, T>) -> WrapBuilder<'h, T>) -> Self {
        Self { wrap: set(self.wrap), ..self }
    }

    /// Wraps it.
    ///
    /// # Errors
    /// As for [`WrapBuilder::build`].
    pub fn build(self) -> Result<Borrowed<'m, T>> {
        self.wrap.borrowed(self.owner)
    }
}

impl OpenCl3HubExt for Hub {
    fn opencl3_context(&self, context: &Context) -> Result<ForeignContext> {
        Object::Context(context.get()).check(self)?;
        // SAFETY: a live context of a platform that the hub knows.
        unsafe { self.foreign_context(context.get()) }
    }

    fn opencl3_queue(&self, queue: &CommandQueue) -> Result<Queue> {
        Object::Queue(queue.get()).check(self)?;
        // SAFETY: a live queue of a platform that the hub knows.
        unsafe { self.wrap_queue(queue.get()) }
    }

    fn opencl3_event(&self, event: &Event) -> Result<Fence> {
        Object::Event(event.get()).check(self)?;
        // SAFETY: a live event of a platform that the hub knows.
        unsafe { self.wrap_event(event.get()) }
    }

    fn opencl3_buffer<'h, 'm, T: Pod>(
        &'h self,
        buffer: &'m mut Buffer<T>,
        after: &'h Fence,
    ) -> Result<BufferWrap<'h, 'm, T>> {
        Object::Buffer(buffer.get()).check(self)?;
        let owner: &'m Buffer<T> = buffer;
        // SAFETY: a live buffer of a platform that the hub knows. Until the end of the borrow the program cannot name it, so it
        // enqueues nothing; what it has enqueued is ordered before, or is the obligation of the `unsafe` call that enqueued it.
        let wrap = unsafe { self.wrap_buffer::<T>(owner.get()) };
        Ok(BufferWrap { wrap: wrap.after(after), owner })
    }
}
