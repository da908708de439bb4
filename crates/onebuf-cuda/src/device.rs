//! A device, its primary context, and being current on a thread.

use super::{
    CudaLikeBackend,
    address::Under,
    callbacks::CallbackStreams,
    compile::Compiler,
    conv,
    deferred_free::DeferredFrees,
    host_signal::Flags,
    memory::Memory,
    pins::Pins,
    program::Program,
    queue::{Queue, RawQueue},
    semaphore::Semaphore,
};
use onebuf_hal::{
    Access, AddressRange, AllocSpec, DeviceInfo, Domain, Error, FdRange, HostRange, IpcRange,
    LayeredRuntime, ObjectRange, QueueSpec, Result, Source, checks,
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
    typed::TypedDevice,
    watchdog::Post,
};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{CuContext, CudaLike, DevicePtr},
};
use std::{fmt, os::fd::BorrowedFd, sync::Weak};

/// What launches keep to beside the capabilities that every device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most groups per dimension.
    pub groups: [usize; 3],
    /// Work-items that run in step.
    pub warp: usize,
    /// Major and minor compute capability; what CUDA's compiler is told.
    pub capability: [i32; 2],
    /// Shared memory of a group that needs no leave.
    pub plain_shared_bytes: u64,
}

/// A device's facts and the table to call its driver by. Nothing here needs releasing.
pub(super) struct Driver {
    pub table: Arc<CudaLike>,
    pub device: i32,
    pub domain: Domain,
    pub info: DeviceInfo,
    pub limits: Limits,
    /// What is pinned in this process, by all devices of this library.
    pub pins: Arc<Pins>,
    pub compiler: Arc<Compiler>,
    /// Where its addresses mean something to others.
    pub under: Under,
    /// On which device of another API it stands, where that one is used too.
    pub layered_on: Option<LayeredRuntime>,
    /// By what calls that may block are watched.
    pub post: Arc<Post>,
}

impl Driver {
    pub fn flavor(&self) -> Flavor {
        self.table.flavor()
    }

    /// A driver's answer, with the device in the error.
    pub fn check<T>(&self, answer: Result<T, Refused>) -> Result<T> {
        answer.map_err(|refused| conv::refused(&self.table, refused, &self.info.name))
    }

    /// The same where nobody can be told: in `Drop`.
    pub fn note(&self, answer: Result<(), Refused>) {
        if let Err(refused) = answer {
            tracing::warn!(device = %self.info.name, "{refused}");
        }
    }

    /// Memory of its runtime's, whoever allocated it, as a dma-buf.
    pub fn export_address(&self, at: DevicePtr, bytes: usize) -> Result<FdRange> {
        match self.under.rocr().filter(|rocr| rocr.has_dmabuf()) {
            // SAFETY: the caller holds the memory.
            Some(rocr) => unsafe { rocr.export(at.0, bytes) },
            None => Err(Error::unsupported(
                format!(
                    "memory of {} that was not allocated as exportable, as dma_buf",
                    self.info.name
                ),
                "ROCr of ROCm 5.6 or newer, or memory that was allocated as exportable",
            )),
        }
    }

    /// Something that is not of this device's context.
    pub fn foreign(&self, what: &str, domain: Option<Domain>) -> Error {
        checks::foreign(what, domain, self.domain, &self.info)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("device", &self.info.name)
            .field("domain", &self.domain)
            .finish()
    }
}

/// A reference to the device's primary context. Everything made in it keeps it.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    /// Null for HIP, where a device is current and no context.
    raw: CuContext,
    pub deferred_frees: DeferredFrees,
    pub flags: Flags,
    pub callback_streams: Arc<CallbackStreams>,
    /// Queues that were made to wait for other APIs.
    pub outside: Mutex<Vec<Weak<RawQueue>>>,
    ids: AtomicU64,
}

impl Context {
    fn new(driver: &Arc<Driver>) -> Result<Context> {
        let raw = match driver.flavor() {
            Flavor::Cuda => driver.check(driver.post.watch("cuDevicePrimaryCtxRetain", || {
                // SAFETY: a device of this driver.
                unsafe { driver.table.retain_primary(driver.device) }
            }))?,
            Flavor::Hip => CuContext::NULL,
        };
        let (driver, ids) = (driver.clone(), AtomicU64::new(1));
        let (flags, callback_streams) = (Flags::default(), Arc::default());
        let (deferred_frees, outside) = (DeferredFrees::default(), Mutex::default());
        Ok(Context { driver, raw, deferred_frees, flags, callback_streams, outside, ids })
    }

    /// The context itself; null for HIP.
    pub fn raw(&self) -> CuContext {
        self.raw
    }

    pub fn table(&self) -> &CudaLike {
        &self.driver.table
    }

    /// A number that no other object of this context has; never zero.
    pub fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes it current on this thread, until the guard goes.
    #[inline]
    pub fn enter(&self) -> Result<Current<'_>> {
        self.driver.check(self.try_enter())
    }

    /// The same for `Drop`, where trying again is better than losing what is to be freed.
    pub fn enter_to_free(&self) -> Option<Current<'_>> {
        let entered = self.try_enter().or_else(|_| self.try_enter());
        entered.map_err(|why| self.driver.note(Err(why))).ok()
    }

    #[inline]
    fn try_enter(&self) -> Result<Current<'_>, Refused> {
        let Driver { table, device, .. } = &*self.driver;
        match table.flavor() {
            Flavor::Cuda => {
                // SAFETY: a live context.
                unsafe { table.push_current(self.raw)? };
                Ok(Current { driver: &self.driver, before: None })
            }
            Flavor::Hip => {
                // SAFETY: needs nothing.
                let before = unsafe { table.current_device()? };
                if before == *device {
                    return Ok(Current { driver: &self.driver, before: None });
                }
                // Made first, so that a refusal is put right as well.
                let current = Current { driver: &self.driver, before: Some(before) };
                // SAFETY: a device of this driver.
                unsafe { table.set_device(*device)? };
                Ok(current)
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.run_deferred_frees() {
            // Releasing it would free what work still uses.
            tracing::error!(device = %self.driver.info.name, "work does not end: context leaked");
            return;
        }
        if let Some(_current) = self.enter_to_free() {
            self.callback_streams.free(self);
            self.flags.free(self);
        }
        if self.driver.flavor() == Flavor::Cuda {
            // SAFETY: retained by `new`, released once; its objects kept it until now.
            self.driver.note(unsafe { self.driver.table.release_primary(self.driver.device) });
        }
    }
}

/// A context is current on this thread. Puts back what was before.
pub(super) struct Current<'c> {
    driver: &'c Driver,
    /// HIP's device, where it was another.
    before: Option<i32>,
}

impl Drop for Current<'_> {
    #[inline]
    fn drop(&mut self) {
        let table = &self.driver.table;
        let done = match (table.flavor(), self.before) {
            (Flavor::Cuda, _) => {
                let mut popped = CuContext::NULL;
                // SAFETY: pushed by `enter` on this thread, which the guard does not leave.
                unsafe { table.pop_current(&raw mut popped) }
            }
            // SAFETY: it was current before.
            (Flavor::Hip, Some(before)) => unsafe { table.set_device(before) },
            (Flavor::Hip, None) => Ok(()),
        };
        self.driver.note(done);
    }
}

/// One CUDA or HIP device.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    /// Made by the first call that needs it: it takes a tenth of a second and wakes the chip.
    context: Mutex<Option<Arc<Context>>>,
}

impl Device {
    pub(super) fn new(driver: Driver) -> Device {
        Device { driver: Arc::new(driver), context: Mutex::default() }
    }

    /// The context; a failure is not remembered, so that the next call tries again.
    fn context(&self) -> Result<Arc<Context>> {
        let mut slot = lock(&self.context);
        match &*slot {
            Some(context) => Ok(context.clone()),
            None => Ok(slot.insert(Arc::new(Context::new(&self.driver)?)).clone()),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Pages that wait to be unpinned may be memory of this very context, and so keep it.
        if let Some(context) = lock(&self.context).take() {
            context.sweep();
        }
    }
}

// SAFETY: everything made of it keeps its context; an import keeps its owner until work on it has ended.
unsafe impl TypedDevice for Device {
    type Types = CudaLikeBackend;

    fn info(&self) -> &DeviceInfo {
        &self.driver.info
    }

    fn post(&self) -> Option<&Arc<Post>> {
        Some(&self.driver.post)
    }

    unsafe fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Memory> {
        Memory::allocate(self.context()?, spec, contents)
    }

    unsafe fn import_host(&self, pages: &HostRange, access: Access) -> Result<Memory> {
        Memory::import(self.context()?, pages, access)
    }

    fn host_pages_need(&self) -> &'static str {
        "a device that maps host memory"
    }

    /// The driver imports the whole allocation.
    unsafe fn import_fd(&self, range: &FdRange, access: Access) -> Result<Memory> {
        checks::bytes(&self.driver.info, range.allocation_bytes)?;
        Memory::import_fd(self.context()?, range, access)
    }

    unsafe fn import_address(&self, range: &AddressRange, access: Access) -> Result<Memory> {
        Memory::at_address(self.context()?, range, access)
    }

    unsafe fn import_peer(&self, memory: &Memory, access: Access) -> Result<Memory> {
        Memory::of_peer(self.context()?, memory, access)
    }

    unsafe fn import_ipc(&self, range: &IpcRange, access: Access) -> Result<Memory> {
        Memory::open(self.context()?, range, access)
    }

    unsafe fn import_object(&self, object: &ObjectRange, access: Access) -> Result<Memory> {
        Memory::of_object(self.context()?, object, access)
    }

    fn descriptor(&self, of: &AddressRange) -> Result<FdRange> {
        self.driver.export_address(DevicePtr(of.address), of.bytes)
    }

    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Semaphore> {
        Semaphore::import(self.context()?, fd)
    }

    fn queue(&self, spec: QueueSpec) -> Result<Queue> {
        Queue::new(self.context()?, spec.profiling)
    }

    fn build(&self, source: &Source) -> Result<Program> {
        Program::build(self.context()?, source)
    }

    fn compiles(&self) -> bool {
        true
    }
}
