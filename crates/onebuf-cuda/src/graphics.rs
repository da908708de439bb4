//! OpenGL buffers in CUDA and HIP: registered once, mapped while this API uses them.
//!
//! The calls are made on the thread where OpenGL's context is current; elsewhere drivers refuse them. Mapping orders
//! the stream after OpenGL's earlier calls, and unmapping orders OpenGL after the stream. For shared reading the buffer
//! is unmapped and mapped again, because the APIs have no state in which both read.

use super::{device::Context, queue::RawQueue};
use onebuf_hal::{
    AccessState, Api, Error, ObjectRange, Result,
    locks::{Mutex, lock},
};
use onebuf_sys::{
    Refused,
    cuda_like::{CuStream, CudaLike, DevicePtr, GraphicsResource},
};

/// Both APIs read and write.
const NO_FLAGS: u32 = 0;

/// The APIs whose buffers can be shared: OpenGL if the driver has every call that this takes.
pub(super) fn shared(table: &CudaLike) -> Vec<Api> {
    let there = table.has_register_gl_buffer()
        && table.has_unregister_resource()
        && table.has_map_resources()
        && table.has_unmap_resources()
        && table.has_mapped_pointer();
    there.then_some(Api("gl")).into_iter().collect()
}

/// A registered buffer.
#[derive(Debug)]
pub(super) struct Registered {
    mapping: Mapping,
    object: ObjectRange,
    /// Mapped unless it is released.
    access_state: Mutex<AccessState>,
}

/// A registered resource, and its address, which is the same each time it is mapped.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    resource: GraphicsResource,
    at: DevicePtr,
}

impl Registered {
    /// Registers the buffer. OpenGL keeps access until `reside` maps it.
    pub fn new(context: &Context, object: &ObjectRange) -> Result<Registered> {
        let name = u32::try_from(object.name)
            .map_err(|_| Error::invalid(format!("{}: not an OpenGL buffer name", object.name)))?;
        let mut mapping = None;
        object.home.run(&mut || {
            let _current = context.enter()?;
            mapping = Some(register(context, name, object.bytes)?);
            Ok(())
        })?;
        let mapping =
            mapping.ok_or_else(|| Error::invalid("the call on OpenGL's thread did not run"))?;
        let access_state = Mutex::new(AccessState::Released);
        Ok(Registered { mapping, object: object.clone(), access_state })
    }

    /// The address that kernels use.
    pub fn at(&self) -> DevicePtr {
        self.mapping.at
    }

    pub fn access_state(&self) -> AccessState {
        *lock(&self.access_state)
    }

    /// Maps or unmaps the buffer as the state change requires, in order with the queue. Returns whether that took a
    /// call.
    pub fn reside(&self, queue: &RawQueue, to: AccessState) -> Result<bool> {
        use AccessState::{Acquired, Released, SharedRead};
        let mut guard = lock(&self.access_state);
        let now: &mut AccessState = &mut guard;
        let (unmaps, maps) = match (*now, to) {
            (Released, Released) | (Acquired, Acquired) | (SharedRead, SharedRead | Acquired) => {
                *now = to;
                return Ok(false);
            }
            (Released, _) => (false, true),
            (_, Released) => (true, false),
            (Acquired, SharedRead) => (true, true),
        };
        let (context, mapping) = (&queue.context, self.mapping);
        self.object.home.run(&mut || {
            let _current = context.enter()?;
            if unmaps {
                context.driver.check(mapping.unmap(context, queue.raw))?;
                *now = Released;
            }
            if maps {
                mapping.map_there(context, queue.raw)?;
                *now = to;
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Frees the registration, which no work uses. The object is dropped after the driver has unregistered it.
    pub fn free(self, context: &Context) {
        let Registered { mapping, object, access_state } = self;
        let mapped = *lock(&access_state) != AccessState::Released;
        let freed = object.home.run(&mut || {
            let current = context.enter_to_free();
            let _current = current.ok_or_else(|| Error::invalid("no context to free it in"))?;
            if mapped {
                let unmap = || mapping.unmap(context, CuStream::NULL);
                context.driver.check(unmap().or_else(|_| unmap()))?;
            }
            mapping.unregister(context);
            Ok(())
        });
        if let Err(why) = freed {
            // Deleting a registered buffer is undefined, so the object is leaked.
            tracing::error!(
                device = %context.driver.info.name,
                "registered OpenGL buffer leaked: {why}"
            );
            std::mem::forget(object);
        }
    }
}

/// Registers a buffer and determines its mapped address. The contexts of both APIs are current.
fn register(context: &Context, name: u32, bytes: usize) -> Result<Mapping> {
    // SAFETY: the context is current, and OpenGL's too; a name that is no buffer is refused.
    let resource = unsafe { context.table().register_gl_buffer(name, NO_FLAGS) };
    let resource = context.driver.check(resource)?;
    let mut mapping = Mapping { resource, at: DevicePtr(0) };
    let looked = mapping.look(context, bytes);
    let looked = looked.inspect_err(|_| mapping.unregister(context));
    mapping.at = looked?;
    Ok(mapping)
}

/// The contexts of both APIs are current in all of these methods.
impl Mapping {
    /// Maps the buffer once to determine its address.
    fn look(&self, context: &Context, bytes: usize) -> Result<DevicePtr> {
        let driver = &context.driver;
        driver.check(self.map(context, CuStream::NULL))?;
        let place = self.place(context);
        let unmapped = self.unmap(context, CuStream::NULL);
        let unmapped = unmapped.or_else(|_| self.unmap(context, CuStream::NULL));
        let (at, there) = driver.check(place)?;
        driver.check(unmapped)?;
        if there < bytes {
            let what = format!("{bytes} bytes of a buffer of OpenGL's that is mapped as {there}");
            return Err(Error::unsupported(what, "a driver that maps it whole"));
        }
        Ok(at)
    }

    /// Maps the buffer and checks that its address has not changed; otherwise unmaps it, because callers keep the
    /// address.
    fn map_there(&self, context: &Context, stream: CuStream) -> Result<()> {
        let driver = &context.driver;
        driver.check(self.map(context, stream))?;
        let give_up = || driver.note(self.unmap(context, stream));
        let (at, _) = driver.check(self.place(context).inspect_err(|_| give_up()))?;
        if at == self.at {
            return Ok(());
        }
        give_up();
        let what = format!(
            "a registered buffer of OpenGL's on {}, which moved from {:#x} to {:#x}",
            driver.info.name, self.at.0, at.0
        );
        Err(Error::unsupported(what, "a driver that maps it at one address"))
    }

    fn map(&self, context: &Context, stream: CuStream) -> Result<(), Refused> {
        let mut resource = self.resource;
        // SAFETY: a live registration, and a live stream of this context or the default one.
        unsafe { context.table().map_resources(1, &raw mut resource, stream) }
    }

    fn unmap(&self, context: &Context, stream: CuStream) -> Result<(), Refused> {
        let mut resource = self.resource;
        // SAFETY: as above, and mapped.
        unsafe { context.table().unmap_resources(1, &raw mut resource, stream) }
    }

    /// Returns the mapped address and size.
    fn place(&self, context: &Context) -> Result<(DevicePtr, usize), Refused> {
        let (mut at, mut bytes) = (DevicePtr(0), 0);
        // SAFETY: mapped; valid pointers for both results.
        unsafe { context.table().mapped_pointer(&raw mut at, &raw mut bytes, self.resource)? };
        Ok((at, bytes))
    }

    fn unregister(&self, context: &Context) {
        // SAFETY: registered by `register`, unregistered once, and not mapped.
        context.driver.note(unsafe { context.table().unregister_resource(self.resource) });
    }
}
