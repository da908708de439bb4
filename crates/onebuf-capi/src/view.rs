//! Views
//!
//! A view means "this queue reads (or writes) this buffer now". Taking it makes the newest contents visible to the
//! queue and orders the queue after the work that wrote them. Freeing it records the queue's progress. A view gives the
//! native handle, for libraries that enqueue work themselves. A launch takes views by itself.

use crate::{
    buffer::onebuf_buffer,
    entry::{entry, free},
    fault::Result,
    handle::{Noun, noun},
    input::{Slot, out},
    kept::{Buf, Kept},
    queue::onebuf_queue,
    status::onebuf_status,
    wait::{Blocked, when_free},
    words::{self, onebuf_access, onebuf_sync_method},
};
use onebuf::{Access, Arg, Error, IntoArg, Queue, SyncMethod, hal::RawHandle};
use std::{
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
};

/// A view. Free it with onebuf_view_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_view {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_view, View, 7);

/// A guard, usable as an argument of launches, and the objects that it borrows from. The guard is dropped first.
#[doc(hidden)]
pub struct View {
    /// Empty while a launch uses it.
    arg: Mutex<Option<Arg<'static>>>,
    sync_method: SyncMethod,
    pub(crate) buffer: Arc<Kept>,
    queue: Arc<Queue>,
}

impl View {
    pub(crate) fn new(buffer: Arc<Kept>, queue: Arc<Queue>, used: ViewUse) -> Result<Self> {
        // SAFETY: the guard is dropped first.
        let (arg, sync_method) = unsafe { take(&buffer, &queue, used)? };
        Ok(Self { arg: Mutex::new(Some(arg)), sync_method, buffer, queue })
    }

    /// Takes the view for one launch, which returns it. Two at once would be two writers.
    pub(crate) fn lend(&self) -> Result<Arg<'static>> {
        let mut arg = self.arg.lock().unwrap_or_else(PoisonError::into_inner);
        arg.take().ok_or_else(|| self.lent())
    }

    pub(crate) fn give_back(&self, arg: Arg<'static>) {
        *self.arg.lock().unwrap_or_else(PoisonError::into_inner) = Some(arg);
    }

    fn lent(&self) -> crate::fault::Fault {
        let what = "the view is in use by a launch: pass it once, and to one launch at a time";
        Error::Busy { what: what.into() }.into()
    }

    /// The address, if the view's queue belongs to that API.
    fn device_ptr(&self, api: &str) -> Result<usize> {
        let own = self.queue.device().info().api.0;
        match self.raw()? {
            RawHandle::Address(address) if own == api => Ok(address),
            _ => {
                let what = format!("a {api} pointer of a view on {own}");
                Err(Error::unsupported(what, format!("a view taken on a {api} queue")).into())
            }
        }
    }

    /// The native buffer, and the offset in it, if the view's queue belongs to that API.
    fn object(&self, api: &str) -> Result<(u64, u64)> {
        let arg = self.arg.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(arg.as_ref().ok_or_else(|| self.lent())?.object(api)?)
    }

    fn raw(&self) -> Result<RawHandle> {
        let arg = self.arg.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(arg.as_ref().ok_or_else(|| self.lent())?.raw()?)
    }
}

/// What kernels do with the buffer under a view.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ViewUse {
    Read,
    ReadWrite,
    /// They write every byte, and read none.
    Overwrite,
}

impl From<Access> for ViewUse {
    fn from(access: Access) -> Self {
        if access == Access::Read { ViewUse::Read } else { ViewUse::ReadWrite }
    }
}

/// Takes a view, and returns the sync method.
///
/// # Safety
/// The view is dropped before both `Arc`s.
#[inline]
pub(crate) unsafe fn take(
    buffer: &Arc<Kept>,
    queue: &Arc<Queue>,
    used: ViewUse,
) -> Result<(Arg<'static>, SyncMethod)> {
    // SAFETY: both objects stay in place until the caller's `Arc`s are dropped, and the guard is dropped before those.
    let (buffer, queue): (&'static Kept, &'static Queue) =
        unsafe { (&*Arc::as_ptr(buffer), &*Arc::as_ptr(queue)) };
    Ok(match (&buffer.buf, used) {
        (Buf::Whole(buffer), ViewUse::Read) => {
            argument(buffer.read_on(queue)?, |v| v.sync_method())
        }
        (Buf::Whole(buffer), ViewUse::ReadWrite) => {
            argument(buffer.write_on(queue)?, |v| v.sync_method())
        }
        (Buf::Whole(buffer), ViewUse::Overwrite) => {
            argument(buffer.overwrite_on(queue)?, |v| v.sync_method())
        }
        (Buf::Region { region, .. }, ViewUse::Read) => {
            argument(region.read_on(queue)?, |v| v.sync_method())
        }
        // The rest of the buffer keeps its contents, and with it the region.
        (Buf::Region { region, .. }, _) => argument(region.write_on(queue)?, |v| v.sync_method()),
    })
}

#[inline]
fn argument<V: IntoArg<'static>>(
    view: V,
    sync_method: fn(&V) -> SyncMethod,
) -> (Arg<'static>, SyncMethod) {
    let sync_method = sync_method(&view);
    (view.into_arg(), sync_method)
}

/// Lets kernels on the queue read the buffer (ONEBUF_READ), or read and write it, until the view is freed. ONEBUF_BUSY
/// while a conflicting view or mapping is held; ONEBUF_NOT_SHARED for a device that the buffer is not shared with.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_take(
    buffer: onebuf_buffer,
    queue: onebuf_queue,
    access: onebuf_access,
    view: Slot<'_, onebuf_view>,
) -> onebuf_status {
    entry(|| {
        let view = out(view, "view")?;
        let access = words::access(access)?;
        *view = onebuf_view::put(View::new(buffer.get()?, queue.get()?, access.into())?)?;
        Ok(())
    })
}

/// Takes a view like onebuf_view_take(), and waits until no conflicting view or mapping is held. ONEBUF_TIMEOUT if that
/// takes longer; the message names the buffer and the device that holds it. A thread that waits for a view of its own
/// waits until the timeout.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_take_within(
    buffer: onebuf_buffer,
    queue: onebuf_queue,
    access: onebuf_access,
    timeout_ms: u64,
    view: Slot<'_, onebuf_view>,
) -> onebuf_status {
    entry(|| {
        let view = out(view, "view")?;
        let (access, buffer, queue) = (words::access(access)?, buffer.get()?, queue.get()?);
        let taken = when_free(timeout_ms, buffer.whole().0.hub(), || {
            let taken = View::new(buffer.clone(), queue.clone(), access.into());
            taken.map_err(|fault| Blocked::on(&buffer, fault))
        })?;
        *view = onebuf_view::put(taken)?;
        Ok(())
    })
}

/// Lets kernels on the queue write the buffer until the view is freed, and discards its contents: a device with memory of its
/// own gets no bytes of them. Kernels that read the buffer are refused. Bytes that are not written are unspecified afterwards. A
/// region keeps its contents, because the rest of the buffer does.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_overwrite(
    buffer: onebuf_buffer,
    queue: onebuf_queue,
    view: Slot<'_, onebuf_view>,
) -> onebuf_status {
    entry(|| {
        let view = out(view, "view")?;
        *view = onebuf_view::put(View::new(buffer.get()?, queue.get()?, ViewUse::Overwrite)?)?;
        Ok(())
    })
}

/// The `cl_mem`, for OpenCL code that enqueues on the view's queue. Valid until the view is freed. ONEBUF_UNSUPPORTED
/// if the device accesses the buffer by an address.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_cl_mem(
    view: onebuf_view,
    cl_mem: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let cl_mem = out(cl_mem, "cl_mem")?;
        let view = view.get()?;
        match view.raw()? {
            RawHandle::Object(object) if view.queue.device().info().api.0 == "opencl" => {
                *cl_mem = object as *mut c_void;
                Ok(())
            }
            _ => Err(Error::unsupported(
                "a cl_mem of this view",
                "an OpenCL queue, and memory that is not shared virtual memory: use onebuf_view_address()",
            )
            .into()),
        }
    })
}

/// The address that kernels on the view's queue use: an SVM pointer or a host pointer. Valid until the view is freed.
/// ONEBUF_UNSUPPORTED if the device accesses the buffer as an object.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_address(
    view: onebuf_view,
    address: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let address = out(address, "address")?;
        match view.get()?.raw()? {
            RawHandle::Address(found) => {
                *address = found as *mut c_void;
                Ok(())
            }
            RawHandle::Object(_) => Err(Error::unsupported(
                "an address of this view",
                "shared virtual memory: use onebuf_view_cl_mem()",
            )
            .into()),
        }
    })
}

/// The `CUdeviceptr`, for CUDA code and libraries that enqueue on the stream of the view's queue
/// (onebuf_queue_native()). Valid until the view is freed. ONEBUF_UNSUPPORTED on a queue of another API.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_cuda_ptr(view: onebuf_view, pointer: Slot<'_, u64>) -> onebuf_status {
    entry(|| {
        let pointer = out(pointer, "pointer")?;
        *pointer = view.get()?.device_ptr("cuda")? as u64;
        Ok(())
    })
}

/// The `hipDeviceptr_t`, for HIP code and libraries that enqueue on the stream of the view's queue
/// (onebuf_queue_native()). Valid until the view is freed. ONEBUF_UNSUPPORTED on a queue of another API.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_hip_ptr(
    view: onebuf_view,
    pointer: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let pointer = out(pointer, "pointer")?;
        *pointer = view.get()?.device_ptr("hip")? as *mut c_void;
        Ok(())
    })
}

/// The name of the OpenGL buffer. In a context that was registered by onebuf_gl_wrap(), the name is valid there too: take
/// the view on a queue of that context's device or on the context's own queue, then bind the buffer to a shader. Valid
/// until the view is freed. ONEBUF_UNSUPPORTED on a queue of another API.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_gl_name(view: onebuf_view, name: Slot<'_, u32>) -> onebuf_status {
    entry(|| {
        let name = out(name, "name")?;
        *name = view.get()?.object("gl")?.0 as u32;
        Ok(())
    })
}

/// The `VkBuffer`, and the byte offset at which the view begins in it, for Vulkan code that submits to the `VkQueue` of
/// the view's queue (onebuf_queue_native()). Valid until the view is freed. ONEBUF_UNSUPPORTED on a queue of another API.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_vk_buffer(
    view: onebuf_view,
    vk_buffer: Slot<'_, u64>,
    offset: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        let (vk_buffer, offset) = (out(vk_buffer, "vk_buffer")?, out(offset, "offset")?);
        (*vk_buffer, *offset) = view.get()?.object("vulkan")?;
        Ok(())
    })
}

/// The sync method by which the queue waited for earlier work.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_sync_method(
    view: onebuf_view,
    sync_method: Slot<'_, onebuf_sync_method>,
) -> onebuf_status {
    entry(|| {
        *out(sync_method, "sync_method")? = words::sync_method_number(view.get()?.sync_method);
        Ok(())
    })
}

/// Frees a view. Other queues and the host may use the buffer then, ordered after what was enqueued.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_view_free(view: onebuf_view) -> onebuf_status {
    free(view)
}
