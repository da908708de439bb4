//! Where this crate reaches inside buffers.
//!
//! # Safety
//! A buffer's state is changed by [`Link`](super::link::Link) alone, which lends what it has and takes back what it lent, and by
//! those who expose a buffer before the other process has it. What another process sent becomes memory only after
//! [`taken`](super::taken) has checked the file or descriptor: that its length is the one that was said, and that it cannot shrink.

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
    // SAFETY: see the head of the file.
    unsafe { internals::core(buffer) }
}

/// The state of a buffer that is no part of another.
pub(super) fn whole_core<T: Pod>(buffer: &Buffer<T>) -> Result<&Core> {
    // SAFETY: see the head of the file.
    unsafe { internals::whole_core(buffer) }
}

/// A buffer's state, to be found by its owner in the same process.
pub(super) fn share_core<T: Pod>(buffer: &mut Buffer<T>) -> Arc<Core> {
    // SAFETY: see the head of the file.
    unsafe { internals::share_core(buffer) }
}

/// Memory that a device imports, checked before.
pub(super) fn build_imported<T: Pod>(
    builder: BufferBuilder<'_, T>,
    device: DeviceIx,
    from: &Export,
) -> Result<Buffer<T>> {
    // SAFETY: see the head of the file.
    unsafe { internals::build_imported(builder, device, from) }
}

/// A memfd, checked before.
pub(super) fn map_file(hub: &Hub, file: OwnedFd, bytes: u64) -> Result<HostRange> {
    // SAFETY: see the head of the file.
    unsafe { internals::map_file(hub, file, bytes) }
}
