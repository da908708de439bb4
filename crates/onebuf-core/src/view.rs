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

            /// Returns the number of elements of the buffer or region.
            pub fn len(&self) -> usize {
                self.hold.bytes() / size_of::<T>()
            }

            /// Always false: a buffer has at least one element.
            pub fn is_empty(&self) -> bool {
                false
            }

            /// Returns the sync method that ordered this queue after the earlier work.
            pub fn sync_method(&self) -> SyncMethod {
                self.hold.sync_method()
            }

            /// Returns the native handle or address. It is valid until the view is dropped.
            ///
            /// # Errors
            /// The driver's, on an out-of-order queue: the call enqueues a wait for the work before this view.
            pub fn raw(&self) -> Result<RawHandle> {
                self.hold.raw()
            }

            /// Returns the `cl_mem`, for OpenCL code that enqueues on this queue. It is valid until the view is
            /// dropped; a caller that keeps the handle longer must retain it, and must not use it.
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

            /// Returns the name of the OpenGL buffer in the context of this queue. It is valid until the view is dropped.
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

            /// Returns the `CUdeviceptr`, for CUDA code and libraries that enqueue on this queue's stream. It is
            /// valid until the view is dropped.
            ///
            /// # Errors
            /// [`Error::Unsupported`] on a queue of another API.
            pub fn cuda_ptr(&self) -> Result<u64> {
                self.hold.device_ptr("cuda")
            }

            /// Returns the `hipDeviceptr_t`, for HIP code and libraries that enqueue on this queue's stream. It is
            /// valid until the view is dropped.
            ///
            /// # Errors
            /// [`Error::Unsupported`] on a queue of another API.
            pub fn hip_ptr(&self) -> Result<*mut std::ffi::c_void> {
                self.hold.device_ptr("hip").map(|at| at as *mut _)
            }

            /// Converts the view to one of the same bytes with another element type.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if the bytes are not a whole number of elements, or are not aligned for them.
            pub fn cast<U: Pod>(self) -> Result<$name<'b, U>> {
                self.hold.check_cast::<U>()?;
                Ok($name::new(self.hold))
            }

            /// Returns the `VkBuffer` and the byte offset at which this view begins in it, for Vulkan code that submits to
            /// this queue's `VkQueue`. Both are valid until the view is dropped.
            ///
            /// ```
            /// # fn submit(buffer: &onebuf::Buffer<f32>, queue: &onebuf::Queue) -> onebuf::Result<()> {
            /// let view = buffer.write_on(queue)?; // ordered after all earlier users
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

            /// Returns the address that kernels on this queue use: an SVM pointer, a host pointer or a device pointer.
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
    /// A guard under which one queue's kernels read the buffer. Other queues may read too; none may write.
    ReadView
}
view! {
    /// A guard under which one queue's kernels read and write the buffer, or only write it: [`Buffer::overwrite_on`]. It excludes
    /// all other users.
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
    /// [`Error::NotShared`], [`Error::Busy`] while a writer holds a guard, [`Error::Timeout`].
    #[inline(always)]
    pub fn read_on<'b>(&'b self, queue: &'b Queue) -> Result<ReadView<'b, T>> {
        Ok(ReadView::new(Hold::on(self.part(), queue, Access::Read)?))
    }

    /// Lets kernels on `queue` read and write the buffer while the view lives.
    ///
    /// # Errors
    /// [`Error::NotShared`], [`Error::Busy`] while another guard is held, [`Error::Timeout`].
    #[inline(always)]
    pub fn write_on<'b>(&'b self, queue: &'b Queue) -> Result<WriteView<'b, T>> {
        Ok(WriteView::new(Hold::on(self.part(), queue, Access::ReadWrite)?))
    }

    /// Lets kernels on `queue` write the buffer while the view lives, and discards its contents: a device with a copy of its own
    /// gets no bytes of them. Kernels that read the buffer are refused with this view. Elements that no kernel writes have
    /// undefined values afterwards, even if nothing is launched.
    ///
    /// ```
    /// # use onebuf::{Each, Out, Source, prelude::*};
    /// # let hub = onebuf::discover()?;
    /// # let (host, buffer) = (hub.host(), hub.buffer::<u32>(4).build()?);
    /// # let count = Source::default().with_native("count", |args| {
    /// #     (0..).zip(args.slice_mut::<u32>(0)?).for_each(|(i, x)| *x = i);
    /// #     Ok(())
    /// # });
    /// // SAFETY: work-item i writes x[i] only.
    /// let count = unsafe { host.kernel::<(Each<Out<u32>>,)>(count, "count")? };
    /// let queue = host.queue()?;
    /// count.launch_on(&queue, [buffer.len()], (buffer.overwrite_on(&queue)?,))?; // every element
    /// assert_eq!(buffer.to_vec()?, [0, 1, 2, 3]);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Buffer::write_on`].
    pub fn overwrite_on<'b>(&'b self, queue: &'b Queue) -> Result<WriteView<'b, T>> {
        Ok(WriteView::new(Hold::discarding(self.part(), queue)?))
    }
}

/// Guards that keep their queue, for adapters whose guards outlive what their callers borrow.
impl<T: Pod> Buffer<T> {
    /// Like [`Buffer::read_on`].
    #[doc(hidden)]
    pub fn kept_read_on(&self, queue: &Queue) -> Result<ReadView<'_, T>> {
        Ok(ReadView::new(Hold::keeping(self.part(), queue, Access::Read, true)?))
    }

    /// Like [`Buffer::write_on`], or, unless the contents are kept, for a caller that writes every element and then says so
    /// ([`WriteView::overwritten`]).
    #[doc(hidden)]
    pub fn kept_write_on(&self, queue: &Queue, keep: bool) -> Result<WriteView<'_, T>> {
        Ok(WriteView::new(Hold::keeping(self.part(), queue, Access::ReadWrite, keep)?))
    }
}

impl<T: Pod> WriteView<'_, T> {
    /// Records that every element has been written, by other code than a kernel.
    #[doc(hidden)]
    pub fn overwritten(&self) {
        self.hold.overwritten();
    }
}

impl<T: Pod> Buffer<T> {
    /// Declares that the contents are no longer needed. They are undefined from now on: each device may see other elements, until
    /// a kernel or a transfer writes them. The next user, reader or writer, copies nothing, where a device has a copy of its own
    /// (a staged route). Users are ordered as ever.
    ///
    /// [`Buffer::overwrite_on`] discards the contents for one view that only writes. A buffer that wraps a part of foreign memory keeps its
    /// contents, because the other parts do.
    ///
    /// ```
    /// # let hub = onebuf::discover()?;
    /// # let scratch = hub.buffer::<u32>(4).build()?;
    /// scratch.fill(7)?;
    /// scratch.discard()?;           // the next device that takes it copies nothing in
    /// scratch.write(&[1, 2, 3, 4])?;
    /// assert_eq!(scratch.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Busy`] while a guard of the buffer is held.
    pub fn discard(&self) -> Result<()> {
        match self.part().is_whole() {
            true => self.core().discard(),
            false => Ok(()),
        }
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

    /// Lets kernels on `queue` read and write the region while the view lives. If the region was created with
    /// `Access::Write`, kernels may only write it.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`], and [`Error::InvalidArgument`] for a region made for reading only.
    pub fn write_on<'s>(&'s self, queue: &'s Queue) -> Result<WriteView<'s, T>> {
        self.check_view(self.access().writes(), "write")?;
        Ok(WriteView::new(Hold::on(self.part(), queue, Access::ReadWrite)?))
    }

    /// See [`Buffer::kept_read_on`].
    #[doc(hidden)]
    pub fn kept_read_on(&self, queue: &Queue) -> Result<ReadView<'_, T>> {
        self.check_view(self.access().reads(), "read")?;
        Ok(ReadView::new(Hold::keeping(self.part(), queue, Access::Read, true)?))
    }

    /// See [`Buffer::kept_write_on`].
    #[doc(hidden)]
    pub fn kept_write_on(&self, queue: &Queue) -> Result<WriteView<'_, T>> {
        self.check_view(self.access().writes(), "write")?;
        Ok(WriteView::new(Hold::keeping(self.part(), queue, Access::ReadWrite, true)?))
    }

    fn check_view(&self, allowed: bool, verb: &str) -> Result<()> {
        if allowed {
            return Ok(());
        }
        Err(Error::invalid(format!("a view to {verb} a region made for {}", self.access())))
    }
}
