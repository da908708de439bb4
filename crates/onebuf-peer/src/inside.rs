//! The only module of this crate that accesses the internals of buffers.
//!
//! # Safety
//! Only [`Link`](super::link::Link), which lends a buffer that it has and takes back what it lent, and code that exposes a buffer
//! before the other process has it, change a buffer's state. Memory from another process is used only after
//! [`taken`](super::taken) has checked its file or descriptor: it has the announced length and cannot shrink.

#![allow(unsafe_code)]

use bytemuck::Pod;
use onebuf_core::{
    Buffer, BufferBuilder, Hub,
    internals::{self, Core},
    topology::DeviceIx,
};
use onebuf_hal::{Export, HostRange, Result, locks::Arc};
use std::os::fd::OwnedFd;

/// A buffer's state.
pub(super) fn core<T: Pod>(buffer: &Buffer<T>) -> &Core {
    // SAFETY: see the module's safety section.
    unsafe { internals::core(buffer) }
}

/// The state of a buffer that is not a region of another.
pub(super) fn whole_core<T: Pod>(buffer: &Buffer<T>) -> Result<&Core> {
    // SAFETY: see the module's safety section.
    unsafe { internals::whole_core(buffer) }
}

/// A shared reference to a buffer's state, by which an owner in the same process finds it.
pub(super) fn share_core<T: Pod>(buffer: &mut Buffer<T>) -> Arc<Core> {
    // SAFETY: see the module's safety section.
    unsafe { internals::share_core(buffer) }
}

/// Builds a buffer over memory that a device imports. The caller has checked the memory.
pub(super) fn build_imported<T: Pod>(
    builder: BufferBuilder<'_, T>,
    device: DeviceIx,
    from: &Export,
) -> Result<Buffer<T>> {
    // SAFETY: see the module's safety section.
    unsafe { internals::build_imported(builder, device, from) }
}

/// Maps a memfd that the caller has checked.
pub(super) fn map_file(hub: &Hub, file: OwnedFd, bytes: u64) -> Result<HostRange> {
    // SAFETY: see the module's safety section.
    unsafe { internals::map_file(hub, file, bytes) }
}
