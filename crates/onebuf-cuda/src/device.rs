//! A device, its primary context, and making that context current on a thread.

use super::{
    CudaLikeBackend,
    address::Under,
    callbacks::CallbackStreams,
    compile::Compiler,
    conv,
    deferred_free::{DeferredFrees, SpareEvents},
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
use std::{fmt, marker::PhantomData, os::fd::BorrowedFd, sync::Weak};

/// Launch limits that are not part of the general capabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum groups per dimension.
    pub groups: [usize; 3],
    /// Work-items that execute in lockstep.
    pub warp: usize,
    /// Major and minor compute capability, passed to CUDA's compiler.
    pub capability: [i32; 2],
    /// Shared memory that a group may use without opting in to more.
    pub plain_shared_bytes: u64,
}

/// A device's properties and its driver's function table. Holds nothing that must be released.
pub(super) struct Driver {
    pub table: Arc<CudaLike>,
    pub device: i32,
    pub domain: Domain,
    pub info: DeviceInfo,
    pub limits: Limits,
    /// Host memory pinned in this process by all devices of this library.
    pub pins: Arc<Pins>,
    pub compiler: Arc<Compiler>,
    /// The layer that determines which other APIs share its addresses.
    pub under: Under,
    /// The device of another API that the runtime is built on, if the hub uses that device too.
    pub layered_on: Option<LayeredRuntime>,
    /// Watches calls that may block.
    pub post: Arc<Post>,
}

impl Driver {
    pub fn flavor(&self) -> Flavor {
        self.table.flavor()
    }

    /// Converts a driver's status; the error names the device.
    pub fn check<T>(&self, answer: Result<T, Refused>) -> Result<T> {
        answer.map_err(|refused| conv::refused(&self.table, refused, &self.info.name))
    }

    /// Logs a refusal. For `Drop`, which cannot return an error.
    pub fn note(&self, answer: Result<(), Refused>) {
        if let Err(refused) = answer {
            tracing::warn!(device = %self.info.name, "{refused}");
        }
    }

    /// Exports memory of the device's runtime, allocated by any API, as a dma-buf.
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

    /// Returns the error for an object of another device's context.
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

/// A reference to the device's primary context. Every object created in the context holds one.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    /// Null for HIP, which has a current device instead of a current context.
    raw: CuContext,
    pub deferred_frees: DeferredFrees,
    pub flags: Flags,
    pub callback_streams: Arc<CallbackStreams>,
    pub spare_events: SpareEvents,
    /// Queues that wait for other APIs, or did so.
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
        let spare_events = SpareEvents::default();
        Ok(Context {
            driver,
            raw,
            deferred_frees,
            flags,
            callback_streams,
            spare_events,
            outside,
            ids,
        })
    }

    /// Returns the raw context; null for HIP.
    pub fn raw(&self) -> CuContext {
        self.raw
    }

    pub fn table(&self) -> &CudaLike {
        &self.driver.table
    }

    /// Returns a number that is unique among the objects of this context, and never zero.
    pub fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the context current on this thread until the guard is dropped.
    #[inline]
    pub fn enter(&self) -> Result<Current<'_>> {
        self.driver.check(self.try_enter())
    }

    /// Makes the context current for `Drop`; tries twice, because a failure leaks what should be freed.
    pub fn enter_to_free(&self) -> Option<Current<'_>> {
        let entered = self.try_enter().or_else(|_| self.try_enter());
        entered.map_err(|why| self.driver.note(Err(why))).ok()
    }

    #[inline]
    fn try_enter(&self) -> Result<Current<'_>, Refused> {
        let Driver { table, device, .. } = &*self.driver;
        match table.flavor() {
            Flavor::Cuda => {
                // An application that uses CUDA itself has it current on its threads. Pushing and popping cost more than this query.
                if table.is_current(self.raw) {
                    return Ok(Current::new(&self.driver, Leave::AsItIs));
                }
                // SAFETY: a live context.
                unsafe { table.push_current(self.raw)? };
                Ok(Current::new(&self.driver, Leave::Pop))
            }
            Flavor::Hip => {
                // SAFETY: no preconditions.
                let before = unsafe { table.current_device()? };
                if before == *device {
                    return Ok(Current::new(&self.driver, Leave::AsItIs));
                }
                // Created first, so that the previous device is restored after a refusal too.
                let current = Current::new(&self.driver, Leave::Restore(before));
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
            // Releasing the context would free memory that work still uses.
            tracing::error!(device = %self.driver.info.name, "work does not end: context leaked");
            return;
        }
        if let Some(_current) = self.enter_to_free() {
            self.callback_streams.free(self);
            self.flags.free(self);
            self.spare_events.take().into_iter().for_each(|event| self.destroy_event(event));
        }
        if self.driver.flavor() == Flavor::Cuda {
            // SAFETY: retained by `new`, released once; its objects kept it alive until now.
            self.driver.note(unsafe { self.driver.table.release_primary(self.driver.device) });
        }
    }
}

/// Keeps a context current on this thread. Restores the previous one when dropped.
pub(super) struct Current<'c> {
    driver: &'c Driver,
    leave: Leave,
    /// The guard is not `Send`: it restores the context of the thread that made it.
    of_thread: PhantomData<*const ()>,
}

/// What the end of a [`Current`] does.
#[derive(Clone, Copy)]
enum Leave {
    /// It was current before.
    AsItIs,
    /// CUDA's context was pushed.
    Pop,
    /// HIP's previous device was another.
    Restore(i32),
}

impl<'c> Current<'c> {
    #[inline]
    fn new(driver: &'c Driver, leave: Leave) -> Self {
        Self { driver, leave, of_thread: PhantomData }
    }
}

impl Drop for Current<'_> {
    #[inline]
    fn drop(&mut self) {
        let table = &self.driver.table;
        let done = match self.leave {
            Leave::AsItIs => return,
            Leave::Pop => {
                let mut popped = CuContext::NULL;
                // SAFETY: pushed by `enter` on this thread, which the guard cannot leave.
                unsafe { table.pop_current(&raw mut popped) }
            }
            // SAFETY: it was current before.
            Leave::Restore(before) => unsafe { table.set_device(before) },
        };
        self.driver.note(done);
    }
}

/// One CUDA or HIP device.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    /// Created by the first call that needs it: creation takes a tenth of a second and wakes the chip.
    context: Mutex<Option<Arc<Context>>>,
}

impl Device {
    pub(super) fn new(driver: Driver) -> Device {
        Device { driver: Arc::new(driver), context: Mutex::default() }
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Returns the context, creating it if needed. A failure is not cached, so the next call tries again.
    pub(super) fn context(&self) -> Result<Arc<Context>> {
        let mut slot = lock(&self.context);
        match &*slot {
            Some(context) => Ok(context.clone()),
            None => Ok(slot.insert(Arc::new(Context::new(&self.driver)?)).clone()),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Pages that wait to be unpinned may be memory of this context and so keep it alive.
        if let Some(context) = lock(&self.context).take() {
            context.sweep();
        }
    }
}

// SAFETY: every object created from the device keeps its context alive; an import keeps its owner until work on it has
// ended.
unsafe impl TypedDevice for Device {
    type Types = CudaLikeBackend;

    fn info(&self) -> &DeviceInfo {
        &self.driver.info
    }

    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        let context = self.context()?;
        let ordinal = usize::try_from(self.driver.device).unwrap_or_default();
        Ok(match self.driver.flavor() {
            Flavor::Cuda => vec![("CUdevice", ordinal), ("CUcontext", context.raw.0 as usize)],
            Flavor::Hip => vec![("hipDevice_t", ordinal)],
        })
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
