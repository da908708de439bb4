//! Driver allocations: how they are created, and freed after the work that uses them.

use super::{
    address, conv, conv::Version, device::Context, graphics, owner::Custody, queue::RawQueue,
};
use onebuf_hal::{
    Access, AddressRange, AllocSpec, Error, FdRange, HostRange, MemoryKind, ObjectRange, Result,
    checks, locks::Arc,
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClBufferRegion, ClEvent, ClMem, consts as cl},
};
use std::{ffi::c_void, os::fd::IntoRawFd, ptr, ptr::NonNull, time::Duration};

/// How long a free may wait for the queues that used the memory.
const FREE_WAIT: Duration = Duration::from_secs(10);

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

    /// # Safety
    /// `bytes` is inside what lies at this address.
    pub unsafe fn add(self, bytes: usize) -> Address {
        // SAFETY: the caller's promise.
        Address(unsafe { self.0.add(bytes) })
    }
}

/// What the driver knows the memory by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A memory object.
    Object(ClMem),
    /// Shared virtual memory; `base` is what the driver allocated for us, at most one alignment lower;
    /// nothing where the memory is somebody else's.
    Svm { pointer: Address, base: Option<Address> },
}

/// A memory object that is released once.
pub(super) struct Object {
    context: Arc<Context>,
    pub mem: ClMem,
    /// For imported host pages.
    custody: Option<Arc<Custody>>,
}

/// What an allocation results in, and the flags that it was made with.
pub(super) struct Storage {
    pub place: Place,
    /// The owner of the handle in `place`, where that is one.
    pub object: Option<Object>,
    /// What `object` is a part of, where we made that too.
    pub whole: Option<Whole>,
    pub flags: u64,
}

/// An imported allocation, and where in it the memory begins.
pub(super) struct Whole {
    pub object: Object,
    pub origin: usize,
}

impl Object {
    /// # Safety
    /// `host` is what `flags` need: null, or `bytes` of memory that stay until the object is destroyed
    /// or, where they are copied, until this returns.
    unsafe fn new(
        context: &Arc<Context>,
        flags: u64,
        bytes: usize,
        host: *mut c_void,
    ) -> Result<Object> {
        // SAFETY: the caller's promise.
        let made = unsafe { Object::make(context, flags, bytes, host) };
        made.map_err(|why| conv::allocation("clCreateBuffer", why, bytes, &context.driver.info))
    }

    /// # Safety
    /// As [`Object::new`].
    unsafe fn make(
        context: &Arc<Context>,
        flags: u64,
        bytes: usize,
        host: *mut c_void,
    ) -> Result<Object, ClStatus> {
        let driver = &context.driver;
        // SAFETY: a live context, and the caller's promise.
        let mem = driver.post.watch("clCreateBuffer", || unsafe {
            driver.cl.create_buffer(context.raw, flags, bytes, host)
        })?;
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// A new object with these bytes in it.
    pub fn holding(context: &Arc<Context>, flags: u64, contents: &[u8]) -> Result<Object> {
        let (flags, from) = (flags | cl::CL_MEM_COPY_HOST_PTR, contents.as_ptr().cast_mut().cast());
        // SAFETY: the driver reads the bytes before it returns, and does not write them.
        unsafe { Object::new(context, flags, contents.len(), from) }
    }

    /// A part of another. The driver keeps that until this is released.
    pub fn part(
        context: &Arc<Context>,
        whole: ClMem,
        access: Access,
        region: ClBufferRegion,
    ) -> Result<Object> {
        let (driver, flags) = (&context.driver, conv::access(access));
        // SAFETY: a live object that is no part itself; the region was checked.
        let made = unsafe {
            let kind = cl::CL_BUFFER_CREATE_TYPE_REGION;
            driver.cl.create_sub_buffer(whole, flags, kind, &raw const region)
        };
        let (call, bytes) = ("clCreateSubBuffer", region.size);
        let mem = made.map_err(|why| conv::allocation(call, why, bytes, &driver.info))?;
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// The whole allocation behind a descriptor.
    fn imported(context: &Arc<Context>, flags: u64, range: &FdRange) -> Result<Object> {
        let (driver, bytes) = (&context.driver, range.allocation_bytes);
        let fd = range.fd.try_clone().map_err(|why| {
            Error::invalid(format!("the descriptor of the memory cannot be duplicated: {why}"))
        })?;
        let kind = u64::from(conv::handle_type(range.kind));
        let list = [kind, std::os::fd::AsRawFd::as_raw_fd(&fd) as u64, 0];
        // SAFETY: a live context; the list ends with 0; no host pointer.
        let made = unsafe {
            let (list, none) = (list.as_ptr(), ptr::null_mut());
            driver.cl.create_buffer_with_properties(context.raw, list, flags, bytes, none)
        };
        // Whatever the status: nothing is allocated here, so no memory is lacking.
        let mem = driver.check("clCreateBufferWithProperties", made)?;
        // The duplicate is the driver's now.
        let _ = fd.into_raw_fd();
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// Somebody else's object, with a reference of our own.
    ///
    /// # Safety
    /// A live memory object of the context.
    pub unsafe fn retained(context: &Arc<Context>, mem: ClMem) -> Result<Object> {
        let driver = &context.driver;
        // SAFETY: the caller's promise.
        driver.check("clRetainMemObject", unsafe { driver.cl.retain_mem_object(mem) })?;
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// Lets go of it, after the queues' work where the driver would not wait for that.
    pub fn release(self, users: &[Arc<RawQueue>]) {
        if self.context.driver.quirks.releases_early {
            let object = Arc::new(self);
            users.iter().for_each(|queue| queue.hold(object.clone()));
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let driver = &self.context.driver;
        // SAFETY: this struct owns one reference; the driver waits for commands that use it, or is
        // known not to and `release` has waited.
        let release = || unsafe { driver.cl.release_mem_object(self.mem) };
        driver.note("clReleaseMemObject", driver.post.watch("clReleaseMemObject", release));
        if let Some(custody) = &self.custody {
            custody.released();
        }
    }
}

impl Storage {
    pub fn of(object: Object, flags: u64) -> Storage {
        Storage { place: Place::Object(object.mem), object: Some(object), whole: None, flags }
    }

    /// New memory in one of the device's memory kinds.
    pub fn new(
        context: &Arc<Context>,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<Storage> {
        match (spec.memory_kind, contents) {
            (MemoryKind::FineSvm | MemoryKind::CoarseSvm, None) => svm(context, spec),
            (MemoryKind::FineSvm | MemoryKind::CoarseSvm, Some(_)) => {
                Err(Error::invalid("contents for shared virtual memory, which is made empty"))
            }
            (MemoryKind::MappedDevice, _) => {
                buffer(context, spec, cl::CL_MEM_ALLOC_HOST_PTR, contents)
            }
            (MemoryKind::Managed, _) => Err(Error::unsupported("managed memory", "CUDA or HIP")),
            (MemoryKind::OnChip, _) => buffer(context, spec, cl::CL_MEM_USE_MSMC_TI, contents),
            (MemoryKind::Device | MemoryKind::HostPages | MemoryKind::Exportable, _) => {
                buffer(context, spec, 0, contents)
            }
        }
    }

    /// Memory behind a descriptor. The driver imports allocations whole, and only wholes can be handed over and have parts: so
    /// the whole is kept where the memory is a part of it.
    pub fn behind(context: &Arc<Context>, range: &FdRange, access: Access) -> Result<Storage> {
        let flags = conv::access(access);
        let whole = Object::imported(context, flags, range)?;
        if range.offset == 0 {
            return Ok(Storage::of(whole, flags));
        }
        let region = ClBufferRegion { origin: range.offset, size: range.bytes };
        let part = Object::part(context, whole.mem, access, region)?;
        let whole = Some(Whole { object: whole, origin: range.offset });
        Ok(Storage { whole, ..Storage::of(part, flags) })
    }

    /// A buffer of another API's, in a context that was made for sharing. The other keeps it until the driver has let go of it.
    pub fn shared(context: &Arc<Context>, object: &ObjectRange, access: Access) -> Result<Storage> {
        let flags = conv::access(access);
        let mem = graphics::buffer(context, object, flags)?;
        let mut made = Object { context: context.clone(), mem, custody: None };
        graphics::check_bytes(&context.driver, mem, object.bytes)?;
        made.custody = Some(Custody::register(context, mem, Arc::new(object.clone()))?);
        Ok(Storage::of(made, flags))
    }

    /// Memory that another API allocated, by its address. Nothing is freed here.
    pub fn at(range: &AddressRange, access: Access) -> Storage {
        // Null is refused before; nobody follows the address on the host.
        let pointer =
            NonNull::new(range.address as usize as *mut u8).unwrap_or(NonNull::dangling());
        let place = Place::Svm { pointer: Address(pointer), base: None };
        Storage { place, object: None, whole: None, flags: conv::access(access) }
    }

    /// Somebody else's host pages.
    pub fn over(context: &Arc<Context>, range: &HostRange, access: Access) -> Result<Storage> {
        let flags = cl::CL_MEM_USE_HOST_PTR | conv::access(access);
        let (bytes, host) = (range.bytes, range.pointer.as_ptr().cast());
        // SAFETY: the pages are as long as said, and stay while their owner does, of which a clone is
        // kept until the driver has destroyed the object.
        let object = unsafe { Object::make(context, flags, bytes, host) };
        let mut object = object.map_err(|why| address::not_over(&context.driver, range, why))?;
        // Refused, the import fails: the object is released, which no command has used yet, and the
        // caller still holds the pages. Without the callback nobody could say when to free them.
        let custody = Custody::register(context, object.mem, range.owner.clone())?;
        object.custody = Some(custody);
        Ok(Storage::of(object, flags))
    }
}

/// A plain memory object. Its base is aligned as the device says, whatever was asked for; what the
/// host's view needs beyond that is checked at export.
fn buffer(
    context: &Arc<Context>,
    spec: &AllocSpec,
    flags: u64,
    contents: Option<&[u8]>,
) -> Result<Storage> {
    // The bits for the host are of 1.2. Before that the layers above keep to them alone.
    let host = match context.driver.version >= Version::V1_2 {
        true => conv::host_access(spec.host),
        false => 0,
    };
    let flags = flags | host | conv::access(spec.access);
    let Some(contents) = contents else {
        // SAFETY: no host pointer.
        let object = unsafe { Object::new(context, flags, spec.bytes, ptr::null_mut()) }?;
        return Ok(Storage::of(object, flags));
    };
    let object = Object::holding(context, flags, contents)?;
    Ok(Storage::of(object, flags | cl::CL_MEM_COPY_HOST_PTR))
}

/// Shared virtual memory, with room to align it further than the driver would.
fn svm(context: &Context, spec: &AllocSpec) -> Result<Storage> {
    let driver = &context.driver;
    let room = if spec.align > MAX_SVM_ALIGN { spec.align } else { 0 };
    let none = || checks::out_of_memory(spec.bytes, &driver.info);
    let asked = spec.bytes.checked_add(room).ok_or_else(none)?;
    let fine = match (spec.memory_kind, driver.info.caps.svm_atomics) {
        (MemoryKind::FineSvm, true) => cl::CL_MEM_SVM_FINE_GRAIN_BUFFER | cl::CL_MEM_SVM_ATOMICS,
        (MemoryKind::FineSvm, false) => cl::CL_MEM_SVM_FINE_GRAIN_BUFFER,
        _ => 0,
    };
    let flags = fine | conv::access(spec.access);
    // SAFETY: a live context whose driver has SVM: memory kinds were checked by `Device::allocate`.
    let made = unsafe { driver.cl.svm_alloc(context.raw, flags, asked, MAX_SVM_ALIGN as u32) };
    let refused = || match onebuf_sys::fork::is_child() {
        true => Error::forked(&driver.info.name),
        false => none(),
    };
    let base = Address(made.ok_or_else(refused)?.cast::<u8>());
    let over = if room == 0 { 0 } else { base.0.as_ptr().align_offset(spec.align) };
    // SAFETY: `over` is below `room`, so it lies inside what was allocated.
    let pointer = unsafe { base.add(over) };
    let place = Place::Svm { pointer, base: Some(base) };
    Ok(Storage { place, object: None, whole: None, flags })
}

/// Frees behind all work of the queues that used it, without waiting where the driver can.
pub(super) fn free_svm(context: &Context, base: Address, bytes: usize, users: &[Arc<RawQueue>]) {
    if !users.is_empty() {
        if free_in_queue(base, users).is_ok() {
            return;
        }
        if let Some(why) = users.iter().find_map(|queue| queue.drain(FREE_WAIT).err()) {
            // Work may still use it: better lost than freed under a kernel.
            tracing::error!("{bytes} bytes of SVM are not freed: {why}");
            return;
        }
    }
    let driver = &context.driver;
    // SAFETY: allocated in this context, freed once, and no queue uses it any more.
    let free = || unsafe { driver.cl.svm_free(context.raw, base.void()) };
    let freed = driver.post.watch("clSVMFree", free);
    driver.note("clSVMFree", freed);
}

/// Enqueues the free on one queue, behind all work of all of them.
fn free_in_queue(base: Address, users: &[Arc<RawQueue>]) -> Result<()> {
    let Some(queue) = users.last() else { return Ok(()) };
    let marks = users.iter().map(|queue| queue.mark()).collect::<Result<Vec<_>>>()?;
    marks.iter().try_for_each(|mark| queue.prepare(mark))?;
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
