//! Memory: plain and mapped buffers, imported memory, shared virtual memory, and regions of these.

use super::{
    OpenClBackend,
    access_state::{MemoryState, Now},
    address, conv,
    device::Context,
    owner::{self, Owner},
    queue::{Queue, RawQueue},
    storage::{self, Address, Object, Place, Storage, Whole},
};
use onebuf_hal::{
    self as hal, Access, AccessState, AddressFrom, AddressRange, AllocSpec, DeviceInfo, Domain,
    Error, Export, FdRange, HostAccess, HostRange, MemoryKind, ObjectRange, RawHandle, Result,
    locks::{Arc, AtomicU64, Mutex, lock},
    typed::{AllocationPart, TypedMemory},
};
use onebuf_sys::opencl::ClBufferRegion;
use std::{fmt, ptr::NonNull, sync::OnceLock, time::Duration};

/// How long an export waits for its map.
const EXPORT_WAIT: Duration = Duration::from_secs(10);

/// One allocation or import, freed when its last holder is dropped.
pub(super) struct Inner {
    pub context: Arc<Context>,
    pub place: Place,
    pub bytes: usize,
    pub memory_kind: MemoryKind,
    pub host: HostAccess,
    align: usize,
    pub access_state: Now,
    pub state: Mutex<MemoryState>,
    /// Whether to record the queues that use it: the driver does not wait for them before it frees SVM, clover before it
    /// frees anything, and imported memory is released after them.
    pub tracks_users: bool,
    /// The id of the queue that was recorded last; zero if there is none.
    pub last_user: AtomicU64,
    object: Option<Object>,
    whole: Option<Whole>,
    /// Memory that another API allocated, by its address; keeps its owner.
    theirs: Option<AddressRange>,
    /// The other API's object that this memory is shared with.
    pub shared: Option<ObjectRange>,
    /// The address that kernels see, once it was determined.
    seen_at: OnceLock<u64>,
}

/// A device's memory or a region of it, as the layers above hold it. An export holds only the `Inner`.
#[derive(Debug)]
pub struct Memory {
    inner: Arc<Inner>,
    part: Option<Part>,
    /// Identifies this memory in the remembered arguments of a kernel.
    pub id: u64,
    pub(super) place: Place,
    pub domain: Domain,
    bytes: usize,
    access: Access,
    /// The flags that the driver created it with.
    flags: u64,
}

/// The additional fields of a region.
struct Part {
    offset: usize,
    /// The sub-buffer; `None` for SVM, where the address is enough.
    object: Option<Object>,
}

impl Memory {
    /// Allocates memory of one of the device's memory kinds.
    pub(super) fn allocate(
        context: Arc<Context>,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<Memory> {
        let storage = Storage::new(&context, spec, contents)?;
        let flags = storage.flags;
        Ok(Memory::whole(Inner::new(context, storage, spec), spec.access, flags))
    }

    /// Imports foreign host pages.
    pub(super) fn import(
        context: Arc<Context>,
        range: &HostRange,
        access: Access,
    ) -> Result<Memory> {
        let storage = Storage::over(&context, range, access)?;
        let (bytes, memory_kind, host) =
            (range.bytes, MemoryKind::HostPages, HostAccess::default());
        let spec = AllocSpec { bytes, align: 1, memory_kind, access, host, hint: None };
        let flags = storage.flags;
        let inner = Inner::new(context, storage, &spec);
        lock(&inner.state).must_be_at(Address(range.pointer));
        Ok(Memory::whole(inner, access, flags))
    }

    /// Imports memory of another API or process. It starts as `Released`.
    pub(super) fn import_fd(
        context: Arc<Context>,
        range: &FdRange,
        access: Access,
    ) -> Result<Memory> {
        let storage = Storage::behind(&context, range, access)?;
        let (bytes, memory_kind, host) =
            (range.bytes, MemoryKind::Exportable, HostAccess::default());
        let spec = AllocSpec { bytes, align: 1, memory_kind, access, host, hint: None };
        let flags = storage.flags;
        let inner = Inner::new(context, storage, &spec);
        inner.access_state.set(AccessState::Released);
        Ok(Memory::whole(inner, access, flags))
    }

    /// Imports another API's buffer by the sharing extension. It starts as `Released`.
    pub(super) fn import_object(
        context: Arc<Context>,
        object: &ObjectRange,
        access: Access,
    ) -> Result<Memory> {
        let storage = Storage::shared(&context, object, access)?;
        let (bytes, memory_kind, host) =
            (object.bytes, MemoryKind::Exportable, HostAccess::default());
        let spec = AllocSpec { bytes, align: 1, memory_kind, access, host, hint: None };
        let flags = storage.flags;
        let mut inner = Inner::new(context, storage, &spec);
        inner.shared = Some(object.clone());
        inner.access_state.set(AccessState::Released);
        Ok(Memory::whole(inner, access, flags))
    }

    /// Memory of another API, at an address that this device's kernels use unchanged. The driver does not know the memory, and
    /// its in-order queues omit the barrier between two kernels that use it: see [`Memory::is_unknown`].
    pub(super) fn at_address(
        context: Arc<Context>,
        range: &AddressRange,
        access: Access,
    ) -> Memory {
        let storage = Storage::at(range, access);
        let (bytes, memory_kind, host) = (range.bytes, MemoryKind::Device, HostAccess::default());
        let spec = AllocSpec { bytes, align: 1, memory_kind, access, host, hint: None };
        let flags = storage.flags;
        let mut inner = Inner::new(context, storage, &spec);
        inner.theirs = Some(range.clone());
        Memory::whole(inner, access, flags)
    }

    /// Whether the driver does not know the memory. Only kernels may use it, with a barrier between them.
    #[inline]
    pub fn is_unknown(&self) -> bool {
        self.inner.theirs.is_some()
    }

    /// Wraps foreign memory.
    pub(super) fn wrap(context: Arc<Context>, storage: Storage, spec: &AllocSpec) -> Memory {
        let flags = storage.flags;
        Memory::whole(Inner::new(context, storage, spec), spec.access, flags)
    }

    /// Wraps a foreign sub-buffer of this memory.
    pub(super) fn wrap_part(&self, object: Object, at: ClBufferRegion, access: Access) -> Memory {
        let (inner, place) = (self.inner.clone(), Place::Object(object.mem));
        let (id, domain) = (inner.context.new_id(), self.domain);
        let flags = self.flags & !conv::access(self.access) | conv::access(access);
        let part = Some(Part { offset: at.origin, object: Some(object) });
        Memory { inner, part, id, place, domain, bytes: at.size, access, flags }
    }

    fn whole(inner: Inner, access: Access, flags: u64) -> Memory {
        let (place, bytes, id) = (inner.place, inner.bytes, inner.context.new_id());
        let domain = inner.context.driver.domain;
        Memory { inner: Arc::new(inner), part: None, id, place, domain, bytes, access, flags }
    }

    fn part_at(&self, offset: usize, bytes: usize, access: Access) -> Result<Memory> {
        let inner = self.inner.clone();
        let (place, object) = match inner.whole_place() {
            Place::Object(whole) => {
                let origin = inner.whole.as_ref().map_or(0, |whole| whole.origin) + offset;
                let region = ClBufferRegion { origin, size: bytes };
                let object = Object::part(&inner.context, whole, access, region)?;
                (Place::Object(object.mem), Some(object))
            }
            Place::Svm { pointer, base } => {
                // SAFETY: the region was checked to lie inside.
                (Place::Svm { pointer: unsafe { pointer.add(offset) }, base }, None)
            }
        };
        let (id, domain) = (inner.context.new_id(), self.domain);
        let flags = self.flags & !conv::access(self.access) | conv::access(access);
        let part = Some(Part { offset, object });
        Ok(Memory { inner, part, id, place, domain, bytes, access, flags })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// The offset of its first byte in the allocation.
    pub fn offset(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.offset)
    }

    pub(super) fn reside(&self, queue: &Arc<RawQueue>, to: AccessState) -> Result<bool> {
        self.inner.reside(queue, to)
    }

    /// Whether the host's commands may write it.
    pub fn takes_writes(&self) -> bool {
        self.inner.host.writes()
    }

    /// Checks that the queue may use the memory, and records the queue. Takes a lock only at the first use by a queue that
    /// must be recorded.
    #[inline]
    pub(super) fn start_use(&self, queue: &Arc<RawQueue>, writes: bool) -> Result<()> {
        self.inner.access_state.check_use(writes)?;
        self.inner.note_use(queue);
        Ok(())
    }

    /// Checks and records a launch. If onebuf waits for the launch, the queue is recorded only when that wait fails.
    #[inline]
    pub(super) fn start_launch(&self, queue: &Arc<RawQueue>, writes: bool) -> Result<()> {
        if self.inner.access_state.is_acquired() && self.inner.knows(queue) {
            return Ok(());
        }
        self.note_launch(queue, writes)
    }

    #[cold]
    fn note_launch(&self, queue: &Arc<RawQueue>, writes: bool) -> Result<()> {
        self.inner.access_state.check_use(writes)?;
        self.inner.note_launch(queue);
        Ok(())
    }

    /// Records the queue after a failed wait, because the launch may still run.
    pub(super) fn outlives(&self, queue: &Arc<RawQueue>) {
        self.inner.note_use(queue);
    }

    /// Records that the queue is about to use the memory in any way.
    pub(super) fn note_use(&self, queue: &Arc<RawQueue>) {
        self.inner.note_use(queue);
    }

    /// Returns the address that kernels see. Determined once, because a driver does not report that it moved a buffer.
    fn seen_at(&self, queue: &Queue) -> Result<u64> {
        if let Some(at) = self.inner.seen_at.get() {
            return Ok(*at);
        }
        let at = address::of(self, queue)?;
        Ok(*self.inner.seen_at.get_or_init(|| at))
    }

    /// Maps the memory for others, waits for the map, and fixes its address.
    fn hand_out(&self, queue: &Arc<RawQueue>) -> Result<NonNull<u8>> {
        self.reside(queue, AccessState::Released)?;
        hal::Event::wait(&queue.mark()?, queue.driver().post.limit().min(EXPORT_WAIT))?;
        let mut state = lock(&self.inner.state);
        let Some(Address(pointer)) = state.mapped() else {
            return Err(Error::Busy { what: "the memory was taken back during its export".into() });
        };
        if !pointer.addr().get().is_multiple_of(self.inner.align) {
            let (at, align) = (pointer.as_ptr(), self.inner.align);
            let needs = "a driver that maps with this alignment, or page-aligned memory of the host's under \
                         CL_MEM_USE_HOST_PTR: allocate on the host";
            return Err(Error::unsupported(format!("a map at {at:p} aligned to {align}"), needs));
        }
        state.must_be_at(Address(pointer));
        Ok(pointer)
    }
}

// SAFETY: a mapped pointer is the driver's, valid until the unmap that `reside` enqueues; `Inner` keeps its memory object.
unsafe impl TypedMemory for Memory {
    type Types = OpenClBackend;

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
        AllocationPart::of(&self.inner, self.part.as_ref().map(|part| part.offset))
    }

    fn retain(&self) -> Result<usize> {
        let Place::Object(mem) = self.place else {
            return Err(Error::unsupported(
                "a cl_mem of this memory",
                "an OpenCL device, and memory that is not shared virtual memory",
            ));
        };
        let driver = &self.context().driver;
        // SAFETY: the memory holds it.
        driver.check("clRetainMemObject", unsafe { driver.cl.retain_mem_object(mem) })?;
        Ok(mem.0 as usize)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        let whole = match (self.inner.place, self.inner.memory_kind) {
            (Place::Svm { pointer, .. }, MemoryKind::FineSvm) => pointer,
            _ => lock(&self.inner.state).mapped()?,
        };
        // SAFETY: a part lies inside the whole.
        Some(unsafe { whole.add(self.offset()) }.0)
    }

    fn needs_access_state(&self) -> bool {
        self.inner.needs_access_state()
    }

    fn access_state(&self) -> AccessState {
        self.inner.access_state.get()
    }

    fn pins_pages(&self) -> bool {
        self.inner.memory_kind == MemoryKind::HostPages
    }

    /// NVIDIA's driver keeps a copy of the memory on the chip, and transfers it by each map and each unmap.
    fn is_read_from_map(&self) -> bool {
        self.inner.memory_kind == MemoryKind::MappedDevice
    }

    unsafe fn export(&self, queue: &Queue) -> Result<Export> {
        let pointer = match (self.inner.place, self.inner.memory_kind) {
            (_, MemoryKind::Device | MemoryKind::OnChip | MemoryKind::Exportable) => {
                let needs = "mapped_device, fine_svm or coarse_svm memory";
                return Err(Error::unsupported("the host's view of device memory", needs));
            }
            (Place::Svm { pointer, .. }, MemoryKind::FineSvm) => pointer.0,
            _ => self.hand_out(&queue.raw)?,
        };
        let owner: Owner = self.inner.clone();
        Ok(Export::Host(HostRange { pointer, bytes: self.bytes, owner }))
    }

    unsafe fn export_address(&self, queue: &Queue) -> Result<AddressRange> {
        let owner: Owner = self.inner.clone();
        address::check_placed(&self.inner)?;
        let (address, from) = match self.inner.place {
            Place::Svm { pointer, .. } => (pointer.0.as_ptr() as u64, AddressFrom::Allocator),
            Place::Object(_) => (self.seen_at(queue)?, AddressFrom::Kernel),
        };
        Ok(AddressRange { address, bytes: self.bytes, from, owner })
    }

    fn takes_transfers(&self) -> bool {
        !self.is_unknown()
    }

    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Memory> {
        self.part_at(offset, bytes, access)
    }

    fn raw(&self) -> RawHandle {
        match self.place {
            Place::Object(mem) => RawHandle::Object(mem.0 as usize),
            Place::Svm { pointer, .. } => RawHandle::Address(pointer.0.as_ptr() as usize),
        }
    }

    fn remark(&self) -> Option<String> {
        let text = match (&self.inner.theirs, &self.inner.shared) {
            (Some(_), _) => address::REMARK.to_owned(),
            (None, Some(_)) => "a buffer of OpenGL's, acquired and released in turn".to_owned(),
            (None, None) => conv::memory_text(self.inner.memory_kind, self.flags, self.access),
        };
        let text = match address::placement(&self.inner) {
            Some(place) => format!("{text}; {place}"),
            None => text,
        };
        Some(match &self.part {
            None => text,
            Some(part) => format!("{text}; a region from byte {}", part.offset),
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.inner.context.driver.quirks.keeps_arguments {
            self.inner.context.ids.take_back(self.id);
        }
        if let Some(object) = self.part.as_mut().and_then(|part| part.object.take()) {
            object.release(&self.inner.users());
        }
    }
}

impl Inner {
    fn new(context: Arc<Context>, storage: Storage, spec: &AllocSpec) -> Inner {
        let AllocSpec { bytes, align, memory_kind, host, .. } = *spec;
        let Storage { place, object, whole, .. } = storage;
        let is_svm = matches!(place, Place::Svm { .. });
        let imported = memory_kind == MemoryKind::Exportable;
        Inner {
            tracks_users: is_svm || imported || context.driver.quirks.releases_early,
            access_state: Now::default(),
            state: Mutex::default(),
            last_user: AtomicU64::new(0),
            context,
            place,
            bytes,
            memory_kind,
            host,
            align,
            object,
            whole,
            theirs: None,
            shared: None,
            seen_at: OnceLock::new(),
        }
    }

    /// The driver's handle from which regions are created and which is acquired and released: the whole imported allocation if
    /// this memory is a part of one.
    pub fn whole_place(&self) -> Place {
        self.whole.as_ref().map_or(self.place, |whole| Place::Object(whole.object.mem))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let users = self.retire();
        if let Some(object) = self.object.take() {
            object.release(&users);
        }
        if let Some(whole) = self.whole.take() {
            whole.object.release(&users);
        }
        if let Place::Svm { base: Some(base), .. } = self.place {
            storage::free_svm(&self.context, base, self.bytes, &users);
        }
        if let Some(theirs) = self.theirs.take() {
            owner::part_from(theirs.owner, &users);
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.context.driver.info.name;
        f.debug_struct("Memory")
            .field("device", device)
            .field("bytes", &self.bytes)
            .field("memory_kind", &self.memory_kind)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("offset", &self.offset).finish_non_exhaustive()
    }
}
