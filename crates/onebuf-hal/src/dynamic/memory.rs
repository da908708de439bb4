//! Implements the object-safe memory trait for every typed memory.
//!
//! # Safety
//! The typed trait has the contract of the object-safe one. The conditions of typed methods on their arguments are checked here
//! before each call.

#![allow(unsafe_code)]

use crate::{
    self as hal, Access, AccessState, AddressRange, Error, Export, FdKind, FdRange, IpcRange,
    MemoryKind, ObjectRange, RawHandle, Result, checks,
    locks::Arc,
    typed::{TypedMemory, own_queue},
};
use std::ptr::NonNull;

// SAFETY: the contract of `TypedMemory`; a region is checked to lie inside.
unsafe impl<M: TypedMemory> hal::Memory for M {
    #[inline]
    fn bytes(&self) -> usize {
        TypedMemory::bytes(self)
    }

    #[inline]
    fn memory_kind(&self) -> MemoryKind {
        TypedMemory::memory_kind(self)
    }

    #[inline]
    fn host_pointer(&self) -> Option<NonNull<u8>> {
        TypedMemory::host_pointer(self)
    }

    #[inline]
    fn needs_access_state(&self) -> bool {
        TypedMemory::needs_access_state(self)
    }

    #[inline]
    fn access_state(&self) -> AccessState {
        TypedMemory::access_state(self)
    }

    fn flush_stores(&self, offset: usize, bytes: usize) -> Result<bool> {
        if bytes == 0 {
            return Ok(false);
        }
        checks::range(TypedMemory::bytes(self), offset, bytes)?;
        TypedMemory::flush_stores(self, offset, bytes)
    }

    fn is_read_from_map(&self) -> bool {
        TypedMemory::is_read_from_map(self)
    }

    fn pins_pages(&self) -> bool {
        TypedMemory::pins_pages(self)
    }

    fn misplaced(&self, offset: usize, bytes: usize, wanted: AccessState) -> usize {
        TypedMemory::misplaced(self, offset, bytes, wanted)
    }

    fn export(&self, queue: &dyn hal::Queue) -> Result<Export> {
        let queue = own_queue(self, queue)?;
        check_whole(self)?;
        // SAFETY: the queue belongs to this device, and the memory is not a region.
        unsafe { TypedMemory::export(self, queue) }
    }

    fn export_fd(&self, kind: FdKind) -> Result<FdRange> {
        check_whole(self)?;
        TypedMemory::export_fd(self, kind)
    }

    fn export_address(&self, queue: &dyn hal::Queue) -> Result<AddressRange> {
        let queue = own_queue(self, queue)?;
        check_whole(self)?;
        // SAFETY: the queue belongs to this device, and the memory is not a region.
        unsafe { TypedMemory::export_address(self, queue) }
    }

    fn takes_transfers(&self) -> bool {
        TypedMemory::takes_transfers(self)
    }

    fn export_ipc(&self) -> Result<IpcRange> {
        check_whole(self)?;
        TypedMemory::export_ipc(self)
    }

    fn export_object(&self) -> Result<ObjectRange> {
        check_whole(self)?;
        TypedMemory::export_object(self)
    }

    /// Checks the rules for regions, which some drivers require and do not check.
    fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Arc<dyn hal::Memory>> {
        let whole = checks::Whole {
            bytes: TypedMemory::bytes(self),
            access: TypedMemory::access(self),
            align: self.region_align(),
            is_part: self.part().is_region,
        };
        whole.check_region(offset, bytes, access)?;
        // SAFETY: `check_region` accepted the arguments.
        Ok(Arc::new(unsafe { TypedMemory::region(self, offset, bytes, access) }?))
    }

    #[inline]
    fn raw(&self) -> RawHandle {
        TypedMemory::raw(self)
    }

    fn retain(&self) -> Result<usize> {
        TypedMemory::retain(self)
    }

    #[inline]
    fn raw_offset(&self) -> usize {
        TypedMemory::raw_offset(self)
    }

    fn remark(&self) -> Option<String> {
        TypedMemory::remark(self)
    }
}

fn check_whole<M: TypedMemory>(memory: &M) -> Result<()> {
    match memory.part().is_region {
        false => Ok(()),
        true => Err(Error::unsupported("the export of a region", "the whole memory")),
    }
}
