//! Host pages as a device's memory: the CPU's own, or somebody else's.
//!
//! # Safety
//! Pages are written here only before anybody else knows them.

#![allow(unsafe_code)]

use super::{API, HostPages};
use onebuf_hal::{
    Access, AccessState, Domain, Error, Export, HostRange, Memory, MemoryKind, Queue, RawHandle,
    Result, locks::Arc, native,
};
use std::{any::Any, ptr::NonNull};

/// Host pages that the CPU uses where they lie.
#[derive(Debug)]
pub struct HostMemory {
    domain: Domain,
    range: HostRange,
    /// There when onebuf allocated them.
    pages: Option<Arc<HostPages>>,
    /// A part of another memory.
    part: bool,
}

impl HostMemory {
    /// Pages of our own.
    pub(super) fn from_pages(domain: Domain, pages: Arc<HostPages>) -> Self {
        let owner: Arc<dyn Any + Send + Sync> = pages.clone();
        let range = HostRange { pointer: pages.pointer(), bytes: pages.bytes(), owner };
        HostMemory { domain, range, pages: Some(pages), part: false }
    }

    /// Pages that somebody else allocated.
    pub(super) fn from_range(domain: Domain, range: HostRange) -> Self {
        HostMemory { domain, range, pages: None, part: false }
    }

    /// What new pages hold.
    pub(super) fn initialise(&self, contents: &[u8]) -> Result<()> {
        // SAFETY: our pages, as long as said, and nobody else has them yet.
        unsafe { native::initialise(self.range.pointer, self.range.bytes, contents) }
    }

    /// First byte.
    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.range.pointer
    }

    /// The memory behind the trait, when it belongs to this domain.
    pub(super) fn of(memory: &dyn Memory, domain: Domain) -> Result<&HostMemory> {
        memory
            .as_any()
            .downcast_ref::<HostMemory>()
            .filter(|memory| memory.domain == domain)
            .ok_or_else(|| Error::ForeignContext {
                have: format!("{memory:?}"),
                want: format!("memory of {API} {domain:?}"),
            })
    }
}

impl Memory for HostMemory {
    fn bytes(&self) -> usize {
        self.range.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::HostPages
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        Some(self.range.pointer)
    }

    fn needs_access_state(&self) -> bool {
        false
    }

    fn access_state(&self) -> AccessState {
        AccessState::Acquired
    }

    fn export(&self, _queue: &dyn Queue) -> Result<Export> {
        Ok(Export::Host(self.range.clone()))
    }

    fn region(&self, offset: usize, bytes: usize, _access: Access) -> Result<Arc<dyn Memory>> {
        if self.part {
            return Err(Error::invalid("a part of a part of a memory"));
        }
        let range = self.range.part(offset, bytes)?;
        Ok(Arc::new(HostMemory { domain: self.domain, range, pages: None, part: true }))
    }

    fn raw(&self) -> RawHandle {
        RawHandle::Address(self.range.pointer.addr().get())
    }

    fn remark(&self) -> Option<String> {
        self.pages.as_ref().map(|pages| pages.remark())
    }
}
