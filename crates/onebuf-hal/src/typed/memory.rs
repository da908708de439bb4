//! Memory, as its backend implements it.
//!
//! # Safety
//! The unsafe trait is a contract for backends.

#![allow(unsafe_code)]

use super::{ApiTypes, QueueOf};
use crate::{
    Access, AccessState, AddressRange, DeviceInfo, Domain, Error, Export, FdKind, FdRange,
    IpcRange, MemoryKind, ObjectRange, RawHandle, Result,
};
use std::{any::Any, fmt, ptr::NonNull};

/// Memory of one device: allocated by it, or another's memory seen from it. Methods without a word of their own are those
/// of [`Memory`](crate::Memory).
///
/// A queue that is passed in is one of this memory's device. The exports are asked of whole memories alone.
///
/// # Safety
/// The contract of [`Memory`](crate::Memory). Moreover two memories whose bytes overlap have the same
/// [`allocation`](TypedMemory::allocation), where a queue can copy between them.
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

    /// A number that memories of the same allocation have in common, and no other living memory of the device has.
    fn allocation(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// At which byte of that allocation it begins.
    fn start(&self) -> usize {
        0
    }

    /// Whether it is a region of another memory.
    fn is_region(&self) -> bool {
        false
    }

    /// A part of it as memory of its own. This is no region itself, the part lies inside and is not empty, its offset is a
    /// multiple of the device's alignment, and the access is no wider than the whole's.
    fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Self> {
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
    fn export(&self, queue: &QueueOf<Self>) -> Result<Export> {
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
    fn export_address(&self, queue: &QueueOf<Self>) -> Result<AddressRange> {
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
