//! Views: "this queue reads (or writes) this buffer now".
//!
//! # Safety
//! A guard of the host's excludes writers (and, when it writes, everybody) until it is dropped, so the
//! bytes it gives are the only use of them in this process; the memory is not exported to others.

#![allow(unsafe_code)]

use crate::{
    Access, Error, Result,
    buffer::Core,
    hal::{Memory, RawHandle, Rung},
    program::{Arg, IntoArg},
    queue::{Line, Queue},
    sync::Arc,
};
use bytemuck::Pod;
use std::{fmt, marker::PhantomData, ptr::NonNull};

/// What every guard is made of. Taking it did the hand-over; dropping it notes the queue's position.
pub(crate) struct Hold<'b> {
    core: &'b Core,
    site: usize,
    line: Arc<Line>,
    memory: Arc<dyn Memory>,
    access: Access,
    rung: Rung,
}

impl<'b> Hold<'b> {
    pub fn take(core: &'b Core, line: &Arc<Line>, access: Access) -> Result<Self> {
        let (site, memory, rung) = core.take(line, access.writes(), true)?;
        Ok(Self { core, site, line: line.clone(), memory, access, rung })
    }

    /// For whoever will overwrite everything: older contents need not come along.
    pub fn overwrite(core: &'b Core, line: &Arc<Line>) -> Result<Self> {
        let (site, memory, rung) = core.take(line, true, false)?;
        Ok(Self { core, site, line: line.clone(), memory, access: Access::ReadWrite, rung })
    }

    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    pub fn access(&self) -> Access {
        self.access
    }

    pub fn rung(&self) -> Rung {
        self.rung
    }

    pub fn bytes(&self) -> usize {
        self.core.bytes
    }

    /// What the buffer was made for.
    pub fn buffer_access(&self) -> Access {
        self.core.access
    }

    pub fn api(&self) -> &'static str {
        self.core.hub.topology().node(self.line.device).info.api.0
    }

    pub fn line(&self) -> &Arc<Line> {
        &self.line
    }

    pub fn is_on(&self, queue: &Queue) -> bool {
        Arc::ptr_eq(&self.line, &queue.line)
    }

    /// Where the host sees the bytes, when this is the host's own guard.
    fn host_pointer(&self) -> Option<NonNull<u8>> {
        let host = self.core.hub.host_index();
        self.memory.host_pointer().filter(|_| self.line.device == host)
    }

    /// The bytes themselves; `None` on any other device's guard.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        let pointer = self.host_pointer()?;
        // SAFETY: see the head of this file.
        Some(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), self.bytes()) })
    }

    /// The bytes themselves, to be changed; `None` also on a guard that only reads.
    pub fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        let pointer = self.host_pointer().filter(|_| self.access.writes())?;
        // SAFETY: see the head of this file.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), self.bytes()) })
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.core.give_back(self.site, &self.line, self.access.writes());
    }
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} view on {} by {}",
            self.access,
            self.core.device_id(self.line.device),
            self.rung
        )
    }
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'b, T: Pod> {
            hold: Hold<'b>,
            element: PhantomData<T>,
        }

        impl<'b, T: Pod> $name<'b, T> {
            pub(crate) fn new(hold: Hold<'b>) -> Self {
                Self { hold, element: PhantomData }
            }

            /// How many elements the buffer has.
            pub fn len(&self) -> usize {
                self.hold.bytes() / size_of::<T>()
            }

            /// Never: buffers have at least one element.
            pub fn is_empty(&self) -> bool {
                false
            }

            /// The step of the ladder by which this queue waited for the work before it.
            pub fn rung(&self) -> Rung {
                self.hold.rung()
            }

            /// The native handle or address. Valid until the view is dropped.
            pub fn raw(&self) -> RawHandle {
                self.hold.memory().raw()
            }

            /// The `cl_mem`, for OpenCL code that enqueues on this queue. Valid until the view is
            /// dropped; a caller that keeps it longer must retain it, and must not use it then.
            ///
            /// # Errors
            /// [`Error::Unsupported`] when this device sees the buffer as an address instead.
            pub fn cl_mem(&self) -> Result<*mut std::ffi::c_void> {
                match self.raw() {
                    RawHandle::Object(handle) if self.hold.api() == "opencl" => Ok(handle as *mut _),
                    _ => Err(Error::unsupported(
                        "a cl_mem of this view",
                        "an OpenCL queue, and memory that is not shared virtual memory: use `address()`",
                    )),
                }
            }

            /// The address that kernels on this queue use (an SVM pointer, or a host pointer).
            ///
            /// # Errors
            /// [`Error::Unsupported`] when this device sees the buffer as an object instead.
            pub fn address(&self) -> Result<NonNull<T>> {
                let address = match self.raw() {
                    RawHandle::Address(address) => NonNull::new(address as *mut T),
                    RawHandle::Object(_) => None,
                };
                address.ok_or_else(|| {
                    Error::unsupported("an address of this view", "shared virtual memory: use `cl_mem()`")
                })
            }
        }

        impl<'b, T: Pod> IntoArg<'b> for $name<'b, T> {
            fn into_arg(self) -> Arg<'b> {
                Arg::buffer::<T>(self.hold)
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
