//! A device, and its context, which is made when it is first needed.

use super::{
    asked::Limits, context::Context, conv, habits::Habits, memory::Memory, program::Program,
    queue::Queue, semaphore::Semaphore,
};
use onebuf_hal::{
    self as hal, Access, AllocSpec, DeviceInfo, Domain, Error, Export, NativeContext, QueueOrder,
    QueueSpec, Result, Source, checks,
    locks::{Arc, Mutex, lock},
    watchdog::Post,
};
use onebuf_sys::gl::{EglDisplay, Gl, GlRefused};
use std::{fmt, os::fd::BorrowedFd, sync::Weak};

/// A device's facts and the table to call its driver by. Nothing here needs releasing.
pub(super) struct Driver {
    pub table: Arc<Gl>,
    pub display: EglDisplay,
    pub domain: Domain,
    pub info: DeviceInfo,
    pub limits: Limits,
    pub habits: Habits,
    /// By what calls that may block are watched.
    pub post: Arc<Post>,
}

impl Driver {
    /// A driver's answer, with the device in the error.
    pub fn check<T>(&self, answer: Result<T, GlRefused>) -> Result<T> {
        answer.map_err(|refused| conv::refused(refused, &self.info.name))
    }

    /// Whether objects of that domain may meet this device's.
    pub fn same_domain(&self, what: &str, domain: Domain) -> Result<()> {
        checks::same_domain(what, domain, self.domain, &self.info)
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

/// One device of OpenGL.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    context: Mutex<Which>,
}

/// The context that is used.
#[derive(Debug)]
enum Which {
    /// One for nobody else, made by the first call that needs it.
    Own(Option<Arc<Context>>),
    /// One that shares with somebody else's, kept by whoever registered that.
    ForeignDevice(Weak<Context>),
}

impl Device {
    pub(super) fn new(driver: Driver) -> Device {
        Device { driver: Arc::new(driver), context: Mutex::new(Which::Own(None)) }
    }

    /// A device that contexts of others are used on. It has none yet.
    pub(super) fn entry(driver: Arc<Driver>) -> Device {
        Device { driver, context: Mutex::new(Which::ForeignDevice(Weak::new())) }
    }

    /// The context that is used from now on.
    pub(super) fn admit(&self, context: &Arc<Context>) {
        *lock(&self.context) = Which::ForeignDevice(Arc::downgrade(context));
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its context, made once; one that could not be made is tried again.
    fn context(&self) -> Result<Arc<Context>> {
        match &mut *lock(&self.context) {
            Which::Own(Some(context)) => Ok(context.clone()),
            Which::Own(slot) => Ok(slot.insert(Arc::new(Context::open(&self.driver)?)).clone()),
            Which::ForeignDevice(context) => context.upgrade().ok_or_else(|| Error::Unavailable {
                what: format!("a foreign context on {}", self.driver.info.name),
                tried: Vec::new(),
                reason: "it was given up; keep its `ForeignGl`".to_owned(),
            }),
        }
    }

    fn check_bytes(&self, bytes: usize) -> Result<()> {
        checks::bytes(&self.driver.info, bytes)
    }
}

impl hal::Device for Device {
    fn info(&self) -> &DeviceInfo {
        &self.driver.info
    }

    fn post(&self) -> Option<&Arc<Post>> {
        Some(&self.driver.post)
    }

    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn hal::Memory>> {
        checks::allocation(&self.driver.info, spec, contents)?;
        Ok(Arc::new(Memory::allocate(self.context()?, spec, contents)?))
    }

    fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn hal::Memory>> {
        let info = &self.driver.info;
        match export {
            Export::Host(_) if !info.caps.imports_host_pages => {
                let what = format!("host pages on {}", info.name);
                Err(Error::unsupported(what, "a driver with GL_AMD_pinned_memory"))
            }
            Export::Host(range) => {
                self.check_bytes(range.bytes)?;
                Ok(Arc::new(Memory::import(self.context()?, range, access)?))
            }
            Export::Fd(range) => {
                range.check_for(info)?;
                self.check_bytes(range.bytes)?;
                Ok(Arc::new(Memory::import_fd(self.context()?, range, access)?))
            }
            Export::Address(_) | Export::Peer(_) | Export::Ipc(_) | Export::Object(_) => {
                let what = format!("{} on {}", export.name(), info.name);
                Err(Error::unsupported(what, "host pages or a descriptor"))
            }
        }
    }

    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Arc<dyn hal::Semaphore>> {
        Ok(Arc::new(Semaphore::import(self.context()?, fd)?))
    }

    fn native_context(&self) -> Result<NativeContext> {
        Ok(self.context()?.native())
    }

    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn hal::Queue>> {
        if spec.order == QueueOrder::OutOfOrder {
            let what = format!("an out-of-order queue on {}", self.driver.info.name);
            return Err(Error::unsupported(what, "an in-order queue: OpenGL has no others"));
        }
        Ok(Arc::new(Queue::new(self.context()?, spec.profiling)))
    }

    fn build(&self, source: &Source) -> Result<Arc<dyn hal::Program>> {
        Ok(Arc::new(Program::build(self.context()?, source)?))
    }

    fn compiles(&self) -> bool {
        true
    }
}
