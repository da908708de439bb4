//! Memory, as its backend implements it.
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

/// Where in an allocation a memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationPart {
    /// A number that the parts of one allocation have in common, and no other living memory of the device has.
    pub allocation: usize,
    /// The byte of the allocation that it begins at.
    pub start: usize,
    /// Whether it is a region of another memory.
    pub is_region: bool,
}

impl AllocationPart {
    /// The whole of what is shared by all memories of an allocation; or the region that begins at a byte of it.
    pub fn of<T>(shared: &Arc<T>, region: Option<usize>) -> Self {
        let (allocation, is_region) = (Arc::as_ptr(shared).addr(), region.is_some());
        Self { allocation, start: region.unwrap_or(0), is_region }
    }
}

/// Memory of one device: allocated by it, or another's memory seen from it. Methods without a word of their own are those
/// of [`Memory`](crate::Memory).
///
/// A queue that is passed in is one of this memory's device. The exports are asked of whole memories alone.
///
/// # Safety
/// The contract of [`Memory`](crate::Memory). Moreover two memories that a queue can copy between, and whose bytes overlap, are
/// [parts](TypedMemory::part) of one allocation.
pub unsafe trait TypedMemory: Any + Send + Sync + fmt::Debug + Sized {
    /// The types of its API.
    type Types: ApiTypes<Memory = Self>;

    /// Where it belongs.
    fn domain(&self) -> Domain;

    /// What is known of its device.
    fn info(&self) -> &DeviceInfo;

    /// Usable size.
    fn bytes(&self) -> usize;

    /// In what form it is.
    fn memory_kind(&self) -> MemoryKind;

    /// The native handle.
    fn raw(&self) -> RawHandle;

    /// What kernels may do with it.
    fn access(&self) -> Access {
        Access::ReadWrite
    }

    /// Where it lies in what was allocated. Memory without regions is an allocation of its own.
    fn part(&self) -> AllocationPart {
        AllocationPart { allocation: std::ptr::from_ref(self).addr(), start: 0, is_region: false }
    }

    /// What the offsets of regions are multiples of.
    fn region_align(&self) -> usize {
        self.info().caps.align_bytes
    }

    /// A part of it as memory of its own. This is no region itself, the part lies inside and is not empty, its offset is a
    /// multiple of [`TypedMemory::region_align`], and the access is no wider than the whole's.
    ///
    /// # Safety
    /// The conditions above hold.
    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Self> {
        let _ = (offset, bytes, access);
        Err(Error::unsupported(format!("a region of {} memory", self.memory_kind()), "a buffer"))
    }

    /// Where the host sees the bytes: see [`Memory::host_pointer`](crate::Memory::host_pointer).
    fn host_pointer(&self) -> Option<NonNull<u8>> {
        None
    }

    /// Whether `reside` has anything to do for this memory.
    fn needs_access_state(&self) -> bool {
        false
    }

    /// Who may use it now.
    fn access_state(&self) -> AccessState {
        AccessState::Acquired
    }

    /// How many of these bytes lie on the wrong side: see [`Memory::misplaced`](crate::Memory::misplaced).
    fn misplaced(&self, offset: usize, bytes: usize, wanted: AccessState) -> usize {
        let _ = (offset, bytes, wanted);
        0
    }

    /// Whether the queue's reads, writes, fills and copies know this memory. Where they do not, only kernels use it.
    fn takes_transfers(&self) -> bool {
        true
    }

    /// What lets another device see it: see [`Memory::export`](crate::Memory::export).
    ///
    /// # Safety
    /// A queue of this memory's device; the memory is no region.
    unsafe fn export(&self, queue: &QueueOf<Self>) -> Result<Export> {
        let _ = queue;
        let what = format!("the host's view of {} memory", self.memory_kind());
        Err(Error::unsupported(what, "mapped_device memory"))
    }

    /// A descriptor of that sort, which others import it by.
    fn export_fd(&self, kind: FdKind) -> Result<FdRange> {
        Err(Error::unsupported(
            format!("{} memory as {}", self.memory_kind(), kind),
            "exportable memory of a device that exports such descriptors",
        ))
    }

    /// The address that kernels see it at: see [`Memory::export_address`](crate::Memory::export_address).
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

    /// A handle that another process opens it by.
    fn export_ipc(&self) -> Result<IpcRange> {
        Err(Error::unsupported(
            format!("{} memory in another process", self.memory_kind()),
            "a device whose plain memory has handles for that",
        ))
    }

    /// The object that it is, for another API's sharing calls.
    fn export_object(&self) -> Result<ObjectRange> {
        Err(Error::unsupported(
            format!("{} memory as an object for another API's sharing calls", self.memory_kind()),
            "device memory of an API that others have such calls for",
        ))
    }

    /// One more reference to the native object, for somebody who will release it.
    fn retain(&self) -> Result<usize> {
        Err(Error::unsupported(
            "a reference to this memory for its caller",
            "memory of an API that counts references, and no shared virtual memory",
        ))
    }

    /// Where in the native object the bytes begin, for APIs whose objects have no parts.
    fn raw_offset(&self) -> usize {
        0
    }

    /// What is worth telling of how it came out (huge pages, placement).
    fn remark(&self) -> Option<String> {
        None
    }
}
