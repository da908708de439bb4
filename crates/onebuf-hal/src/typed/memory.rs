//! The memory trait that a backend implements.
//!
//! # Safety
//! The unsafe trait is a contract for backends.

#![allow(unsafe_code)]

use super::{ApiTypes, QueueOf};
use crate::{
    Access, AccessState, AddressRange, DeviceInfo, Domain, Error, Export, FdKind, FdRange,
    IpcRange, MemoryKind, ObjectRange, RawHandle, Result, locks::Arc,
};
use std::{any::Any, fmt, ptr::NonNull};

/// The position of a memory in its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationPart {
    /// A number that all parts of one allocation have in common. No other live memory of the device has it.
    pub allocation: usize,
    /// Offset of its first byte in the allocation.
    pub start: usize,
    /// Whether it is a region of another memory.
    pub is_region: bool,
}

impl AllocationPart {
    /// The whole allocation identified by `shared`, or the region that begins at the given offset.
    pub fn of<T>(shared: &Arc<T>, region: Option<usize>) -> Self {
        let (allocation, is_region) = (Arc::as_ptr(shared).addr(), region.is_some());
        Self { allocation, start: region.unwrap_or(0), is_region }
    }
}

/// Memory of one device: allocated by it, or imported from another. [`Memory`](crate::Memory) documents the methods in full.
///
/// A queue that is passed in belongs to this memory's device. The export methods are called only for whole memories.
///
/// # Safety
/// The contract of [`Memory`](crate::Memory). In addition, two memories between which a queue can copy and whose bytes overlap
/// are [parts](TypedMemory::part) of one allocation.
pub unsafe trait TypedMemory: Any + Send + Sync + fmt::Debug + Sized {
    /// The types of its API.
    type Types: ApiTypes<Memory = Self>;

    /// The domain that it belongs to.
    fn domain(&self) -> Domain;

    /// The description of its device.
    fn info(&self) -> &DeviceInfo;

    /// Usable size, in bytes.
    fn bytes(&self) -> usize;

    /// The memory kind.
    fn memory_kind(&self) -> MemoryKind;

    /// The native handle.
    fn raw(&self) -> RawHandle;

    /// How kernels may access it.
    fn access(&self) -> Access {
        Access::ReadWrite
    }

    /// Its position in the allocation. Memory without regions is a whole allocation.
    fn part(&self) -> AllocationPart {
        AllocationPart { allocation: std::ptr::from_ref(self).addr(), start: 0, is_region: false }
    }

    /// Required alignment of region offsets, in bytes.
    fn region_align(&self) -> usize {
        self.info().caps.align_bytes
    }

    /// Creates a region. This memory is not a region, the range lies inside it and is not empty, the offset is a multiple of
    /// [`TypedMemory::region_align`], and the access is no wider than that of the whole.
    ///
    /// # Safety
    /// The conditions above hold.
    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Self> {
        let _ = (offset, bytes, access);
        Err(Error::unsupported(format!("a region of {} memory", self.memory_kind()), "a buffer"))
    }

    /// The address of the bytes on the host: see [`Memory::host_pointer`](crate::Memory::host_pointer).
    fn host_pointer(&self) -> Option<NonNull<u8>> {
        None
    }

    /// Whether `reside` must be called to change who may access this memory.
    fn needs_access_state(&self) -> bool {
        false
    }

    /// The current access state.
    fn access_state(&self) -> AccessState {
        AccessState::Acquired
    }

    /// Flushes the host's stores to these bytes of its map: see [`Memory::flush_stores`](crate::Memory::flush_stores).
    fn flush_stores(&self, offset: usize, bytes: usize) -> Result<bool> {
        let _ = (offset, bytes);
        Ok(false)
    }

    /// Whether copies should read its map: see [`Memory::is_read_from_map`](crate::Memory::is_read_from_map).
    fn is_read_from_map(&self) -> bool {
        false
    }

    /// Whether transfers access these imported pages directly: see [`Memory::pins_pages`](crate::Memory::pins_pages).
    fn pins_pages(&self) -> bool {
        false
    }

    /// How many of these bytes are in pages on the wrong side: see [`Memory::misplaced`](crate::Memory::misplaced).
    fn misplaced(&self, offset: usize, bytes: usize, wanted: AccessState) -> usize {
        let _ = (offset, bytes, wanted);
        0
    }

    /// Whether the queue's reads, writes, fills and copies accept this memory. If not, only kernels can use it.
    fn takes_transfers(&self) -> bool {
        true
    }

    /// Exports it for another device: see [`Memory::export`](crate::Memory::export).
    ///
    /// # Safety
    /// The queue belongs to this memory's device, and this memory is not a region.
    unsafe fn export(&self, queue: &QueueOf<Self>) -> Result<Export> {
        let _ = queue;
        let what = format!("the host's view of {} memory", self.memory_kind());
        Err(Error::unsupported(what, "mapped_device memory"))
    }

    /// Exports a descriptor of this kind, by which others import the memory.
    fn export_fd(&self, kind: FdKind) -> Result<FdRange> {
        Err(Error::unsupported(
            format!("{} memory as {}", self.memory_kind(), kind),
            "exportable memory of a device that exports such descriptors",
        ))
    }

    /// Exports its device address: see [`Memory::export_address`](crate::Memory::export_address).
    ///
    /// # Safety
    /// As for [`TypedMemory::export`].
    unsafe fn export_address(&self, queue: &QueueOf<Self>) -> Result<AddressRange> {
        let _ = queue;
        Err(Error::unsupported(
            format!("the address of {} memory", self.memory_kind()),
            "memory whose address another API's kernels can use",
        ))
    }

    /// Exports a handle by which another process opens it.
    fn export_ipc(&self) -> Result<IpcRange> {
        Err(Error::unsupported(
            format!("{} memory in another process", self.memory_kind()),
            "a device whose plain memory has handles for that",
        ))
    }

    /// Exports it as a native object, for another API's sharing calls.
    fn export_object(&self) -> Result<ObjectRange> {
        Err(Error::unsupported(
            format!("{} memory as an object for another API's sharing calls", self.memory_kind()),
            "device memory of an API that others have such calls for",
        ))
    }

    /// Adds a reference to the native object, which the caller must release.
    fn retain(&self) -> Result<usize> {
        Err(Error::unsupported(
            "a reference to this memory for its caller",
            "memory of an API that counts references, and no shared virtual memory",
        ))
    }

    /// Offset of the bytes in the native object, for APIs without sub-objects.
    fn raw_offset(&self) -> usize {
        0
    }

    /// A remark about the allocation (huge pages, placement), for diagnostics.
    fn remark(&self) -> Option<String> {
        None
    }
}
