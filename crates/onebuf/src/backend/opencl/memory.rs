//! Memory: plain and mapped buffers, imported host pages, shared virtual memory.

use super::{
    conv,
    device::Context,
    owner::{Custody, Owner},
    queue::{Queue, RawQueue},
    residency::State,
};
use crate::{
    Error, Result, hal,
    hal::{
        Access, AllocSpec, Domain, Export, HostAccess, HostRange, RawHandle, Residency, Strategy,
    },
    sync::{Arc, Mutex, lock},
};
use onebuf_sys::opencl::{ClEvent, ClMem, consts as cl};
use std::{any::Any, ffi::c_void, fmt, ptr, ptr::NonNull, time::Duration};

/// How long an export may wait for its map, and a free for the queues that used the memory.
const DRIVER_WAIT: Duration = Duration::from_secs(10);

/// The largest alignment that `clSVMAlloc` must accept: that of `long16`.
const MAX_SVM_ALIGN: usize = 128;

/// An address that is only compared and passed on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(pub NonNull<u8>);

// SAFETY: an address; who dereferences it answers for that.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    pub fn void(self) -> *mut c_void {
        self.0.as_ptr().cast()
    }
}

/// What the driver knows the memory by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A memory object.
    Object(ClMem),
    /// Shared virtual memory; `base` is what the driver allocated, at most one alignment lower.
    Svm { pointer: Address, base: Address },
}

/// Memory that the driver made, freed when the last of its holders goes.
pub(super) struct Inner {
    pub context: Arc<Context>,
    pub place: Place,
    pub bytes: usize,
    pub strategy: Strategy,
    access: Access,
    align: usize,
    pub state: Mutex<State>,
    /// The owner of the handle in `place`, where that is one.
    object: Option<Object>,
}

/// A memory object that is released once.
struct Object {
    context: Arc<Context>,
    mem: ClMem,
    /// For imported host pages.
    custody: Option<Arc<Custody>>,
}

/// What an allocation results in.
enum Storage {
    Object(Object),
    Svm { pointer: Address, base: Address },
}

impl Object {
    /// # Safety
    /// `host` is what `flags` need: null, or `bytes` of memory that stay until the object is destroyed.
    unsafe fn new(
        context: &Arc<Context>,
        flags: u64,
        bytes: usize,
        host: *mut c_void,
    ) -> Result<Object> {
        let driver = &context.driver;
        // SAFETY: a live context, and the caller's promise.
        let made = unsafe { driver.cl.create_buffer(context.raw, flags, bytes, host) };
        let made = made.map_err(|why| conv::allocation("clCreateBuffer", why, bytes, &driver.info));
        Ok(Object { context: context.clone(), mem: made?, custody: None })
    }

    fn over(context: &Arc<Context>, range: &HostRange, access: Access) -> Result<Object> {
        let flags = cl::CL_MEM_USE_HOST_PTR | conv::access(access);
        // SAFETY: the pages are as long as said, and stay while their owner does, of which a clone is
        // kept until the driver has destroyed the object.
        unsafe { Object::new(context, flags, range.bytes, range.pointer.as_ptr().cast()) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let driver = &self.context.driver;
        // SAFETY: this struct owns one reference; the driver waits for commands that use it, or is
        // known not to and `Inner::release` has waited.
        driver.note("clReleaseMemObject", unsafe { driver.cl.release_mem_object(self.mem) });
        if let Some(custody) = &self.custody {
            custody.released();
        }
    }
}

/// A device's memory, as the layers above hold it. An export holds the inner object.
#[derive(Debug)]
pub(super) struct Memory {
    inner: Arc<Inner>,
}

impl Memory {
    /// New memory in one of the device's strategies.
    pub fn allocate(
        context: Arc<Context>,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<Memory> {
        if contents.is_some() {
            return Err(Error::unsupported("contents at creation", "to be written"));
        }
        let storage = match spec.strategy {
            Strategy::FineSvm | Strategy::CoarseSvm => svm(&context, spec)?,
            Strategy::MappedDevice => buffer(&context, spec, cl::CL_MEM_ALLOC_HOST_PTR)?,
            Strategy::Device | Strategy::HostPages | Strategy::OnChip => buffer(&context, spec, 0)?,
        };
        Ok(Memory { inner: Arc::new(Inner::new(context, storage, spec)) })
    }

    /// Somebody else's host pages.
    pub fn import(context: Arc<Context>, range: &HostRange, access: Access) -> Result<Memory> {
        let mut object = Object::over(&context, range, access)?;
        // Refused, the import fails: the object is released, which no command has used yet, and the
        // caller still holds the pages. Without the callback nobody could say when to free them.
        let custody = Custody::register(&context, object.mem, range.owner.clone())?;
        object.custody = Some(custody);
        let strategy = Strategy::HostPages;
        let spec = AllocSpec {
            bytes: range.bytes,
            align: 1,
            strategy,
            access,
            host: HostAccess::default(),
        };
        let inner = Inner::new(context, Storage::Object(object), &spec);
        lock(&inner.state).must_be_at(Address(range.pointer));
        Ok(Memory { inner: Arc::new(inner) })
    }

    pub fn domain(&self) -> Domain {
        self.inner.context.driver.domain
    }

    pub fn place(&self) -> Place {
        self.inner.place
    }

    pub fn reside(&self, queue: &Arc<RawQueue>, to: Residency) -> Result<bool> {
        self.inner.reside(queue, to)
    }

    /// Whether the two are one.
    pub fn is(&self, other: &Memory) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether the range lies inside.
    pub fn check_range(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.inner.bytes => Ok(()),
            _ => Err(Error::invalid(format!(
                "{bytes} bytes at offset {offset} of a memory of {} bytes",
                self.inner.bytes
            ))),
        }
    }

    /// Whether the buffer was made for what a kernel is about to do with it.
    pub fn check_access(&self, access: Access) -> Result<()> {
        if self.inner.access.allows(access) {
            return Ok(());
        }
        let made_for = self.inner.access;
        Err(Error::invalid(format!("memory made for {made_for} given to a kernel for {access}")))
    }

    /// Notes that the queue is about to use it, and says whether it may.
    pub fn start_use(&self, queue: &Arc<RawQueue>, writes: bool) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.check_use(writes)?;
        self.inner.note_use(queue, &mut state);
        Ok(())
    }

    /// Maps for others, waits for it, and pins the address down.
    fn hand_out(&self, queue: &Arc<RawQueue>) -> Result<NonNull<u8>> {
        self.reside(queue, Residency::Away)?;
        hal::Event::wait(&queue.mark()?, DRIVER_WAIT)?;
        let mut state = lock(&self.inner.state);
        let Some(Address(pointer)) = state.mapped() else {
            return Err(Error::Busy { what: "the memory was taken back during its export".into() });
        };
        if !pointer.addr().get().is_multiple_of(self.inner.align) {
            let (at, align) = (pointer.as_ptr(), self.inner.align);
            let needs = "a driver whose maps are aligned so";
            return Err(Error::unsupported(format!("a map at {at:p} aligned to {align}"), needs));
        }
        state.must_be_at(Address(pointer));
        Ok(pointer)
    }
}

impl hal::Memory for Memory {
    fn bytes(&self) -> usize {
        self.inner.bytes
    }

    fn strategy(&self) -> Strategy {
        self.inner.strategy
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        match (self.inner.place, self.inner.strategy) {
            (Place::Svm { pointer, .. }, Strategy::FineSvm) => Some(pointer.0),
            _ => lock(&self.inner.state).mapped().map(|at| at.0),
        }
    }

    fn needs_residency(&self) -> bool {
        self.inner.needs_residency()
    }

    fn residency(&self) -> Residency {
        lock(&self.inner.state).residency()
    }

    fn export(&self, queue: &dyn hal::Queue) -> Result<Export> {
        let driver = &self.inner.context.driver;
        driver.same_domain("a queue", queue.domain())?;
        let queue = queue.as_any().downcast_ref::<Queue>();
        let queue = queue.ok_or_else(|| driver.foreign("a queue", None))?;
        let pointer = match (self.inner.place, self.inner.strategy) {
            (_, Strategy::Device | Strategy::OnChip) => {
                let needs = "mapped_device, fine_svm or coarse_svm memory";
                return Err(Error::unsupported("the host's view of device memory", needs));
            }
            (Place::Svm { pointer, .. }, Strategy::FineSvm) => pointer.0,
            _ => self.hand_out(&queue.raw)?,
        };
        let owner: Owner = self.inner.clone();
        Ok(Export::Host(HostRange { pointer, bytes: self.inner.bytes, owner }))
    }

    fn region(&self, _: usize, _: usize, _: Access) -> Result<Arc<dyn hal::Memory>> {
        Err(Error::unsupported("a region", "to be written"))
    }

    fn raw(&self) -> RawHandle {
        match self.inner.place {
            Place::Object(mem) => RawHandle::Object(mem.0 as usize),
            Place::Svm { pointer, .. } => RawHandle::Address(pointer.0.as_ptr() as usize),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Inner {
    fn new(context: Arc<Context>, storage: Storage, spec: &AllocSpec) -> Inner {
        let AllocSpec { bytes, align, strategy, access, .. } = *spec;
        let (place, object) = match storage {
            Storage::Object(object) => (Place::Object(object.mem), Some(object)),
            Storage::Svm { pointer, base } => (Place::Svm { pointer, base }, None),
        };
        let state = Mutex::new(State::default());
        Inner { context, place, bytes, strategy, access, align, state, object }
    }

    /// Releases the object, after the queues' work where the driver would not wait for it.
    fn release(&mut self, users: &[Arc<RawQueue>]) {
        let object = Arc::new(self.object.take());
        if self.context.driver.quirks.releases_early {
            users.iter().for_each(|queue| queue.hold(object.clone()));
        }
    }

    /// Frees behind all work of the queues that used it, without waiting where the driver can.
    fn free_svm(&self, base: Address, users: &[Arc<RawQueue>]) {
        if !users.is_empty() {
            if free_in_queue(base, users).is_ok() {
                return;
            }
            if let Some(why) = users.iter().find_map(|queue| queue.drain(DRIVER_WAIT).err()) {
                // Work may still use it: better lost than freed under a kernel.
                tracing::error!("{} bytes of SVM are not freed: {why}", self.bytes);
                return;
            }
        }
        let driver = &self.context.driver;
        // SAFETY: allocated in this context, freed once, and no queue uses it any more.
        let freed = unsafe { driver.cl.svm_free(self.context.raw, base.void()) };
        driver.note("clSVMFree", freed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let users = self.retire();
        match self.place {
            Place::Object(_) => self.release(&users),
            Place::Svm { base, .. } => self.free_svm(base, &users),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.context.driver.info.name;
        f.debug_struct("Memory")
            .field("device", device)
            .field("bytes", &self.bytes)
            .field("strategy", &self.strategy)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// A plain memory object. Its base is aligned as the device says, whatever was asked for; what the
/// host's view needs beyond that is checked at export.
fn buffer(context: &Arc<Context>, spec: &AllocSpec, flags: u64) -> Result<Storage> {
    let flags = flags | conv::access(spec.access);
    // SAFETY: no host pointer.
    unsafe { Object::new(context, flags, spec.bytes, ptr::null_mut()) }.map(Storage::Object)
}

/// Shared virtual memory, with room to align it further than the driver would.
fn svm(context: &Context, spec: &AllocSpec) -> Result<Storage> {
    let driver = &context.driver;
    let room = if spec.align > MAX_SVM_ALIGN { spec.align } else { 0 };
    let none = || conv::out_of_memory(spec.bytes, &driver.info);
    let asked = spec.bytes.checked_add(room).ok_or_else(none)?;
    let fine = match (spec.strategy, driver.info.caps.svm_atomics) {
        (Strategy::FineSvm, true) => cl::CL_MEM_SVM_FINE_GRAIN_BUFFER | cl::CL_MEM_SVM_ATOMICS,
        (Strategy::FineSvm, false) => cl::CL_MEM_SVM_FINE_GRAIN_BUFFER,
        _ => 0,
    };
    let flags = fine | conv::access(spec.access);
    // SAFETY: a live context whose driver has SVM: strategies were checked by `Device::allocate`.
    let made = unsafe { driver.cl.svm_alloc(context.raw, flags, asked, MAX_SVM_ALIGN as u32) };
    let base = made.ok_or_else(none)?.cast::<u8>();
    let over = if room == 0 { 0 } else { base.as_ptr().align_offset(spec.align) };
    // SAFETY: `over` is below `room`, so it lies inside what was allocated.
    let pointer = unsafe { base.add(over) };
    Ok(Storage::Svm { pointer: Address(pointer), base: Address(base) })
}

/// Enqueues the free on one queue, behind all work of all of them.
fn free_in_queue(base: Address, users: &[Arc<RawQueue>]) -> Result<()> {
    let Some(queue) = users.last() else { return Ok(()) };
    let marks = users.iter().map(|queue| queue.mark()).collect::<Result<Vec<_>>>()?;
    marks.iter().try_for_each(|mark| mark.flush())?;
    let waits: Vec<ClEvent> = marks.iter().map(|mark| mark.handle()).collect();
    let (count, list) = (waits.len() as u32, waits.as_ptr());
    let mut pointer = base.void();
    let driver = queue.driver();
    // SAFETY: allocated in the queue's context and freed once: nobody holds the memory any more.
    let freed = unsafe {
        let (cl, user, no) = (&driver.cl, ptr::null_mut(), ptr::null_mut());
        cl.enqueue_svm_free(queue.raw, 1, &mut pointer, None, user, count, list, no)
    };
    driver.check("clEnqueueSVMFree", freed)?;
    // Enqueued is as good as freed: should this flush fail, the queue's own release flushes again.
    if let Err(why) = queue.flush() {
        tracing::warn!("an SVM free waits in its queue: {why}");
    }
    Ok(())
}
