//! Memory: device, managed and pinned host memory, registered host pages, exportable and imported memory; and regions
//! of these.
//!
//! Only OpenGL's buffers have an access state. Managed pages are moved by calls (see `managed`). Pinned pages are one
//! set of bytes for CPU and GPU; writes of one become visible to the other because its work ends before the other's
//! begins, which the fences ensure.

use super::{
    CudaLikeBackend,
    aligned::{self, Aligned},
    conv,
    device::Context,
    external::External,
    foreign::{Described, ForeignRange},
    graphics::Registered,
    ipc::Opened,
    managed::Managed,
    peers,
    pins::Share,
    queue::{Queue, RawQueue},
    transfer,
    users::Users,
    vmm::Vmm,
};
use onebuf_hal::{
    Access, AccessState, AddressFrom, AddressRange, AllocSpec, DeviceInfo, Domain, Error, Export,
    FdKind, FdRange, HostAccess, HostRange, IpcRange, MemoryKind, ObjectRange, RawHandle, Result,
    locks::Arc,
    typed::{AllocationPart, TypedMemory},
};
use onebuf_sys::{
    Refused,
    cuda_like::{CuStatus, DevicePtr, consts},
};
use std::{fmt, ptr::NonNull};

/// What must be freed, and by which calls.
enum Allocation {
    /// Device memory, by the address that the driver returned.
    Device(DevicePtr),
    /// Managed memory, whose pages move.
    Managed(Managed),
    /// Device memory that others can import.
    Exportable(Vmm),
    /// Imported memory.
    External(External),
    /// Host memory that the driver allocated, or registered pages and their owner.
    Pinned(Share, Option<HostRange>),
    /// Memory that another API allocated, kept alive by the range.
    Address(AddressRange),
    /// Memory of another process.
    Opened(Opened),
    /// A buffer of a graphics API.
    Registered(Registered),
    /// Memory of another device, kept alive by this reference.
    Peer(Arc<Inner>),
    /// Memory of the application, which frees it.
    Foreign(ForeignRange),
}

impl Allocation {
    /// Frees the memory. The context is current, and no work uses it.
    fn free(self, context: &Context) {
        match self {
            // SAFETY: allocated by `Inner`, freed once.
            Allocation::Device(at) => context.driver.note(unsafe { context.table().free(at) }),
            Allocation::Managed(managed) => managed.free(context),
            Allocation::Exportable(vmm) => vmm.free(&context.driver),
            Allocation::External(external) => external.free(&context.driver),
            Allocation::Pinned(share, pages) => {
                context.driver.pins.release(context, &share);
                // The pages may be freed only after they are unpinned.
                drop(pages);
            }
            Allocation::Address(range) => drop(range),
            Allocation::Opened(opened) => opened.free(&context.driver),
            Allocation::Registered(registered) => registered.free(context),
            Allocation::Peer(home) => drop(home),
            Allocation::Foreign(_) => {}
        }
    }
}

/// An allocation, freed when its last reference is dropped.
pub(super) struct Inner {
    context: Arc<Context>,
    at: DevicePtr,
    /// The address that the host uses.
    host: Option<HostAddress>,
    bytes: usize,
    align: usize,
    memory_kind: MemoryKind,
    users: Users,
    allocation: Option<Allocation>,
}

/// A host address that may be sent between threads.
#[derive(Clone, Copy, Debug)]
struct HostAddress(NonNull<u8>);

// SAFETY: an address; code that dereferences it must justify that.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// A device's memory, or a region of it.
#[derive(Debug)]
pub struct Memory {
    inner: Arc<Inner>,
    /// The offset of a region; `None` for the whole memory.
    part: Option<usize>,
    pub at: DevicePtr,
    pub domain: Domain,
    bytes: usize,
    access: Access,
}

impl Memory {
    /// Allocates memory of one of the device's memory kinds.
    pub(super) fn allocate(
        context: Arc<Context>,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<Memory> {
        context.sweep();
        let inner = match spec.memory_kind {
            MemoryKind::Device => Inner::device(context, spec)?,
            MemoryKind::Exportable => Inner::exportable(context, spec)?,
            MemoryKind::FineSvm => Inner::fine(context, spec)?,
            MemoryKind::Managed => Inner::managed(context, spec)?,
            _ => Inner::pinned(context, spec)?,
        };
        let memory = Memory::whole(inner, spec.access);
        match (contents, memory.inner.host) {
            (None, _) => {}
            (Some(contents), Some(HostAddress(at))) if memory.inner.managed_as().is_none() => {
                // SAFETY: new memory of `bytes`, which no other code can reach yet; `contents` is as long.
                unsafe {
                    at.copy_from(NonNull::from(contents).cast(), contents.len().min(spec.bytes))
                };
            }
            (Some(contents), _) => transfer::write_now(&memory.inner.context, &memory, contents)?,
        }
        Ok(memory)
    }

    /// Imports host pages that other code allocated.
    pub(super) fn import(
        context: Arc<Context>,
        range: &HostRange,
        access: Access,
    ) -> Result<Memory> {
        context.sweep();
        Ok(Memory::whole(Inner::registered(context, range)?, access))
    }

    /// Imports memory of another API or process.
    pub(super) fn import_fd(
        context: Arc<Context>,
        range: &FdRange,
        access: Access,
    ) -> Result<Memory> {
        context.sweep();
        Ok(Memory::whole(Inner::external(context, range)?, access))
    }

    /// Imports memory of another API at an address that this API's kernels can use.
    pub(super) fn at_address(
        context: Arc<Context>,
        range: &AddressRange,
        access: Access,
    ) -> Result<Memory> {
        context.sweep();
        context.driver.under.check(&context, range)?;
        Ok(Memory::whole(Inner::address(context, range), access))
    }

    /// Imports memory of another device of this library in place.
    pub(super) fn of_peer(context: Arc<Context>, home: &Memory, access: Access) -> Result<Memory> {
        context.sweep();
        if home.part.is_some() {
            return Err(Error::unsupported("a region on another device", "the whole memory"));
        }
        Ok(Memory::whole(Inner::of_peer(context, &home.inner)?, access))
    }

    /// Imports memory of another process.
    pub(super) fn open(context: Arc<Context>, range: &IpcRange, access: Access) -> Result<Memory> {
        context.sweep();
        Ok(Memory::whole(Inner::opened(context, range)?, access))
    }

    /// Imports a buffer of a graphics API.
    pub(super) fn of_object(
        context: Arc<Context>,
        object: &ObjectRange,
        access: Access,
    ) -> Result<Memory> {
        context.sweep();
        Ok(Memory::whole(Inner::registered_object(context, object)?, access))
    }

    /// Memory of the application.
    pub(super) fn foreign(
        context: Arc<Context>,
        range: ForeignRange,
        host: Option<NonNull<u8>>,
        spec: &AllocSpec,
    ) -> Memory {
        context.sweep();
        let (at, host) = (range.at, host.map(HostAddress));
        let inner = Inner::of(context, at, host, spec, Allocation::Foreign(range));
        Memory::whole(inner, spec.access)
    }

    /// Whether this is memory of the application, in this context and as described.
    pub(super) fn is_foreign_as(&self, context: &Arc<Context>, described: &Described) -> bool {
        let Inner { context: own, host, memory_kind, allocation, .. } = &*self.inner;
        let Some(Allocation::Foreign(range)) = *allocation else { return false };
        let host = host.map(|HostAddress(at)| at);
        let memory_kind = *memory_kind;
        Arc::ptr_eq(own, context) && Described { memory_kind, host, range } == *described
    }

    /// Memory that the application created and this library mapped.
    pub(super) fn mapped(context: Arc<Context>, vmm: Vmm, spec: &AllocSpec) -> Memory {
        let inner = Inner::of(context, vmm.at, None, spec, Allocation::Exportable(vmm));
        Memory::whole(inner, spec.access)
    }

    /// Changes the access state. Returns whether that took a call.
    pub(super) fn reside(&self, queue: &Arc<RawQueue>, to: AccessState) -> Result<bool> {
        match self.inner.registered_as() {
            None => Ok(false),
            Some(registered) => {
                self.note_use(queue);
                registered.reside(queue, to)
            }
        }
    }

    /// Moves the pages of these bytes in order with the queue. The context is current.
    pub(super) fn move_pages(
        &self,
        queue: &Arc<RawQueue>,
        offset: usize,
        bytes: usize,
        to: AccessState,
    ) -> Result<()> {
        let Some(managed) = self.inner.managed_as() else {
            let what = format!("a move of the pages of {} memory", self.inner.memory_kind);
            return Err(Error::unsupported(what, "managed memory"));
        };
        self.note_use(queue);
        let start = self.offset() + offset;
        managed.move_pages(queue, start..start + bytes, to)
    }

    /// Returns the allocation and its context; `None` for pinned, managed and peer memory.
    pub(super) fn on_device(&self) -> Option<(Arc<Inner>, &Arc<Context>)> {
        match &self.inner.allocation {
            None | Some(Allocation::Pinned(..) | Allocation::Managed(_) | Allocation::Peer(_)) => {
                None
            }
            Some(_) => Some((self.inner.clone(), &self.inner.context)),
        }
    }

    fn whole(inner: Inner, access: Access) -> Memory {
        let (at, bytes, domain) = (inner.at, inner.bytes, inner.context.driver.domain);
        Memory { inner: Arc::new(inner), part: None, at, domain, bytes, access }
    }

    /// The offset in the whole memory.
    pub fn offset(&self) -> usize {
        self.part.unwrap_or(0)
    }

    /// The address of a byte.
    pub fn byte(&self, offset: usize) -> DevicePtr {
        DevicePtr(self.at.0 + offset as u64)
    }

    /// Records that the queue is about to use the memory.
    #[inline]
    pub(super) fn note_use(&self, queue: &Arc<RawQueue>) {
        // The application frees its own memory.
        if !self.inner.is_foreign() {
            self.inner.users.note(queue);
        }
    }
}

// SAFETY: pinned and managed memory stays at its address until `Inner` is freed, after every stream that used it.
unsafe impl TypedMemory for Memory {
    type Types = CudaLikeBackend;

    #[inline]
    fn domain(&self) -> Domain {
        self.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.inner.context.driver.info
    }

    #[inline]
    fn access(&self) -> Access {
        self.access
    }

    fn part(&self) -> AllocationPart {
        AllocationPart::of(&self.inner, self.part)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        // SAFETY: a region lies inside the whole.
        self.inner.host.map(|HostAddress(at)| unsafe { at.add(self.offset()) })
    }

    fn pins_pages(&self) -> bool {
        self.inner.memory_kind == MemoryKind::HostPages
    }

    fn needs_access_state(&self) -> bool {
        self.inner.registered_as().is_some()
    }

    fn access_state(&self) -> AccessState {
        self.inner.registered_as().map_or(AccessState::Acquired, Registered::access_state)
    }

    fn misplaced(&self, offset: usize, bytes: usize, wanted: AccessState) -> usize {
        let (managed, start) = (self.inner.managed_as(), self.offset() + offset);
        managed.map_or(0, |managed| managed.misplaced(start..start + bytes, wanted))
    }

    unsafe fn export(&self, _queue: &Queue) -> Result<Export> {
        let host = self.inner.host.filter(|_| self.inner.managed_as().is_none());
        let Some(HostAddress(pointer)) = host else {
            let needs = "mapped_device memory";
            let what = format!("the host's view of {} memory", self.inner.memory_kind);
            return Err(Error::unsupported(what, needs));
        };
        let align = self.inner.align;
        if !pointer.addr().get().is_multiple_of(align) {
            let what = format!("pinned memory at {pointer:p} aligned to {align}");
            let needs = "a driver that aligns it so, or page-aligned memory of the host's: allocate on the host";
            return Err(Error::unsupported(what, needs));
        }
        Ok(Export::Host(HostRange { pointer, bytes: self.bytes, owner: self.inner.clone() }))
    }

    fn export_fd(&self, kind: FdKind) -> Result<FdRange> {
        let driver = &self.inner.context.driver;
        match &self.inner.allocation {
            Some(Allocation::Exportable(vmm)) => vmm.export(&self.inner.context, kind, self.bytes),
            Some(Allocation::Foreign(range))
                if self.inner.memory_kind == MemoryKind::Exportable =>
            {
                range.export(&self.inner.context, kind, self.bytes)
            }
            Some(Allocation::Device(_) | Allocation::Address(_) | Allocation::Foreign(_))
                if self.inner.host.is_none()
                    && kind == FdKind::DmaBuf
                    && driver.under.rocr().is_some() =>
            {
                driver.export_address(self.at, self.bytes)
            }
            _ => {
                let what = format!("{} memory as {kind}", self.inner.memory_kind);
                Err(Error::unsupported(what, "memory that was allocated as exportable"))
            }
        }
    }

    unsafe fn export_address(&self, _queue: &Queue) -> Result<AddressRange> {
        let shared = self.inner.registered_as().is_some();
        if shared || self.inner.memory_kind != MemoryKind::Device {
            let what = format!("the address of {} memory", self.inner.memory_kind);
            return Err(Error::unsupported(what, "device memory"));
        }
        let (address, bytes, from) = (self.at.0, self.bytes, AddressFrom::Allocator);
        Ok(AddressRange { address, bytes, from, owner: self.inner.clone() })
    }

    /// HIP's API calls do not recognise memory that another API allocated.
    fn takes_transfers(&self) -> bool {
        !matches!(self.inner.allocation, Some(Allocation::Address(_)))
    }

    fn export_ipc(&self) -> Result<IpcRange> {
        match &self.inner.allocation {
            Some(Allocation::Device(_)) => {
                super::ipc::export(&self.inner.context, self.inner.at, self.bytes)
            }
            _ => {
                let what = format!("{} memory in another process", self.inner.memory_kind);
                Err(Error::unsupported(what, "memory that was allocated as device"))
            }
        }
    }

    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Memory> {
        let (inner, at) = (self.inner.clone(), self.byte(offset));
        let (part, domain) = (Some(offset), self.domain);
        Ok(Memory { inner, part, at, domain, bytes, access })
    }

    fn raw(&self) -> RawHandle {
        RawHandle::Address(self.at.0 as usize)
    }

    fn remark(&self) -> Option<String> {
        if let Some(Allocation::Address(range)) = &self.inner.allocation {
            return Some(self.inner.at_address(range));
        }
        let what = match self.inner.memory_kind {
            _ if matches!(self.inner.allocation, Some(Allocation::Peer(_))) => {
                "memory of another device, which kernels reach over the link between the two"
            }
            _ if matches!(self.inner.allocation, Some(Allocation::Opened(_))) => {
                "another process's device memory"
            }
            MemoryKind::Device if self.inner.is_foreign_managed() => {
                "the application's managed memory, used like device memory: its pages move where kernels and copies access \
                 them, which the ledger does not count; the host reaches it by copies"
            }
            MemoryKind::Device if self.inner.is_foreign() => {
                "the application's device memory, which the host reaches by copies; it has no descriptor, so no other \
                 API can import it: graft kernels to this device, or allocate it as exportable"
            }
            MemoryKind::Exportable if self.inner.is_foreign() => {
                "the application's device memory, shared by descriptors"
            }
            _ if self.inner.registered_as().is_some() => {
                "an OpenGL buffer, registered, and mapped while in use"
            }
            MemoryKind::Device => "device memory, which the host reaches by copies",
            MemoryKind::Exportable => "exportable device memory, shared by descriptors",
            MemoryKind::FineSvm => "managed memory, which the host uses at the same time",
            MemoryKind::Managed => {
                "managed memory, whose pages move to the device that acquires it"
            }
            MemoryKind::MappedDevice => "pinned host memory, which kernels reach over the bus",
            _ => "the host's own pages, pinned, which kernels reach over the bus",
        };
        Some(match self.part {
            None => what.to_owned(),
            Some(offset) => format!("{what}; a region from byte {offset}"),
        })
    }
}

impl Inner {
    fn device(context: Arc<Context>, spec: &AllocSpec) -> Result<Inner> {
        // SAFETY: the context is current.
        let Aligned { base, at, .. } =
            with_alignment(&context, spec, |bytes| unsafe { context.table().alloc(bytes) })?;
        Ok(Inner::of(context, at, None, spec, Allocation::Device(base)))
    }

    /// Allocates memory that host and device use at one address at the same time.
    fn fine(context: Arc<Context>, spec: &AllocSpec) -> Result<Inner> {
        let Aligned { base, at, .. } = with_alignment(&context, spec, |bytes| {
            // SAFETY: the context is current.
            unsafe { context.table().alloc_managed(bytes, consts::MEM_ATTACH_GLOBAL) }
        })?;
        let host = NonNull::new(at.0 as usize as *mut u8).map(HostAddress);
        Ok(Inner::of(context, at, host, spec, Allocation::Device(base)))
    }

    /// Allocates memory that host and device use at one address, alternately.
    fn managed(context: Arc<Context>, spec: &AllocSpec) -> Result<Inner> {
        let managed = with_room(&context, spec, || Managed::new(&context, spec.bytes, spec.align))?;
        let host = NonNull::new(managed.at.0 as usize as *mut u8).map(HostAddress);
        Ok(Inner::of(context, managed.at, host, spec, Allocation::Managed(managed)))
    }

    fn is_foreign(&self) -> bool {
        matches!(self.allocation, Some(Allocation::Foreign(_)))
    }

    /// Whether it is managed memory of the application.
    fn is_foreign_managed(&self) -> bool {
        matches!(&self.allocation, Some(Allocation::Foreign(range)) if range.is_managed)
    }

    /// Returns the managed allocation, if it is one.
    fn managed_as(&self) -> Option<&Managed> {
        match &self.allocation {
            Some(Allocation::Managed(managed)) => Some(managed),
            _ => None,
        }
    }

    fn exportable(context: Arc<Context>, spec: &AllocSpec) -> Result<Inner> {
        let vmm = with_room(&context, spec, || Vmm::new(&context.driver, spec.bytes))?;
        Ok(Inner::of(context, vmm.at, None, spec, Allocation::Exportable(vmm)))
    }

    fn external(context: Arc<Context>, range: &FdRange) -> Result<Inner> {
        let current = context.enter()?;
        let external = External::import(&context.driver, range)?;
        drop(current);
        let spec = spec_of(range.bytes, MemoryKind::Exportable);
        Ok(Inner::of(context, external.at, None, &spec, Allocation::External(external)))
    }

    fn address(context: Arc<Context>, range: &AddressRange) -> Inner {
        let (bytes, memory_kind, access) = (range.bytes, MemoryKind::Device, Access::ReadWrite);
        let spec = AllocSpec {
            bytes,
            align: 1,
            memory_kind,
            access,
            host: Default::default(),
            hint: None,
        };
        let (at, allocation) = (DevicePtr(range.address), Allocation::Address(range.clone()));
        Inner::of(context, at, None, &spec, allocation)
    }

    /// Describes memory at another API's address.
    fn at_address(&self, range: &AddressRange) -> String {
        let from = match range.from {
            AddressFrom::Allocator => "reported by its allocator",
            AddressFrom::Kernel => "reported by a kernel and confirmed by the runtime",
        };
        let place = self.context.driver.under.placement(&self.context, range.address);
        let place = place.map_or_else(String::new, |place| format!(", {place}"));
        format!("another API's memory at its own address, {from}{place}: for kernels only")
    }

    fn opened(context: Arc<Context>, range: &IpcRange) -> Result<Inner> {
        let current = context.enter()?;
        let opened = Opened::open(&context.driver, range)?;
        drop(current);
        let at = DevicePtr(opened.base.0 + range.offset as u64);
        let spec = spec_of(range.bytes, MemoryKind::Device);
        Ok(Inner::of(context, at, None, &spec, Allocation::Opened(opened)))
    }

    fn registered_object(context: Arc<Context>, object: &ObjectRange) -> Result<Inner> {
        let registered = Registered::new(&context, object)?;
        let spec = spec_of(object.bytes, MemoryKind::Device);
        let at = registered.at();
        Ok(Inner::of(context, at, None, &spec, Allocation::Registered(registered)))
    }

    /// Returns the registration of a graphics API's buffer, if it is one.
    #[inline]
    fn registered_as(&self) -> Option<&Registered> {
        match &self.allocation {
            Some(Allocation::Registered(registered)) => Some(registered),
            _ => None,
        }
    }

    fn of_peer(context: Arc<Context>, home: &Arc<Inner>) -> Result<Inner> {
        peers::check(&context, &home.context)?;
        match &home.allocation {
            Some(Allocation::Device(_)) => peers::enable(&context, &home.context)?,
            Some(Allocation::Foreign(_)) if home.memory_kind == MemoryKind::Device => {
                peers::enable(&context, &home.context)?;
            }
            Some(Allocation::Exportable(vmm)) => {
                let _current = context.enter()?;
                context.driver.check(vmm.allow(&context.driver))?;
            }
            _ => {
                let what = format!("{} memory of another device's in place", home.memory_kind);
                return Err(Error::unsupported(what, "memory that the other device allocated"));
            }
        }
        let spec = AllocSpec { align: home.align, ..spec_of(home.bytes, home.memory_kind) };
        let (at, keeps) = (home.at, Allocation::Peer(home.clone()));
        Ok(Inner::of(context, at, None, &spec, keeps))
    }

    fn pinned(context: Arc<Context>, spec: &AllocSpec) -> Result<Inner> {
        let driver = context.driver.clone();
        let current = context.enter()?;
        let (host, share) = driver
            .pins
            .allocate(&driver, spec.bytes, spec.align)
            .map_err(|refused| failed(&context, refused, spec.bytes))?;
        let seen = driver.pins.device_pointer(&driver, &share);
        let seen = driver.check(seen.inspect_err(|_| driver.pins.release(&context, &share)))?;
        drop(current);
        let host = NonNull::new(host.0.cast()).map(HostAddress);
        Ok(Inner::of(context, seen, host, spec, Allocation::Pinned(share, None)))
    }

    fn registered(context: Arc<Context>, range: &HostRange) -> Result<Inner> {
        let driver = context.driver.clone();
        let current = context.enter()?;
        let share =
            driver.check(driver.pins.register(&driver, range.pointer.as_ptr(), range.bytes))?;
        let seen = driver.pins.device_pointer(&driver, &share);
        let seen = driver.check(seen.inspect_err(|_| driver.pins.release(&context, &share)))?;
        drop(current);
        let spec = spec_of(range.bytes, MemoryKind::HostPages);
        let allocation = Allocation::Pinned(share, Some(range.clone()));
        Ok(Inner::of(context, seen, Some(HostAddress(range.pointer)), &spec, allocation))
    }

    fn of(
        context: Arc<Context>,
        at: DevicePtr,
        host: Option<HostAddress>,
        spec: &AllocSpec,
        allocation: Allocation,
    ) -> Inner {
        let AllocSpec { bytes, align, memory_kind, .. } = *spec;
        let (users, allocation) = (Users::default(), Some(allocation));
        Inner { context, at, host, bytes, align, memory_kind, users, allocation }
    }
}

/// The allocation spec of imported memory.
fn spec_of(bytes: usize, memory_kind: MemoryKind) -> AllocSpec {
    let (access, host) = (Access::ReadWrite, HostAccess::default());
    AllocSpec { bytes, align: 1, memory_kind, access, host, hint: None }
}

/// Allocates device memory that begins at the requested alignment.
fn with_alignment(
    context: &Context,
    spec: &AllocSpec,
    allocate: impl Fn(usize) -> Result<DevicePtr, Refused>,
) -> Result<Aligned<DevicePtr>> {
    with_room(context, spec, || aligned::on_device(context, spec.bytes, spec.align, &allocate))
}

/// Allocates; if memory is exhausted, tries again after deferred frees.
fn with_room<T>(
    context: &Context,
    spec: &AllocSpec,
    allocate: impl Fn() -> Result<T, Refused>,
) -> Result<T> {
    let _current = context.enter()?;
    let made = allocate().or_else(|refused| match refused.status {
        CuStatus::OUT_OF_MEMORY => context.free_until(allocate).unwrap_or(Err(refused)),
        _ => Err(refused),
    });
    made.map_err(|refused| failed(context, refused, spec.bytes))
}

fn failed(context: &Context, refused: Refused, bytes: usize) -> Error {
    conv::allocation(context.table(), refused, bytes, &context.driver.info)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(allocation) = self.allocation.take() else { return };
        if !matches!(allocation, Allocation::Foreign(_)) {
            self.context.free_later(&self.users.take(), |context| allocation.free(context));
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("device", &self.context.driver.info.name)
            .field("bytes", &self.bytes)
            .field("memory_kind", &self.memory_kind)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
