//! The libraries of CUDA and HIP on a queue's own stream.
//!
//! # Safety
//! Every call below has arguments whose sizes were checked against their views; each view's guard keeps
//! others from its bytes until the queue's position behind the call is noted; memory of our own is kept by the
//! queue that uses it. Handles are made and destroyed once, with their device's context current.

#![allow(unsafe_code)]

mod blas;
mod fft;
mod solver;

pub use blas::{gemm, open_blas, set_identity};
pub use fft::fft;
pub use solver::{Pivots, System, factor, open_solver, solve};

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

/// What the libraries keep with a queue.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    things: Mutex<Things>,
    #[cfg(feature = "cpu-libs")]
    pub planners: super::cpu::Planners,
}

#[derive(Debug, Default)]
struct Things {
    blas: Option<blas::Handle>,
    solver: Option<solver::Handle>,
    plans: fft::Plans,
    /// Device memory that calls on this queue use one after the other.
    scratch: Option<Arc<dyn Memory>>,
    /// A number that a library writes and the host reads.
    info: Option<Arc<dyn Memory>>,
}

impl Shelf {
    /// A queue's; made when it is first needed, and dropped with the queue.
    pub fn of(queue: &Queue) -> &Self {
        queue.extensions().get()
    }
}

impl Things {
    /// At least so many bytes.
    fn scratch(&mut self, queue: &Queue, bytes: usize) -> Result<Arc<dyn Memory>> {
        match &self.scratch {
            Some(memory) if memory.bytes() >= bytes => Ok(memory.clone()),
            // What was there is freed behind the work that uses it.
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

/// Memory of our own on the queue's device, not of a buffer: that would keep the queue that keeps it.
fn allocate(queue: &Queue, bytes: usize, memory_kind: MemoryKind) -> Result<Arc<dyn Memory>> {
    let (access, host) = (Access::ReadWrite, HostAccess::default());
    let spec = AllocSpec { bytes, align: ALIGN, memory_kind, access, host, hint: None };
    super::operand::device(queue).allocate(&spec, None)
}

/// The address of a memory of the device's.
fn address_of(memory: &dyn Memory) -> Result<DevicePtr> {
    match memory.raw() {
        RawHandle::Address(at) => Ok(DevicePtr(at as u64)),
        RawHandle::Object(_) => Err(Error::unsupported("a library on this memory", "an address")),
    }
}

/// The address of a view, given away: from here on its end is told by a mark behind everything.
fn address(hold: &Hold<'_>) -> Result<DevicePtr> {
    hold.raw()?;
    address_of(hold.memory())
}

/// A range of addresses.
fn range<T>(at: DevicePtr, elements: usize) -> (usize, usize) {
    (at.0 as usize, elements * size_of::<T>())
}

/// Something of a library, destroyed once, in its device's context, behind the work that uses it.
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
        // Once more: a question that failed says nothing of the work.
        if !(has_ended(&*self.queue) || has_ended(&*self.queue)) {
            tracing::error!("a library's handle is leaked: its work does not end");
            return;
        }
        let mut answer = None;
        let mut destroy = |_| {
            answer = Some((self.destroy)(self.handle));
            Ok(())
        };
        // Trying again is better than losing what is to be freed.
        let entered = self.queue.call_native(&[], &mut destroy);
        let entered = entered.or_else(|_| self.queue.call_native(&[], &mut destroy));
        if let Err(error) = answer.unwrap_or(entered) {
            tracing::warn!(%error, "a library's handle was not destroyed");
        }
    }
}

/// Whether the queue's work is over, well or not, or its device is lost and the work with it.
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

/// Runs something with the device's context current, and gives what it made.
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
