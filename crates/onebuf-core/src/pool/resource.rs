//! Memory resources, the layers of a pool.

use super::PoolStatistics;
use crate::{
    Hub,
    buffer::{Core, Shape},
};
use onebuf_hal::{MemoryKind, Result};
use std::{fmt, panic::Location};

/// A source of buffers that also takes them back. Each memory resource has one behaviour and another one below it;
/// [`Fresh`](super::Fresh) is the bottom. All methods are called by many threads at once.
pub trait MemoryResource: Send + Sync {
    /// Returns a buffer as requested, from this resource or from below.
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block>;

    /// Takes a buffer back. It must not wait for work that still uses the buffer; the next user is ordered after it.
    fn give(&self, block: Block);

    /// Frees idle buffers until at most `keep_bytes` of them are left. Returns how many bytes were freed.
    fn trim(&self, keep_bytes: u64) -> u64;

    /// Adds the counters of this resource and of those below.
    fn count(&self, statistics: &mut PoolStatistics);
}

/// A request to a memory resource.
#[derive(Clone, Copy)]
pub struct AllocationRequest<'w> {
    pub(crate) hub: &'w Hub,
    pub(crate) shape: &'w Shape,
    /// The size that the buffer uses.
    pub(crate) bytes: usize,
    /// The size to allocate, at least `bytes`.
    pub(crate) capacity: usize,
    pub(crate) place: &'static Location<'static>,
}

impl AllocationRequest<'_> {
    /// The size that the buffer uses.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size to allocate.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The same request with a larger capacity.
    pub fn with_capacity(self, capacity: usize) -> Self {
        Self { capacity: capacity.max(self.bytes), ..self }
    }

    /// The requesting source location.
    pub fn place(&self) -> &'static Location<'static> {
        self.place
    }
}

/// A buffer that is not in use.
pub struct Block {
    pub(crate) core: Box<Core>,
    /// The list of [`FreeLists`](super::FreeLists) that it belongs to.
    pub(crate) shelf: u32,
    /// Its number among all blocks of one [`Fresh`](super::Fresh).
    pub(crate) number: u64,
}

impl Block {
    /// The allocated size in bytes.
    pub fn capacity(&self) -> usize {
        self.core.capacity
    }

    /// An address that is unique while the block lives.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(&*self.core).addr()
    }

    /// The memory kind.
    pub fn memory_kind(&self) -> MemoryKind {
        self.core.plan.memory_kind
    }

    /// Whether only fenced work can still use the block: no guard was leaked, no wait timed out, and its memory was not
    /// detached. A memory resource that keeps blocks must pass all others to the one below.
    pub fn is_reusable(&mut self) -> bool {
        self.core.is_reusable()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes of {})", self.capacity(), self.memory_kind())
    }
}
