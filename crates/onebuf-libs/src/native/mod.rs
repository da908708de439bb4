//! The CUDA and HIP libraries, on a queue's own stream.
//!
//! # Safety
//! The arguments' sizes are checked against their views before every call. Each view's guard blocks other users of its bytes
//! until the queue point after the call is recorded. Internal memory is kept by the queue that uses it. Handles are created
//! and destroyed once, with their device's context current.

#![allow(unsafe_code)]

mod blas;
mod fft;
mod solver;

pub use blas::{gemm, open_blas, set_identity};
pub use fft::fft;
pub use solver::{DevicePivots, System, factor, open_solver, solve};

use super::libraries::refusal;
use super::operand::native;
use onebuf_core::{Queue, internals::Hold};
use onebuf_hal::{
    self as hal, Access, AllocSpec, Error, HostAccess, Memory, MemoryKind, RawHandle, Result,
    locks::{Arc, Mutex},
};
use onebuf_sys::cuda_like::DevicePtr;
use std::{fmt, time::Duration};

/// How long destroying a handle waits for the work that uses it.
const LAST_WAIT: Duration = Duration::from_secs(10);
const ALIGN: usize = 256;

/// What the libraries cache per queue.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    things: Mutex<Things>,
    #[cfg(feature = "cpu-libs")]
    pub planners: super::cpu::Planners,
}

#[derive(Debug, Default)]
struct Things {
    blas: Option<blas::QueueBlas>,
    solver: Option<solver::QueueSolver>,
    plans: fft::Plans,
    /// Device memory that calls on this queue use in turn.
    scratch: Option<Arc<dyn Memory>>,
    /// A number that a library writes and the host reads.
    info: Option<Arc<dyn Memory>>,
}

impl Shelf {
    /// A queue's cache, created at first use and dropped with the queue.
    pub fn of(queue: &Queue) -> &Self {
        queue.extensions().get()
    }
}

impl Things {
    /// Scratch memory of at least `bytes` bytes.
    fn scratch(&mut self, queue: &Queue, bytes: usize) -> Result<Arc<dyn Memory>> {
        match &self.scratch {
            Some(memory) if memory.bytes() >= bytes => Ok(memory.clone()),
            // The old scratch memory is freed after the work that uses it.
            _ => Ok(self.scratch.insert(allocate(queue, bytes, MemoryKind::Device)?).clone()),
        }
    }

    fn info(&mut self, queue: &Queue) -> Result<Arc<dyn Memory>> {
        match &self.info {
            Some(memory) => Ok(memory.clone()),
            None => {
                let memory = allocate(queue, size_of::<i32>(), MemoryKind::MappedDevice)?;
                Ok(self.info.insert(memory).clone())
            }
        }
    }
}

/// Allocates internal memory on the queue's device. It is not a buffer, because a buffer would keep the queue alive that
/// keeps it.
fn allocate(queue: &Queue, bytes: usize, memory_kind: MemoryKind) -> Result<Arc<dyn Memory>> {
    let (access, host) = (Access::ReadWrite, HostAccess::default());
    let spec = AllocSpec { bytes, align: ALIGN, memory_kind, access, host, hint: None };
    super::operand::device(queue).allocate(&spec, None)
}

/// The device address of a memory.
fn address_of(memory: &dyn Memory) -> Result<DevicePtr> {
    match memory.raw() {
        RawHandle::Address(at) => Ok(DevicePtr(at as u64)),
        RawHandle::Object(_) => Err(Error::unsupported("a library on this memory", "an address")),
    }
}

/// The address of a view. The library's work has no event of its own, so the view's end is marked after everything in the
/// queue.
fn address(hold: &Hold<'_>) -> Result<DevicePtr> {
    hold.raw()?;
    address_of(hold.memory())
}

/// A range of addresses.
fn range<T>(at: DevicePtr, elements: usize) -> (usize, usize) {
    (at.0 as usize, elements * size_of::<T>())
}

/// A library object that is destroyed once, in its device's context, after the work that uses it.
struct Kept<H: Copy> {
    handle: H,
    queue: Arc<dyn hal::Queue>,
    destroy: Box<dyn Fn(H) -> Result<()> + Send + Sync>,
}

impl<H: Copy> Kept<H> {
    fn new(
        queue: &Queue,
        handle: H,
        destroy: impl Fn(H) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Kept { handle, queue: native(queue).clone(), destroy: Box::new(destroy) }
    }
}

impl<H: Copy> Drop for Kept<H> {
    fn drop(&mut self) {
        // Asks twice, because a failed query says nothing about the work.
        if !(has_ended(&*self.queue) || has_ended(&*self.queue)) {
            tracing::error!("leaking a library handle: its work does not finish");
            return;
        }
        let mut answer = None;
        let mut destroy = |_| {
            answer = Some((self.destroy)(self.handle));
            Ok(())
        };
        // Retries once instead of leaking the handle.
        let entered = self.queue.call_native(&[], &mut destroy);
        let entered = entered.or_else(|_| self.queue.call_native(&[], &mut destroy));
        if let Err(error) = answer.unwrap_or(entered) {
            tracing::warn!(%error, "a library handle could not be destroyed");
        }
    }
}

/// Whether the queue's work has finished or failed, or the device is lost.
fn has_ended(queue: &dyn hal::Queue) -> bool {
    match queue.mark() {
        Ok(mark) => mark.wait(LAST_WAIT).is_ok() || mark.is_over(),
        Err(error) => matches!(error, Error::DeviceLost { .. }),
    }
}

impl<H: Copy + fmt::Debug> fmt::Debug for Kept<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({:?})", self.handle)
    }
}

/// Runs `call` with the device's context current and returns its result.
fn within<T>(
    queue: &Queue,
    uses: &[&dyn Memory],
    mut call: impl FnMut(onebuf_sys::cuda_like::CuStream) -> Result<T>,
) -> Result<T> {
    let mut made = None;
    native(queue).call_native(uses, &mut |stream| {
        made = Some(call(onebuf_sys::cuda_like::CuStream(stream as *mut _))?);
        Ok(())
    })?;
    made.ok_or_else(|| Error::unsupported("a library's call", "a queue with a native stream"))
}
