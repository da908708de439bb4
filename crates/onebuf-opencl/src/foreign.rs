//! Foreign objects: queries, and keeping them alive while they are used.
//!
//! Handles come in as integers, and the caller guarantees that they are valid: a driver cannot detect an invalid one
//! without dereferencing it. Null is rejected here, because not every driver checks.

use super::{
    conv,
    conv::Version,
    device::{Context, Device, Driver},
    discover,
    event::Event,
    host_signal::HostSignal,
    ids::Ids,
    memory::Memory,
    query,
    queue::{Queue, RawQueue},
    storage::{Address, Object, Place, Storage},
};
use bytemuck::Pod;
use onebuf_hal::{
    self as hal, Access, AllocSpec, DeviceEntries, Domain, Error, KnownAs, QueueOrder, QueueSpec,
    Result, host_signals::Behind, locks::Arc,
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClBufferRegion, ClContext, ClDevice, ClEvent, ClMem, ClQueue, OpenCl, consts as cl},
};
use std::{any::Any, ffi::c_void, ptr::NonNull};

/// What a context says of itself.
#[derive(Clone, Debug)]
pub struct ContextFacts {
    /// Its devices, as the driver's handles.
    pub devices: Vec<usize>,
    /// How many references there are to it.
    pub reference_count: u32,
    /// With which it was made, without the zero at their end.
    pub properties: Vec<isize>,
}

/// What a queue says of itself.
#[derive(Clone, Copy, Debug)]
pub struct QueueFacts {
    /// Its context.
    pub context: usize,
    /// Its device, as the driver's handle.
    pub device: usize,
    /// How many references there are to it.
    pub reference_count: u32,
    /// Its order, and whether it takes times.
    pub spec: QueueSpec,
    /// All bits of its properties.
    pub properties: u64,
}

/// What a buffer says of itself.
#[derive(Clone, Debug)]
pub struct MemoryFacts {
    /// How many bytes.
    pub bytes: usize,
    /// With which it was made.
    pub flags: u64,
    /// Its context.
    pub context: usize,
    /// What it was made over.
    pub host_pointer: Option<usize>,
    /// How often it is mapped now.
    pub map_count: u32,
    /// Of which buffer it is a part, and from which byte on.
    pub parent: Option<usize>,
    /// Its first byte in that.
    pub offset: usize,
}

/// What only a query wants to know.
#[derive(Clone, Debug)]
pub struct MoreFacts {
    /// How many references there are to it.
    pub reference_count: u32,
    /// Whether it lies over shared virtual memory; nothing before OpenCL 2.0.
    pub uses_svm: Option<bool>,
    /// With which it was made, without the zero at their end; none before OpenCL 3.0.
    pub properties: Vec<u64>,
}

/// An object that is being asked.
struct Asked<'a> {
    cl: &'a OpenCl,
    call: &'static str,
    what: &'static str,
}

type Info<'a> = &'a dyn Fn(u32, usize, *mut c_void, *mut usize) -> Result<(), ClStatus>;

impl Asked<'_> {
    fn value<T: Pod>(&self, name: u32, info: Info<'_>) -> Result<T> {
        query::value(|n, at, len| info(name, n, at, len)).map_err(|status| self.wrong(status))
    }

    fn list<T: Pod>(&self, name: u32, info: Info<'_>) -> Result<Vec<T>> {
        query::list(|n, at, len| info(name, n, at, len)).map_err(|status| self.wrong(status))
    }

    /// What the driver can tell of a wrong handle.
    fn wrong(&self, status: ClStatus) -> Error {
        match status {
            ClStatus::INVALID_CONTEXT
            | ClStatus::INVALID_COMMAND_QUEUE
            | ClStatus::INVALID_MEM_OBJECT
            | ClStatus::INVALID_EVENT => Error::invalid(format!("{}: {status}", self.what)),
            _ => conv::status(self.call, status, self.what),
        }
    }
}

fn given(raw: usize, what: &'static str) -> Result<*mut c_void> {
    if raw == 0 { Err(Error::invalid(format!("{what}: null"))) } else { Ok(raw as *mut c_void) }
}

fn unended<T: Pod + PartialEq>(mut list: Vec<T>) -> Vec<T> {
    if list.last() == Some(&T::zeroed()) {
        list.pop();
    }
    list
}

/// Asks a context.
///
/// # Safety
/// Null, or a live context.
pub unsafe fn context(cl: &OpenCl, raw: usize) -> Result<ContextFacts> {
    let asked = Asked { cl, call: "clGetContextInfo", what: "a cl_context" };
    let raw = ClContext(given(raw, asked.what)?);
    // SAFETY: the caller's promise; `query` gives a place of the length it says.
    let info: Info<'_> =
        &|name, n, at, len| unsafe { asked.cl.get_context_info(raw, name, n, at, len) };
    Ok(ContextFacts {
        devices: asked.list(cl::CL_CONTEXT_DEVICES, info)?,
        reference_count: asked.value(cl::CL_CONTEXT_REFERENCE_COUNT, info)?,
        properties: unended(asked.list(cl::CL_CONTEXT_PROPERTIES, info)?),
    })
}

/// Asks a queue.
///
/// # Safety
/// Null, or a live queue.
pub unsafe fn queue(cl: &OpenCl, raw: usize) -> Result<QueueFacts> {
    let asked = Asked { cl, call: "clGetCommandQueueInfo", what: "a cl_command_queue" };
    let raw = ClQueue(given(raw, asked.what)?);
    let info: Info<'_> = &|name, n, at, len| {
        // SAFETY: the caller's promise; `query` gives a place of the length it says.
        unsafe { asked.cl.get_command_queue_info(raw, name, n, at, len) }
    };
    let properties: u64 = asked.value(cl::CL_QUEUE_PROPERTIES, info)?;
    let order = match properties & cl::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE {
        0 => QueueOrder::InOrder,
        _ => QueueOrder::OutOfOrder,
    };
    let profiling = properties & cl::CL_QUEUE_PROFILING_ENABLE != 0;
    Ok(QueueFacts {
        context: asked.value(cl::CL_QUEUE_CONTEXT, info)?,
        device: asked.value(cl::CL_QUEUE_DEVICE, info)?,
        reference_count: asked.value(cl::CL_QUEUE_REFERENCE_COUNT, info)?,
        spec: QueueSpec { order, profiling },
        properties,
    })
}

/// Asks a buffer for what using it depends on. An image or pipe is refused.
///
/// # Safety
/// Null, or a live memory object.
pub unsafe fn memory(cl: &OpenCl, raw: usize) -> Result<MemoryFacts> {
    let asked = Asked { cl, call: "clGetMemObjectInfo", what: "a cl_mem" };
    let raw = ClMem(given(raw, asked.what)?);
    let info: Info<'_> = &|name, n, at, len| {
        // SAFETY: the caller's promise; `query` gives a place of the length it says.
        unsafe { asked.cl.get_mem_object_info(raw, name, n, at, len) }
    };
    let kind: u32 = asked.value(cl::CL_MEM_TYPE, info)?;
    if kind != cl::CL_MEM_OBJECT_BUFFER {
        return Err(Error::invalid(format!("a cl_mem of type {kind:#x}, which is no buffer")));
    }
    // Each wrap asks all of this, so only what the answers before leave open: where it lies for what was made
    // over a pointer, its offset for what is a part.
    let address = |name: u32| asked.value(name, info).map(|at: usize| (at != 0).then_some(at));
    let flags: u64 = asked.value(cl::CL_MEM_FLAGS, info)?;
    let over = flags & cl::CL_MEM_USE_HOST_PTR != 0;
    let parent = address(cl::CL_MEM_ASSOCIATED_MEMOBJECT)?;
    Ok(MemoryFacts {
        bytes: asked.value(cl::CL_MEM_SIZE, info)?,
        flags,
        context: asked.value(cl::CL_MEM_CONTEXT, info)?,
        host_pointer: if over { address(cl::CL_MEM_HOST_PTR)? } else { None },
        map_count: asked.value(cl::CL_MEM_MAP_COUNT, info)?,
        parent,
        offset: if parent.is_some() { asked.value(cl::CL_MEM_OFFSET, info)? } else { 0 },
    })
}

/// Asks a buffer for the rest.
///
/// # Safety
/// A live memory object.
pub unsafe fn more(cl: &OpenCl, raw: usize, context: &ContextFacts) -> Result<MoreFacts> {
    let asked = Asked { cl, call: "clGetMemObjectInfo", what: "a cl_mem" };
    let raw = ClMem(given(raw, asked.what)?);
    let info: Info<'_> = &|name, n, at, len| {
        // SAFETY: the caller's promise; `query` gives a place of the length it says.
        unsafe { asked.cl.get_mem_object_info(raw, name, n, at, len) }
    };
    let version = platform_version(cl, context);
    let uses_svm = match version >= Version::V2_0 {
        true => asked.value::<u32>(cl::CL_MEM_USES_SVM_POINTER, info).ok().map(|uses| uses != 0),
        false => None,
    };
    let properties = match version >= Version(3, 0) {
        true => asked.list(cl::CL_MEM_PROPERTIES, info).unwrap_or_default(),
        false => Vec::new(),
    };
    Ok(MoreFacts {
        reference_count: asked.value(cl::CL_MEM_REFERENCE_COUNT, info)?,
        uses_svm,
        properties: unended(properties),
    })
}

/// The version of the first device's platform; the oldest where it cannot be told.
fn platform_version(cl: &OpenCl, context: &ContextFacts) -> Version {
    let Some(device) = context.devices.first().map(|raw| ClDevice(*raw as *mut c_void)) else {
        return Version(1, 0);
    };
    // SAFETY: a live device of a live context; `query` gives a place of the length it says.
    let version = query::text(|n, at, len| unsafe {
        cl.get_device_info(device, cl::CL_DEVICE_VERSION, n, at, len)
    });
    version.ok().and_then(|text| Version::parse(&text)).unwrap_or(Version(1, 0))
}

/// The context and, unless the host completes it, the queue of an event.
///
/// # Safety
/// Null, or a live event.
pub unsafe fn event(cl: &OpenCl, raw: usize) -> Result<(usize, Option<usize>)> {
    let asked = Asked { cl, call: "clGetEventInfo", what: "a cl_event" };
    let raw = ClEvent(given(raw, asked.what)?);
    // SAFETY: the caller's promise; `query` gives a place of the length it says.
    let info: Info<'_> =
        &|name, n, at, len| unsafe { asked.cl.get_event_info(raw, name, n, at, len) };
    let queue: usize = asked.value(cl::CL_EVENT_COMMAND_QUEUE, info)?;
    Ok((asked.value(cl::CL_EVENT_CONTEXT, info)?, Some(queue).filter(|queue| *queue != 0)))
}

/// A foreign context, as one device sees it. Keeps it.
#[derive(Debug)]
pub struct ForeignDevice {
    context: Arc<Context>,
}

impl ForeignDevice {
    /// Somebody else's memory, as they made it.
    ///
    /// # Safety
    /// A live buffer of this context that is no part of another.
    pub unsafe fn wrap_memory(
        &self,
        raw: usize,
        spec: &AllocSpec,
        flags: u64,
    ) -> Result<Arc<dyn hal::Memory>> {
        // SAFETY: the caller's promise.
        unsafe { wrap_memory(self.context.clone(), raw, spec, flags) }
    }
}

/// # Safety
/// A live buffer of this context that is no part of another.
unsafe fn wrap_memory(
    context: Arc<Context>,
    raw: usize,
    spec: &AllocSpec,
    flags: u64,
) -> Result<Arc<dyn hal::Memory>> {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::retained(&context, ClMem(raw as *mut c_void)) }?;
    let storage = Storage::of(object, flags);
    Ok(Arc::new(Memory::wrap(context, storage, spec)))
}

/// What was loaded, and the devices that it has.
#[derive(Debug)]
pub struct Library {
    /// The loader's functions.
    pub cl: Arc<OpenCl>,
    /// The devices, in the order in which they were found.
    pub devices: Vec<Arc<Device>>,
}

/// A foreign context, while it is used.
#[derive(Debug)]
pub struct Adopted {
    /// In the context's order.
    pub members: Vec<Member>,
}

/// One device of a foreign context.
#[derive(Debug)]
pub struct Member {
    /// The driver's handle.
    pub raw: usize,
    /// The device in that context.
    pub device: Arc<Device>,
    /// Keeps the context.
    pub foreign_device: ForeignDevice,
}

impl hal::Library for Library {
    fn second_context(&self, device: usize) -> Result<Box<dyn hal::SecondContext>> {
        let device = self.devices.get(device);
        let device =
            device.ok_or_else(|| Error::unsupported("a second context", "an OpenCL device"))?;
        Ok(Box::new(SecondContext(Context::new(device.driver())?)))
    }

    unsafe fn adopt(
        &self,
        raw: usize,
        entries: &mut dyn DeviceEntries,
    ) -> Result<Arc<dyn Any + Send + Sync>> {
        // SAFETY: the caller's promise.
        let facts = unsafe { context(&self.cl, raw) }?;
        let (domain, ids) = (entries.new_domain(), Arc::default());
        let mut members = Vec::new();
        for device in facts.devices {
            let entry_device = self.entry(device, entries)?;
            // SAFETY: a live context, and one of its devices.
            let foreign_device =
                unsafe { entry_device.host_foreign_device(device, raw, domain, &ids) }?;
            members.push(Member { raw: device, device: entry_device, foreign_device });
        }
        if members.is_empty() {
            return Err(Error::invalid("a cl_context without devices"));
        }
        Ok(Arc::new(Adopted { members }))
    }
}

impl Library {
    /// A device entry for one more context of a device.
    fn entry(&self, raw: usize, entries: &mut dyn DeviceEntries) -> Result<Arc<Device>> {
        let at = self.devices.iter().position(|device| device.is(raw));
        let (device, known) = match at {
            Some(at) => (self.devices[at].another(), KnownAs::Found(at)),
            None => (Device::unlisted(&self.cl, raw)?, KnownAs::Unlisted),
        };
        let device = Arc::new(device);
        // Parts of devices come and go under new handles: one is as good as another that is the same.
        let same = |left: &dyn hal::Device| {
            let left = left.as_any().downcast_ref::<Device>();
            left.is_some_and(|left| match at {
                Some(_) => left.is(raw),
                None => hal::Device::info(left) == hal::Device::info(&*device),
            })
        };
        let entry_device: Arc<dyn Any + Send + Sync> =
            entries.entry(device.clone(), known, &same)?;
        entry_device.downcast().map_err(|_| Error::invalid("a device entry of another API"))
    }
}

/// A context beside the one that a device is used in; released when dropped.
pub struct SecondContext(Context);

impl hal::SecondContext for SecondContext {
    fn raw(&self) -> usize {
        self.0.raw.0 as usize
    }
}

impl Device {
    /// Whether it is this one of the driver's.
    pub fn is(&self, raw: usize) -> bool {
        self.driver().device.0 as usize == raw
    }

    /// Whether that context is our own one of this device.
    pub fn owns(&self, context: usize) -> bool {
        self.own_context().is_some_and(|own| own.raw.0 as usize == context)
    }

    /// The same device with room for contexts of others.
    pub fn another(&self) -> Device {
        Device::entry(self.driver().as_ref().clone())
    }

    /// A device that was not discovered, with room for contexts of others.
    ///
    /// # Errors
    /// What the driver does not tell of it.
    pub fn unlisted(cl: &Arc<OpenCl>, raw: usize) -> Result<Device> {
        let driver = discover::unlisted(cl, ClDevice(raw as *mut c_void), Domain(0));
        let unknown = |reason| Error::Unavailable {
            what: "a device of a foreign context".to_owned(),
            tried: Vec::new(),
            reason,
        };
        Ok(Device::entry(driver.map_err(unknown)?))
    }

    /// Uses somebody else's context from now on, while the foreign device lives.
    ///
    /// # Safety
    /// A live context, and one of its devices, of which all is true that is known of this one; `ids` is one for
    /// all devices of the context, and so is the domain.
    pub unsafe fn host_foreign_device(
        &self,
        device: usize,
        context: usize,
        domain: Domain,
        ids: &Arc<Ids>,
    ) -> Result<ForeignDevice> {
        let device = ClDevice(device as *mut c_void);
        let driver = Arc::new(Driver { device, domain, ..self.driver().as_ref().clone() });
        let raw = ClContext(context as *mut c_void);
        // SAFETY: the caller's promise.
        let context = Arc::new(unsafe { Context::retained(driver, raw, ids.clone()) }?);
        self.admit(&context);
        Ok(ForeignDevice { context })
    }

    /// Somebody else's queue.
    ///
    /// # Safety
    /// A live queue of this device's context.
    pub unsafe fn wrap_queue(&self, raw: usize, spec: QueueSpec) -> Result<Arc<dyn hal::Queue>> {
        let (context, raw) = (self.context()?, ClQueue(raw as *mut c_void));
        // SAFETY: the caller's promise.
        let raw = Arc::new(unsafe { RawQueue::retained(context, raw, spec) }?);
        Ok(Arc::new(Queue { raw }))
    }

    /// Somebody else's event, whose queue is given; or one that the host completes, and any queue.
    ///
    /// # Safety
    /// A live event of this device's context; of that queue, unless the host completes it.
    pub unsafe fn wrap_event(
        &self,
        raw: usize,
        queue: &Arc<dyn hal::Queue>,
        by_host: bool,
    ) -> Result<Arc<dyn hal::Event>> {
        let queue = queue.as_any().downcast_ref::<Queue>();
        let queue = queue.ok_or_else(|| self.driver().foreign("a queue", None))?.raw.clone();
        // SAFETY: the caller's promise.
        let event = unsafe {
            Event::retained(queue, ClEvent(raw as *mut c_void), by_host, Behind::default())
        };
        Ok(Arc::new(event?))
    }

    /// Somebody else's memory, as they made it.
    ///
    /// # Safety
    /// A live buffer of this device's context that is no part of another.
    pub unsafe fn wrap_memory(
        &self,
        raw: usize,
        spec: &AllocSpec,
        flags: u64,
    ) -> Result<Arc<dyn hal::Memory>> {
        // SAFETY: the caller's promise.
        unsafe { wrap_memory(self.context()?, raw, spec, flags) }
    }

    /// Somebody else's shared virtual memory.
    ///
    /// # Safety
    /// It is an allocation of this device's context, of at least so many bytes, that outlives all that
    /// is done with it.
    pub unsafe fn wrap_svm(
        &self,
        pointer: NonNull<u8>,
        spec: &AllocSpec,
    ) -> Result<Arc<dyn hal::Memory>> {
        let place = Place::Svm { pointer: Address(pointer), base: None };
        let storage =
            Storage { place, object: None, whole: None, flags: conv::access(spec.access) };
        Ok(Arc::new(Memory::wrap(self.context()?, storage, spec)))
    }
}

/// A foreign sub-buffer of memory that is wrapped.
///
/// # Safety
/// A live sub-buffer of it with that offset, size and access.
pub unsafe fn wrap_part(
    whole: &dyn hal::Memory,
    raw: usize,
    offset: usize,
    bytes: usize,
    access: Access,
) -> Result<Arc<dyn hal::Memory>> {
    let Some(whole) = whole.as_any().downcast_ref::<Memory>() else {
        return Err(Error::unsupported("a part of this memory", "memory of an OpenCL device"));
    };
    // SAFETY: the caller's promise.
    let object = unsafe { Object::retained(whole.context(), ClMem(raw as *mut c_void)) }?;
    Ok(Arc::new(whole.wrap_part(object, ClBufferRegion { origin: offset, size: bytes }, access)))
}

/// One more reference to an event, for somebody who will release it.
pub fn retain_event(event: &dyn hal::Event) -> Result<usize> {
    let Some(event) = event.as_any().downcast_ref::<Event>() else {
        return Err(Error::unsupported("a cl_event of this fence", "a fence of an OpenCL queue"));
    };
    let (driver, raw) = (event.driver(), event.handle());
    // SAFETY: a live event.
    driver.check("clRetainEvent", unsafe { driver.cl.retain_event(raw) })?;
    Ok(raw.0 as usize)
}

/// Whether its handle is a `cl_event`: other APIs' events have handles, too.
pub fn is_event(event: &dyn hal::Event) -> bool {
    event.as_any().is::<Event>()
}

impl Device {
    /// An event that the host completes: the host signal, and the event that is behind it.
    pub fn user_event(
        &self,
        queue: &Arc<dyn hal::Queue>,
    ) -> Result<(Box<dyn hal::HostSignal>, Arc<dyn hal::Event>)> {
        let queue = queue.as_any().downcast_ref::<Queue>();
        let queue = queue.ok_or_else(|| self.driver().foreign("a queue", None))?;
        let (host_signal, event) = HostSignal::apart(&queue.raw)?;
        Ok((Box::new(host_signal), Arc::new(event)))
    }
}
