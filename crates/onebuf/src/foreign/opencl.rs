//! Foreign OpenCL objects on a hub.

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

/// Foreign OpenCL objects on a [`Hub`].
pub trait OpenClHubExt {
    /// Registers a foreign context. Its devices become devices of the hub: queues and programs can be created in it, and
    /// buffers shared with it. Registering the same context again returns the same registration. It ends when everything that
    /// was created in it is gone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the driver detects that it is no context; [`Error::Busy`] if the hub has no free device
    /// entry; [`Error::Unavailable`] if the hub has no OpenCL.
    ///
    /// # Safety
    /// Null, or a live `cl_context` of the OpenCL library that this hub has loaded.
    unsafe fn foreign_context(&self, context: *mut c_void) -> Result<ForeignContext>;

    /// Whether the hub has found devices of this `cl_platform_id`. Handles of such a platform come from the OpenCL library that
    /// the hub has loaded, or from one that shares its drivers. The handle is compared, and not used.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the hub has no OpenCL.
    fn knows_cl_platform(&self, platform: *mut c_void) -> Result<bool>;

    /// Wraps a foreign queue, in its own context, to be used like one of the hub's. Commands that its owner enqueues are
    /// ordered with those of this library. [`Queue::fence`] covers both.
    ///
    /// # Errors
    /// As for [`OpenClHubExt::foreign_context`].
    ///
    /// # Safety
    /// Null, or a live `cl_command_queue` of the OpenCL library that this hub has loaded.
    unsafe fn wrap_queue(&self, queue: *mut c_void) -> Result<Queue>;

    /// Opens the device in a second context, as another library would: to find out how foreign buffers on it can be shared,
    /// and for libraries that must stay separate.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no contexts; [`Error::Busy`] if no device entry is free.
    fn second_context(&self, device: &Device) -> Result<ForeignContext>;

    /// Wraps a foreign `cl_mem` as a buffer, without a copy. The devices of its context use it, the host accesses it through
    /// maps, and other devices named with [`WrapBuilder::shared_with`] by the routes that the planner finds.
    ///
    /// A sub-buffer is wrapped as a region of its parent. All wraps of one memory object, its parent and its sub-buffers
    /// share one state: their guards exclude each other, and each is ordered after the others' work.
    ///
    /// # Safety
    /// `mem` is null, or a live `cl_mem` of the OpenCL library that this hub has loaded, and was not created by a
    /// [`Buffer`](onebuf_core::Buffer) of this hub. While a guard of the buffer is held, and until the work enqueued under it is
    /// done, the owner does with the memory only what the guard allows: nothing while there is a writer, reads while there
    /// are readers. Unfinished work of the owner must be declared with [`WrapBuilder::after`] or
    /// [`Buffer::written_until`](onebuf_core::Buffer::written_until).
    unsafe fn wrap_buffer<T: Pod>(&self, mem: *mut c_void) -> WrapBuilder<'_, T>;

    /// Wraps shared virtual memory that was allocated in a foreign context.
    ///
    /// # Safety
    /// `pointer` was returned by `clSVMAlloc` in that context, or lies inside such memory, has `len` elements from there on,
    /// and stays allocated until the buffer is dropped. The rest is as for [`OpenClHubExt::wrap_buffer`].
    unsafe fn wrap_svm<T: Pod>(
        &self,
        context: &ForeignContext,
        pointer: NonNull<T>,
        len: usize,
    ) -> WrapBuilder<'_, T>;

    /// Wraps a foreign event as a fence: a queue can wait for it, and a buffer can be ordered after it
    /// ([`Buffer::written_until`](onebuf_core::Buffer::written_until)). User events work as well.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the driver detects that it is no event.
    ///
    /// # Safety
    /// Null, or a live `cl_event` of the OpenCL library that this hub has loaded.
    unsafe fn wrap_event(&self, event: *mut c_void) -> Result<Fence>;

    /// Like [`Program::graft`], for a foreign `cl_program` whose source may be unavailable: its binary is read from its
    /// driver. The program is not retained.
    ///
    /// ```
    /// # use onebuf::{Hub, Program, Result, prelude::*};
    /// # fn run(hub: &Hub, theirs: *mut std::ffi::c_void) -> Result<Program> {
    /// let cuda = hub.device("cuda:0")?;
    /// // SAFETY: the library that owns the program keeps it alive during this call.
    /// unsafe { hub.graft_foreign(theirs, &cuda) }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Program::graft`]; [`Error::InvalidArgument`] for null, and if the driver detects that it is no program.
    ///
    /// # Safety
    /// `program` is null, or a live `cl_program` of the OpenCL library that this hub has loaded, and is neither built nor
    /// released during the call.
    unsafe fn graft_foreign(&self, program: *mut c_void, device: &Device) -> Result<Program>;
}

impl OpenClHubExt for Hub {
    unsafe fn foreign_context(&self, context: *mut c_void) -> Result<ForeignContext> {
        let raw = context.addr();
        // SAFETY: the caller's contract.
        let whose = unsafe { whose(self, raw) }?;
        Ok(ForeignContext { hub: self.clone(), raw, whose })
    }

    fn knows_cl_platform(&self, platform: *mut c_void) -> Result<bool> {
        Ok(Known::of(self)?.library.has_platform(platform.addr()))
    }

    unsafe fn wrap_queue(&self, queue: *mut c_void) -> Result<Queue> {
        let (cl, raw) = (Known::of(self)?.cl(), queue.addr());
        // SAFETY: the caller's contract.
        let facts = unsafe { foreign::queue(cl, raw) }?;
        // SAFETY: a live queue has a live context.
        let whose = unsafe { whose(self, facts.context) }?;
        let ix = index_of(&whose, facts.device)?;
        // SAFETY: as above; the driver reported this device and context.
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
        WrapBuilder::new(self, mem.addr(), Object)
    }

    unsafe fn wrap_svm<T: Pod>(
        &self,
        context: &ForeignContext,
        pointer: NonNull<T>,
        len: usize,
    ) -> WrapBuilder<'_, T> {
        let bytes = len.saturating_mul(size_of::<T>());
        WrapBuilder::new(self, pointer.addr().get(), Svm { context: context.clone(), bytes })
    }

    unsafe fn wrap_event(&self, event: *mut c_void) -> Result<Fence> {
        let (cl, raw) = (Known::of(self)?.cl(), event.addr());
        // SAFETY: the caller's contract.
        let (context, queue) = unsafe { foreign::event(cl, raw) }?;
        // SAFETY: a live event has a live context.
        let whose = unsafe { whose(self, context) }?;
        let by_host = queue.is_none();
        let queue = match queue {
            // SAFETY: a live event that the host does not complete has a live queue.
            Some(queue) => unsafe { self.wrap_queue(queue as *mut c_void) }?,
            None => self.queue_beside(&whose)?,
        };
        let device = device_of(self, &whose, queue.device().index())?;
        // SAFETY: the event belongs to that queue, or to none.
        let event = unsafe { device.wrap_event(raw, internals::queue(&queue), by_host) }?;
        Ok(queue.fence_at(event))
    }

    unsafe fn graft_foreign(&self, program: *mut c_void, device: &Device) -> Result<Program> {
        check_graft_target(device)?;
        let cl = Known::of(self)?.cl();
        if device.info().caps.built_on.is_some() {
            // SAFETY: the caller's contract.
            let module = unsafe { binaries::intermediate(cl, program.addr()) }?;
            return graft_spirv(module.as_deref(), device);
        }
        // SAFETY: the caller's contract.
        graft_first(&unsafe { binaries::foreign(cl, program.addr()) }?, device)
    }
}
