//! A device, and the one context that owns all objects created for it.

use super::{
    OpenClBackend, arm, conv,
    conv::Version,
    graphics::{self, Tie},
    ids::Ids,
    memory::Memory,
    program::Program,
    queue::Queue,
    quirks::Quirks,
    semaphore::Semaphore,
};
use onebuf_hal::{
    self as hal, Access, AddressRange, AllocSpec, ContextHandles, DeviceInfo, Domain, Error,
    FdRange, HostRange, LayeredHandles, ObjectRange, PhysicalId, QueueSpec, Result, Source, checks,
    locks::{Arc, Mutex, lock},
    typed::TypedDevice,
    watchdog::Post,
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClContext, ClDevice, ClPlatform, ExternalCalls, OpenCl, OpenClExt, consts as cl},
};
use std::{fmt, os::fd::BorrowedFd, ptr, sync::Weak};

/// A device's properties and its driver's function table. Nothing here needs releasing.
#[derive(Clone)]
pub(super) struct Driver {
    pub cl: Arc<OpenCl>,
    pub platform: ClPlatform,
    pub device: ClDevice,
    /// The older of the platform's and the device's version.
    pub version: Version,
    pub quirks: Quirks,
    /// Acquire and release of imported memory, if the platform has them.
    pub external: Option<ExternalCalls>,
    /// Import by Arm's extension, if the device has it.
    pub arm: Option<arm::Import>,
    /// Semaphores of other APIs, if the platform has them.
    pub semaphores: Option<Arc<OpenClExt>>,
    /// Sharing with OpenGL, if the platform has it.
    pub graphics: Option<Arc<OpenClExt>>,
    pub domain: Domain,
    pub info: DeviceInfo,
    /// The watchdog of calls that may block.
    pub post: Arc<Post>,
}

impl Driver {
    /// Makes a call that may block, under the watchdog.
    pub fn slow<T>(
        &self,
        call: &'static str,
        make: impl FnOnce() -> Result<T, ClStatus>,
    ) -> Result<T> {
        self.check(call, self.post.watch(call, make))
    }

    /// Converts a driver's status to an error that names the call and the device.
    pub fn check<T>(&self, call: &'static str, answer: Result<T, ClStatus>) -> Result<T> {
        answer.map_err(|status| conv::status(call, status, &self.info.name))
    }

    /// Logs a failed call where no error can be returned: in `Drop`, and for calls whose failure has no consequence.
    pub fn note(&self, call: &'static str, answer: Result<(), ClStatus>) {
        if let Err(status) = answer
            && status != ClStatus::FORKED
        {
            tracing::warn!(device = %self.info.name, "{call}: {status}");
        }
    }

    /// The error for an object that does not belong to this device's context.
    #[cold]
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

/// A `cl_context` of one device. Every object created in it keeps it alive.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    pub raw: ClContext,
    pub ids: Arc<Ids>,
    /// The OpenGL context it shares with. Released after the `cl_context`.
    pub tie: Tie,
}

impl Context {
    pub fn new(driver: &Arc<Driver>) -> Result<Context> {
        Context::with(driver, &[cl::CL_CONTEXT_PLATFORM, driver.platform.0 as isize, 0])
    }

    /// Creates a context with these properties; the list ends with 0.
    pub fn with(driver: &Arc<Driver>, properties: &[isize]) -> Result<Context> {
        debug_assert_eq!(properties.last(), Some(&0));
        // No notify function: the driver may call it from any thread at any time, and its text only repeats what the
        // failing call reports.
        // SAFETY: a live device of that platform; the list ends with 0.
        let raw = driver.slow("clCreateContext", || unsafe {
            let list = properties.as_ptr();
            driver.cl.create_context(list, 1, &driver.device, None, ptr::null_mut())
        })?;
        let ids = Arc::default();
        Ok(Context { driver: driver.clone(), raw, ids, tie: Tie::None })
    }

    pub fn tied(mut self, tie: Tie) -> Context {
        self.tie = tie;
        self
    }

    /// A foreign context, with one more reference. All devices of the context share `ids`.
    ///
    /// # Safety
    /// `raw` is a live context of the driver's device.
    pub unsafe fn retained(driver: Arc<Driver>, raw: ClContext, ids: Arc<Ids>) -> Result<Context> {
        // SAFETY: the caller's promise.
        driver.check("clRetainContext", unsafe { driver.cl.retain_context(raw) })?;
        Ok(Context { driver, raw, ids, tie: Tie::None })
    }

    /// Returns an id that is unique within this context and never zero. A handle identifies an object only while the
    /// object lives: drivers reuse the addresses of released objects.
    pub fn new_id(&self) -> u64 {
        self.ids.new_id()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created or retained above, released once; its objects kept it alive until now.
        let release = || unsafe { self.driver.cl.release_context(self.raw) };
        let released = self.driver.post.watch("clReleaseContext", release);
        self.driver.note("clReleaseContext", released);
    }
}

/// One OpenCL device, in one context.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    context: Mutex<Which>,
    /// Devices to share objects with, the newest last. The device's own context is created for sharing with them.
    partners: Mutex<Vec<Arc<dyn hal::Device>>>,
}

/// The context that a device is used in.
#[derive(Debug)]
enum Which {
    /// Created by the first call that needs it: on some drivers that takes 100 ms and wakes the chip.
    Own(Option<Arc<Context>>),
    /// A foreign context, kept alive by its `ForeignDevice`.
    ForeignDevice(Weak<Context>),
}

impl Device {
    pub(super) fn new(driver: Driver) -> Device {
        Device::using(driver, Which::Own(None))
    }

    /// A device for foreign contexts, which has no context yet.
    pub(super) fn entry(driver: Driver) -> Device {
        Device::using(driver, Which::ForeignDevice(Weak::new()))
    }

    fn using(driver: Driver, which: Which) -> Device {
        let (driver, context) = (Arc::new(driver), Mutex::new(which));
        Device { driver, context, partners: Mutex::default() }
    }

    /// Uses this foreign context from now on.
    pub(super) fn admit(&self, context: &Arc<Context>) {
        *lock(&self.context) = Which::ForeignDevice(Arc::downgrade(context));
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Returns the context. A failure is not stored, so that the next call tries again.
    pub(super) fn context(&self) -> Result<Arc<Context>> {
        let mut which = lock(&self.context);
        match &mut *which {
            Which::Own(Some(context)) => Ok(context.clone()),
            Which::Own(slot) => {
                let made = graphics::context(&self.driver, &lock(&self.partners))?;
                Ok(slot.insert(Arc::new(made)).clone())
            }
            Which::ForeignDevice(context) => context.upgrade().ok_or_else(|| Error::Unavailable {
                what: format!("a foreign context on {}", self.driver.info.name),
                tried: Vec::new(),
                reason: "its `ForeignContext` was dropped; keep it alive".to_owned(),
            }),
        }
    }

    /// Uses this context as the device's own, unless it has one already. Returns whether it did.
    pub(super) fn settle(&self, context: Context) -> bool {
        let mut which = lock(&self.context);
        let unsettled = matches!(&*which, Which::Own(None));
        if unsettled {
            *which = Which::Own(Some(Arc::new(context)));
        }
        unsettled
    }

    /// The device's own context, if it exists already.
    pub(super) fn own_context(&self) -> Option<Arc<Context>> {
        match &*lock(&self.context) {
            Which::Own(context) => context.clone(),
            Which::ForeignDevice(_) => None,
        }
    }
}

// SAFETY: every object created from it keeps its context; an import keeps its owner until the driver has destroyed the object.
unsafe impl TypedDevice for Device {
    type Types = OpenClBackend;

    fn info(&self) -> &DeviceInfo {
        &self.driver.info
    }

    fn post(&self) -> Option<&Arc<Post>> {
        Some(&self.driver.post)
    }

    unsafe fn base_device(
        self: Arc<Self>,
        layered: &LayeredHandles,
    ) -> Option<Result<Arc<dyn hal::BaseDevice>>> {
        // SAFETY: the caller's promise, for a context of this device.
        let settle =
            |device: Arc<Self>| unsafe { device.settle_in(layered.context) }.map(|()| device as _);
        self.is(layered.device).then(|| settle(self))
    }

    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        let context = self.context()?;
        Ok(vec![
            ("cl_platform_id", self.driver.platform.0 as usize),
            ("cl_device_id", self.driver.device.0 as usize),
            ("cl_context", context.raw.0 as usize),
        ])
    }

    fn forgets_variables(&self) -> bool {
        self.driver.quirks.forgets_variables
    }

    unsafe fn chip_of(&self, context: ContextHandles) -> Option<PhysicalId> {
        self.chip_beneath(context)
    }

    unsafe fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Memory> {
        Memory::allocate(self.context()?, spec, contents)
    }

    unsafe fn import_host(&self, pages: &HostRange, access: Access) -> Result<Memory> {
        Memory::import(self.context()?, pages, access)
    }

    /// The driver imports the whole allocation; clover accepts any size and fails at the first use.
    unsafe fn import_fd(&self, range: &FdRange, access: Access) -> Result<Memory> {
        checks::bytes(&self.driver.info, range.allocation_bytes)?;
        Memory::import_fd(self.context()?, range, access)
    }

    unsafe fn import_address(&self, range: &AddressRange, access: Access) -> Result<Memory> {
        super::address::check(&self.driver, range)?;
        Ok(Memory::at_address(self.context()?, range, access))
    }

    unsafe fn import_object(&self, object: &ObjectRange, access: Access) -> Result<Memory> {
        Memory::import_object(self.context()?, object, access)
    }

    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Semaphore> {
        Semaphore::import(self.context()?, fd)
    }

    fn will_share_with(&self, other: &Arc<dyn hal::Device>) {
        if self.driver.info.caps.shares_objects_of.contains(&other.info().api) {
            lock(&self.partners).push(other.clone());
        }
    }

    fn queue(&self, spec: QueueSpec) -> Result<Queue> {
        Queue::new(self.context()?, spec)
    }

    fn build(&self, source: &Source) -> Result<Program> {
        Program::build(self.context()?, source)
    }

    fn compiles(&self) -> bool {
        true
    }
}
