//! Heap allocations of the fake device.
//!
//! # Safety
//!
//! A [`Heap`] owns its allocation and exposes its address only as a raw pointer; it never reads or writes the bytes after
//! initialisation.

#![allow(unsafe_code)]

use crate::{Error, Result};
use std::{
    alloc::{Layout, alloc, dealloc},
    ptr::NonNull,
};

/// Minimum alignment of every allocation: a cache line, which suffices for every type.
pub(super) const ALIGN_BYTES: usize = 64;

/// An allocation that never moves.
#[derive(Debug)]
pub(super) struct Heap {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is owned, and this type never accesses its bytes.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// Allocates `bytes` bytes, all set to `poison`; `device` is only for the error message.
    pub(super) fn new(device: &str, bytes: usize, align: usize, poison: u8) -> Result<Self> {
        let full =
            || Error::OutOfMemory { device: device.to_owned(), asked: bytes as u64, limit: None };
        if bytes == 0 || !align.is_power_of_two() {
            return Err(Error::invalid(format!(
                "{bytes} bytes aligned to {align}: there must be some, and the alignment a power of two"
            )));
        }
        let layout = Layout::from_size_align(bytes, align.max(ALIGN_BYTES)).map_err(|_| full())?;
        // SAFETY: the layout is not empty.
        let pointer = NonNull::new(unsafe { alloc(layout) }).ok_or_else(full)?;
        // SAFETY: the allocation has this size, and no other code uses it yet.
        unsafe { pointer.write_bytes(poison, bytes) };
        Ok(Heap { pointer, layout })
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: it came from `alloc` with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}
