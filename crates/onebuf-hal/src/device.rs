//! Devices and the memory they allocate or import.
//!
//! # Safety
//! The unsafe code here makes a [`HostRange`] `Send` and `Sync`, and computes addresses inside one. The unsafe traits are
//! contracts that safe code above relies on.

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
/// - Memory that it allocates or imports, and queues that it opens, fulfil the contracts of [`Memory`] and [`Queue`].
/// - An import stays inside the given range, and keeps the range's owner alive until no work uses the import.
/// - A [`HostRange`] from [`Device::map_file`] is valid for reads and writes of all its bytes while its owner lives.
pub unsafe trait Device: Any + Send + Sync + fmt::Debug {
    /// The device's description.
    fn info(&self) -> &DeviceInfo;

    /// Allocates memory. It holds `contents`, whose length equals the allocation's, or unspecified bytes. Shared virtual memory
    /// takes no contents.
    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn Memory>>;

    /// Imports memory of another device, API or process. The owner of the original is kept alive until the driver has released
    /// the import.
    fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn Memory>>;

    /// Exports a descriptor for memory at an address that this device's runtime knows, even if another API allocated it.
    fn descriptor(&self, of: &AddressRange) -> Result<FdRange>;

    /// Creates a binary semaphore that other devices of the chip can import.
    fn semaphore(&self) -> Result<SharedSemaphore>;

    /// Imports another device's semaphore by its descriptor. The caller keeps the descriptor.
    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Arc<dyn Semaphore>>;

    /// Returns its native context, so that another API can create a context that shares objects with it.
    fn native_context(&self) -> Result<NativeContext>;

    /// Returns the native handles that the device's objects are created with, each with the name of its type. Creates the
    /// context if there is none yet.
    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>>;

    /// Announces a device whose objects this one will import. Some APIs need this when they create their context, which happens
    /// at the first call that needs one.
    fn will_share_with(&self, other: &Arc<dyn Device>);

    /// Returns this device as the base of another API's layered runtime, and uses it in that runtime's context from now on.
    /// `None` if the runtime is built on a different device.
    ///
    /// # Safety
    /// If the handles belong to this device's library, they are live and stay so as long as the runtime.
    unsafe fn base_device(
        self: Arc<Self>,
        layered: &LayeredHandles,
    ) -> Option<Result<Arc<dyn BaseDevice>>>;

    /// The physical id of this device, if the driver reports that another API's context runs on it.
    ///
    /// # Safety
    /// The context is live and current on this thread.
    unsafe fn chip_of(&self, context: ContextHandles) -> Option<PhysicalId>;

    /// The file behind host pages that this device allocated, so that another process can map it.
    fn page_file(&self, pages: &HostRange) -> Result<PageFile>;

    /// Maps another process's file as host pages. Checks that the file can neither shrink nor be unsealed.
    fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange>;

    /// Whether exporting a program's binary on this device loses the initial values of the program's global variables.
    fn forgets_variables(&self) -> bool;

    /// The watchdog's record of this device, if its driver calls may block.
    fn post(&self) -> Option<&Arc<Post>>;

    /// Opens a queue.
    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn Queue>>;

    /// Builds a program from the first form of the source that this device supports.
    fn build(&self, source: &Source) -> Result<Arc<dyn Program>>;

    /// Whether [`Device::build`] compiles, which is slow enough that the hub caches its programs. Programs of native functions
    /// are not cached: a function may hold a buffer, and so the hub that would cache it.
    fn compiles(&self) -> bool;
}

impl dyn Device {
    /// Lets a backend downcast to its own type.
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Describes memory to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocSpec {
    /// Size in bytes; not zero.
    pub bytes: usize,
    /// Alignment in bytes, a power of two. Drivers that choose addresses themselves may ignore it; exported memory is checked.
    pub align: usize,
    /// The memory kind; one that the device lists.
    pub memory_kind: MemoryKind,
    /// How kernels access it.
    pub access: Access,
    /// How the host accesses it.
    pub host: HostAccess,
    /// The expected use, if the caller gave a hint.
    pub hint: Option<Hint>,
}

/// The sealed file behind host pages that onebuf allocated.
#[derive(Clone)]
pub struct PageFile {
    /// The file.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// Size in bytes.
    pub bytes: u64,
}

/// A range of host memory, and the owner that keeps it mapped.
#[derive(Clone)]
pub struct HostRange {
    /// First byte.
    pub pointer: NonNull<u8>,
    /// Size in bytes.
    pub bytes: usize,
    /// The owner: the pages stay mapped while a clone of this lives.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl HostRange {
    /// A part of the range, with the same owner.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<HostRange> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes && bytes > 0 => {
                // SAFETY: the range was just checked to lie inside the pages.
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

// SAFETY: the pointer is only an address here; code that dereferences it holds a guard of the buffer.
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

/// A handle by which another device can import memory.
#[derive(Clone, Debug)]
pub enum Export {
    /// Host pages at a stable address.
    Host(HostRange),
    /// Memory behind a file descriptor.
    Fd(FdRange),
    /// A device address that is valid for kernels of both devices.
    Address(AddressRange),
    /// Memory of another device of the same API, accessed in place.
    Peer(Arc<dyn Memory>),
    /// Memory of another process, by a handle of the API.
    Ipc(IpcRange),
    /// An object of another API for which the importing API has sharing calls.
    Object(ObjectRange),
}

impl Export {
    /// The kind of export, for error messages.
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

/// Memory behind a file descriptor. An importer passes a duplicate to its driver; this descriptor stays open here.
#[derive(Clone, Debug)]
pub struct FdRange {
    /// The descriptor. The memory lives as long as this or an import of it.
    pub fd: Arc<OwnedFd>,
    /// The kind of descriptor.
    pub kind: FdKind,
    /// Offset of the bytes in the allocation.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
    /// Size of the whole allocation, which drivers import as one.
    pub allocation_bytes: usize,
    /// The index of the memory type, if its API has memory types. Only the same API on the same chip can use it.
    pub memory_type: Option<u32>,
}

impl FdRange {
    /// Checks that a device imports this kind of descriptor, and that the bytes lie inside the allocation.
    pub fn check_for(&self, info: &DeviceInfo) -> Result<()> {
        if !info.caps.imports.contains(&self.kind) {
            let what = format!("{} of another's memory on {}", self.kind, info.name);
            return Err(crate::Error::unsupported(what, "a driver that imports such descriptors"));
        }
        self.check()
    }

    /// Checks that the bytes lie inside the allocation.
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

/// The origin of a device address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFrom {
    /// Returned by the allocator: the API's contract allows kernels to use it.
    Allocator,
    /// Read in a kernel. No API guarantees that it is valid anywhere else.
    Kernel,
}

/// Memory at a device address that another API's kernels use directly. That API's own calls do not accept the address.
#[derive(Clone)]
pub struct AddressRange {
    /// Address of the first byte, for kernels. The host does not dereference it.
    pub address: u64,
    /// Size in bytes.
    pub bytes: usize,
    /// The origin of the address.
    pub from: AddressFrom,
    /// The memory lives while a clone of this does.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressRange({:#x}, {} bytes, {:?})", self.address, self.bytes, self.from)
    }
}

/// What a device may do with its view of shared memory now. Changing it makes data visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessState {
    /// Other devices and the host may write; the device's kernels must not use it.
    Released,
    /// Other devices and the host may read; the device's kernels may still read.
    SharedRead,
    /// The device's kernels may read and write.
    Acquired,
}

/// Memory of one device: allocated by it, or imported from another.
///
/// When it is dropped, the driver frees it after queued work that uses it has completed. [`dynamic`](crate::dynamic) implements
/// this trait for every [`TypedMemory`](crate::typed::TypedMemory).
///
/// # Safety
/// Safe code makes slices from the results of these methods.
/// - [`Memory::bytes`] never changes, and the driver's allocation has at least that many bytes.
/// - [`Memory::host_pointer`] is valid for reads and writes of [`Memory::bytes`] bytes until the memory is dropped or
///   [`Queue::reside`] makes it `Acquired`; if [`Memory::needs_access_state`] is false, until it is dropped. While the memory
///   is `SharedRead` or `Released`, no enqueued work writes those bytes.
/// - The pages of an [`Export::Host`] are valid in the same way while a clone of its owner lives, at an address that does not
///   change. An exported descriptor or address gives access to bytes of this memory and to no others.
/// - A region lies inside the memory and keeps it alive.
pub unsafe trait Memory: Any + Send + Sync + fmt::Debug {
    /// Usable size, in bytes.
    fn bytes(&self) -> usize;

    /// The memory kind.
    fn memory_kind(&self) -> MemoryKind;

    /// The address of the bytes on the host while the memory is `SharedRead` or `Released`. `None` if the host can never access
    /// it, or if it is not mapped now.
    fn host_pointer(&self) -> Option<NonNull<u8>>;

    /// Whether [`Queue::reside`] must be called to change who may access this memory.
    fn needs_access_state(&self) -> bool;

    /// The current access state.
    fn access_state(&self) -> AccessState;

    /// Makes the host's stores to these bytes visible to the device, while the host has the memory. Only a map that is not coherent
    /// needs that. Returns whether it took a call.
    fn flush_stores(&self, offset: usize, bytes: usize) -> Result<bool>;

    /// Whether mapping and unmapping this memory may transfer its bytes, while a transfer of the device can read them from the map.
    /// Then a copy of memory that the host has now is one transfer from the map, instead of an unmap, a copy and a map.
    fn is_read_from_map(&self) -> bool;

    /// For imported host pages: whether the device's reads and writes of other memory access these pages directly, while this import
    /// lives.
    fn pins_pages(&self) -> bool;

    /// For managed memory: how many of these bytes are in pages on the wrong side for the wanted access state, which is the
    /// host for `Acquired` and the device for the other states. Zero for all other memory.
    fn misplaced(&self, offset: usize, bytes: usize, wanted: AccessState) -> usize;

    /// Exports it for another device. From then on its address must not change: if the driver changes it, [`Queue::reside`]
    /// returns an error.
    fn export(&self, queue: &dyn Queue) -> Result<Export>;

    /// Exports a descriptor of this kind, by which others import the memory.
    fn export_fd(&self, kind: FdKind) -> Result<FdRange>;

    /// Exports its device address, for another API with the same address space. The memory is acquired, and stays so while the
    /// other API uses it.
    fn export_address(&self, queue: &dyn Queue) -> Result<AddressRange>;

    /// Whether the queue's reads, writes, fills and copies accept this memory. If not, only kernels can use it.
    fn takes_transfers(&self) -> bool;

    /// Exports a handle by which another process opens it.
    fn export_ipc(&self) -> Result<IpcRange>;

    /// Exports it as a native object, for another API's sharing calls.
    fn export_object(&self) -> Result<ObjectRange>;

    /// Creates a region: a part of the memory for kernels, with the same bytes and the access state of the whole. The offset is
    /// a multiple of the device's alignment, the access is no wider than that of the whole, and a region has no regions.
    fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Arc<dyn Memory>>;

    /// The native handle.
    fn raw(&self) -> RawHandle;

    /// Adds a reference to the native object, which the caller must release.
    fn retain(&self) -> Result<usize>;

    /// Offset of the bytes in the native object, for APIs without sub-objects.
    fn raw_offset(&self) -> usize;

    /// A remark about the allocation (huge pages, placement), for diagnostics.
    fn remark(&self) -> Option<String>;
}

impl dyn Memory {
    /// Lets a backend downcast to its own type.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A native handle or address, as an integer. Typed views convert it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawHandle {
    /// An object of the API.
    Object(usize),
    /// A device address that kernels use directly.
    Address(usize),
}
