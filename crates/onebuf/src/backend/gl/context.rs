//! A device's own context: the one stream of work that all its queues are.

use super::{device::Driver, event::Event, stage::Stage};
use crate::{
    Result,
    sync::{Arc, AtomicBool, Ordering},
};
use onebuf_sys::gl::{Gl, GlRefused, GlSync, consts};
use std::time::Duration;

/// Everything that shaders' writes may meet here: other shaders, copies, and the host through maps.
const BARRIER: u32 = consts::SHADER_STORAGE_BARRIER_BIT
    | consts::BUFFER_UPDATE_BARRIER_BIT
    | consts::CLIENT_MAPPED_BUFFER_BARRIER_BIT;

/// A context. Everything made in it keeps it.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    stage: Stage,
    /// Whether a shader may have written what no barrier has made visible yet.
    unsettled: AtomicBool,
}

impl Context {
    pub fn open(driver: &Arc<Driver>) -> Result<Context> {
        let stage = Stage::open(&driver.table, driver.display, &driver.info.name)?;
        Ok(Context { driver: driver.clone(), stage, unsettled: AtomicBool::new(false) })
    }

    /// Calls OpenGL, with the context current; its refusal becomes an error.
    pub fn run<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send) -> Result<T> {
        self.stage.run(|gl| self.driver.check(call(gl)))
    }

    /// The same where the call has errors of its own.
    pub fn run_checked<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T> + Send) -> Result<T> {
        self.stage.run(call)
    }

    /// The same as `run` with another time to wait for a turn.
    pub fn run_within<T: Send>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send,
    ) -> Result<T> {
        self.stage.run_within(timeout, |gl| self.driver.check(call(gl)))
    }

    /// Deletes something, and nobody waits for it.
    pub fn delete(&self, call: impl FnOnce(&Gl) -> Result<(), GlRefused> + Send + 'static) {
        let driver = self.driver.clone();
        self.stage.post(move |gl| {
            if let Err(refused) = call(gl) {
                tracing::warn!(device = %driver.info.name, "{refused}");
            }
        });
    }

    /// Shaders may have written. On the context's thread.
    pub fn unsettle(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// Makes what shaders wrote visible to everything after. On the context's thread.
    pub fn settle(&self, gl: &Gl) -> Result<(), GlRefused> {
        if self.unsettled.load(Ordering::Relaxed) {
            // SAFETY: the context is current.
            unsafe { gl.memory_barrier(BARRIER)? };
            self.unsettled.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A fence behind everything so far, and behind it all being visible. On the context's thread.
    pub fn fence(&self, gl: &Gl) -> Result<GlSync, GlRefused> {
        self.settle(gl)?;
        // SAFETY: the context is current.
        unsafe { gl.fence(consts::SYNC_GPU_COMMANDS_COMPLETE, 0) }
    }

    /// An event behind everything so far.
    pub fn mark(self: &Arc<Self>) -> Result<Event> {
        let sync = self.run(|gl| self.fence(gl))?;
        Ok(Event::new(self.clone(), sync))
    }
}

/// Whether work came to that fence within the time. On the context's thread.
pub(super) fn reached(gl: &Gl, sync: GlSync, timeout: Duration) -> Result<bool, GlRefused> {
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the context is current, and the fence alive.
    let answer = unsafe { gl.wait_fence(sync, consts::SYNC_FLUSH_COMMANDS_BIT, ns)? };
    Ok(matches!(answer, consts::ALREADY_SIGNALED | consts::CONDITION_SATISFIED))
}
