//! A foreign OpenGL context and its buffers.

use bytemuck::Pod;
use onebuf_core::{
    Arg, Buffer, Device, Hub, IntoArg, Queue, ReadView, WrapBuilder, WriteView,
    foreign::WrappedMemory,
    internals::{Asked, Core, ForeignMemory, Registration, Whose, Window},
};
use onebuf_gl::{
    self as gl,
    foreign::{Facts, ForeignDevice},
};
use onebuf_hal::{AllocSpec, Error, MemoryKind, QueueSpec, Result, locks::Arc};
use std::{any::Any, fmt, marker::PhantomData, ops::Deref};

/// A foreign OpenGL context, registered with a hub while this, or anything created in it, lives. Cheap to clone and usable
/// from any thread.
///
/// Its [device](ForeignGl::device) is a context of this library that shares objects with it, on its own thread.
/// [`ForeignGl::queue`] is the context itself, on the thread where it is current.
#[derive(Clone)]
pub struct ForeignGl {
    hub: Hub,
    registration: Arc<Registration>,
}

/// The properties of an OpenGL buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignGlBufferInfo {
    /// The size.
    pub bytes: usize,
    /// The usage hint (`GL_STATIC_DRAW` and others).
    pub usage: u32,
    /// Whether it was created by `glBufferStorage`, so that its size cannot change.
    pub is_immutable: bool,
    /// The storage flags of an immutable buffer.
    pub storage_flags: u32,
    /// Whether the host has it mapped.
    pub is_mapped: bool,
    /// The access flags of the mapping.
    pub map_flags: u32,
}

/// Foreign OpenGL contexts and buffers on a [`Hub`].
pub trait GlHubExt {
    /// Registers the OpenGL context that is current on this thread. It becomes a device of the hub, such as `gl:0@1`, whose
    /// queues run in a context of this library that shares objects with it: its buffers and programs work from any thread.
    /// Registering the same context again returns the same registration. It ends when everything that was created in it is
    /// gone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no context is current; [`Error::Unsupported`] if it is too old; [`Error::Unavailable`]
    /// if the hub has no OpenGL; EGL's error if no context can share with it.
    ///
    /// # Safety
    /// The context was created by the EGL library that this hub has loaded, has no pending error, and is not destroyed before
    /// this, and everything created in it, is gone.
    unsafe fn foreign_gl(&self) -> Result<ForeignGl>;

    /// Wraps an OpenGL buffer of that context, or of one that shares with it, without a copy. Its device and the context's
    /// own [queue](ForeignGl::queue) use it. OpenCL, CUDA and HIP on the same chip do so by their sharing calls, if those are
    /// proven (OpenCL only if it was first used after this context was registered; none of them on NVIDIA's driver, which
    /// loses the buffer's contents). The host and other devices get copies.
    ///
    /// Wrapping the same name again shares one state with the first wrap. OpenGL has no reference counts: nothing is deleted
    /// except by [`WrapBuilder::owned`].
    ///
    /// # Safety
    /// The buffer was not created by a [`Buffer`] of this hub, and is not deleted, reallocated or mapped before the wrap is
    /// dropped. The owner's work on it has finished (`glFinish`) or is declared with [`WrapBuilder::after`]. While a guard of
    /// the buffer is held, and until the work enqueued under it is done, the owner does with it only what the guard allows.
    unsafe fn wrap_gl_buffer<T: Pod>(&self, context: &ForeignGl, name: u32) -> WrapBuilder<'_, T>;
}

impl GlHubExt for Hub {
    unsafe fn foreign_gl(&self) -> Result<ForeignGl> {
        let (library, _) = self.foreign_devices().library::<gl::Library>("gl", "OpenGL")?;
        let raw = library.current().ok_or_else(|| {
            Error::invalid("no EGL context is current on this thread: make yours current first")
        })?;
        // SAFETY: the caller's contract.
        let registration =
            self.registered(raw, |entries| unsafe { library.enter_current(entries) })?;
        Ok(ForeignGl { hub: self.clone(), registration })
    }

    unsafe fn wrap_gl_buffer<T: Pod>(&self, context: &ForeignGl, name: u32) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, name as usize, Named { context: context.clone(), name })
    }
}

impl ForeignGl {
    /// The sharing context of this library, as a device of the hub, for every thread.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.registration.first())
    }

    /// The hub that it is registered with.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Keeps an object of the application alive while the context is registered.
    pub fn keep(&self, object: impl Any + Send + Sync) {
        self.registration.keep(Box::new(object));
    }

    /// The context itself as a queue: calls are made on this thread, immediately, between those of its owner. They change the
    /// current program, `GL_COPY_READ_BUFFER`, `GL_COPY_WRITE_BUFFER`, and the storage and uniform blocks that a kernel uses,
    /// and do not restore them.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] if the context is not current on this thread.
    pub fn queue(&self) -> Result<GlQueue> {
        let native = self.registration.foreign_device::<ForeignDevice>()?.queue()?;
        let registration = self.registration.clone();
        let queue = self.hub.foreign_inline_queue(registration.first(), native, Some(registration));
        Ok(GlQueue { queue, here: PhantomData })
    }

    /// The context itself as a queue for every thread: `enter` makes it current on the calling thread, runs its argument, and makes it
    /// current no longer. For a context that several threads use in turn, under a lock of their program: nothing that has the lock
    /// may wait for a buffer of the hub. Where the context is current already, `enter` is not called.
    ///
    /// The queue's fences are made when another queue waits for it, so work that the owner has submitted by then is covered, too.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] if `enter` does not make the context current; its own errors.
    pub fn queue_within(
        &self,
        enter: impl Fn(&mut dyn FnMut()) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Queue> {
        let foreign_device = self.registration.foreign_device::<ForeignDevice>()?;
        let native = foreign_device.entered_queue(Box::new(enter))?;
        let (registration, spec) = (self.registration.clone(), QueueSpec::default());
        let device = self.registration.first();
        Ok(self.hub.foreign_queue(device, native, spec, Some(registration)))
    }

    /// Queries a buffer's properties, from any thread.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such buffer in this context.
    pub fn buffer_info(&self, name: u32) -> Result<ForeignGlBufferInfo> {
        let facts = self.registration.foreign_device::<ForeignDevice>()?.facts(name)?;
        let Facts { bytes, usage, is_immutable, storage_flags, is_mapped, map_flags } = facts;
        Ok(ForeignGlBufferInfo { bytes, usage, is_immutable, storage_flags, is_mapped, map_flags })
    }
}

impl fmt::Debug for ForeignGl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignGl").field(&self.device()).finish()
    }
}

/// A foreign context as a queue, bound to the thread where the context is current.
///
/// It dereferences to [`Queue`]. Calls through a clone of that queue on another thread are refused.
///
/// ```compile_fail
/// fn elsewhere(queue: onebuf::GlQueue) {
///     std::thread::spawn(move || drop(queue));
/// }
/// ```
pub struct GlQueue {
    queue: Queue,
    here: PhantomData<*const ()>,
}

impl GlQueue {
    /// Takes a view for kernels on this queue that read. The view stays on this thread.
    ///
    /// # Errors
    /// As for [`Buffer::read_on`].
    pub fn read<'b, T: Pod>(&'b self, buffer: &'b Buffer<T>) -> Result<Here<ReadView<'b, T>>> {
        Ok(Here { view: buffer.read_on(&self.queue)?, here: PhantomData })
    }

    /// Takes a view for kernels on this queue that read and write. The view stays on this thread.
    ///
    /// # Errors
    /// As for [`Buffer::write_on`].
    pub fn write<'b, T: Pod>(&'b self, buffer: &'b Buffer<T>) -> Result<Here<WriteView<'b, T>>> {
        Ok(Here { view: buffer.write_on(&self.queue)?, here: PhantomData })
    }
}

impl Deref for GlQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl fmt::Debug for GlQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlQueue({})", self.queue.device().id())
    }
}

/// A view that stays on the thread where it was taken.
#[derive(Debug)]
pub struct Here<V> {
    view: V,
    here: PhantomData<*const ()>,
}

impl<V> Deref for Here<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.view
    }
}

impl<'b, V: IntoArg<'b>> IntoArg<'b> for Here<V> {
    fn into_arg(self) -> Arg<'b> {
        self.view.into_arg()
    }
}

/// A buffer name that fulfils the contract of `wrap_gl_buffer`.
struct Named {
    context: ForeignGl,
    name: u32,
}

// SAFETY: the caller of `wrap_gl_buffer` guarantees the handle; the driver reports its size.
unsafe impl ForeignMemory for Named {
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let Self { context, name } = self;
        if !context.hub().is(asked.hub) {
            return Err(Error::invalid("the foreign OpenGL context belongs to another hub"));
        }
        let registration = &context.registration;
        let foreign_device = registration.foreign_device::<ForeignDevice>()?;
        let facts = foreign_device.facts(*name)?;
        let bytes = facts.bytes;
        let have = asked.element.count(bytes)?;
        if let Some(len) = asked.len.filter(|len| *len != have) {
            return Err(Error::invalid(format!(
                "the OpenGL buffer has {have} elements, not {len}"
            )));
        }
        let key = registration.key((*name).into(), 0);
        let core = asked.core(key, bytes, |shape| {
            // SAFETY: the contract of `wrap_gl_buffer`.
            let memory = unsafe { foreign_device.wrap(*name, &facts) }?;
            let (memory_kind, (access, host)) = (MemoryKind::Device, Default::default());
            let spec =
                AllocSpec { bytes, align: shape.align, memory_kind, access, host, hint: None };
            Ok(WrappedMemory {
                whose: Whose::ForeignDevice(registration.clone()),
                memory,
                spec,
                pages: None,
            })
        })?;
        Ok((core, None))
    }
}
