//! Semaphores that another API created: imported by descriptor, signalled and waited on in streams. CUDA only: HIP's
//! calls of that name do not work on Linux.

use super::{device::Context, queue::RawQueue};
use onebuf_hal::{self as hal, Domain, Error, Result, checks, locks::Arc};
use onebuf_sys::cuda_like::{
    AlignedFd, CudaLike, ExternalSemaphore, ExternalSemaphoreDesc, SemaphoreParams, consts,
};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

/// Whether the driver has every call that this module makes.
pub(super) fn is_there(table: &CudaLike) -> bool {
    table.has_import_semaphore()
        && table.has_destroy_semaphore()
        && table.has_signal_semaphores()
        && table.has_wait_semaphores()
}

/// An imported semaphore, destroyed once.
#[derive(Debug)]
pub struct Semaphore {
    context: Arc<Context>,
    raw: ExternalSemaphore,
}

impl Semaphore {
    /// Imports a semaphore. The caller keeps the descriptor; the driver gets a duplicate, which it owns after success.
    pub(super) fn import(context: Arc<Context>, fd: BorrowedFd<'_>) -> Result<Semaphore> {
        let driver = &context.driver;
        if !is_there(&driver.table) {
            let what = format!("a semaphore of another API on {}", driver.info.name);
            return Err(Error::unsupported(what, "CUDA's calls of external semaphores"));
        }
        let fd = checks::duplicate(fd)?;
        let desc = ExternalSemaphoreDesc {
            kind: consts::SEMAPHORE_OPAQUE_FD,
            fd: AlignedFd(fd.as_raw_fd()),
            ..ExternalSemaphoreDesc::default()
        };
        let current = context.enter()?;
        // SAFETY: an open descriptor; the driver refuses one of another kind.
        let raw = driver.check(unsafe { driver.table.import_semaphore(&raw const desc) })?;
        let _ = fd.into_raw_fd();
        drop(current);
        Ok(Semaphore { context, raw })
    }

    /// Signals the semaphore after all work so far. The context is current.
    pub(super) fn signal(&self, queue: &RawQueue) -> Result<()> {
        let (driver, params) = (queue.driver(), SemaphoreParams::default());
        // SAFETY: a live stream of the current context, and a semaphore of it; a binary semaphore takes no value.
        driver.check(unsafe {
            driver.table.signal_semaphores(&raw const self.raw, &raw const params, 1, queue.raw)
        })
    }

    /// Makes later work in the stream wait for the semaphore. The context is current.
    pub(super) fn wait(&self, queue: &RawQueue) -> Result<()> {
        let (driver, params) = (queue.driver(), SemaphoreParams::default());
        // SAFETY: as above.
        driver.check(unsafe {
            driver.table.wait_semaphores(&raw const self.raw, &raw const params, 1, queue.raw)
        })
    }
}

impl hal::Semaphore for Semaphore {
    fn domain(&self) -> Domain {
        self.context.driver.domain
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let Some(_current) = self.context.enter_to_free() else { return };
        let driver = &self.context.driver;
        // SAFETY: made by `import`, destroyed once; its holder drops it only when no work uses it.
        driver.note(unsafe { driver.table.destroy_semaphore(self.raw) });
    }
}
