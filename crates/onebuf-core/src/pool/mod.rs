//! Pools: reuse of buffers instead of reallocation.
//!
//! A [`Pool`] hands out [`Buffer`]s and gets them back when they are dropped, complete with memory, the other devices'
//! imports of it, and the fences of unfinished work. Returning a buffer does not wait; its next user is ordered after that
//! work like after any other. A buffer with a leaked guard, one whose fence timed out and one that was
//! [detached](Buffer::detach) are not reused.
//!
//! ```
//! use onebuf::Pool;
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let pool = Pool::new(&hub);
//! let frame = hub.buffer::<f32>(4096).shared_with([&hub.host()]); // a request, used again and again
//! pool.prepare(&frame, 2)?;
//! for _ in 0..10 {
//!     let samples = pool.get(&frame)?; // contents are unspecified
//!     samples.fill(1.0)?;
//! }
//! assert_eq!(pool.statistics().made, 2);
//! # Ok(())
//! # }
//! ```
//!
//! A pool is a stack of memory resources, each with one behaviour: [`SizeClasses`] on [`FreeLists`] on [`Limit`] on
//! [`Fresh`]. [`Log`] and [`Leaks`] on top help with debugging. [`Pool::over`] accepts any other stack, including custom
//! memory resources.

mod classes;
mod free_lists;
mod fresh;
mod leaks;
mod limit;
mod log;
mod resource;
mod statistics;
mod wait;

pub use classes::SizeClasses;
pub use free_lists::FreeLists;
pub use fresh::Fresh;
pub use leaks::Leaks;
pub use limit::Limit;
pub use log::Log;
pub use resource::{AllocationRequest, Block, MemoryResource};
pub use statistics::{Outstanding, PoolStatistics};

use crate::{
    Buffer, BufferBuilder, Hub,
    buffer::{Core, CorePool, Lender, Loan, Tag},
};
use bytemuck::Pod;
use onebuf_hal::{
    Error, Result,
    locks::{Arc, AtomicBool, Ordering},
};
use std::{fmt, panic::Location, time::Duration};
use wait::WaitingRoom;

/// Hands out buffers and gets them back. Shared by reference among threads.
///
/// Dropping the pool frees its idle buffers and logs those still in use. These stay usable and are freed when they are
/// dropped.
pub struct Pool {
    inner: Arc<PoolShared>,
}

/// The shared part, which buffers of the pool keep alive.
pub(crate) struct PoolShared {
    hub: Hub,
    top: Box<dyn MemoryResource>,
    room: WaitingRoom,
    closed: AtomicBool,
}

impl Pool {
    /// Creates the default stack: size classes on free lists, without a limit.
    pub fn new(hub: &Hub) -> Self {
        Self::over(hub, SizeClasses(FreeLists::new(Fresh::default())))
    }

    /// Creates the default stack with a limit on its total size, idle buffers included.
    pub fn with_limit(hub: &Hub, limit_bytes: u64) -> Self {
        Self::over(hub, SizeClasses(FreeLists::new(Limit::new(Fresh::default(), limit_bytes))))
    }

    /// Creates a pool over a custom stack.
    ///
    /// ```
    /// # use onebuf::{Pool, pool::{Fresh, FreeLists, Leaks, Limit, Log, SizeClasses}};
    /// # let hub = onebuf::discover()?;
    /// let lists = FreeLists::new(Limit::new(Fresh::default(), 1 << 30));
    /// let pool = Pool::over(&hub, Log(Leaks::new(SizeClasses(lists))));
    /// # drop(pool);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn over(hub: &Hub, resource: impl MemoryResource + 'static) -> Self {
        let (hub, top, closed) = (hub.clone(), Box::new(resource), AtomicBool::new(false));
        Self { inner: Arc::new(PoolShared { hub, top, room: WaitingRoom::default(), closed }) }
    }

    /// Returns a buffer as requested. Contents given with [`BufferBuilder::init`] are written; otherwise they are
    /// unspecified: zeroes in a new buffer, the last user's data in a reused one.
    ///
    /// # Errors
    /// As for [`BufferBuilder::build`]; [`Error::OutOfMemory`] at the pool's limit.
    #[track_caller]
    pub fn get<T: Pod>(&self, request: &BufferBuilder<'_, T>) -> Result<Buffer<T>> {
        self.get_now(request, Location::caller())
    }

    /// Returns a zeroed buffer.
    ///
    /// # Errors
    /// As for [`Pool::get`], and for [`Buffer::fill`].
    #[track_caller]
    pub fn get_cleared<T: Pod>(&self, request: &BufferBuilder<'_, T>) -> Result<Buffer<T>> {
        let buffer = self.get_now(request, Location::caller())?;
        buffer.fill(T::zeroed())?;
        Ok(buffer)
    }

    /// Like [`Pool::get`], but waits at the limit until buffers are returned. Waiting callers are served in order of arrival;
    /// a plain `get` does not queue.
    ///
    /// # Errors
    /// As for [`Pool::get`]; [`Error::OutOfMemory`] after the timeout, or at once if the request exceeds the limit itself.
    #[track_caller]
    pub fn get_within<T: Pod>(
        &self,
        request: &BufferBuilder<'_, T>,
        timeout: Duration,
    ) -> Result<Buffer<T>> {
        self.get_while(request, timeout, || Ok(()))
    }

    /// Like [`Pool::get_within`]; an error of `go_on`, which is called every 50 ms, ends the wait. For bindings of languages whose
    /// signals end waits.
    #[doc(hidden)]
    #[track_caller]
    pub fn get_while<T: Pod>(
        &self,
        request: &BufferBuilder<'_, T>,
        timeout: Duration,
        go_on: impl FnMut() -> Result<()>,
    ) -> Result<Buffer<T>> {
        let (place, bytes) = (Location::caller(), request.bytes()?);
        self.inner.room.wait(timeout, bytes, go_on, || self.get_from(request, place))
    }

    /// Tries once, without queueing. Whether or not it succeeds, it may have freed idle buffers or held part of the limit for
    /// a moment, so waiting callers try again.
    fn get_now<T: Pod>(
        &self,
        request: &BufferBuilder<'_, T>,
        place: &'static Location<'static>,
    ) -> Result<Buffer<T>> {
        let got = self.get_from(request, place);
        self.inner.room.wake();
        got
    }

    fn get_from<T: Pod>(
        &self,
        request: &BufferBuilder<'_, T>,
        place: &'static Location<'static>,
    ) -> Result<Buffer<T>> {
        let bytes = request.bytes()?;
        request.check_poolable()?;
        if !request.hub.is(&self.inner.hub) {
            return Err(Error::invalid("the request belongs to another hub than the pool"));
        }
        let (hub, shape) = (&request.hub, &request.shape);
        let block = self.inner.top.take(&AllocationRequest {
            hub,
            shape,
            bytes,
            capacity: bytes,
            place,
        })?;
        let buffer = Buffer::from_box(self.inner.lend(block, bytes)?);
        if let Some(contents) = request.contents() {
            buffer.write(contents)?;
        }
        Ok(buffer)
    }

    /// Allocates buffers until `count` of this kind are ready.
    ///
    /// # Errors
    /// As for [`Pool::get`]. Buffers already allocated stay in the pool.
    #[track_caller]
    pub fn prepare<T: Pod>(&self, request: &BufferBuilder<'_, T>, count: usize) -> Result<()> {
        let place = Location::caller();
        let all = (0..count).map(|_| self.get_now(request, place)).collect::<Result<Vec<_>>>();
        all.map(drop)
    }

    /// Frees idle buffers until at most `keep_bytes` of them are left. Returns how many bytes were freed.
    pub fn trim(&self, keep_bytes: u64) -> u64 {
        let freed = self.inner.top.trim(keep_bytes);
        self.inner.room.wake();
        freed
    }

    /// The pool's counters and current sizes.
    pub fn statistics(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics::default();
        self.inner.top.count(&mut statistics);
        statistics
    }
}

impl PoolShared {
    /// Turns a block into the core of a buffer.
    #[inline]
    fn lend(self: &Arc<Self>, block: Block, bytes: usize) -> Result<Box<Core>> {
        self.check(&block, bytes)?;
        let Block { mut core, shelf, number } = block;
        core.renew(bytes);
        let tag = Tag { place: shelf, number };
        match &mut core.loan {
            Some(loan) if loan.is_by(self) => loan.tag = tag,
            // An idle core keeps its pool alive; closing the pool frees it.
            loan => {
                let lender = Lender::Pool(self.clone());
                *loan = Some(Loan { lender, tag, returned: false });
            }
        }
        Ok(core)
    }

    /// Memory resources may be custom code, so anything that could let a buffer exceed its memory is checked here.
    #[inline]
    fn check(&self, block: &Block, bytes: usize) -> Result<()> {
        match block.capacity() {
            _ if !block.core.hub.is(&self.hub) => {
                Err(Error::invalid("a memory resource returned a block of another hub"))
            }
            room if room < bytes => Err(Error::invalid(format!(
                "a memory resource returned a block of {room} bytes for a request of {bytes}: it must have the request's capacity"
            ))),
            _ => Ok(()),
        }
    }

    #[inline]
    fn give(&self, block: Block) {
        self.top.give(block);
        if self.closed.load(Ordering::Acquire) {
            self.top.trim(0);
        }
        self.room.wake();
    }
}

impl CorePool for PoolShared {
    fn take_back(&self, core: Box<Core>, Tag { place: shelf, number }: Tag) {
        self.give(Block { core, shelf, number });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.top.trim(0);
        let statistics = self.statistics();
        if statistics.live_buffers > 0 || !statistics.outstanding.is_empty() {
            tracing::warn!("the pool was dropped before its buffers: {}", statistics.leak_report());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.statistics())
    }
}
