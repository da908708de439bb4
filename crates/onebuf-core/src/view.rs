//! Views: "this queue reads (or writes) this buffer now".

use crate::{
    buffer::{Buffer, Hold, SubBuffer},
    queues::Queue,
};
use bytemuck::Pod;
use onebuf_hal::{Access, Error, RawHandle, Result, SyncMethod};
use std::{marker::PhantomData, ptr::NonNull};

macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'b, T: Pod> {
            hold: Hold<'b>,
            element: PhantomData<T>,
        }

        impl<'b, T: Pod> $name<'b, T> {
            #[inline]
            pub(crate) fn new(hold: Hold<'b>) -> Self {
                Self { hold, element: PhantomData }
            }

            #[inline]
            pub(crate) fn hold(&self) -> &Hold<'b> {
                &self.hold
            }

            #[inline]
            pub(crate) fn into_hold(self) -> Hold<'b> {
                self.hold
            }

            /// How many elements the buffer or region has.
            pub fn len(&self) -> usize {
                self.hold.bytes() / size_of::<T>()
            }

            /// Never: buffers have at least one element.
            pub fn is_empty(&self) -> bool {
                false
            }

            /// The sync method by which this queue waited for the work before it.
            pub fn sync_method(&self) -> SyncMethod {
                self.hold.sync_method()
            }

            /// The native handle or address. Valid until the view is dropped.
            ///
            /// # Errors
            /// Only on an out-of-order queue, which is made to wait for the work before this view.
            pub fn raw(&self) -> Result<RawHandle> {
                self.hold.raw()
            }

            /// The `cl_mem`, for OpenCL code that enqueues on this queue. Valid until the view is
            /// dropped; a caller that keeps it longer must retain it, and must not use it then.
            ///
            /// # Errors
            /// [`Error::Unsupported`] when this device sees the buffer as an address instead.
            pub fn cl_mem(&self) -> Result<*mut std::ffi::c_void> {
                match self.raw()? {
                    RawHandle::Object(handle) if self.hold.api() == "opencl" => Ok(handle as *mut _),
                    _ => Err(Error::unsupported(
                        "a cl_mem of this view",
                        "an OpenCL queue, and memory that is not shared virtual memory: use `address()`",
                    )),
                }
            }

            /// The name of the OpenGL buffer, in the context of this queue. Valid until the view is dropped.
            ///
            /// # Errors
            /// [`Error::Unsupported`] on a queue of another API.
            pub fn gl_name(&self) -> Result<u32> {
                match self.raw()? {
                    RawHandle::Object(name) if self.hold.api() == "gl" => Ok(name as u32),
                    _ => {
                        let what = format!("an OpenGL buffer of a view on {}", self.hold.api());
                        Err(Error::unsupported(what, "a view taken on a queue of OpenGL's"))
                    }
                }
            }

            /// The `CUdeviceptr`, for CUDA code and libraries that enqueue on this queue's stream. Valid
            /// until the view is dropped.
            ///
            /// # Errors
            /// [`Error::Unsupported`] on a queue of another API.
            pub fn cuda_ptr(&self) -> Result<u64> {
                self.hold.device_ptr("cuda")
            }

            /// The `hipDeviceptr_t`, for HIP code and libraries that enqueue on this queue's stream. Valid
            /// until the view is dropped.
            ///
            /// # Errors
            /// [`Error::Unsupported`] on a queue of another API.
            pub fn hip_ptr(&self) -> Result<*mut std::ffi::c_void> {
                self.hold.device_ptr("hip").map(|at| at as *mut _)
            }

            /// The same bytes as elements of another type.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] where they are no whole elements, or begin where none can.
            pub fn cast<U: Pod>(self) -> Result<$name<'b, U>> {
                self.hold.check_cast::<U>()?;
                Ok($name::new(self.hold))
            }

            /// The `VkBuffer`, and the offset in it at which the bytes begin, for Vulkan code that submits to this
            /// queue's `VkQueue`. Valid until the view is dropped.
            ///
            /// ```
            /// # fn submit(buffer: &onebuf::Buffer<f32>, queue: &onebuf::Queue) -> onebuf::Result<()> {
            /// let view = buffer.write_on(queue)?; // behind whoever used it before
            /// let (buffer, offset) = view.vk_buffer()?; // for commands that are submitted to `queue.raw()`
            /// # let _ = (buffer, offset);
            /// # Ok(())
            /// # }
            /// ```
            ///
            /// # Errors
            /// [`Error::Unsupported`] on a queue of another API.
            pub fn vk_buffer(&self) -> Result<(u64, u64)> {
                self.hold.object("vulkan")
            }

            /// The address that kernels on this queue use (an SVM pointer, a host pointer, a device pointer).
            ///
            /// # Errors
            /// [`Error::Unsupported`] when this device sees the buffer as an object instead.
            pub fn address(&self) -> Result<NonNull<T>> {
                let address = match self.raw()? {
                    RawHandle::Address(address) => NonNull::new(address as *mut T),
                    RawHandle::Object(_) => None,
                };
                address.ok_or_else(|| {
                    Error::unsupported("an address of this view", "shared virtual memory, CUDA or HIP: use `cl_mem()`")
                })
            }
        }
    };
}

view! {
    /// This queue's kernels read the buffer while the view lives. Others may read too; nobody writes.
    ReadView
}
view! {
    /// This queue's kernels read and write the buffer while the view lives. Nobody else uses it.
    WriteView
}

impl<'b, T: Pod> WriteView<'b, T> {
    pub(crate) fn hold_mut(&mut self) -> &mut Hold<'b> {
        &mut self.hold
    }
}

impl<T: Pod> Buffer<T> {
    /// Lets kernels on `queue` read the buffer while the view lives.
    ///
    /// Taking the view makes the newest contents visible there and orders the queue after the work
    /// that made them.
    ///
    /// # Errors
    /// [`Error::NotShared`], [`Error::Busy`] while somebody writes, [`Error::Timeout`].
    #[inline(always)]
    pub fn read_on<'b>(&'b self, queue: &'b Queue) -> Result<ReadView<'b, T>> {
        Ok(ReadView::new(Hold::on(self.part(), queue, Access::Read)?))
    }

    /// Lets kernels on `queue` read and write the buffer while the view lives.
    ///
    /// # Errors
    /// [`Error::NotShared`], [`Error::Busy`] while anybody else holds a guard, [`Error::Timeout`].
    #[inline(always)]
    pub fn write_on<'b>(&'b self, queue: &'b Queue) -> Result<WriteView<'b, T>> {
        Ok(WriteView::new(Hold::on(self.part(), queue, Access::ReadWrite)?))
    }
}

impl<T: Pod> SubBuffer<'_, T> {
    /// Lets kernels on `queue` read the region while the view lives.
    ///
    /// # Errors
    /// As for [`Buffer::read_on`], and [`Error::InvalidArgument`] for a region made for writing only.
    pub fn read_on<'s>(&'s self, queue: &'s Queue) -> Result<ReadView<'s, T>> {
        self.check_view(self.access().reads(), "read")?;
        Ok(ReadView::new(Hold::on(self.part(), queue, Access::Read)?))
    }

    /// Lets kernels on `queue` read and write the region while the view lives; only write it, where the
    /// region was made for that.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`], and [`Error::InvalidArgument`] for a region made for reading only.
    pub fn write_on<'s>(&'s self, queue: &'s Queue) -> Result<WriteView<'s, T>> {
        self.check_view(self.access().writes(), "write")?;
        Ok(WriteView::new(Hold::on(self.part(), queue, Access::ReadWrite)?))
    }

    fn check_view(&self, allowed: bool, verb: &str) -> Result<()> {
        if allowed {
            return Ok(());
        }
        Err(Error::invalid(format!("a view to {verb} a region made for {}", self.access())))
    }
}
