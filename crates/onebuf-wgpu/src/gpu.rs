//! A wgpu device on a hub, and buffers that both have.
//!
//! # Safety
//! What the callers of `unsafe` functions guarantee is passed on to the backends' modules.

#![allow(unsafe_code)]

use crate::{Turn, gl, usage, vulkan};
use bytemuck::Pod;
use onebuf::{Buffer, Device, Error, ForeignGl, ForeignVulkan, Hub, Queue, Result, WrapBuilder};
use std::{fmt, ops::Deref, sync::Arc};

/// Devices of wgpu on a [`Hub`].
pub trait WgpuHubExt {
    /// Registers a program's `wgpu::Device`, which becomes a device of the hub, such as `vulkan:0@1`. Keep the result as long as
    /// onebuf works on the device.
    ///
    /// Memory is shared by what the device was created for: [`request_device`](crate::request_device) asks for all of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the queue belongs to another device (Vulkan only: on OpenGL onebuf submits nothing to the
    /// queue, and does not check it); [`Error::Unsupported`] on other backends than Vulkan and OpenGL;
    /// [`Error::ForeignContext`] if wgpu has loaded another Vulkan loader than the hub; [`Error::Unavailable`] if the hub has no
    /// such API.
    fn wgpu(&self, device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Gpu>;
}

impl WgpuHubExt for Hub {
    fn wgpu(&self, device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Gpu> {
        let queue = Arc::new(queue.clone());
        let backend = match vulkan::register(self, device, &queue)? {
            Some((context, closer)) => {
                Backend::Vulkan { queue: context.queue()?, context, _closer: closer }
            }
            None => {
                let (context, queue) =
                    gl::register(self, device).unwrap_or_else(|| Err(unsupported(device)))?;
                Backend::Gl { context, queue }
            }
        };
        let device = device.clone();
        Ok(Gpu(Arc::new(Inner { backend, device, queue })))
    }
}

/// A program's `wgpu::Device`, registered with a hub. Cheap to clone.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    /// First: its queue ends before wgpu's.
    backend: Backend,
    device: wgpu::Device,
    queue: Arc<wgpu::Queue>,
}

enum Backend {
    /// In the order in which they are dropped: the queue submits, then the closer waits, then the context ends.
    Vulkan {
        queue: Queue,
        _closer: vulkan::Closer,
        context: ForeignVulkan,
    },
    Gl {
        context: ForeignGl,
        queue: Queue,
    },
}

fn unsupported(device: &wgpu::Device) -> Error {
    let what = format!("a wgpu::Device of the backend {:?}", device.adapter_info().backend);
    Error::unsupported(what, "wgpu's Vulkan or OpenGL backend")
}

impl Gpu {
    /// The device of the hub, for [`BufferBuilder::shared_with`](onebuf::BufferBuilder::shared_with). Its own queues and kernels
    /// work, too.
    pub fn device(&self) -> Device {
        match &self.0.backend {
            Backend::Vulkan { context, .. } => context.device(),
            Backend::Gl { context, .. } => context.device(),
        }
    }

    /// wgpu's queue as a queue of the hub: a view on it is a [`Turn`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] on wgpu's OpenGL backend, whose context is current only inside of its calls.
    pub fn queue(&self) -> Result<Queue> {
        match &self.0.backend {
            Backend::Vulkan { queue, .. } => Ok(queue.clone()),
            Backend::Gl { .. } => {
                let needs = "wgpu's Vulkan backend; `Gpu::read` and `Gpu::write` work on both";
                Err(Error::unsupported("wgpu's queue as a queue of the hub", needs))
            }
        }
    }

    /// Begins a turn in which wgpu's submissions read the buffer.
    ///
    /// # Errors
    /// As for [`Buffer::read_on`].
    pub fn read<'b, T: Pod>(&'b self, buffer: &'b Buffer<T>) -> Result<Turn<'b, T>> {
        Turn::take(self, buffer, false)
    }

    /// Begins a turn in which wgpu's submissions read and write the buffer.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`].
    pub fn write<'b, T: Pod>(&'b self, buffer: &'b Buffer<T>) -> Result<Turn<'b, T>> {
        Turn::take(self, buffer, true)
    }

    /// Makes a `wgpu::Buffer` over the same bytes as a buffer that is shared with [`Gpu::device`]. It may outlive that buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for usages that a shared buffer cannot have (wgpu cannot map it);
    /// [`Error::NotShared`]; [`Error::Unsupported`] if its bytes begin at an offset that bindings cannot have.
    ///
    /// # Safety
    /// Work that uses it is submitted only during a [`Turn`] on `buffer` (one that writes, if the work writes), by the queue of
    /// this device. That includes `queue.write_buffer`, which writes with the next submission.
    pub unsafe fn buffer<T: Pod>(
        &self,
        buffer: &Buffer<T>,
        usage: wgpu::BufferUsages,
    ) -> Result<GpuBuffer> {
        usage::check_made(usage)?;
        let memory = buffer.native_memory(&self.device())?;
        let (offset, bytes) = (memory.offset(), memory.bytes() as u64);
        // The limits are copied, and zero is within all of them.
        if offset != 0 {
            usage::check_offset(offset, usage, &self.0.device.limits())?;
        }
        let desc = wgpu::BufferDescriptor {
            label: Some("onebuf"),
            // Memory has whole words.
            size: (offset + bytes).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT),
            usage,
            mapped_at_creation: false,
        };
        // SAFETY: memory of this device; the caller's contract.
        let made = unsafe {
            match self.is_gl() {
                true => gl::make(&self.0.device, &memory, &desc),
                false => vulkan::make(&self.0.device, &memory, &desc),
            }
        };
        Ok(GpuBuffer { buffer: made?, offset, bytes })
    }

    /// Wraps a `wgpu::Buffer` of this device, without a copy. It is kept while it is wrapped. wgpu reads the buffer once, so that
    /// it clears what it has not initialised yet now, and not over onebuf's contents.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a buffer that lacks `STORAGE`, `COPY_SRC` or `COPY_DST`, or that was destroyed; wgpu's
    /// error for a buffer of another device, or one that is mapped; [`Error::Unsupported`] on wgpu's OpenGL backend, which does
    /// not tell the name.
    ///
    /// # Safety
    /// While it is wrapped, work that uses it is submitted only during a [`Turn`] on the result (one that writes, if the work
    /// writes). It is neither mapped nor destroyed meanwhile, and is no [`GpuBuffer`].
    pub unsafe fn wrap<T: Pod>(&self, buffer: &wgpu::Buffer) -> Result<WrapBuilder<'_, T>> {
        usage::check_wrapped(buffer.usage())?;
        match &self.0.backend {
            // SAFETY: the caller's contract.
            Backend::Vulkan { context, .. } => unsafe {
                vulkan::wrap(context, &self.0.device, &self.0.queue, buffer)
            },
            Backend::Gl { .. } => {
                let needs = "wgpu's Vulkan backend, or a buffer that onebuf allocates";
                Err(Error::unsupported("the OpenGL name of a wgpu::Buffer", needs))
            }
        }
    }

    pub(crate) fn is_gl(&self) -> bool {
        matches!(self.0.backend, Backend::Gl { .. })
    }

    pub(crate) fn native_queue(&self) -> &Queue {
        match &self.0.backend {
            Backend::Vulkan { queue, .. } | Backend::Gl { queue, .. } => queue,
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.device().id())
    }
}

/// A `wgpu::Buffer` over a buffer of onebuf, to which it dereferences.
#[derive(Clone, Debug)]
pub struct GpuBuffer {
    buffer: wgpu::Buffer,
    offset: u64,
    bytes: u64,
}

impl GpuBuffer {
    /// The byte at which the elements begin: zero, unless another API's allocation begins inside of a page.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The elements as a binding.
    pub fn binding(&self) -> wgpu::BindingResource<'_> {
        let size = self.bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.buffer,
            offset: self.offset,
            size: wgpu::BufferSize::new(size),
        })
    }

    /// The elements as a slice, for vertices and indices.
    pub fn elements(&self) -> wgpu::BufferSlice<'_> {
        self.buffer.slice(self.offset..self.offset + self.bytes)
    }
}

impl Deref for GpuBuffer {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}
