//! Semaphores that another API created: imported from a descriptor, signalled and waited for by queues.

use super::{
    device::{Context, Driver},
    queue::RawQueue,
};
use onebuf_hal::{self as hal, DeviceInfo, Domain, Error, Result, checks, locks::Arc};
use onebuf_sys::opencl::{ClSemaphore, OpenClExt, consts as cl};
use std::{
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd},
    ptr,
};

/// The extension that provides the platform's semaphore functions.
pub(super) const EXTENSION: &str = "cl_khr_semaphore";

/// Whether a device declares that it imports binary semaphores by opaque descriptors. The handle types are queried afterwards.
pub(super) fn is_declared(info: &DeviceInfo) -> bool {
    let needs = [EXTENSION, "cl_khr_external_semaphore", "cl_khr_external_semaphore_opaque_fd"];
    needs.iter().all(|name| info.declares(name))
}

/// An imported semaphore, released once.
#[derive(Debug)]
pub struct Semaphore {
    context: Arc<Context>,
    raw: ClSemaphore,
}

impl Semaphore {
    /// Imports a semaphore. The caller keeps its descriptor: the driver gets a duplicate, which it owns if the call succeeds.
    pub(super) fn import(context: Arc<Context>, fd: BorrowedFd<'_>) -> Result<Semaphore> {
        let calls = calls(&context.driver)?;
        let fd = checks::duplicate(fd)?;
        let list = [
            u64::from(cl::CL_SEMAPHORE_TYPE_KHR),
            u64::from(cl::CL_SEMAPHORE_TYPE_BINARY_KHR),
            u64::from(cl::CL_SEMAPHORE_HANDLE_OPAQUE_FD_KHR),
            fd.as_raw_fd() as u64,
            0,
        ];
        // SAFETY: a live context of one device; the list ends with 0.
        let made = unsafe { calls.create_semaphore(context.raw, list.as_ptr()) };
        let raw = context.driver.check("clCreateSemaphoreWithPropertiesKHR", made)?;
        let _ = fd.into_raw_fd();
        Ok(Semaphore { context, raw })
    }
}

impl hal::Semaphore for Semaphore {
    fn domain(&self) -> Domain {
        self.context.driver.domain
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let driver = &self.context.driver;
        let Ok(calls) = calls(driver) else { return };
        // SAFETY: created by `import`, released once.
        let released = unsafe { calls.release_semaphore(self.raw) };
        driver.note("clReleaseSemaphoreKHR", released);
    }
}

fn calls(driver: &Driver) -> Result<&OpenClExt> {
    driver.semaphores.as_deref().ok_or_else(|| {
        let what = format!("a semaphore of another API on {}", driver.info.name);
        Error::unsupported(what, "cl_khr_external_semaphore_opaque_fd")
    })
}

/// Signals after all work enqueued so far, also on an out-of-order queue. Flushes, because another API waits for it.
pub(super) fn signal(queue: &Arc<RawQueue>, semaphore: &Semaphore) -> Result<()> {
    let calls = calls(queue.driver())?;
    queue.in_order(|| {
        let (none, no) = (ptr::null(), ptr::null_mut());
        // SAFETY: a live queue and a semaphore of its context; a binary one has no payload. No event is requested.
        let enqueued = unsafe {
            calls.enqueue_signal_semaphores(queue.raw, 1, &semaphore.raw, ptr::null(), 0, none, no)
        };
        queue.driver().check("clEnqueueSignalSemaphoresKHR", enqueued)
    })?;
    queue.flush()
}

/// Makes all later work wait for the semaphore, also on an out-of-order queue.
pub(super) fn wait(queue: &Arc<RawQueue>, semaphore: &Semaphore) -> Result<()> {
    let calls = calls(queue.driver())?;
    queue.in_order(|| {
        let (none, no) = (ptr::null(), ptr::null_mut());
        // SAFETY: as above.
        let enqueued = unsafe {
            calls.enqueue_wait_semaphores(queue.raw, 1, &semaphore.raw, ptr::null(), 0, none, no)
        };
        queue.driver().check("clEnqueueWaitSemaphoresKHR", enqueued)
    })
}
