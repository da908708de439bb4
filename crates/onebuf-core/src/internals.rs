//! Functions for onebuf's own crates above the core. Hidden from the documentation; they may change in any release.
//!
//! Access to objects of [`onebuf_hal`] and to a buffer's state is `unsafe`, because safe code relies on both.
//!
//! # Safety
//!
//! The caller must uphold the core's invariants:
//!
//! * A native device, queue, event or memory is used as `onebuf_hal` documents it. Work on a buffer's memory is enqueued only
//!   while a view of that buffer on that queue is held.
//! * A buffer's state changes only through its own methods: each guard entry that is taken is given back once, a lent buffer
//!   arrives once, and memory is exposed before another process can write it.
//! * A file or descriptor is checked before it becomes memory: it has the stated length and cannot shrink.

#![allow(unsafe_code)]

pub use crate::{
    buffer::{Core, Hold, Shape, Window, flags},
    device_table::MAX_FOREIGN_DEVICES,
    foreign::{
        Asked, ElementLayout, ForeignDevices, ForeignMemory, Registration, Whose, WrappedMemory,
    },
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

/// Returns the backend's object for a device.
///
/// # Safety
/// See the module.
pub unsafe fn device(hub: &Hub, device: DeviceIx) -> &dyn hal::Device {
    hub.hal(device)
}

/// Returns the backend's object for a queue.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn queue(queue: &Queue) -> &Arc<dyn hal::Queue> {
    queue.native()
}

/// Returns the events that complete when the fence is reached.
///
/// # Safety
/// See the module.
pub unsafe fn events(fence: &Fence) -> Result<Vec<Arc<dyn hal::Event>>> {
    fence.native_events()
}

/// Returns the hold behind a view.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn read_hold<'v, 'b, T: Pod>(view: &'v ReadView<'b, T>) -> &'v Hold<'b> {
    view.hold()
}

/// Returns the hold behind a view.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn write_hold<'v, 'b, T: Pod>(view: &'v WriteView<'b, T>) -> &'v Hold<'b> {
    view.hold()
}

/// Returns the hold behind a view, for access to mutable slices.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn write_hold_mut<'v, 'b, T: Pod>(view: &'v mut WriteView<'b, T>) -> &'v mut Hold<'b> {
    view.hold_mut()
}

/// Returns a buffer's core: its aliases and its state.
///
/// # Safety
/// See the module.
pub unsafe fn core<T: Pod>(buffer: &Buffer<T>) -> &Core {
    buffer.core()
}

/// Returns a buffer's core, unless the buffer is only a window of a larger memory.
///
/// # Safety
/// See the module.
///
/// # Errors
/// [`Error::Unsupported`](onebuf_hal::Error::Unsupported) for a window.
pub unsafe fn whole_core<T: Pod>(buffer: &Buffer<T>) -> Result<&Core> {
    buffer.whole_core()
}

/// Returns a buffer's core as a shared reference that the caller may keep.
///
/// # Safety
/// See the module.
pub unsafe fn share_core<T: Pod>(buffer: &mut Buffer<T>) -> Arc<Core> {
    buffer.share_core()
}

/// Builds a buffer over memory that the device imports.
///
/// # Safety
/// The caller has checked the descriptor or handle: see the module.
///
/// # Errors
/// As for [`BufferBuilder::build`], and the device's error if the import fails.
pub unsafe fn build_imported<T: Pod>(
    builder: BufferBuilder<'_, T>,
    device: DeviceIx,
    from: &Export,
) -> Result<Buffer<T>> {
    builder.build_imported(device, from)
}

/// Maps another process's file as host pages.
///
/// # Safety
/// The file has at least `bytes` bytes and cannot shrink: see the module.
///
/// # Errors
/// The operating system's error.
pub unsafe fn map_file(hub: &Hub, file: OwnedFd, bytes: u64) -> Result<HostRange> {
    hub.map_file(file, bytes)
}

/// Returns the file behind pages that the host allocated.
///
/// # Errors
/// When the pages do not belong to a file of the hub.
pub fn page_file(hub: &Hub, range: &HostRange) -> Result<PageFile> {
    hub.page_file(range)
}
