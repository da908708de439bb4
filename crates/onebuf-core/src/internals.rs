//! What the crates above the core need of it, and users do not. Hidden from the documentation; it may change in any release.
//!
//! Nothing here is a safe way to an object of [`onebuf_hal`] or to a buffer's state: safe code relies on what those say.
//!
//! # Safety
//!
//! Who calls these functions keeps the core's invariants:
//!
//! * A native device, queue, event or memory is used as `onebuf_hal` documents it. Work on a buffer's memory is enqueued only
//!   while a view of that buffer on that queue is held.
//! * A buffer's state is changed only as its own methods do: an entry that was taken is given back once, what was lent arrives
//!   once, and memory that another process can write was exposed before.
//! * A file or descriptor that becomes memory is checked first: it is as long as was said, and cannot shrink.

#![allow(unsafe_code)]

pub use crate::{
    buffer::{Core, Hold, Shape, Window, flags},
    device_table::MAX_FOREIGN_DEVICES,
    foreign::{Asked, ElementLayout, ForeignMemory, Registration, Whose, WrappedMemory},
    hub::WeakHub,
    observe::{Began, Tracer},
    program::{check_graft_target, graft_first, graft_spirv, is_built_on},
    sync::declared as declared_sync_methods,
    verdicts::GRAFT,
};

use crate::{Buffer, BufferBuilder, Fence, Hub, Queue, ReadView, WriteView, topology::DeviceIx};
use bytemuck::Pod;
use onebuf_hal::{self as hal, Export, HostRange, PageFile, Result, locks::Arc};
use std::os::fd::OwnedFd;

/// A device as its backend sees it.
///
/// # Safety
/// See the module.
pub unsafe fn device(hub: &Hub, device: DeviceIx) -> &dyn hal::Device {
    hub.hal(device)
}

/// The native queue.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn queue(queue: &Queue) -> &Arc<dyn hal::Queue> {
    queue.native()
}

/// The events that tell when a fence is reached.
///
/// # Safety
/// See the module.
pub unsafe fn events(fence: &Fence) -> Result<Vec<Arc<dyn hal::Event>>> {
    fence.native_events()
}

/// What a view holds.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn read_hold<'v, 'b, T: Pod>(view: &'v ReadView<'b, T>) -> &'v Hold<'b> {
    view.hold()
}

/// What a view holds.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn write_hold<'v, 'b, T: Pod>(view: &'v WriteView<'b, T>) -> &'v Hold<'b> {
    view.hold()
}

/// What a view holds, for slices that are written.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn write_hold_mut<'v, 'b, T: Pod>(view: &'v mut WriteView<'b, T>) -> &'v mut Hold<'b> {
    view.hold_mut()
}

/// A buffer's state, and who sees the buffer.
///
/// # Safety
/// See the module.
pub unsafe fn core<T: Pod>(buffer: &Buffer<T>) -> &Core {
    buffer.core()
}

/// The same, unless the buffer is a window of another one's memory.
///
/// # Safety
/// See the module.
///
/// # Errors
/// [`Error::Unsupported`](onebuf_hal::Error::Unsupported) for such a window.
pub unsafe fn whole_core<T: Pod>(buffer: &Buffer<T>) -> Result<&Core> {
    buffer.whole_core()
}

/// A buffer's state, shared with the caller from now on.
///
/// # Safety
/// See the module.
pub unsafe fn share_core<T: Pod>(buffer: &mut Buffer<T>) -> Arc<Core> {
    buffer.share_core()
}

/// Builds a buffer over memory that the device imports.
///
/// # Safety
/// The caller has checked what is imported: see the module.
///
/// # Errors
/// As for [`BufferBuilder::build`], and what the device says of the import.
pub unsafe fn build_imported<T: Pod>(
    builder: BufferBuilder<'_, T>,
    device: DeviceIx,
    from: &Export,
) -> Result<Buffer<T>> {
    builder.build_imported(device, from)
}

/// Another process's file as pages.
///
/// # Safety
/// The file is at least so long, and cannot shrink: see the module.
///
/// # Errors
/// What the kernel says.
pub unsafe fn map_file(hub: &Hub, file: OwnedFd, bytes: u64) -> Result<HostRange> {
    hub.map_file(file, bytes)
}

/// The file behind pages that the host allocated.
///
/// # Errors
/// For pages that are no file of the hub's.
pub fn page_file(hub: &Hub, range: &HostRange) -> Result<PageFile> {
    hub.page_file(range)
}
