//! A device, and its context, which is created on first use.

use super::{
    GlBackend, asked::Limits, context::Context, conv, habits::Habits, memory::Memory,
    program::Program, queue::Queue, semaphore::Semaphore,
};
use onebuf_hal::{
    Access, AllocSpec, DeviceInfo, Domain, Error, FdRange, HostRange, NativeContext, QueueSpec,
    Result, Source,
    locks::{Arc, Mutex, lock},
    typed::TypedDevice,
    watchdog::Post,
};
use onebuf_sys::gl::{EglDisplay, Gl, GlRefused};
use std::{fmt, os::fd::BorrowedFd, sync::Weak};

/// A device's properties and its driver's function table. Holds nothing that must be released.
pub(super) struct Driver {
    pub table: Arc<Gl>,
    pub display: EglDisplay,
    pub domain: Domain,
    pub info: DeviceInfo,
    pub limits: Limits,
    pub habits: Habits,
    /// Watches calls that may block.
    pub post: Arc<Post>,
}

impl Driver {
    /// Converts a driver's status; the error names the device.
    pub fn check<T>(&self, answer: Result<T, GlRefused>) -> Result<T> {
        answer.map_err(|refused| conv::refused(refused, &self.info.name))
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

/// One OpenGL device.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    context: Mutex<Which>,
}

/// The context that the device uses.
#[derive(Debug)]
enum Which {
    /// The device's own context, created by the first call that needs it.
    Own(Option<Arc<Context>>),
    /// A context that shares with a foreign one. The registered foreign device keeps it alive.
    ForeignDevice(Weak<Context>),
}

impl Device {
    pub(super) fn new(driver: Driver) -> Device {
        Device { driver: Arc::new(driver), context: Mutex::new(Which::Own(None)) }
    }

    /// Creates a device for foreign contexts. It has none yet.
    pub(super) fn entry(driver: Arc<Driver>) -> Device {
        Device { driver, context: Mutex::new(Which::ForeignDevice(Weak::new())) }
    }

    /// Sets the context that is used from now on.
    pub(super) fn admit(&self, context: &Arc<Context>) {
        *lock(&self.context) = Which::ForeignDevice(Arc::downgrade(context));
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the context, creating it if needed. A failure is not cached.
    fn context(&self) -> Result<Arc<Context>> {
        match &mut *lock(&self.context) {
            Which::Own(Some(context)) => Ok(context.clone()),
            Which::Own(slot) => Ok(slot.insert(Arc::new(Context::open(&self.driver)?)).clone()),
            Which::ForeignDevice(context) => context.upgrade().ok_or_else(|| Error::Unavailable {
                what: format!("a foreign context on {}", self.driver.info.name),
                tried: Vec::new(),
                reason: "its `ForeignGl` was dropped; keep it alive".to_owned(),
            }),
        }
    }
}

// SAFETY: every object created from the device keeps its context alive; an import keeps its owner until a fence.
unsafe impl TypedDevice for Device {
    type Types = GlBackend;

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
        "a driver with GL_AMD_pinned_memory"
    }

    unsafe fn import_fd(&self, range: &FdRange, access: Access) -> Result<Memory> {
        Memory::import_fd(self.context()?, range, access)
    }

    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Semaphore> {
        Semaphore::import(self.context()?, fd)
    }

    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        let NativeContext { handles, .. } = self.context()?.native();
        Ok(vec![("EGLDisplay", handles.display), ("EGLContext", handles.context)])
    }

    fn native_context(&self) -> Result<NativeContext> {
        Ok(self.context()?.native())
    }

    fn queue(&self, spec: QueueSpec) -> Result<Queue> {
        Ok(Queue::new(self.context()?, spec.profiling))
    }

    fn build(&self, source: &Source) -> Result<Program> {
        Program::build(self.context()?, source)
    }

    fn compiles(&self) -> bool {
        true
    }
}
