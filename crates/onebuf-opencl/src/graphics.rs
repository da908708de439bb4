//! Sharing with OpenGL by `cl_khr_gl_sharing`: a `cl_context` created with an OpenGL context, and OpenGL's buffers.
//!
//! Objects are created, acquired and released on the thread where the OpenGL context is current: some drivers require
//! that, and drivers with `cl_khr_gl_event` then order the two APIs. Other drivers order nothing. So a hand-over waits for
//! OpenGL's work before an acquire, and for the release before OpenGL continues. For `shared_read`, OpenCL releases the
//! buffer and acquires it again while OpenGL reads: the extension has no state in which both APIs may read.

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

/// A `cl_context`'s relation to an OpenGL context.
#[derive(Debug)]
pub(super) enum Tie {
    /// None: sharing was not requested.
    None,
    /// Created with this OpenGL context, which it keeps alive.
    With(NativeContext),
    /// Sharing was requested, but failed with this error.
    Failed(Error),
}

/// The extension's functions, if the device declares the extension and the library exports the rest of its calls.
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
    // SAFETY: a live platform; one of its devices declares the extension.
    let calls = unsafe { cl.extensions(platform, &[EXTENSION]) };
    calls.has_get_gl_context_info().then(|| Arc::new(calls))
}

/// The context properties for sharing, terminated by 0.
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

/// The device of an OpenGL context, or `None` if it is not one of the platform's. The OpenGL context must be current.
fn device_of(driver: &Driver, list: &[isize; 7]) -> Result<Option<ClDevice>, ClStatus> {
    let calls = driver.graphics.as_ref().ok_or(ClStatus::NOT_LOADED)?;
    let (list, what) = (list.as_ptr(), cl::CL_CURRENT_DEVICE_FOR_GL_CONTEXT_KHR);
    // SAFETY: a list that ends with 0; `query` passes a buffer of the stated length.
    let found: Vec<usize> =
        query::list(|n, at, len| unsafe { calls.get_gl_context_info(list, what, n, at, len) })?;
    Ok(found.first().map(|device| ClDevice(*device as *mut _)))
}

/// Creates a context that shares with the newest partner that has an OpenGL context. If that fails, creates one without sharing.
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
            let what = format!("sharing with OpenGL on {}", driver.info.name);
            return Err(Error::unsupported(what, "an OpenGL context on the same device"));
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
    /// Checks that objects of this OpenGL context can be shared.
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
            Tie::None => "an OpenCL context created after OpenGL was registered".to_owned(),
        };
        Err(Error::unsupported(what, needs))
    }
}

/// Creates a memory object over an OpenGL buffer.
pub(super) fn buffer(context: &Context, object: &ObjectRange, flags: u64) -> Result<ClMem> {
    let driver = &context.driver;
    context.tie.check(object.context, &driver.info)?;
    let name = u32::try_from(object.name)
        .map_err(|_| Error::invalid(format!("{}: not an OpenGL buffer name", object.name)))?;
    let mut made = None;
    object.home.run(&mut || {
        // SAFETY: a live context created with the OpenGL context, which is current; the driver refuses a name without a buffer.
        let mem = unsafe { driver.cl.create_from_gl_buffer(context.raw, flags, name) };
        made = Some(driver.check("clCreateFromGLBuffer", mem)?);
        Ok(())
    })?;
    made.ok_or_else(not_run)
}

/// Checks that the driver sees all of the buffer's bytes.
pub(super) fn check_bytes(driver: &Driver, mem: ClMem, bytes: usize) -> Result<()> {
    // SAFETY: a live object; `query` passes a buffer of the stated length.
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

/// Acquires the buffer for the queue's work, after OpenGL's commands so far.
pub(super) fn acquire(object: &ObjectRange, queue: &RawQueue, mem: ClMem) -> Result<()> {
    let driver = queue.driver();
    object.home.run(&mut || {
        // SAFETY: a live queue and an OpenGL object of one context; no events.
        let acquired = unsafe {
            let (none, no) = (ptr::null(), ptr::null_mut());
            driver.cl.enqueue_acquire_gl_objects(queue.raw, 1, &raw const mem, 0, none, no)
        };
        driver.check("clEnqueueAcquireGLObjects", acquired)
    })
}

/// Releases the buffer after the queue's work.
pub(super) fn release(object: &ObjectRange, queue: &RawQueue, mem: ClMem) -> Result<()> {
    let driver = queue.driver();
    object.home.run(&mut || {
        // SAFETY: as in `acquire`, which was enqueued before.
        let released = unsafe {
            let (none, no) = (ptr::null(), ptr::null_mut());
            driver.cl.enqueue_release_gl_objects(queue.raw, 1, &raw const mem, 0, none, no)
        };
        driver.check("clEnqueueReleaseGLObjects", released)
    })
}

impl Device {
    /// The chip of an OpenGL context, if the driver reports that it is this device's. The OpenGL context must be current.
    pub(super) fn chip_beneath(&self, theirs: ContextHandles) -> Option<PhysicalId> {
        let driver = self.driver();
        driver.graphics.as_ref()?;
        let found = device_of(driver, &properties(driver.platform, theirs));
        let found = found.inspect_err(|why| tracing::debug!("clGetGLContextInfoKHR: {why}"));
        (found.ok()? == Some(driver.device)).then_some(driver.info.physical)
    }
}
