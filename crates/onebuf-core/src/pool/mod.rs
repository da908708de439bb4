//! Buffers that are used again instead of made again.
//!
//! A [`Pool`] hands out [`Buffer`]s and gets them back when they are dropped, whole: memory, the other
//! devices' views of it, and the fences of the work that still uses it. Nothing waits when one comes back;
//! whoever gets it next is ordered behind that work like behind any other. A buffer with a forgotten guard,
//! one whose fence timed out and one that was [detached](Buffer::detach) never come back.
//!
//! ```
//! use onebuf::Pool;
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let pool = Pool::new(&hub);
//! let frame = hub.buffer::<f32>(4096).shared_with([&hub.host()]); // a request, used again and again
//! pool.prepare(&frame, 2)?;
//! for _ in 0..10 {
//!     let samples = pool.get(&frame)?; // contents: whatever the last user left
//!     samples.fill(1.0)?;
//! }
//! assert_eq!(pool.statistics().made, 2);
//! # Ok(())
//! # }
//! ```
//!
//! A pool is a stack of memory resources, each with one behaviour: [`SizeClasses`] on [`FreeLists`] on [`Limit`] on
//! [`Fresh`], with [`Log`] and [`Leaks`] on top for those who look for something. [`Pool::over`] takes any
//! other stack, and memory resources of one's own.

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
pub use leaks::{Leaks, Outstanding};
pub use limit::Limit;
pub use log::Log;
pub use resource::{AllocationRequest, Block, MemoryResource};
pub use statistics::PoolStatistics;

use crate::{
    Buffer, BufferBuilder, Hub,
    buffer::{Core, Lender, Loan, Owner, Tag},
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
/// Dropping it frees what is idle, and tells in the log what is still out; those buffers stay usable and
/// are freed when they are dropped.
pub struct Pool {
    inner: Arc<PoolState>,
}

/// What buffers of the pool keep.
pub(crate) struct PoolState {
    hub: Hub,
    top: Box<dyn MemoryResource>,
    room: WaitingRoom,
    closed: AtomicBool,
}

impl Pool {
    /// The usual stack: size classes on free lists, without a limit.
    pub fn new(hub: &Hub) -> Self {
        Self::over(hub, SizeClasses(FreeLists::new(Fresh::default())))
    }

    /// The usual stack with a limit on what it holds, idle buffers included.
    pub fn with_limit(hub: &Hub, limit_bytes: u64) -> Self {
        Self::over(hub, SizeClasses(FreeLists::new(Limit::new(Fresh::default(), limit_bytes))))
    }

    /// A stack of the caller's.
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
        Self { inner: Arc::new(PoolState { hub, top, room: WaitingRoom::default(), closed }) }
    }

    /// A buffer as wished. Contents given with [`BufferBuilder::init`] are written; otherwise they are
    /// unspecified: zeroes in a new buffer, what the last user left in one that was used before.
    ///
    /// # Errors
    /// As for [`BufferBuilder::build`]; [`Error::OutOfMemory`] at the pool's limit.
    #[track_caller]
    pub fn get<T: Pod>(&self, request: &BufferBuilder<'_, T>) -> Result<Buffer<T>> {
        self.get_now(request, Location::caller())
    }

    /// The same, zeroed.
    ///
    /// # Errors
    /// As for [`Pool::get`], and for [`Buffer::fill`].
    #[track_caller]
    pub fn get_cleared<T: Pod>(&self, request: &BufferBuilder<'_, T>) -> Result<Buffer<T>> {
        let buffer = self.get_now(request, Location::caller())?;
        buffer.fill(T::zeroed())?;
        Ok(buffer)
    }

    /// Like [`Pool::get`]; at the limit it waits for buffers to come back. Those who wait are served in the
    /// order in which they came; a plain `get` waits for nobody.
    ///
    /// # Errors
    /// As for [`Pool::get`]; [`Error::OutOfMemory`] when the time has run out, or at once when more is asked
    /// for than the limit allows at all.
    #[track_caller]
    pub fn get_within<T: Pod>(
        &self,
        request: &BufferBuilder<'_, T>,
        timeout: Duration,
    ) -> Result<Buffer<T>> {
        let (place, bytes) = (Location::caller(), request.bytes()?);
        self.inner.room.wait(timeout, bytes, || self.get_from(request, place))
    }

    /// One try that stands in no line. Whether it worked or not it may have freed idle buffers, or held a
    /// part of the limit for a moment: those who wait try again.
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
            return Err(Error::invalid("a request of another hub: make it with the pool's"));
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

    /// Sees to it that so many buffers are ready.
    ///
    /// # Errors
    /// As for [`Pool::get`]; those that were made stay.
    #[track_caller]
    pub fn prepare<T: Pod>(&self, request: &BufferBuilder<'_, T>, count: usize) -> Result<()> {
        let place = Location::caller();
        let all = (0..count).map(|_| self.get_now(request, place)).collect::<Result<Vec<_>>>();
        all.map(drop)
    }

    /// Frees what is idle, until no more than so many bytes of it are left; returns how many bytes went.
    pub fn trim(&self, keep_bytes: u64) -> u64 {
        let freed = self.inner.top.trim(keep_bytes);
        self.inner.room.wake();
        freed
    }

    /// What the pool has done and holds.
    pub fn statistics(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics::default();
        self.inner.top.count(&mut statistics);
        statistics
    }
}

impl PoolState {
    /// A block becomes the core of a buffer.
    #[inline]
    fn lend(self: &Arc<Self>, block: Block, bytes: usize) -> Result<Box<Core>> {
        self.check(&block, bytes)?;
        let Block { mut core, shelf, number } = block;
        core.renew(bytes);
        let tag = Tag { place: shelf, number };
        match &mut core.loan {
            Some(loan) if loan.is_by(self) => loan.tag = tag,
            // A core that is idle keeps its pool alive: closing frees those.
            loan => *loan = Some(Loan { owner: self.clone(), lender: Lender::Pool, tag }),
        }
        Ok(core)
    }

    /// Memory resources may be anybody's: what would let a buffer reach beyond its memory is checked here.
    #[inline]
    fn check(&self, block: &Block, bytes: usize) -> Result<()> {
        match block.capacity() {
            _ if !block.core.hub.is(&self.hub) => {
                Err(Error::invalid("a memory resource gave a block of another hub"))
            }
            room if room < bytes => Err(Error::invalid(format!(
                "a memory resource gave a block of {room} bytes for a request of {bytes}: give the request's capacity"
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

impl Owner for PoolState {
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
            tracing::warn!("a pool was dropped before its buffers: {}", statistics.leak_report());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.statistics())
    }
}
