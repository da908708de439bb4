//! Sharing with OpenGL by `cl_khr_gl_sharing`: a context that is created with OpenGL's, and OpenGL's buffers.
//!
//! Objects are created, acquired and released on the thread where OpenGL's context is current: some drivers require
//! that, and those with `cl_khr_gl_event` order by it. The others order nothing. So a hand-over waits for OpenGL's work
//! before an acquire, and for the release before OpenGL continues. While others only read, the buffer is acquired again
//! without their knowledge: there is no state in which both APIs read.

use super::{
    device::{Context, Device, Driver},
    query,
    queue::RawQueue,
};
use onebuf_hal::{
    self as hal, ContextHandles, DeviceInfo, Error, NativeContext, ObjectRange, PhysicalId, Result,
    locks::Arc,
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClDevice, ClMem, ClPlatform, OpenCl, OpenClExt, consts as cl},
};
use std::ptr;

const EXTENSION: &str = "cl_khr_gl_sharing";

/// What a context has to do with one of OpenGL's.
#[derive(Debug)]
pub(super) enum Tie {
    /// Nothing: nobody asked for it.
    None,
    /// It was made with that one, which it keeps.
    With(NativeContext),
    /// It was to be made with one, and why it was not.
    Failed(Error),
}

/// The call that the platform has to be asked for, where the device declares the extension and the library has its others.
pub(super) fn calls(
    cl: &OpenCl,
    platform: ClPlatform,
    info: &DeviceInfo,
) -> Option<Arc<OpenClExt>> {
    let there = info.declares(EXTENSION)
        && cl.has_create_from_gl_buffer()
        && cl.has_enqueue_acquire_gl_objects()
        && cl.has_enqueue_release_gl_objects();
    if !there {
        return None;
    }
    // SAFETY: a live platform, of which a device declares it.
    let calls = unsafe { cl.extensions(platform, &[EXTENSION]) };
    calls.has_get_gl_context_info().then(|| Arc::new(calls))
}

/// A list of context properties, with its end.
fn properties(platform: ClPlatform, theirs: ContextHandles) -> [isize; 7] {
    let (context, display) = (theirs.context as isize, theirs.display as isize);
    let platform = platform.0 as isize;
    [
        cl::CL_CONTEXT_PLATFORM,
        platform,
        cl::CL_GL_CONTEXT_KHR,
        context,
        cl::CL_EGL_DISPLAY_KHR,
        display,
        0,
    ]
}

/// The device that OpenGL's context works on; none where it is none of the platform's. With that context current.
fn device_of(driver: &Driver, list: &[isize; 7]) -> Result<Option<ClDevice>, ClStatus> {
    let calls = driver.graphics.as_ref().ok_or(ClStatus::NOT_LOADED)?;
    let (list, what) = (list.as_ptr(), cl::CL_CURRENT_DEVICE_FOR_GL_CONTEXT_KHR);
    // SAFETY: a list that ends with 0; `query` gives a place of the length it says.
    let found: Vec<usize> =
        query::list(|n, at, len| unsafe { calls.get_gl_context_info(list, what, n, at, len) })?;
    Ok(found.first().map(|device| ClDevice(*device as *mut _)))
}

/// A context for sharing with the newest of these that has one; one that shares nothing, where the driver refuses that.
pub(super) fn context(driver: &Arc<Driver>, partners: &[Arc<dyn hal::Device>]) -> Result<Context> {
    let Some(newest) = partners.last() else { return Context::new(driver) };
    let theirs = partners.iter().rev().find_map(|partner| partner.native_context().ok());
    let theirs = theirs.map_or_else(|| newest.native_context(), Ok);
    theirs.and_then(|theirs| tied(driver, theirs)).or_else(|why| {
        tracing::warn!(device = %driver.info.name, "nothing will be shared with OpenGL: {why}");
        Ok(Context::new(driver)?.tied(Tie::Failed(why)))
    })
}

fn tied(driver: &Arc<Driver>, theirs: NativeContext) -> Result<Context> {
    let list = properties(driver.platform, theirs.handles);
    let mut made = None;
    theirs.home.run(&mut || {
        let found = driver.check("clGetGLContextInfoKHR", device_of(driver, &list))?;
        if found != Some(driver.device) {
            let what = format!("a context of OpenGL's that {} shares with", driver.info.name);
            return Err(Error::unsupported(what, "a context of OpenGL's on the same device"));
        }
        made = Some(Context::with(driver, &list)?);
        Ok(())
    })?;
    Ok(made.ok_or_else(not_run)?.tied(Tie::With(theirs)))
}

fn not_run() -> Error {
    Error::invalid("a call on OpenGL's thread that did not run")
}

impl Tie {
    /// Whether objects of that context can be shared.
    fn check(&self, context: ContextHandles, info: &DeviceInfo) -> Result<()> {
        let what = format!("a buffer of OpenGL's on {}", info.name);
        let needs = match self {
            Tie::With(theirs) if theirs.handles == context => return Ok(()),
            Tie::With(_) => {
                "the OpenGL context that OpenCL's was made with, when the device was first used; \
                 register yours before that"
                    .to_owned()
            }
            Tie::Failed(why) => format!("an OpenCL context that was made with OpenGL's: {why}"),
            Tie::None => {
                "an OpenCL context of onebuf's that was made when OpenGL was known".to_owned()
            }
        };
        Err(Error::unsupported(what, needs))
    }
}

/// A buffer of OpenGL's as an object of a context that was made with its.
pub(super) fn buffer(context: &Context, object: &ObjectRange, flags: u64) -> Result<ClMem> {
    let driver = &context.driver;
    context.tie.check(object.context, &driver.info)?;
    let name = u32::try_from(object.name)
        .map_err(|_| Error::invalid(format!("{}: no name of OpenGL's", object.name)))?;
    let mut made = None;
    object.home.run(&mut || {
        // SAFETY: a live context that was made with OpenGL's, which is current; a name that is no buffer is refused.
        let mem = unsafe { driver.cl.create_from_gl_buffer(context.raw, flags, name) };
        made = Some(driver.check("clCreateFromGLBuffer", mem)?);
        Ok(())
    })?;
    made.ok_or_else(not_run)
}

/// Whether the driver sees all of it.
pub(super) fn check_bytes(driver: &Driver, mem: ClMem, bytes: usize) -> Result<()> {
    // SAFETY: a live object; `query` gives a place of the length it says.
    let there: Result<usize, _> = query::value(|n, at, len| unsafe {
        driver.cl.get_mem_object_info(mem, cl::CL_MEM_SIZE, n, at, len)
    });
    let there = driver.check("clGetMemObjectInfo", there)?;
    if there >= bytes {
        return Ok(());
    }
    let what = format!("{bytes} bytes of a buffer of OpenGL's of which OpenCL sees {there}");
    Err(Error::unsupported(what, "a driver that shares it whole"))
}

/// Takes it for the queue's work, behind what OpenGL was asked for.
pub(super) fn acquire(object: &ObjectRange, queue: &RawQueue, mem: ClMem) -> Result<()> {
    let driver = queue.driver();
    object.home.run(&mut || {
        // SAFETY: a live queue and an object of OpenGL's in one context; no events.
        let acquired = unsafe {
            let (none, no) = (ptr::null(), ptr::null_mut());
            driver.cl.enqueue_acquire_gl_objects(queue.raw, 1, &raw const mem, 0, none, no)
        };
        driver.check("clEnqueueAcquireGLObjects", acquired)
    })
}

/// Gives it back behind the queue's work.
pub(super) fn release(object: &ObjectRange, queue: &RawQueue, mem: ClMem) -> Result<()> {
    let driver = queue.driver();
    object.home.run(&mut || {
        // SAFETY: as in `acquire`, which came before.
        let released = unsafe {
            let (none, no) = (ptr::null(), ptr::null_mut());
            driver.cl.enqueue_release_gl_objects(queue.raw, 1, &raw const mem, 0, none, no)
        };
        driver.check("clEnqueueReleaseGLObjects", released)
    })
}

impl Device {
    /// The chip that a context of OpenGL's is on, where the driver says that it is this device's. With that context current.
    pub(super) fn chip_beneath(&self, theirs: ContextHandles) -> Option<PhysicalId> {
        let driver = self.driver();
        driver.graphics.as_ref()?;
        let found = device_of(driver, &properties(driver.platform, theirs));
        let found = found.inspect_err(|why| tracing::debug!("clGetGLContextInfoKHR: {why}"));
        (found.ok()? == Some(driver.device)).then_some(driver.info.physical)
    }
}
