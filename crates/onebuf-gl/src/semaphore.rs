//! Semaphores that another API created: imported by descriptor, signalled and waited on in the context's stream.
//!
//! OpenGL orders memory of another API only for buffers that are named in the signal or the wait, so each call names
//! all such buffers of the context.

use super::context::Context;
use onebuf_hal::{
    self as hal, Domain, Error, Result, checks,
    locks::{Arc, lock},
};
use onebuf_sys::gl::{Gl, GlRefused, consts};
use std::{
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd},
    ptr,
};

/// The extensions that define the calls.
const EXTENSIONS: [&str; 2] = ["GL_EXT_semaphore", "GL_EXT_semaphore_fd"];

/// Whether the driver declares the extensions and has every call that this module makes. An address alone proves
/// nothing: `eglGetProcAddress` returns one for every name.
pub(super) fn is_there(gl: &Gl, has: &dyn Fn(&str) -> bool) -> bool {
    EXTENSIONS.iter().all(|name| has(name))
        && gl.has_create_semaphore()
        && gl.has_delete_semaphore()
        && gl.has_import_semaphore()
        && gl.has_signal_semaphore()
        && gl.has_wait_semaphore()
}

/// An imported semaphore, deleted once.
#[derive(Debug)]
pub struct Semaphore {
    context: Arc<Context>,
    name: u32,
}

impl Semaphore {
    /// Imports a semaphore. The caller keeps the descriptor; the driver gets a duplicate, which it owns after success.
    pub(super) fn import(context: Arc<Context>, fd: BorrowedFd<'_>) -> Result<Semaphore> {
        let driver = &context.driver;
        if !driver.info.caps.imports_semaphores {
            let what = format!("a semaphore of another API on {}", driver.info.name);
            return Err(Error::unsupported(what, "a driver with GL_EXT_semaphore_fd"));
        }
        let fd = checks::duplicate(fd)?;
        // SAFETY: the context is current; the semaphore is new, and deleted once; the descriptor is open.
        let name = context.run(|gl| unsafe {
            let name = gl.create_semaphore()?;
            let imported = gl.import_semaphore(name, consts::HANDLE_TYPE_OPAQUE_FD, fd.as_raw_fd());
            imported.map(|()| name).inspect_err(|_| {
                let _ = gl.delete_semaphore(name);
            })
        })?;
        let _ = fd.into_raw_fd();
        Ok(Semaphore { context, name })
    }
}

impl hal::Semaphore for Semaphore {
    fn domain(&self) -> Domain {
        self.context.driver.domain
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let name = self.name;
        // SAFETY: created by `import`, deleted once; its holder drops it only when no work uses it.
        self.context.delete(move |gl| unsafe { gl.delete_semaphore(name) });
    }
}

/// Signals the semaphore after all work so far, and flushes, because another API waits for it.
pub(super) fn signal(context: &Context, semaphore: &Semaphore) -> Result<()> {
    let name = semaphore.name;
    context.run(|gl| {
        context.settle(gl)?;
        with_buffers(context, |count, buffers| {
            // SAFETY: the context is current; a live semaphore, and `count` live buffers; no textures.
            unsafe { gl.signal_semaphore(name, count, buffers, 0, ptr::null(), ptr::null()) }
        })?;
        // SAFETY: the context is current.
        unsafe { gl.flush() }
    })
}

/// Makes all later work wait for the semaphore.
pub(super) fn wait(context: &Context, semaphore: &Semaphore) -> Result<()> {
    let name = semaphore.name;
    context.run(|gl| {
        with_buffers(context, |count, buffers| {
            // SAFETY: as above.
            unsafe { gl.wait_semaphore(name, count, buffers, 0, ptr::null(), ptr::null()) }
        })
    })
}

/// Calls with all external buffers. Runs on the context's thread, which modifies the list.
fn with_buffers(
    context: &Context,
    call: impl FnOnce(u32, *const u32) -> Result<(), GlRefused>,
) -> Result<(), GlRefused> {
    let buffers = lock(&context.external);
    call(buffers.len() as u32, buffers.as_ptr())
}
