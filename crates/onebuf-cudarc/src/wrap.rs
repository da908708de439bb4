//! cudarc's memory as a buffer.
//!
//! # Safety
//! An exclusive borrow of a `CudaSlice` or `CudaViewMut` excludes cudarc's use of the memory, and keeps it allocated. A shared
//! borrow keeps it allocated and excludes cudarc's writes; what is lent then is a [`ReadBuffer`], which cannot write.

#![allow(unsafe_code)]

use crate::{CudarcStream, read::ReadBuffer};
use bytemuck::Pod;
use cudarc::driver::{
    CudaSlice, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, SyncOnDrop,
};
use onebuf::{
    Buffer, CopyPolicy, Device, Error, Fence, Hub, Result, RouteKind, WrapBuilder, prelude::*,
};
use std::{ffi::c_void, fmt, marker::PhantomData};

/// Memory of cudarc that can be wrapped: [`CudaSlice`] and [`CudaViewMut`].
pub trait CudarcMemory<T>: sealed::Memory<T> {}

impl<T> CudarcMemory<T> for CudaSlice<T> {}
impl<T> CudarcMemory<T> for CudaViewMut<'_, T> {}

/// Memory of cudarc that can be wrapped for reading: [`CudaSlice`], [`CudaView`] and [`CudaViewMut`].
pub trait CudarcReadable<T>: sealed::Readable<T> {}

impl<T> CudarcReadable<T> for CudaSlice<T> {}
impl<T> CudarcReadable<T> for CudaView<'_, T> {}
impl<T> CudarcReadable<T> for CudaViewMut<'_, T> {}

/// What a [`SliceWrap`] lends: a [`Buffer`] or a [`ReadBuffer`].
pub trait CudarcLent<T: Pod>: sealed::Lent<T> {}

impl<T: Pod> CudarcLent<T> for Buffer<T> {}
impl<T: Pod> CudarcLent<T> for ReadBuffer<T> {}

pub(crate) mod sealed {
    use super::{
        Buffer, CudaSlice, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, Pod, ReadBuffer,
    };

    /// cudarc's trait can be implemented for any type, so it proves nothing.
    pub trait Memory<T>: DevicePtrMut<T> {}

    impl<T> Memory<T> for CudaSlice<T> {}
    impl<T> Memory<T> for CudaViewMut<'_, T> {}

    /// As above.
    pub trait Readable<T>: DevicePtr<T> {}

    impl<T> Readable<T> for CudaSlice<T> {}
    impl<T> Readable<T> for CudaView<'_, T> {}
    impl<T> Readable<T> for CudaViewMut<'_, T> {}

    pub trait Lent<T: Pod> {
        /// Whether others may have the same memory wrapped meanwhile.
        const IS_SHARED: bool;

        fn of(buffer: Buffer<T>) -> Self;
        fn buffer(&self) -> &Buffer<T>;
    }

    impl<T: Pod> Lent<T> for Buffer<T> {
        const IS_SHARED: bool = false;

        fn of(buffer: Buffer<T>) -> Self {
            buffer
        }

        fn buffer(&self) -> &Buffer<T> {
            self
        }
    }

    impl<T: Pod> Lent<T> for ReadBuffer<T> {
        const IS_SHARED: bool = true;

        fn of(buffer: Buffer<T>) -> Self {
            ReadBuffer(buffer)
        }

        fn buffer(&self) -> &Buffer<T> {
            &self.0
        }
    }
}

/// cudarc's memory that is being wrapped, as a [`Buffer`] ([`CudarcStream::wrap`]) or a [`ReadBuffer`]
/// ([`CudarcStream::wrap_read`]).
///
/// The options are those of [`WrapBuilder`]. They are methods here because that builder, in a function of the program, could make
/// a buffer that outlives the memory.
#[must_use = "nothing is wrapped before `run`"]
pub struct SliceWrap<'m, T: Pod, B = Buffer<T>> {
    stream: &'m CudarcStream,
    pointer: u64,
    len: usize,
    /// Records cudarc's event behind onebuf's work.
    end: SyncOnDrop<'m>,
    /// Where cudarc's work ends.
    after: Fence,
    options: Options,
    of: PhantomData<fn() -> T>,
    lent: PhantomData<fn() -> B>,
}

/// How the memory is wrapped.
#[derive(Default)]
struct Options {
    devices: Vec<Device>,
    policy: Option<CopyPolicy>,
    route: Option<RouteKind>,
    trust_declared: bool,
}

impl Options {
    fn set<'h, T: Pod>(&self, mut wrap: WrapBuilder<'h, T>) -> WrapBuilder<'h, T> {
        wrap = wrap.shared_with(&self.devices).trust_declared(self.trust_declared);
        if let Some(policy) = self.policy {
            wrap = wrap.copies(policy);
        }
        match self.route {
            Some(route) => wrap.route(route),
            None => wrap,
        }
    }
}

impl<'m, T: Pod + DeviceRepr> SliceWrap<'m, T> {
    pub(crate) fn new(
        stream: &'m CudarcStream,
        memory: &'m mut impl CudarcMemory<T>,
    ) -> Result<Self> {
        check_context(stream, memory)?;
        let len = memory.len();
        // The stream waits for cudarc's earlier work on the memory, on whichever stream that is.
        let (pointer, end) = memory.device_ptr_mut(stream.cudarc());
        Self::after_cudarc(stream, pointer, len, end)
    }
}

impl<'m, T: Pod + DeviceRepr> SliceWrap<'m, T, ReadBuffer<T>> {
    pub(crate) fn reading(
        stream: &'m CudarcStream,
        memory: &'m impl CudarcReadable<T>,
    ) -> Result<Self> {
        check_context(stream, memory)?;
        // The stream waits for cudarc's earlier writes of the memory.
        let (pointer, end) = memory.device_ptr(stream.cudarc());
        Self::after_cudarc(stream, pointer, memory.len(), end)
    }
}

fn check_context<T>(stream: &CudarcStream, memory: &impl DeviceSlice<T>) -> Result<()> {
    match **memory.stream().context() == **stream.cudarc().context() {
        true => Ok(()),
        false => Err(Error::ForeignContext {
            have: "memory of another CudaContext".to_owned(),
            want: "memory of the stream's".to_owned(),
        }),
    }
}

impl<'m, T: Pod, B: CudarcLent<T>> SliceWrap<'m, T, B> {
    /// Memory for which the stream waits.
    fn after_cudarc(
        stream: &'m CudarcStream,
        pointer: u64,
        len: usize,
        end: SyncOnDrop<'m>,
    ) -> Result<Self> {
        stream.cudarc().context().check_err().map_err(|why| Error::Driver {
            api: "cuda",
            call: "cuStreamWaitEvent",
            code: why.0 as i32,
            name: format!("{why:?}"),
        })?;
        let (after, options) = (stream.queue().fence(), Options::default());
        let (of, lent) = (PhantomData, PhantomData);
        Ok(Self { stream, pointer, len, end, after, options, of, lent })
    }

    /// As for [`WrapBuilder::shared_with`].
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        self.options.devices.extend(devices.into_iter().cloned());
        self
    }

    /// As for [`WrapBuilder::copies`].
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.options.policy = Some(policy);
        self
    }

    /// As for [`WrapBuilder::route`].
    pub fn route(mut self, kind: RouteKind) -> Self {
        self.options.route = Some(kind);
        self
    }

    /// As for [`WrapBuilder::trust_declared`].
    pub fn trust_declared(mut self, trust: bool) -> Self {
        self.options.trust_declared = trust;
        self
    }

    /// Wraps the memory while `work` runs. Then cudarc's later work on any stream comes after onebuf's: the stream waits for onebuf's
    /// work on a [`Buffer`], and this thread for reads of a [`ReadBuffer`].
    ///
    /// The buffer is lent to a function: a guard could be forgotten, and the memory freed while onebuf's work still uses it.
    ///
    /// # Errors
    /// As for [`WrapBuilder::build`] and [`Buffer::hand_to`], and those of `work`. [`Error::InvalidArgument`] if the memory is wrapped for
    /// reading already, with another length, and [`Error::Busy`], without devices that are named here.
    pub fn run<R>(self, work: impl FnOnce(&B) -> Result<R>) -> Result<R> {
        let hub = self.stream.queue().hub().clone();
        let lent = B::of(self.build(&hub)?);
        let mut wrapped =
            Wrapped { lent, stream: self.stream, end: Some(self.end), of: PhantomData };
        let done = work(&wrapped.lent);
        wrapped.hand_back().and(done)
    }

    fn build(&self, hub: &Hub) -> Result<Buffer<T>> {
        match self.wrapped(hub).after(&self.after).build() {
            // Another wrap reads the memory, so the order cannot be declared now.
            Err(Error::Busy { .. }) if B::IS_SHARED => {
                self.after.wait(hub.timeout())?;
                self.wrapped(hub).build()
            }
            built => built,
        }
    }

    fn wrapped<'h>(&self, hub: &'h Hub) -> WrapBuilder<'h, T> {
        let (device, pointer) = (self.stream.device(), self.pointer as *mut c_void);
        // SAFETY: memory of this device. The borrow keeps it allocated, and keeps cudarc from using it, or from writing it if
        // onebuf only reads.
        self.options.set(unsafe { hub.wrap_pointer::<T>(&device, pointer, self.len) })
    }
}

impl<T: Pod, B> fmt::Debug for SliceWrap<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceWrap").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A buffer over cudarc's memory, which is handed back at the end, also if the function panics.
struct Wrapped<'m, T: Pod, B: CudarcLent<T>> {
    lent: B,
    stream: &'m CudarcStream,
    /// `None` when it was handed back.
    end: Option<SyncOnDrop<'m>>,
    of: PhantomData<fn() -> T>,
}

impl<T: Pod, B: CudarcLent<T>> Wrapped<'_, T, B> {
    fn hand_back(&mut self) -> Result<()> {
        let Some(end) = self.end.take() else { return Ok(()) };
        let buffer = self.lent.buffer();
        let handed = match B::IS_SHARED {
            // A hand-over would need the memory alone. The last wrap's drop waits, too, but returns no error.
            true => buffer.uses().map_or(Ok(()), |uses| uses.wait(buffer.hub().timeout())),
            false => buffer.hand_to(self.stream.queue()).map(drop),
        };
        // Behind the wait, so that cudarc's other streams wait for onebuf's work, too.
        drop(end);
        handed
    }
}

impl<T: Pod, B: CudarcLent<T>> Drop for Wrapped<'_, T, B> {
    fn drop(&mut self) {
        if let Err(why) = self.hand_back() {
            tracing::error!("cudarc's memory was handed back without a wait: {why}");
        }
    }
}
