//! What a hub does with OpenCL objects that somebody else made.

use super::{
    ForeignContext,
    context::{Known, device_of, index_of, whose},
    memory::{Object, Svm},
};
use bytemuck::Pod;
use onebuf_core::{
    Device, Fence, Hub, Program, Queue, WrapBuilder,
    internals::{self, Whose, check_graft_target, graft_first, graft_spirv},
};
use onebuf_hal::{Error, Result};
use onebuf_opencl::{binaries, foreign};
use std::{ffi::c_void, ptr::NonNull};

/// OpenCL objects that somebody else made, on a [`Hub`].
pub trait OpenClHubExt {
    /// Registers a context that somebody else made. Its devices become devices of the hub: queues and
    /// programs of ours can be made in it, buffers shared with it. The same context again is the same
    /// registration; it is given up when everything that was made in it is gone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what the driver knows to be none; [`Error::Busy`] when the hub has
    /// no device entry left for another device; [`Error::Unavailable`] for a hub without OpenCL.
    ///
    /// # Safety
    /// Null, or a live `cl_context` of the OpenCL library that this hub has loaded.
    unsafe fn foreign_context(&self, context: *mut c_void) -> Result<ForeignContext>;

    /// A queue that somebody else made, in their context, to be used like one of ours. What its owner
    /// enqueues there is in order with what we do; [`Queue::fence`] covers both.
    ///
    /// # Errors
    /// As for [`OpenClHubExt::foreign_context`].
    ///
    /// # Safety
    /// Null, or a live `cl_command_queue` of the OpenCL library that this hub has loaded.
    unsafe fn wrap_queue(&self, queue: *mut c_void) -> Result<Queue>;

    /// The device in a second context, as if somebody else had made it: for finding out how foreign
    /// buffers on it can be shared, and for libraries that must stay apart.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device without contexts; [`Error::Busy`] when no device entry is left.
    fn second_context(&self, device: &Device) -> Result<ForeignContext>;

    /// A buffer over a `cl_mem` that somebody else made, without a copy. The devices of its context see
    /// it, the host sees it through maps, and other devices by the routes that the planner finds, when
    /// [`WrapBuilder::shared_with`] names them.
    ///
    /// A sub-buffer is wrapped as what it is: a region of its parent. All wraps of one memory object, of its
    /// parent and of its parts share one state: guards of one exclude guards of the other, and each is ordered
    /// after the other's work.
    ///
    /// # Safety
    /// Null, or a live `cl_mem` of the OpenCL library that this hub has loaded, that no [`Buffer`](onebuf_core::Buffer) of this hub
    /// has made. While a guard of the buffer is held, and until work that was enqueued under it is done,
    /// the owner does with the memory only what the guard allows: nothing beside a writer, reads beside
    /// readers. Work of the owner's that is still to be waited for is told by [`WrapBuilder::after`] or
    /// [`Buffer::written_until`](onebuf_core::Buffer::written_until).
    unsafe fn wrap_buffer<T: Pod>(&self, mem: *mut c_void) -> WrapBuilder<'_, T>;

    /// A buffer over shared virtual memory that somebody else allocated in their context.
    ///
    /// # Safety
    /// `pointer` was given by `clSVMAlloc` (or lies inside what was) in that context, with so many elements from
    /// there on, and stays allocated until the buffer is dropped. For the rest, as for
    /// [`OpenClHubExt::wrap_buffer`].
    unsafe fn wrap_svm<T: Pod>(
        &self,
        context: &ForeignContext,
        pointer: NonNull<T>,
        len: usize,
    ) -> WrapBuilder<'_, T>;

    /// An event that somebody else made, as a fence: a queue can wait for it, a buffer be told of it
    /// ([`Buffer::written_until`](onebuf_core::Buffer::written_until)). Events that the host completes are as good.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what the driver knows to be none.
    ///
    /// # Safety
    /// Null, or a live `cl_event` of the OpenCL library that this hub has loaded.
    unsafe fn wrap_event(&self, event: *mut c_void) -> Result<Fence>;

    /// As [`Program::graft`], for a `cl_program` that somebody else built, of which there may be no source: its
    /// binary is asked of its driver. The program is not kept.
    ///
    /// ```
    /// # use onebuf::{Hub, Program, Result, prelude::*};
    /// # fn run(hub: &Hub, theirs: *mut std::ffi::c_void) -> Result<Program> {
    /// let cuda = hub.device("cuda:0")?;
    /// // SAFETY: the library that owns it lent it for this call.
    /// unsafe { hub.graft_foreign(theirs, &cuda) }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Program::graft`]; [`Error::InvalidArgument`] for null, and for what the driver knows to be no
    /// program.
    ///
    /// # Safety
    /// Null, or a live `cl_program` of the OpenCL library that this hub has loaded, which nobody builds or
    /// releases meanwhile.
    unsafe fn graft_foreign(&self, program: *mut c_void, device: &Device) -> Result<Program>;
}

impl OpenClHubExt for Hub {
    unsafe fn foreign_context(&self, context: *mut c_void) -> Result<ForeignContext> {
        let raw = context.addr();
        // SAFETY: the caller's promise.
        let whose = unsafe { whose(self, raw) }?;
        Ok(ForeignContext { hub: self.clone(), raw, whose })
    }

    unsafe fn wrap_queue(&self, queue: *mut c_void) -> Result<Queue> {
        let (cl, raw) = (Known::of(self)?.cl(), queue.addr());
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::queue(cl, raw) }?;
        // SAFETY: a live queue has a live context.
        let whose = unsafe { whose(self, facts.context) }?;
        let ix = index_of(&whose, facts.device)?;
        // SAFETY: as above; its device and context are these.
        let native = unsafe { device_of(self, &whose, ix)?.wrap_queue(raw, facts.spec) }?;
        Ok(self.foreign_queue(ix, native, facts.spec, whose.registration()))
    }

    fn second_context(&self, device: &Device) -> Result<ForeignContext> {
        Known::of(self)?;
        if device.info().api.0 != "opencl" && device.hub().is(self) {
            let what = format!("a second context on {device}");
            return Err(Error::unsupported(what, "an OpenCL device"));
        }
        let (raw, registration) = self.second_registration(device)?;
        Ok(ForeignContext { hub: self.clone(), raw, whose: Whose::ForeignDevice(registration) })
    }

    unsafe fn wrap_buffer<T: Pod>(&self, mem: *mut c_void) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, Object(mem.addr()))
    }

    unsafe fn wrap_svm<T: Pod>(
        &self,
        context: &ForeignContext,
        pointer: NonNull<T>,
        len: usize,
    ) -> WrapBuilder<'_, T> {
        let bytes = len.saturating_mul(size_of::<T>());
        let (context, pointer) = (context.clone(), pointer.addr().get());
        WrapBuilder::new(self, Svm { context, pointer, bytes })
    }

    unsafe fn wrap_event(&self, event: *mut c_void) -> Result<Fence> {
        let (cl, raw) = (Known::of(self)?.cl(), event.addr());
        // SAFETY: the caller's promise.
        let (context, queue) = unsafe { foreign::event(cl, raw) }?;
        // SAFETY: a live event has a live context.
        let whose = unsafe { whose(self, context) }?;
        let by_host = queue.is_none();
        let queue = match queue {
            // SAFETY: a live event has a live queue, unless the host completes it.
            Some(queue) => unsafe { self.wrap_queue(queue as *mut c_void) }?,
            None => self.queue_beside(&whose)?,
        };
        let device = device_of(self, &whose, queue.device().index())?;
        // SAFETY: an event of that queue, or of none.
        let event = unsafe { device.wrap_event(raw, internals::queue(&queue), by_host) }?;
        Ok(queue.fence_at(event))
    }

    unsafe fn graft_foreign(&self, program: *mut c_void, device: &Device) -> Result<Program> {
        check_graft_target(device)?;
        let cl = Known::of(self)?.cl();
        if device.info().caps.built_on.is_some() {
            // SAFETY: the caller's promise.
            let module = unsafe { binaries::intermediate(cl, program.addr()) }?;
            return graft_spirv(module.as_deref(), device);
        }
        // SAFETY: the caller's promise.
        graft_first(&unsafe { binaries::foreign(cl, program.addr()) }?, device)
    }
}
