//! onebuf's memory as cudarc's views.
//!
//! # Safety
//! The view of onebuf keeps the memory, which has as many elements, and excludes other users. cudarc's slice over it is leaked
//! instead of freed, before the view ends.

#![allow(unsafe_code)]

use crate::CudarcStream;
use bytemuck::Pod;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DeviceRepr};
use onebuf::{Buffer, Error, ReadView, Result, SyncMethod, WriteView};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// cudarc's slice over memory of onebuf. It is never freed.
struct Slice<T>(Option<CudaSlice<T>>);

impl<T: Pod + DeviceRepr> Slice<T> {
    /// # Safety
    /// Memory of the stream's device with `len` elements, which outlives this.
    unsafe fn new(stream: &CudarcStream, pointer: u64, len: usize) -> Result<Self> {
        // cudarc panics if the driver creates no event.
        // SAFETY: the caller's contract.
        let made = || unsafe { stream.cudarc().upgrade_device_ptr::<T>(pointer, len) };
        match catch_unwind(AssertUnwindSafe(made)) {
            Ok(slice) => Ok(Self(Some(slice))),
            Err(_) => {
                let needs = "a driver that creates events";
                Err(Error::unsupported("a CudaSlice of cudarc", needs))
            }
        }
    }
}

impl<T> Slice<T> {
    fn get(&self) -> &CudaSlice<T> {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only `drop` takes it"))
    }

    fn get_mut(&mut self) -> &mut CudaSlice<T> {
        self.0.as_mut().unwrap_or_else(|| unreachable!("only `drop` takes it"))
    }
}

impl<T> Drop for Slice<T> {
    fn drop(&mut self) {
        // Makes the stream wait for cudarc's other streams that used it, and frees only cudarc's events.
        if let Some(slice) = self.0.take() {
            slice.leak();
        }
    }
}

macro_rules! lent {
    ($(#[$doc:meta])* $name:ident over $view:ident by $take:ident) => {
        $(#[$doc])*
        pub struct $name<'b, T: Pod> {
            /// First: cudarc's use ends before the view.
            slice: Slice<T>,
            view: $view<'b, T>,
        }

        impl<'b, T: Pod + DeviceRepr> $name<'b, T> {
            pub(crate) fn new(stream: &'b CudarcStream, buffer: &'b Buffer<T>) -> Result<Self> {
                let view = buffer.$take(stream.queue())?;
                // SAFETY: the view, which is dropped last, keeps the memory.
                let slice = unsafe { Slice::new(stream, view.cuda_ptr()?, view.len()) }?;
                Ok(Self { slice, view })
            }
        }

        impl<T: Pod> $name<'_, T> {
            /// The elements, for cudarc's calls that read.
            pub fn as_view(&self) -> CudaView<'_, T> {
                self.slice.get().as_view()
            }

            /// How the stream was ordered after the buffer's earlier users.
            pub fn sync_method(&self) -> SyncMethod {
                self.view.sync_method()
            }
        }

        impl<T: Pod> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut named = f.debug_struct(stringify!($name));
                named.field("sync", &self.sync_method()).finish_non_exhaustive()
            }
        }
    };
}

lent! {
    /// A buffer that cudarc's calls on one stream read.
    CudarcRead over ReadView by read_on
}
lent! {
    /// A buffer that cudarc's calls on one stream read and write.
    CudarcWrite over WriteView by write_on
}

impl<T: Pod> CudarcWrite<'_, T> {
    /// The elements, for cudarc's calls that write.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.get_mut().as_view_mut()
    }
}
