//! Host pages as a device's memory: allocated by onebuf, or imported.
//!
//! # Safety
//! This file writes pages only before any other code can reach them.

#![allow(unsafe_code)]

use super::{HostBackend, HostPages, queue::HostQueue};
use onebuf_hal::{
    Access, DeviceInfo, Domain, Export, HostRange, MemoryKind, RawHandle, Result,
    locks::Arc,
    native,
    typed::{AllocationPart, TypedMemory},
};
use std::{any::Any, ptr::NonNull};

/// Host pages that the CPU uses in place.
#[derive(Debug)]
pub struct HostMemory {
    domain: Domain,
    info: Arc<DeviceInfo>,
    range: HostRange,
    /// Set if onebuf allocated them.
    pages: Option<Arc<HostPages>>,
    /// Whether it is a region of another memory.
    part: bool,
}

impl HostMemory {
    /// Wraps pages that onebuf allocated.
    pub(super) fn from_pages(
        domain: Domain,
        info: &Arc<DeviceInfo>,
        pages: Arc<HostPages>,
    ) -> Self {
        let owner: Arc<dyn Any + Send + Sync> = pages.clone();
        let range = HostRange { pointer: pages.pointer(), bytes: pages.bytes(), owner };
        HostMemory { domain, info: info.clone(), range, pages: Some(pages), part: false }
    }

    /// Wraps pages that other code allocated.
    pub(super) fn from_range(domain: Domain, info: &Arc<DeviceInfo>, range: HostRange) -> Self {
        HostMemory { domain, info: info.clone(), range, pages: None, part: false }
    }

    /// Writes the initial contents of new pages.
    pub(super) fn initialise(&self, contents: &[u8]) -> Result<()> {
        // SAFETY: pages of `bytes` bytes that no other code can reach yet.
        unsafe { native::initialise(self.range.pointer, self.range.bytes, contents) }
    }

    /// The first byte.
    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.range.pointer
    }
}

// SAFETY: the range stays mapped while its owner lives, which this holds; a region lies inside it.
unsafe impl TypedMemory for HostMemory {
    type Types = HostBackend;

    fn domain(&self) -> Domain {
        self.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The process's memory counts as one allocation: two ranges may share pages, whatever their origin.
    fn part(&self) -> AllocationPart {
        AllocationPart {
            allocation: 0,
            start: self.range.pointer.addr().get(),
            is_region: self.part,
        }
    }

    fn bytes(&self) -> usize {
        self.range.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::HostPages
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        Some(self.range.pointer)
    }

    unsafe fn export(&self, _queue: &HostQueue) -> Result<Export> {
        Ok(Export::Host(self.range.clone()))
    }

    fn region_align(&self) -> usize {
        1
    }

    unsafe fn region(&self, offset: usize, bytes: usize, _access: Access) -> Result<HostMemory> {
        let range = self.range.part(offset, bytes)?;
        let info = self.info.clone();
        Ok(HostMemory { domain: self.domain, info, range, pages: None, part: true })
    }

    fn raw(&self) -> RawHandle {
        RawHandle::Address(self.range.pointer.addr().get())
    }

    fn remark(&self) -> Option<String> {
        self.pages.as_ref().map(|pages| pages.remark())
    }
}
