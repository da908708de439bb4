//! Foreign objects: querying them, and keeping them alive while they are used.
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

/// The properties of a context.
#[derive(Clone, Debug)]
pub struct ContextFacts {
    /// Its devices' handles.
    pub devices: Vec<usize>,
    /// Its reference count.
    pub reference_count: u32,
    /// The properties that it was created with, without the terminating zero.
    pub properties: Vec<isize>,
}

/// The properties of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueFacts {
    /// Its context's handle.
    pub context: usize,
    /// Its device's handle.
    pub device: usize,
    /// Its reference count.
    pub reference_count: u32,
    /// Its order, and whether profiling is enabled.
    pub spec: QueueSpec,
    /// All bits of its properties.
    pub properties: u64,
}

/// The properties of a buffer that its use depends on.
#[derive(Clone, Debug)]
pub struct MemoryFacts {
    /// Its size in bytes.
    pub bytes: usize,
    /// The flags that it was created with.
    pub flags: u64,
    /// Its context's handle.
    pub context: usize,
    /// The host memory that it was created over (`CL_MEM_USE_HOST_PTR`).
    pub host_pointer: Option<usize>,
    /// How many times it is mapped now.
    pub map_count: u32,
    /// The buffer that it is a sub-buffer of.
    pub parent: Option<usize>,
    /// Its first byte within the parent; 0 without a parent.
    pub offset: usize,
}

/// Further properties of a buffer, for information only.
#[derive(Clone, Debug)]
pub struct MoreFacts {
    /// Its reference count.
    pub reference_count: u32,
    /// Whether it is created over shared virtual memory; `None` before OpenCL 2.0.
    pub uses_svm: Option<bool>,
    /// The properties that it was created with, without the terminating zero; empty before OpenCL 3.0.
    pub properties: Vec<u64>,
}

/// The call and the object's name, for the errors of queries.
struct ObjectQuery<'a> {
    cl: &'a OpenCl,
    call: &'static str,
    what: &'static str,
}

type Info<'a> = &'a dyn Fn(u32, usize, *mut c_void, *mut usize) -> Result<(), ClStatus>;

impl ObjectQuery<'_> {
    fn value<T: Pod>(&self, name: u32, info: Info<'_>) -> Result<T> {
        query::value(|n, at, len| info(name, n, at, len)).map_err(|status| self.wrong(status))
    }

    fn list<T: Pod>(&self, name: u32, info: Info<'_>) -> Result<Vec<T>> {
        query::list(|n, at, len| info(name, n, at, len)).map_err(|status| self.wrong(status))
    }

    /// Converts a status. A handle that the driver detects as invalid is an invalid argument.
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

/// Queries a context.
///
/// # Safety
/// `raw` is null or a live context.
pub unsafe fn context(cl: &OpenCl, raw: usize) -> Result<ContextFacts> {
    let asked = ObjectQuery { cl, call: "clGetContextInfo", what: "a cl_context" };
    let raw = ClContext(given(raw, asked.what)?);
    // SAFETY: the caller's promise; `query` passes a buffer of the stated length.
    let info: Info<'_> =
        &|name, n, at, len| unsafe { asked.cl.get_context_info(raw, name, n, at, len) };
    Ok(ContextFacts {
        devices: asked.list(cl::CL_CONTEXT_DEVICES, info)?,
        reference_count: asked.value(cl::CL_CONTEXT_REFERENCE_COUNT, info)?,
        properties: unended(asked.list(cl::CL_CONTEXT_PROPERTIES, info)?),
    })
}

/// Queries a queue.
///
/// # Safety
/// `raw` is null or a live queue.
pub unsafe fn queue(cl: &OpenCl, raw: usize) -> Result<QueueFacts> {
    let asked = ObjectQuery { cl, call: "clGetCommandQueueInfo", what: "a cl_command_queue" };
    let raw = ClQueue(given(raw, asked.what)?);
    let info: Info<'_> = &|name, n, at, len| {
        // SAFETY: the caller's promise; `query` passes a buffer of the stated length.
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

/// Queries the properties of a buffer that its use depends on. Refuses images and pipes.
///
/// # Safety
/// `raw` is null or a live memory object.
pub unsafe fn memory(cl: &OpenCl, raw: usize) -> Result<MemoryFacts> {
    let asked = ObjectQuery { cl, call: "clGetMemObjectInfo", what: "a cl_mem" };
    let raw = ClMem(given(raw, asked.what)?);
    let info: Info<'_> = &|name, n, at, len| {
        // SAFETY: the caller's promise; `query` passes a buffer of the stated length.
        unsafe { asked.cl.get_mem_object_info(raw, name, n, at, len) }
    };
    let kind: u32 = asked.value(cl::CL_MEM_TYPE, info)?;
    if kind != cl::CL_MEM_OBJECT_BUFFER {
        return Err(Error::invalid(format!("a cl_mem of type {kind:#x}, which is no buffer")));
    }
    // Every wrap makes these queries, so the host pointer is queried only for a buffer over host memory, and the offset
    // only for a sub-buffer.
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

/// Queries the remaining properties of a buffer.
///
/// # Safety
/// `raw` is null or a live memory object, and the devices in `context` are live.
pub unsafe fn more(cl: &OpenCl, raw: usize, context: &ContextFacts) -> Result<MoreFacts> {
    let asked = ObjectQuery { cl, call: "clGetMemObjectInfo", what: "a cl_mem" };
    let raw = ClMem(given(raw, asked.what)?);
    let info: Info<'_> = &|name, n, at, len| {
        // SAFETY: the caller's promise; `query` passes a buffer of the stated length.
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

/// The OpenCL version of the context's first device; the oldest if it is unknown.
fn platform_version(cl: &OpenCl, context: &ContextFacts) -> Version {
    let Some(device) = context.devices.first().map(|raw| ClDevice(*raw as *mut c_void)) else {
        return Version(1, 0);
    };
    // SAFETY: a live device of a live context; `query` passes a buffer of the stated length.
    let version = query::text(|n, at, len| unsafe {
        cl.get_device_info(device, cl::CL_DEVICE_VERSION, n, at, len)
    });
    version.ok().and_then(|text| Version::parse(&text)).unwrap_or(Version(1, 0))
}

/// Queries an event's context and, unless the host completes it, its queue.
///
/// # Safety
/// `raw` is null or a live event.
pub unsafe fn event(cl: &OpenCl, raw: usize) -> Result<(usize, Option<usize>)> {
    let asked = ObjectQuery { cl, call: "clGetEventInfo", what: "a cl_event" };
    let raw = ClEvent(given(raw, asked.what)?);
    // SAFETY: the caller's promise; `query` passes a buffer of the stated length.
    let info: Info<'_> =
        &|name, n, at, len| unsafe { asked.cl.get_event_info(raw, name, n, at, len) };
    let queue: usize = asked.value(cl::CL_EVENT_COMMAND_QUEUE, info)?;
    Ok((asked.value(cl::CL_EVENT_CONTEXT, info)?, Some(queue).filter(|queue| *queue != 0)))
}

/// A foreign context as one device uses it. Keeps the context alive.
#[derive(Debug)]
pub struct ForeignDevice {
    context: Arc<Context>,
}

impl ForeignDevice {
    /// Wraps a foreign buffer.
    ///
    /// # Safety
    /// `raw` is a live buffer of this context and not a sub-buffer.
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
/// `raw` is a live buffer of this context and not a sub-buffer.
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

/// The loaded OpenCL library, and its devices.
#[derive(Debug)]
pub struct Library {
    /// The library's function table.
    pub cl: Arc<OpenCl>,
    /// The devices, in the order of discovery.
    pub devices: Vec<Arc<Device>>,
}

impl Library {
    /// Whether one of the devices belongs to this `cl_platform_id`.
    pub fn has_platform(&self, platform: usize) -> bool {
        self.devices.iter().any(|device| device.driver().platform.0 as usize == platform)
    }
}

/// A foreign context in use.
#[derive(Debug)]
pub struct Adopted {
    /// Its devices, in the context's order.
    pub members: Vec<Member>,
}

/// One device of a foreign context.
#[derive(Debug)]
pub struct Member {
    /// The device's handle.
    pub raw: usize,
    /// The device in that context.
    pub device: Arc<Device>,
    /// Keeps the context alive.
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
    /// Finds or adds the device entry for a foreign context of this device.
    fn entry(&self, raw: usize, entries: &mut dyn DeviceEntries) -> Result<Arc<Device>> {
        let at = self.devices.iter().position(|device| device.is(raw));
        let (device, known) = match at {
            Some(at) => (self.devices[at].another(), KnownAs::Found(at)),
            None => (Device::unlisted(&self.cl, raw)?, KnownAs::Unlisted),
        };
        let device = Arc::new(device);
        // Sub-devices get new handles each time: an entry of an identical sub-device is reused.
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

/// A context in addition to the device's own, released when dropped.
pub struct SecondContext(Context);

impl hal::SecondContext for SecondContext {
    fn raw(&self) -> usize {
        self.0.raw.0 as usize
    }
}

impl Device {
    /// Whether this is the driver's device with that handle.
    pub fn is(&self, raw: usize) -> bool {
        self.driver().device.0 as usize == raw
    }

    /// Whether that context is this device's own context.
    pub fn owns(&self, context: usize) -> bool {
        self.own_context().is_some_and(|own| own.raw.0 as usize == context)
    }

    /// The same device, for foreign contexts.
    pub fn another(&self) -> Device {
        Device::entry(self.driver().as_ref().clone())
    }

    /// A device that was not discovered, for foreign contexts.
    ///
    /// # Errors
    /// If a query of the device fails.
    pub fn unlisted(cl: &Arc<OpenCl>, raw: usize) -> Result<Device> {
        let driver = discover::unlisted(cl, ClDevice(raw as *mut c_void), Domain(0));
        let unknown = |reason| Error::Unavailable {
            what: "a device of a foreign context".to_owned(),
            tried: Vec::new(),
            reason,
        };
        Ok(Device::entry(driver.map_err(unknown)?))
    }

    /// Uses a foreign context from now on, as long as the returned value lives.
    ///
    /// # Safety
    /// `context` is a live context and `device` one of its devices, with the properties that are known of this device. All
    /// devices of the context share `ids` and `domain`.
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

    /// Wraps a foreign queue.
    ///
    /// # Safety
    /// `raw` is a live queue of this device's context.
    pub unsafe fn wrap_queue(&self, raw: usize, spec: QueueSpec) -> Result<Arc<dyn hal::Queue>> {
        let (context, raw) = (self.context()?, ClQueue(raw as *mut c_void));
        // SAFETY: the caller's promise.
        let raw = Arc::new(unsafe { RawQueue::retained(context, raw, spec) }?);
        Ok(Arc::new(Queue { raw }))
    }

    /// Wraps a foreign event. `queue` is the event's queue, or any queue if the host completes the event.
    ///
    /// # Safety
    /// `raw` is a live event of this device's context, and of that queue unless the host completes it.
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

    /// Wraps a foreign buffer.
    ///
    /// # Safety
    /// `raw` is a live buffer of this device's context and not a sub-buffer.
    pub unsafe fn wrap_memory(
        &self,
        raw: usize,
        spec: &AllocSpec,
        flags: u64,
    ) -> Result<Arc<dyn hal::Memory>> {
        // SAFETY: the caller's promise.
        unsafe { wrap_memory(self.context()?, raw, spec, flags) }
    }

    /// Wraps foreign shared virtual memory.
    ///
    /// # Safety
    /// `pointer` is an allocation of this device's context, of at least the bytes in `spec`, that outlives every use of the
    /// result.
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

/// Wraps a foreign sub-buffer of memory that is wrapped already.
///
/// # Safety
/// `raw` is a live sub-buffer of `whole` with that offset, size and access.
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

/// Adds a reference to an event, which the caller must release, and returns its handle.
pub fn retain_event(event: &dyn hal::Event) -> Result<usize> {
    let Some(event) = event.as_any().downcast_ref::<Event>() else {
        return Err(Error::unsupported("a cl_event of this fence", "a fence of an OpenCL queue"));
    };
    let (driver, raw) = (event.driver(), event.handle());
    // SAFETY: a live event.
    driver.check("clRetainEvent", unsafe { driver.cl.retain_event(raw) })?;
    Ok(raw.0 as usize)
}

/// Whether its handle is a `cl_event`: events of other APIs have handles, too.
pub fn is_event(event: &dyn hal::Event) -> bool {
    event.as_any().is::<Event>()
}

impl Device {
    /// Creates an event that the host completes, and the host signal that completes it.
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
