//! Foreign CUDA and HIP objects on a hub: pointers, allocation handles, streams and events.

use bytemuck::Pod;
use onebuf_core::{
    Buffer, Device, Fence, Hub, Queue, WrapBuilder,
    foreign::WrappedMemory,
    internals::{self, Asked, Core, ForeignMemory, Shape, Whose, Window},
    topology::DeviceIx,
};
use onebuf_cuda as cuda;
use onebuf_hal::{self as hal, Access, AllocSpec, Error, Export, QueueSpec, Result, locks::Arc};
use std::{any::Any, ffi::c_void, ptr::NonNull};

pub use cuda::foreign::PointerKind;

/// What the driver knows about a CUDA or HIP pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignPointerInfo {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The driver's number of the device that allocated the memory.
    pub device: i32,
    /// The first address of its allocation.
    pub start: usize,
    /// The size of its allocation.
    pub bytes: usize,
    /// The address that the host uses, for pinned and managed memory.
    pub host: Option<NonNull<u8>>,
    /// Whether other APIs can import the allocation by a descriptor.
    pub exportable: bool,
}

/// Foreign CUDA and HIP objects on a [`Hub`].
///
/// All of them belong to the *primary context* of a device, which CUDA's runtime API and all vendor libraries use.
pub trait CudaHubExt {
    /// Asks the driver about a pointer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the address is no memory of that driver; [`Error::Unsupported`] if `device` is no
    /// CUDA or HIP device.
    fn pointer_info(&self, device: &Device, pointer: *mut c_void) -> Result<ForeignPointerInfo>;

    /// Wraps `len` elements of a CUDA or HIP pointer as a buffer, without a copy: memory of `cudaMalloc`,
    /// `cudaMallocAsync`, `cuMemMap`, `cudaMallocManaged`, `cudaMallocHost` or `cudaHostRegister`, and of HIP's calls of
    /// these names. The pointer may lie inside an allocation. The driver is asked for the kind, the size and the device
    /// of the memory, and `build` checks them.
    ///
    /// `device` uses the memory in place. Other devices named with [`WrapBuilder::shared_with`] use it by the routes that
    /// the planner finds: by a descriptor, if the memory was created for that (`cuMemCreate` with a POSIX descriptor); by
    /// the host's pages, if it is pinned. Plain `cudaMalloc` memory has no route to OpenCL, Vulkan and OpenGL:
    /// [`Program::graft`](onebuf_core::Program::graft) brings OpenCL kernels to the memory instead.
    ///
    /// Wrapping the same pointer again shares one state with the first wrap.
    ///
    /// ```no_run
    /// # use onebuf::{Buffer, Hub, Result, prelude::*};
    /// # fn run(hub: &Hub, samples: *mut std::ffi::c_void, stream: *mut std::ffi::c_void) -> Result<()> {
    /// let cuda = hub.device("cuda:0")?;
    /// // SAFETY: `cudaMalloc` returned the pointer, `cudaStreamCreate` the stream; both outlive the buffer.
    /// let stream = unsafe { hub.wrap_stream(&cuda, stream) }?;
    /// let samples: Buffer<f32> =
    ///     unsafe { hub.wrap_pointer(&cuda, samples, 1024) }.after(&stream.fence()).build()?;
    /// samples.fill(1.0)?;                  // after the application's work on its stream
    /// samples.hand_to(&stream)?;           // and the application's next work after ours
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The memory is not freed before the buffer is dropped, is no memory of a [`Buffer`] of this hub, and the bytes of
    /// two wraps do not overlap unless they are the same. While a guard of the buffer is held, and until the work enqueued
    /// under it is done, the owner does with the memory only what the guard allows. Unfinished work of the owner is
    /// declared with [`WrapBuilder::after`] or [`Buffer::written_until`].
    unsafe fn wrap_pointer<T: Pod>(
        &self,
        device: &Device,
        pointer: *mut c_void,
        len: usize,
    ) -> WrapBuilder<'_, T>;

    /// Maps an allocation that was created with `cuMemCreate` or `hipMemCreate` at an address of onebuf's, without a copy,
    /// and adds a reference to it. If it was created for export by descriptors, other APIs can import it.
    ///
    /// # Safety
    /// `handle` is a live allocation of that device, of at least `len` elements. The rest is as for
    /// [`CudaHubExt::wrap_pointer`].
    unsafe fn wrap_allocation<T: Pod>(
        &self,
        device: &Device,
        handle: u64,
        len: usize,
    ) -> WrapBuilder<'_, T>;

    /// Opens memory of another process by its `cudaIpcMemHandle_t` or `hipIpcMemHandle_t`. `offset` is the byte at which
    /// the elements begin in that allocation.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if `device` cannot open such handles; the driver's error, also for a handle of this process;
    /// [`Error::InvalidArgument`] if the allocation is too small.
    ///
    /// # Safety
    /// The handle was made by a live process, which keeps the memory until the buffer is dropped. The processes agree on
    /// who uses the memory: onebuf cannot order the work of the other.
    unsafe fn open_ipc_handle<T: Pod>(
        &self,
        device: &Device,
        handle: &[u8; 64],
        offset: usize,
        len: usize,
    ) -> Result<Buffer<T>>;

    /// Wraps a CUDA or HIP stream as a queue. Commands that its owner enqueues are ordered with those of this library.
    /// [`Queue::fence`] covers both. The stream is never destroyed.
    ///
    /// Null and `cudaStreamLegacy` are the default stream that synchronises with others. `cudaStreamPerThread` is the
    /// default stream of the *calling thread*: the queue and its views are refused on other threads. A program compiled for
    /// per-thread default streams passes `cudaStreamPerThread`, not null.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] if the stream belongs to another device or context (CUDA only; HIP does not say);
    /// [`Error::Unsupported`] if `device` is no CUDA or HIP device.
    ///
    /// # Safety
    /// A default stream, or a live stream of that device, which outlives the queue and everything that used it.
    unsafe fn wrap_stream(&self, device: &Device, stream: *mut c_void) -> Result<Queue>;

    /// Keeps the owner of a wrapped stream as long as anything uses that: programs that the hub caches and events do so longer than
    /// the queue. One object for each queue.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a queue of another API.
    fn keep_for_stream(&self, queue: &Queue, owner: impl Any + Send + Sync) -> Result<()>;

    /// Wraps a CUDA or HIP event as a fence: a queue can wait for it, and a buffer can be ordered after it
    /// ([`WrapBuilder::after`], [`Buffer::written_until`]). An event that was never recorded is reached already.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for null; [`Error::Unsupported`] if `device` is no CUDA or HIP device.
    ///
    /// # Safety
    /// A live event of that driver. It is neither destroyed nor recorded again before the fence, and everything ordered
    /// after it, is gone.
    unsafe fn wrap_stream_event(&self, device: &Device, event: *mut c_void) -> Result<Fence>;
}

/// The backend's object of a CUDA or HIP device.
fn native<'h>(hub: &'h Hub, device: &Device) -> Result<&'h cuda::Device> {
    if !device.hub().is(hub) {
        return Err(Error::invalid(format!("device {device} belongs to another hub")));
    }
    native_at(hub, device.index())
}

/// The same by its number.
fn native_at(hub: &Hub, device: DeviceIx) -> Result<&cuda::Device> {
    // SAFETY: only used to wrap objects that the caller guarantees, and to query.
    let native: &dyn hal::Device = unsafe { internals::device(hub, device) };
    native.as_any().downcast_ref().ok_or_else(|| {
        let device = &hub.topology().node(device).id;
        Error::unsupported(format!("CUDA and HIP objects on {device}"), "a CUDA or HIP device")
    })
}

impl CudaHubExt for Hub {
    fn pointer_info(&self, device: &Device, pointer: *mut c_void) -> Result<ForeignPointerInfo> {
        let facts = native(self, device)?.pointer(pointer.addr() as u64)?;
        let cuda::foreign::PointerFacts { kind, device, bytes, host, exportable, .. } = facts;
        let start = facts.start as usize;
        Ok(ForeignPointerInfo { kind, device, start, bytes, host, exportable })
    }

    unsafe fn wrap_pointer<T: Pod>(
        &self,
        device: &Device,
        pointer: *mut c_void,
        len: usize,
    ) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, pointer.addr(), By::<POINTER>).on(device, bytes_of::<T>(len))
    }

    unsafe fn wrap_allocation<T: Pod>(
        &self,
        device: &Device,
        handle: u64,
        len: usize,
    ) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, handle as usize, By::<HANDLE>).on(device, bytes_of::<T>(len))
    }

    unsafe fn open_ipc_handle<T: Pod>(
        &self,
        device: &Device,
        handle: &[u8; 64],
        offset: usize,
        len: usize,
    ) -> Result<Buffer<T>> {
        let bytes = bytes_of::<T>(len).ok_or_else(|| too_many(len))?;
        let range = native(self, device)?.ipc_range(*handle, offset, bytes)?;
        let builder = self.buffer::<T>(len).shared_with([device]);
        // SAFETY: the caller guarantees the handle, and the driver checks its size.
        unsafe { internals::build_imported(builder, device.index(), &Export::Ipc(range)) }
    }

    unsafe fn wrap_stream(&self, device: &Device, stream: *mut c_void) -> Result<Queue> {
        // SAFETY: the caller's contract.
        let queue = unsafe { native(self, device)?.wrap_stream(stream.addr()) }?;
        let (ix, of_thread) = (device.index(), queue.is_of_thread());
        Ok(match of_thread {
            true => self.foreign_inline_queue(ix, queue, None),
            false => self.foreign_queue(ix, queue, QueueSpec::default(), None),
        })
    }

    fn keep_for_stream(&self, queue: &Queue, owner: impl Any + Send + Sync) -> Result<()> {
        // SAFETY: nothing is enqueued.
        let native = unsafe { internals::queue(queue) }.as_any().downcast_ref::<cuda::Queue>();
        let native = native.ok_or_else(|| {
            let what = format!("a stream of {}", queue.device());
            Error::unsupported(what, "a queue of CUDA or HIP")
        })?;
        native.keep_owner(Box::new(owner));
        Ok(())
    }

    unsafe fn wrap_stream_event(&self, device: &Device, event: *mut c_void) -> Result<Fence> {
        let native = native(self, device)?;
        let queue = self.queue_beside(&Whose::Own(device.index()))?;
        // SAFETY: the caller's contract.
        let event = unsafe { native.wrap_event(event.addr(), internals::queue(&queue)) }?;
        Ok(queue.fence_at(event))
    }
}

fn bytes_of<T>(len: usize) -> Option<usize> {
    len.checked_mul(size_of::<T>())
}

fn too_many(len: usize) -> Error {
    Error::invalid(format!("{len} elements are more bytes than an address can have"))
}

/// Memory that fulfils the contract of `wrap_pointer`, or of `wrap_allocation`.
struct By<const POINTER: bool>;

const POINTER: bool = true;
const HANDLE: bool = false;

// SAFETY: the caller of `wrap_pointer` or `wrap_allocation` guarantees the lifetime; the driver confirms the size.
unsafe impl<const POINTER: bool> ForeignMemory for By<POINTER> {
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let (hub, handle) = (asked.hub, asked.handle);
        let on = asked.on.ok_or_else(|| Error::invalid("CUDA memory without a device"))?;
        let native = native_at(hub, on.device)?;
        let bytes = on.bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
            Error::invalid("a pointer with no elements, or with more than an address can have")
        })?;
        let have = asked.element.count(bytes)?;
        if let Some(len) = asked.len.filter(|len| *len != have) {
            return Err(Error::invalid(format!("the pointer has {have} elements, not {len}")));
        }
        let (at, access, whose) = (handle as u64, Access::ReadWrite, Whose::Own(on.device));
        let lend = |shape: &Shape, (memory, spec): (Arc<dyn hal::Memory>, AllocSpec)| {
            let spec = AllocSpec { align: shape.align, ..spec };
            WrappedMemory { whose, memory, spec, pages: None }
        };
        let core = match POINTER {
            true => {
                asked.element.check_aligned(handle)?;
                let still = |memory: &dyn hal::Memory| native.is_still(memory, at, bytes);
                asked.resting_core(handle, bytes, still, |shape| {
                    // SAFETY: the caller's contract.
                    Ok(lend(shape, unsafe { native.wrap_pointer(at, bytes, access) }?))
                })
            }
            false => asked.core(handle, bytes, |shape| {
                // SAFETY: the caller's contract.
                Ok(lend(shape, unsafe { native.wrap_allocation(at, bytes, access) }?))
            }),
        };
        Ok((core?, None))
    }
}
