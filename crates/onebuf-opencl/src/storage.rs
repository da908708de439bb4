//! Driver allocations: how they are created, and freed after the work that uses them.

use super::{
    address, conv, conv::Version, device::Context, graphics, owner::Custody, queue::RawQueue,
};
use onebuf_hal::{
    Access, AddressRange, AllocSpec, Error, FdKind, FdRange, HostRange, MemoryKind, ObjectRange,
    Result, checks, locks::Arc,
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClBufferRegion, ClEvent, ClMem, consts as cl},
};
use std::{any::Any, ffi::c_void, os::fd::IntoRawFd, ptr, ptr::NonNull, time::Duration};

/// How long a free may wait for the queues that used the memory.
const FREE_WAIT: Duration = Duration::from_secs(10);

/// The largest alignment that `clSVMAlloc` must accept: that of `long16`.
const MAX_SVM_ALIGN: usize = 128;

/// An address that this module compares and passes on, but never dereferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(pub NonNull<u8>);

// SAFETY: only an address; dereferencing it is unsafe, and the caller's responsibility.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    pub fn void(self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// # Safety
    /// `bytes` is inside the allocation at this address.
    pub unsafe fn add(self, bytes: usize) -> Address {
        // SAFETY: the caller's promise.
        Address(unsafe { self.0.add(bytes) })
    }
}

/// How the driver identifies the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A memory object.
    Object(ClMem),
    /// Shared virtual memory. `base` is the driver's allocation, at most one alignment lower than `pointer`; `None` if
    /// the memory is foreign.
    Svm { pointer: Address, base: Option<Address> },
}

/// A memory object, released once.
pub(super) struct Object {
    context: Arc<Context>,
    pub mem: ClMem,
    /// For imported host pages, and for descriptors that stay ours.
    custody: Option<Arc<Custody>>,
}

/// The result of an allocation, with the flags that it was created with.
pub(super) struct Storage {
    pub place: Place,
    /// The owner of the handle in `place`, if that is a memory object.
    pub object: Option<Object>,
    /// The imported allocation that `object` is a part of.
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
    /// `host` is what `flags` require: null, or `bytes` of memory that stay valid until the object is destroyed or, if the
    /// driver copies them, until this returns.
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

    /// Creates an object with these contents.
    pub fn holding(context: &Arc<Context>, flags: u64, contents: &[u8]) -> Result<Object> {
        let (flags, from) = (flags | cl::CL_MEM_COPY_HOST_PTR, contents.as_ptr().cast_mut().cast());
        // SAFETY: the driver reads the bytes before it returns, and does not write them.
        unsafe { Object::new(context, flags, contents.len(), from) }
    }

    /// Creates a sub-buffer. The driver keeps the whole until the part is released.
    pub fn part(
        context: &Arc<Context>,
        whole: ClMem,
        access: Access,
        region: ClBufferRegion,
    ) -> Result<Object> {
        let (driver, flags) = (&context.driver, conv::access(access));
        // SAFETY: a live object that is not a sub-buffer; the region was checked.
        let made = unsafe {
            let kind = cl::CL_BUFFER_CREATE_TYPE_REGION;
            driver.cl.create_sub_buffer(whole, flags, kind, &raw const region)
        };
        let (call, bytes) = ("clCreateSubBuffer", region.size);
        let mem = made.map_err(|why| conv::allocation(call, why, bytes, &driver.info))?;
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// Imports the whole allocation behind a descriptor.
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
        // Importing allocates nothing, so no status is reported as out of memory.
        let mem = driver.check("clCreateBufferWithProperties", made)?;
        // The driver owns the duplicate now.
        let _ = fd.into_raw_fd();
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// A foreign object, with one more reference.
    ///
    /// # Safety
    /// `mem` is a live memory object of the context.
    pub unsafe fn retained(context: &Arc<Context>, mem: ClMem) -> Result<Object> {
        let driver = &context.driver;
        // SAFETY: the caller's promise.
        driver.check("clRetainMemObject", unsafe { driver.cl.retain_mem_object(mem) })?;
        Ok(Object { context: context.clone(), mem, custody: None })
    }

    /// Keeps the owner of imported memory until the driver has destroyed the object. If the callback is refused, the import
    /// fails: nothing would report when the owner may go. The object is then released before any command has used it, and the
    /// caller still holds the owner.
    fn keeping(mut self, owner: Arc<dyn Any + Send + Sync>) -> Result<Object> {
        self.custody = Some(Custody::register(&self.context, self.mem, owner)?);
        Ok(self)
    }

    /// Releases the object; after the queues' work if the driver would not wait for it.
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
        // SAFETY: this struct owns one reference; the driver waits for commands that use it, or is known not to
        // wait and `release` has done so.
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

    /// Allocates memory of one of the device's memory kinds.
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

    /// Imports memory behind a descriptor. The driver imports only whole allocations, and only a whole can be acquired or
    /// have sub-buffers. So the whole is kept if the memory is a part of it.
    pub fn behind(context: &Arc<Context>, range: &FdRange, access: Access) -> Result<Storage> {
        let flags = conv::access(access);
        let whole = match &context.driver.arm {
            Some(arm) if arm.dma_bufs && range.kind == FdKind::DmaBuf => {
                let mem = arm.dma_buf(context, range, access)?;
                let object = Object { context: context.clone(), mem, custody: None };
                object.keeping(range.fd.clone())?
            }
            _ => Object::imported(context, flags, range)?,
        };
        if range.offset == 0 {
            return Ok(Storage::of(whole, flags));
        }
        let region = ClBufferRegion { origin: range.offset, size: range.bytes };
        let part = Object::part(context, whole.mem, access, region)?;
        let whole = Some(Whole { object: whole, origin: range.offset });
        Ok(Storage { whole, ..Storage::of(part, flags) })
    }

    /// Imports another API's buffer into a context created for sharing. Its owner is kept until the driver destroys the object.
    pub fn shared(context: &Arc<Context>, object: &ObjectRange, access: Access) -> Result<Storage> {
        let flags = conv::access(access);
        let mem = graphics::buffer(context, object, flags)?;
        let made = Object { context: context.clone(), mem, custody: None };
        graphics::check_bytes(&context.driver, mem, object.bytes)?;
        Ok(Storage::of(made.keeping(Arc::new(object.clone()))?, flags))
    }

    /// Memory that another API allocated, by its address. It is not freed here.
    pub fn at(range: &AddressRange, access: Access) -> Storage {
        // Null was refused before; the host does not dereference the address.
        let pointer =
            NonNull::new(range.address as usize as *mut u8).unwrap_or(NonNull::dangling());
        let place = Place::Svm { pointer: Address(pointer), base: None };
        Storage { place, object: None, whole: None, flags: conv::access(access) }
    }

    /// Imports foreign host pages.
    pub fn over(context: &Arc<Context>, range: &HostRange, access: Access) -> Result<Storage> {
        let flags = cl::CL_MEM_USE_HOST_PTR | conv::access(access);
        let (bytes, host) = (range.bytes, range.pointer.as_ptr().cast());
        let object = match &context.driver.arm {
            Some(arm) if arm.host_pages => {
                // SAFETY: the pages stay mapped while their owner lives; a clone of the owner is kept until the driver has
                // destroyed the object.
                let mem = unsafe { arm.host_pages(context, range, access) }?;
                Object { context: context.clone(), mem, custody: None }
            }
            _ => {
                // SAFETY: as above, and the pages have this length.
                let object = unsafe { Object::make(context, flags, bytes, host) };
                object.map_err(|why| address::not_over(&context.driver, range, why))?
            }
        };
        Ok(Storage::of(object.keeping(range.owner.clone())?, flags))
    }
}

/// Creates a plain memory object. Its base has the device's alignment, whatever was requested; a stricter alignment of the
/// host's view is checked at export.
fn buffer(
    context: &Arc<Context>,
    spec: &AllocSpec,
    flags: u64,
    contents: Option<&[u8]>,
) -> Result<Storage> {
    // The host access flags need OpenCL 1.2. For older drivers only the layers above enforce host access.
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

/// Allocates shared virtual memory, with padding if a larger alignment than the driver's is requested.
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
    // SAFETY: a live context whose driver has SVM: `Device::allocate` checked the memory kind.
    let made = unsafe { driver.cl.svm_alloc(context.raw, flags, asked, MAX_SVM_ALIGN as u32) };
    let refused = || match onebuf_sys::fork::is_child() {
        true => Error::forked(&driver.info.name),
        false => none(),
    };
    let base = Address(made.ok_or_else(refused)?.cast::<u8>());
    let over = if room == 0 { 0 } else { base.0.as_ptr().align_offset(spec.align) };
    // SAFETY: `over` is less than `room`, so the result lies inside the allocation.
    let pointer = unsafe { base.add(over) };
    let place = Place::Svm { pointer, base: Some(base) };
    Ok(Storage { place, object: None, whole: None, flags })
}

/// Frees SVM after all work of the queues that used it, without waiting if the driver can enqueue the free.
pub(super) fn free_svm(context: &Context, base: Address, bytes: usize, users: &[Arc<RawQueue>]) {
    if !users.is_empty() {
        if free_in_queue(base, users).is_ok() {
            return;
        }
        if let Some(why) = users.iter().find_map(|queue| queue.drain(FREE_WAIT).err()) {
            // Work may still use it: leaked, rather than freed while a kernel runs.
            tracing::error!("{bytes} bytes of SVM are not freed: {why}");
            return;
        }
    }
    let driver = &context.driver;
    // SAFETY: allocated in this context, freed once, and no queue uses it any longer.
    let free = || unsafe { driver.cl.svm_free(context.raw, base.void()) };
    let freed = driver.post.watch("clSVMFree", free);
    driver.note("clSVMFree", freed);
}

/// Enqueues the free on one queue, after all work of all of them.
fn free_in_queue(base: Address, users: &[Arc<RawQueue>]) -> Result<()> {
    let Some(queue) = users.last() else { return Ok(()) };
    let marks = users.iter().map(|queue| queue.mark()).collect::<Result<Vec<_>>>()?;
    marks.iter().try_for_each(|mark| queue.prepare(mark))?;
    let waits: Vec<ClEvent> = marks.iter().map(|mark| mark.handle()).collect();
    let (count, list) = (waits.len() as u32, waits.as_ptr());
    let mut pointer = base.void();
    let driver = queue.driver();
    // SAFETY: allocated in the queue's context and freed once; the last holder of the memory is being dropped.
    let freed = unsafe {
        let (cl, user, no) = (&driver.cl, ptr::null_mut(), ptr::null_mut());
        cl.enqueue_svm_free(queue.raw, 1, &mut pointer, None, user, count, list, no)
    };
    driver.check("clEnqueueSVMFree", freed)?;
    // The free is enqueued. If this flush fails, releasing the queue flushes again.
    if let Err(why) = queue.flush() {
        tracing::warn!("an SVM free waits in its queue: {why}");
    }
    Ok(())
}
