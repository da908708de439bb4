//! An OpenGL context that somebody else made, and its buffers.

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
use onebuf_hal::{AllocSpec, Error, MemoryKind, Result, locks::Arc};
use std::{fmt, marker::PhantomData, ops::Deref};

/// An OpenGL context that somebody else made, registered with a hub while this, or anything made in it, lives. Cheap to
/// clone, and for any thread.
///
/// Its [device](ForeignGl::device) is a context of ours that shares objects with it, on a thread of its own. The context itself, on the thread
/// where it is current, is [`ForeignGl::queue`].
#[derive(Clone)]
pub struct ForeignGl {
    hub: Hub,
    registration: Arc<Registration>,
}

/// What an OpenGL buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignGlBufferInfo {
    /// Its size.
    pub bytes: usize,
    /// What it was said to be for (`GL_STATIC_DRAW` and others).
    pub usage: u32,
    /// Whether it was made by `glBufferStorage`: its size does not change any more.
    pub is_immutable: bool,
    /// What it was made with, then.
    pub storage_flags: u32,
    /// Whether the host has it mapped.
    pub is_mapped: bool,
    /// As what, then.
    pub map_flags: u32,
}

/// OpenGL contexts and buffers that somebody else made, on a [`Hub`].
pub trait GlHubExt {
    /// Registers the OpenGL context that is current on this thread. It becomes a device of the hub, such as `gl:0@1`, whose queues
    /// are a context of ours that shares objects with it: buffers and programs there work from any thread. The same context again is
    /// the same registration; it is given up when everything that was made in it is gone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where none is current; [`Error::Unsupported`] for one that is too old; [`Error::Unavailable`] for a
    /// hub without OpenGL; what EGL says where no context can share with it.
    ///
    /// # Safety
    /// It was made by the EGL that this hub has loaded, has no error pending, and is not destroyed before this, and everything that was made
    /// in it, is gone.
    unsafe fn foreign_gl(&self) -> Result<ForeignGl>;

    /// A buffer over an OpenGL buffer that somebody else made in that context, or in one that shares with it, without a copy. Its device sees
    /// it, and the context's own [queue](ForeignGl::queue); OpenCL, CUDA and HIP on its chip do by their sharing calls, where those are proven (OpenCL where it was first used after this context was registered; none of them on NVIDIA's driver, which loses what the buffer held); the
    /// host and other devices have copies of it.
    ///
    /// The same name again shares one state with the first wrap. OpenGL counts no references: nothing is deleted but by what
    /// [`WrapBuilder::owned`] says.
    ///
    /// # Safety
    /// A buffer that no [`Buffer`] of this hub has made, and that is not deleted, given other storage or mapped before the wrap has been
    /// dropped. Work of the owner's on it is over (`glFinish`), or told by [`WrapBuilder::after`]; while a guard of the buffer is held,
    /// and until work that was enqueued under it is done, the owner does with it only what the guard allows.
    unsafe fn wrap_gl_buffer<T: Pod>(&self, context: &ForeignGl, name: u32) -> WrapBuilder<'_, T>;
}

impl GlHubExt for Hub {
    unsafe fn foreign_gl(&self) -> Result<ForeignGl> {
        let (library, _) = self.foreign_devices().library::<gl::Library>("gl", "OpenGL")?;
        let raw = library.current().ok_or_else(|| {
            Error::invalid("no EGL context is current on this thread: make yours current first")
        })?;
        // SAFETY: the caller's promise.
        let registration =
            self.registered(raw, |entries| unsafe { library.enter_current(entries) })?;
        Ok(ForeignGl { hub: self.clone(), registration })
    }

    unsafe fn wrap_gl_buffer<T: Pod>(&self, context: &ForeignGl, name: u32) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, Named { context: context.clone(), name })
    }
}

impl ForeignGl {
    /// A context of ours that shares with it, as a device of the hub: for every thread.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.registration.first())
    }

    /// The hub that it is registered with.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The context itself, as a queue: calls are made on this thread, at once, between those of its owner's. What they change and leave
    /// changed is the current program, `GL_COPY_READ_BUFFER`, `GL_COPY_WRITE_BUFFER`, and the storage and uniform blocks that a kernel uses.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] where it is not current on this thread.
    pub fn queue(&self) -> Result<GlQueue> {
        let native = self.registration.foreign_device::<ForeignDevice>()?.queue()?;
        let queue = self.hub.foreign_inline_queue(native, &self.registration);
        Ok(GlQueue { queue, here: PhantomData })
    }

    /// Asks what a buffer is, from any thread.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is none in this context.
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

/// A context of somebody else's as a queue, on its own thread: it stays there.
///
/// It is a [`Queue`] in all else. Handed to another thread by a clone of that, its calls are refused there.
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
    /// A view for kernels on this queue that read: it stays on this thread.
    ///
    /// # Errors
    /// As for [`Buffer::read_on`].
    pub fn read<'b, T: Pod>(&'b self, buffer: &'b Buffer<T>) -> Result<Here<ReadView<'b, T>>> {
        Ok(Here { view: buffer.read_on(&self.queue)?, here: PhantomData })
    }

    /// The same for kernels that read and write.
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

/// A buffer by its name, of which all is true that `wrap_gl_buffer` wants.
struct Named {
    context: ForeignGl,
    name: u32,
}

// SAFETY: the caller of the wrap has promised the handle; the driver tells its size.
unsafe impl ForeignMemory for Named {
    fn handle(&self) -> usize {
        self.name as usize
    }

    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let Self { context, name } = self;
        if !context.hub().is(asked.hub) {
            return Err(Error::invalid("a foreign OpenGL context of another hub"));
        }
        let registration = &context.registration;
        let foreign_device = registration.foreign_device::<ForeignDevice>()?;
        let bytes = foreign_device.facts(*name)?.bytes;
        let have = asked.element.count(bytes)?;
        if let Some(len) = asked.len.filter(|len| *len != have) {
            return Err(Error::invalid(format!("{len} elements in an OpenGL buffer of {have}")));
        }
        let key = registration.key((*name).into(), 0);
        let core = asked.core(key, bytes, |shape| {
            // SAFETY: the promise that was made to `wrap_gl_buffer`.
            let memory = unsafe { foreign_device.wrap(*name) }?;
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
