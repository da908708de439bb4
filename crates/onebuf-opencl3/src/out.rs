//! onebuf's objects as opencl3's types, each with a reference of its own.
//!
//! # Safety
//! The handles of views and queues are live OpenCL objects while those live, and each is retained once for the object that
//! opencl3 releases.

#![allow(unsafe_code)]

use crate::check::refused;
use bytemuck::Pod;
use onebuf::{Buffer, Device, Error, Fence, Queue, ReadView, Result, WriteView, prelude::*};
use opencl3::{
    command_queue::{CommandQueue, retain_command_queue},
    event::Event,
    memory::{self, retain_mem_object},
};
use std::ffi::c_void;

/// A view as opencl3's buffer.
pub trait OpenCl3ViewExt<T> {
    /// The buffer, for commands on the view's queue. It may outlive the view, but may then no longer be used.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a view on a queue of another API, and if the device uses an address instead.
    fn opencl3(&self) -> Result<memory::Buffer<T>>;
}

impl<T: Pod> OpenCl3ViewExt<T> for ReadView<'_, T> {
    fn opencl3(&self) -> Result<memory::Buffer<T>> {
        self.cl_mem().and_then(retained)
    }
}

impl<T: Pod> OpenCl3ViewExt<T> for WriteView<'_, T> {
    fn opencl3(&self) -> Result<memory::Buffer<T>> {
        self.cl_mem().and_then(retained)
    }
}

/// Adds the reference that opencl3 releases.
fn retained<T>(mem: *mut c_void) -> Result<memory::Buffer<T>> {
    // SAFETY: the view keeps it alive.
    unsafe { retain_mem_object(mem) }.map_err(|code| refused("clRetainMemObject", code))?;
    Ok(memory::Buffer::new(mem))
}

/// A queue as opencl3's.
pub trait OpenCl3QueueExt {
    /// The queue, for commands on buffers whose views on it are held.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a queue of another API.
    fn opencl3(&self) -> Result<CommandQueue>;
}

/// The specification's least number of dimensions, which every device has. opencl3 checks launches with it.
const DIMENSIONS: u32 = 3;

impl OpenCl3QueueExt for Queue {
    fn opencl3(&self) -> Result<CommandQueue> {
        let device = self.device();
        if device.info().api.0 != "opencl" {
            let what = format!("a cl_command_queue of {device}");
            return Err(Error::unsupported(what, "a queue of OpenCL"));
        }
        let raw = self.raw() as *mut c_void;
        // SAFETY: this queue keeps it alive.
        unsafe { retain_command_queue(raw) }
            .map_err(|code| refused("clRetainCommandQueue", code))?;
        Ok(CommandQueue::new(raw, DIMENSIONS))
    }
}

/// A fence as opencl3's events.
pub trait OpenCl3FenceExt {
    /// The events that must complete before the fence is reached, for wait lists. Empty if it is known to have been reached.
    ///
    /// # Errors
    /// As for [`OpenClFenceExt::cl_events`].
    fn opencl3(&self) -> Result<Vec<Event>>;
}

impl OpenCl3FenceExt for Fence {
    fn opencl3(&self) -> Result<Vec<Event>> {
        let events = self.cl_events()?;
        events.into_iter().map(|event| event.into_raw().map(Event::new)).collect()
    }
}

/// A buffer given up for opencl3's.
pub trait OpenCl3BufferExt<T> {
    /// Converts the buffer into its `cl_mem` on that device, with all work done: see [`Buffer::into_cl_mem`].
    ///
    /// # Errors
    /// As for [`Buffer::into_cl_mem`].
    fn into_opencl3(self, device: &Device) -> Result<memory::Buffer<T>>;
}

impl<T: Pod> OpenCl3BufferExt<T> for Buffer<T> {
    fn into_opencl3(self, device: &Device) -> Result<memory::Buffer<T>> {
        self.into_cl_mem(device).map(memory::Buffer::new)
    }
}
