//! cudarc's memory as a buffer.
//!
//! # Safety
//! An exclusive borrow of a `CudaSlice` or `CudaViewMut` excludes cudarc's use of the memory, and keeps it allocated.

#![allow(unsafe_code)]

use crate::CudarcStream;
use bytemuck::Pod;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaViewMut, DevicePtrMut, DeviceRepr, DeviceSlice, SyncOnDrop,
};
use onebuf::{Buffer, Error, Fence, Result, WrapBuilder, prelude::*};
use std::{ffi::c_void, sync::Arc};

/// Memory of cudarc that can be wrapped: [`CudaSlice`] and [`CudaViewMut`].
pub trait CudarcMemory<T>: sealed::Memory<T> {}

impl<T> CudarcMemory<T> for CudaSlice<T> {}
impl<T> CudarcMemory<T> for CudaViewMut<'_, T> {}

mod sealed {
    use super::{Arc, CudaContext, CudaSlice, CudaViewMut, DevicePtrMut, DeviceSlice};

    /// cudarc's trait can be implemented for any type, so it proves nothing.
    pub trait Memory<T>: DevicePtrMut<T> {
        fn context(&self) -> &Arc<CudaContext>;
    }

    impl<T> Memory<T> for CudaSlice<T> {
        fn context(&self) -> &Arc<CudaContext> {
            self.stream().context()
        }
    }

    impl<T> Memory<T> for CudaViewMut<'_, T> {
        fn context(&self) -> &Arc<CudaContext> {
            DeviceSlice::stream(self).context()
        }
    }
}

/// cudarc's memory that is being wrapped.
#[must_use = "nothing is wrapped before `run`"]
pub struct SliceWrap<'m, T: Pod> {
    stream: &'m CudarcStream,
    pointer: u64,
    len: usize,
    /// Records cudarc's event behind onebuf's work.
    end: SyncOnDrop<'m>,
    /// Where cudarc's work ends.
    after: Fence,
    set: Vec<Set<'m, T>>,
}

/// An option of the wrap.
type Set<'m, T> = Box<dyn for<'h> FnOnce(WrapBuilder<'h, T>) -> WrapBuilder<'h, T> + 'm>;

impl<'m, T: Pod + DeviceRepr> SliceWrap<'m, T> {
    pub(crate) fn new(
        stream: &'m CudarcStream,
        memory: &'m mut impl CudarcMemory<T>,
    ) -> Result<Self> {
        if **sealed::Memory::context(memory) != **stream.cudarc().context() {
            return Err(Error::ForeignContext {
                have: "memory of another CudaContext".to_owned(),
                want: "memory of the stream's".to_owned(),
            });
        }
        let len = memory.len();
        // The stream waits for cudarc's earlier work on the memory, on whichever stream that is.
        let (pointer, end) = memory.device_ptr_mut(stream.cudarc());
        stream.cudarc().context().check_err().map_err(|why| Error::Driver {
            api: "cuda",
            call: "cuStreamWaitEvent",
            code: why.0 as i32,
            name: format!("{why:?}"),
        })?;
        let after = stream.queue().fence();
        Ok(Self { stream, pointer, len, end, after, set: Vec::new() })
    }
}

impl<'m, T: Pod> SliceWrap<'m, T> {
    /// Sets options: [`WrapBuilder::shared_with`], [`WrapBuilder::copies`] and so on.
    pub fn with(
        mut self,
        set: impl for<'h> FnOnce(WrapBuilder<'h, T>) -> WrapBuilder<'h, T> + 'm,
    ) -> Self {
        self.set.push(Box::new(set));
        self
    }

    /// Wraps the memory while `work` runs. Then the stream waits for onebuf's work, and so does cudarc's later work on any stream.
    ///
    /// The buffer is lent to a function: a guard could be forgotten, and the memory freed while onebuf's work still uses it.
    ///
    /// # Errors
    /// As for [`WrapBuilder::build`] and [`Buffer::hand_to`], and those of `work`.
    pub fn run<R>(self, work: impl FnOnce(&Buffer<T>) -> Result<R>) -> Result<R> {
        let Self { stream, pointer, len, end, after, set } = self;
        let (hub, device) = (stream.queue().hub().clone(), stream.device());
        // SAFETY: memory of this device, which the borrow keeps allocated and keeps cudarc from using.
        let wrap = unsafe { hub.wrap_pointer::<T>(&device, pointer as *mut c_void, len) };
        let wrap = set.into_iter().fold(wrap.after(&after), |wrap, set| set(wrap));
        let mut wrapped = Wrapped { buffer: wrap.build()?, stream, end: Some(end) };
        let done = work(&wrapped.buffer);
        wrapped.hand_back().and(done)
    }
}

/// A [`Buffer`] over cudarc's memory, which is handed back at the end, also if the function panics.
struct Wrapped<'m, T: Pod> {
    buffer: Buffer<T>,
    stream: &'m CudarcStream,
    /// `None` when it was handed back.
    end: Option<SyncOnDrop<'m>>,
}

impl<T: Pod> Wrapped<'_, T> {
    fn hand_back(&mut self) -> Result<()> {
        let Some(end) = self.end.take() else { return Ok(()) };
        let handed = self.buffer.hand_to(self.stream.queue());
        // Behind the wait, so that cudarc's other streams wait for onebuf's work, too.
        drop(end);
        handed.map(drop)
    }
}

impl<T: Pod> Drop for Wrapped<'_, T> {
    fn drop(&mut self) {
        if let Err(why) = self.hand_back() {
            tracing::error!("cudarc's memory was handed back without a wait: {why}");
        }
    }
}
