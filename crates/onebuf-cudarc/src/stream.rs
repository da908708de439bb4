//! cudarc's contexts and streams on a hub.
//!
//! # Safety
//! A `CudaStream` owns a live stream, or is a default stream, and is kept as long as anything of onebuf uses it. Its context is compared
//! with the hub's, so it belongs to the driver that the hub has loaded.

#![allow(unsafe_code)]

use crate::{
    lent::{CudarcRead, CudarcWrite},
    read::ReadBuffer,
    wrap::{CudarcMemory, CudarcReadable, SliceWrap},
};
use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, DeviceRepr};
use onebuf::{Buffer, Device, Error, Hub, Queue, Result, prelude::*};
use std::{ffi::c_void, fmt, sync::Arc};

/// Objects of cudarc on a [`Hub`].
pub trait CudarcHubExt {
    /// The hub's device of a context of cudarc.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] for a context that is not the primary one of a device of this hub, or of a CUDA library that the
    /// hub has not loaded; [`Error::Unavailable`] if the hub has no CUDA.
    fn cudarc_device(&self, context: &CudaContext) -> Result<Device>;

    /// Makes a queue of the hub of a program's stream, which both use.
    ///
    /// # Errors
    /// As for [`CudarcHubExt::cudarc_device`] and [`CudaHubExt::wrap_stream`].
    fn cudarc_stream(&self, stream: &Arc<CudaStream>) -> Result<CudarcStream>;
}

impl CudarcHubExt for Hub {
    fn cudarc_device(&self, context: &CudaContext) -> Result<Device> {
        let theirs = context.cu_ctx().addr();
        let all = self.devices();
        let mut cuda = all.into_iter().filter(|device| device.info().api.0 == "cuda").peekable();
        if cuda.peek().is_none() {
            return self.device("cuda");
        }
        for device in cuda {
            let handles = device.native_handles()?;
            if handles.contains(&("CUcontext", theirs)) {
                return Ok(device);
            }
        }
        let primary = if context.is_primary() { "primary" } else { "created" };
        Err(Error::ForeignContext {
            have: format!("a {primary} context of cudarc on device {}", context.ordinal()),
            want: "the primary context of a device of the CUDA library that the hub has loaded"
                .to_owned(),
        })
    }

    fn cudarc_stream(&self, stream: &Arc<CudaStream>) -> Result<CudarcStream> {
        let device = self.cudarc_device(stream.context())?;
        let raw = stream.cu_stream().cast::<c_void>();
        // SAFETY: a live stream of that device's primary context, or a default stream, which is kept as long as anything uses it.
        let queue = unsafe { self.wrap_stream(&device, raw) }?;
        self.keep_for_stream(&queue, stream.clone())?;
        Ok(CudarcStream { queue, stream: stream.clone() })
    }
}

/// A program's stream as a queue of the hub. The `CudaStream` is kept as long as onebuf uses it.
#[derive(Clone)]
pub struct CudarcStream {
    pub(crate) queue: Queue,
    stream: Arc<CudaStream>,
}

impl CudarcStream {
    /// The stream as a queue of the hub, for views and launches.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The device of the stream.
    pub fn device(&self) -> Device {
        self.queue.device()
    }

    /// cudarc's stream.
    pub fn cudarc(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Wraps a `CudaSlice` or `CudaViewMut` without a copy, for as long as it is borrowed. onebuf's work comes after cudarc's on
    /// it, and cudarc's later work after onebuf's.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] for memory of another context.
    pub fn wrap<'m, T: Pod + DeviceRepr>(
        &'m self,
        memory: &'m mut impl CudarcMemory<T>,
    ) -> Result<SliceWrap<'m, T>> {
        SliceWrap::new(self, memory)
    }

    /// Wraps a `CudaSlice`, `CudaView` or `CudaViewMut` without a copy, to be read for as long as it is borrowed. onebuf's reads come
    /// after cudarc's writes, and cudarc's later writes after onebuf's reads.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] for memory of another context.
    pub fn wrap_read<'m, T: Pod + DeviceRepr>(
        &'m self,
        memory: &'m impl CudarcReadable<T>,
    ) -> Result<SliceWrap<'m, T, ReadBuffer<T>>> {
        SliceWrap::reading(self, memory)
    }

    /// Lends a buffer that is shared with [`CudarcStream::device`] to cudarc's calls on this stream, for reading.
    ///
    /// # Errors
    /// As for [`Buffer::read_on`], and cudarc's error if it cannot create the events that it tracks.
    pub fn read<'b, T: Pod + DeviceRepr>(
        &'b self,
        buffer: &'b Buffer<T>,
    ) -> Result<CudarcRead<'b, T>> {
        CudarcRead::new(self, buffer)
    }

    /// Lends a buffer to cudarc's calls on this stream, for reading and writing.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`], and cudarc's error if it cannot create the events that it tracks.
    pub fn write<'b, T: Pod + DeviceRepr>(
        &'b self,
        buffer: &'b Buffer<T>,
    ) -> Result<CudarcWrite<'b, T>> {
        CudarcWrite::new(self, buffer)
    }
}

impl fmt::Debug for CudarcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudarcStream").field("queue", &self.queue).finish_non_exhaustive()
    }
}
