//! Devices and the memory they allocate or import.
//!
//! # Safety
//! The unsafe here says that a [`HostRange`]'s address may travel between threads, and that a part of it
//! lies inside. The unsafe traits are contracts that safe code above relies on.

#![allow(unsafe_code)]

use super::{
    Access, BaseDevice, ContextHandles, DeviceInfo, FdKind, Hint, HostAccess, IpcRange,
    LayeredHandles, MemoryKind, NativeContext, ObjectRange, PhysicalId, Program, Queue, QueueSpec,
    Semaphore, SharedSemaphore, Source,
};
use crate::{Result, locks::Arc, watchdog::Post};
use std::{
    any::Any,
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

/// One API's view of one chip, as the core uses it. [`dynamic`](crate::dynamic) implements it for every
/// [`TypedDevice`](crate::typed::TypedDevice).
///
/// # Safety
/// - Memory that it allocates or imports, and queues that it opens, keep the contracts of [`Memory`] and [`Queue`].
/// - An import stays inside the range that it was given, and keeps the range's owner until no work uses it any more.
/// - A [`HostRange`] of [`Device::map_file`] is valid for reads and writes of all its bytes while its owner lives.
pub unsafe trait Device: Any + Send + Sync + fmt::Debug {
    /// What is known of it.
    fn info(&self) -> &DeviceInfo;

    /// New memory. It holds what was given, which is as long as the memory, or something unspecified.
    /// Shared virtual memory takes no contents.
    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn Memory>>;

    /// A view of memory that lives elsewhere. Whatever keeps the original alive is kept until the
    /// driver has let go of it.
    fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn Memory>>;

    /// A descriptor of memory at an address that this device's runtime knows, whoever allocated it.
    fn descriptor(&self, of: &AddressRange) -> Result<FdRange>;

    /// A new binary semaphore that other devices of the chip can import.
    fn semaphore(&self) -> Result<SharedSemaphore>;

    /// Another device's semaphore, by its descriptor, which stays the caller's.
    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Arc<dyn Semaphore>>;

    /// Its native context, for another API that makes its own for sharing objects with it.
    fn native_context(&self) -> Result<NativeContext>;

    /// Another device whose objects it will be asked to share. Some APIs have to know that when they make their context, which
    /// is at the first call that needs one.
    fn will_share_with(&self, other: &Arc<dyn Device>);

    /// This device as what a runtime of another API is built on, used in that runtime's context from now on; none where the
    /// runtime is built on another one.
    ///
    /// # Safety
    /// Handles of live objects, where they are of this device's library, which live as long as the runtime.
    unsafe fn base_device(
        self: Arc<Self>,
        layered: &LayeredHandles,
    ) -> Option<Result<Arc<dyn BaseDevice>>>;

    /// The chip that another API's context is on, where the driver says that it is this device's.
    ///
    /// # Safety
    /// A live context that is current on this thread.
    unsafe fn chip_of(&self, context: ContextHandles) -> Option<PhysicalId>;

    /// The file behind pages of the host that this device allocated, for another process.
    fn page_file(&self, pages: &HostRange) -> Result<PageFile>;

    /// Another process's file as pages of the host. The file is checked: it can neither shrink nor be unsealed.
    fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange>;

    /// Whether a program here that was asked for its binary loses what its variables in global memory begin with.
    fn forgets_variables(&self) -> bool;

    /// By what its driver's calls are watched, where they may hang.
    fn post(&self) -> Option<&Arc<Post>>;

    /// A new queue.
    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn Queue>>;

    /// Compiles a program in the language that this device speaks.
    fn build(&self, source: &Source) -> Result<Arc<dyn Program>>;

    /// Whether [`Device::build`] compiles, which takes long enough to be remembered. Programs of native
    /// functions are not: a function may hold a buffer, and so the hub that would remember it.
    fn compiles(&self) -> bool;
}

impl dyn Device {
    /// For the backend's own downcasts.
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What memory to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocSpec {
    /// How many bytes; never zero.
    pub bytes: usize,
    /// Alignment in bytes, a power of two. Drivers that allocate for themselves cannot be made to obey:
    /// memory that is exported is checked.
    pub align: usize,
    /// In what form; one of the device's memory kinds.
    pub memory_kind: MemoryKind,
    /// What kernels will do with it.
    pub access: Access,
    /// What the host will do with it.
    pub host: HostAccess,
    /// What else is expected of it, where anything was said.
    pub hint: Option<Hint>,
}

/// A sealed file of ours, kept by its pages.
#[derive(Clone)]
pub struct PageFile {
    /// The file.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// How many bytes it has.
    pub bytes: u64,
}

/// Host pages, and what keeps them mapped.
#[derive(Clone)]
pub struct HostRange {
    /// First byte.
    pub pointer: NonNull<u8>,
    /// How many bytes may be used.
    pub bytes: usize,
    /// The owner: pages stay while a clone of this lives.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl HostRange {
    /// Some of the bytes, with the same owner.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<HostRange> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes && bytes > 0 => {
                // SAFETY: inside the pages.
                let pointer = unsafe { self.pointer.add(offset) };
                Ok(HostRange { pointer, bytes, owner: self.owner.clone() })
            }
            _ => Err(crate::Error::invalid(format!(
                "{bytes} bytes at offset {offset} of pages of {} bytes",
                self.bytes
            ))),
        }
    }
}

// SAFETY: the pointer is only an address here; whoever dereferences it holds a guard of the buffer.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl fmt::Debug for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRange")
            .field("pointer", &self.pointer)
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// What one device gives so that another can see its memory.
#[derive(Clone, Debug)]
pub enum Export {
    /// Host pages at a stable address.
    Host(HostRange),
    /// Memory behind a file descriptor.
    Fd(FdRange),
    /// An address that kernels of both use as it is.
    Address(AddressRange),
    /// Memory of another chip by the same API, which reaches it where it lies.
    Peer(Arc<dyn Memory>),
    /// Memory of another process, behind a handle of the API's.
    Ipc(IpcRange),
    /// An object of another API, which the importing one has sharing calls for.
    Object(ObjectRange),
}

impl Export {
    /// What it is, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Export::Host(_) => "host pages",
            Export::Fd(FdRange { kind: FdKind::OpaqueFd, .. }) => "an opaque file descriptor",
            Export::Fd(FdRange { kind: FdKind::DmaBuf, .. }) => "a dma-buf",
            Export::Address(_) => "an address",
            Export::Peer(_) => "memory of another device",
            Export::Ipc(_) => "a handle of another process's memory",
            Export::Object(_) => "an object of another API",
        }
    }
}

/// Memory behind a file descriptor. Whoever imports it gives the driver a duplicate: this one stays ours.
#[derive(Clone, Debug)]
pub struct FdRange {
    /// The memory stays while this, or what was imported from it, does.
    pub fd: Arc<OwnedFd>,
    /// What sort of descriptor.
    pub kind: FdKind,
    /// Where in the allocation the bytes begin.
    pub offset: usize,
    /// How many there are.
    pub bytes: usize,
    /// How large the whole allocation is: drivers import it whole.
    pub allocation_bytes: usize,
    /// The number of its type of memory, where its API has such and it is known. Only the same API on the same chip makes
    /// anything of it.
    pub memory_type: Option<u32>,
}

impl FdRange {
    /// Whether a device says that it imports such, and the bytes lie inside the allocation.
    pub fn check_for(&self, info: &DeviceInfo) -> Result<()> {
        if !info.caps.imports.contains(&self.kind) {
            let what = format!("{} of another's memory on {}", self.kind, info.name);
            return Err(crate::Error::unsupported(what, "a driver that imports such descriptors"));
        }
        self.check()
    }

    /// Whether the bytes lie inside the allocation.
    pub fn check(&self) -> Result<()> {
        let FdRange { offset, bytes, allocation_bytes, .. } = *self;
        match offset.checked_add(bytes) {
            Some(end) if end <= allocation_bytes && bytes > 0 => Ok(()),
            _ => Err(crate::Error::invalid(format!(
                "{bytes} bytes at offset {offset} of an allocation of {allocation_bytes} bytes"
            ))),
        }
    }
}

/// Where an address comes from, and so how far it is to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFrom {
    /// From the allocator: the API itself says that kernels use it.
    Allocator,
    /// Out of a kernel, which no API promises to mean anything outside of it.
    Kernel,
}

/// Memory at an address that another API's kernels use as it is. That API's calls do not know it.
#[derive(Clone)]
pub struct AddressRange {
    /// First byte, as kernels see it. Nobody follows it on the host.
    pub address: u64,
    /// How many bytes may be used.
    pub bytes: usize,
    /// Where it comes from.
    pub from: AddressFrom,
    /// The memory stays while a clone of this lives.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressRange({:#x}, {} bytes, {:?})", self.address, self.bytes, self.from)
    }
}

/// Who may use a device's view of shared memory now. Moving between these makes data visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessState {
    /// Others may write: the device's view is handed out, kernels must not touch it.
    Released,
    /// Others may read what the device wrote; its kernels may still read.
    SharedRead,
    /// The device's kernels read and write.
    Acquired,
}

/// Memory of one device: allocated by it, or another's memory seen from it.
///
/// Dropping it lets the driver free it once queued work that uses it is done. [`dynamic`](crate::dynamic) implements it for
/// every [`TypedMemory`](crate::typed::TypedMemory).
///
/// # Safety
/// Safe code makes slices of what these methods return.
/// - [`Memory::bytes`] never changes, and the driver has at least as many bytes for it.
/// - [`Memory::host_pointer`] is valid for reads and writes of [`Memory::bytes`] bytes until the memory is dropped or
///   [`Queue::reside`] makes it `Acquired`; where [`Memory::needs_access_state`] is false, until it is dropped. While
///   the memory is `SharedRead` or `Released`, nothing that a queue was given writes those bytes.
/// - The pages of an [`Export::Host`] are valid in the same way while a clone of its owner lives, at an address that does not
///   change. A descriptor or address that is exported leads to bytes of this memory and to no others.
/// - A region lies inside the memory and keeps it alive.
pub unsafe trait Memory: Any + Send + Sync + fmt::Debug {
    /// Usable size.
    fn bytes(&self) -> usize;

    /// In what form it is.
    fn memory_kind(&self) -> MemoryKind;

    /// Where the host sees the bytes while the memory is `SharedRead` or `Released`; `None` when it never
    /// does, or when it is not mapped now.
    fn host_pointer(&self) -> Option<NonNull<u8>>;

    /// Whether [`Queue::reside`] has anything to do for this memory.
    fn needs_access_state(&self) -> bool;

    /// Who may use it now.
    fn access_state(&self) -> AccessState;

    /// How many of these bytes lie on the wrong side, where pages have one and move: on the host, where the device's kernels
    /// are to use them (`Acquired`), or on the device, where others are. None of all other memory.
    fn misplaced(&self, offset: usize, bytes: usize, wanted: AccessState) -> usize;

    /// What lets another device see it. From then on its address must not move, and a driver that
    /// moves it gets an error from [`Queue::reside`].
    fn export(&self, queue: &dyn Queue) -> Result<Export>;

    /// A descriptor of that sort, which others import it by.
    fn export_fd(&self, kind: FdKind) -> Result<FdRange>;

    /// The address that kernels see it at, for another API of the same address space. The memory is acquired, and stays
    /// so while the other uses it.
    fn export_address(&self, queue: &dyn Queue) -> Result<AddressRange>;

    /// Whether the queue's reads, writes, fills and copies know this memory. Where they do not, only kernels use it.
    fn takes_transfers(&self) -> bool;

    /// A handle that another process opens it by.
    fn export_ipc(&self) -> Result<IpcRange>;

    /// The object that it is, for another API's sharing calls.
    fn export_object(&self) -> Result<ObjectRange>;

    /// A part of it as memory of its own, for kernels: the same bytes, and one access state with the whole.
    /// The offset is a multiple of the device's alignment, the access no wider than the whole's, and a
    /// part has no parts.
    fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Arc<dyn Memory>>;

    /// The native handle.
    fn raw(&self) -> RawHandle;

    /// One more reference to the native object, for somebody who will release it.
    fn retain(&self) -> Result<usize>;

    /// Where in the native object the bytes begin, for APIs whose objects have no parts.
    fn raw_offset(&self) -> usize;

    /// What is worth telling of how it came out (huge pages, placement).
    fn remark(&self) -> Option<String>;
}

impl dyn Memory {
    /// For the backend's own downcasts.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A native handle or address, as an integer. The view above gives it its type back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawHandle {
    /// An object of the API.
    Object(usize),
    /// An address that kernels use as it is.
    Address(usize),
}
