//! What a pool is made of: memory resources, stacked.

use super::PoolStatistics;
use crate::{
    Hub,
    buffer::{Core, Shape},
};
use onebuf_hal::{MemoryKind, Result};
use std::{fmt, panic::Location};

/// Where buffers come from and go back to. Each memory resource has one behaviour and another memory resource below it;
/// [`Fresh`](super::Fresh) is the bottom. All of it is called by many threads at once.
pub trait MemoryResource: Send + Sync {
    /// A buffer as wished, from here or from below.
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block>;

    /// Takes a buffer back. Nothing here waits for work that still uses it: whoever takes it next is
    /// ordered behind that.
    fn give(&self, block: Block);

    /// Frees idle buffers until no more than so many bytes of them are left; returns how many bytes went.
    fn trim(&self, keep_bytes: u64) -> u64;

    /// Adds what is counted here, and below.
    fn count(&self, statistics: &mut PoolStatistics);
}

/// What is asked of a memory resource.
#[derive(Clone, Copy)]
pub struct AllocationRequest<'w> {
    pub(crate) hub: &'w Hub,
    pub(crate) shape: &'w Shape,
    /// What the buffer will use.
    pub(crate) bytes: usize,
    /// What shall be allocated: at least as much.
    pub(crate) capacity: usize,
    pub(crate) place: &'static Location<'static>,
}

impl AllocationRequest<'_> {
    /// How many bytes the buffer will use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many bytes shall be allocated for it.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The same request, with more room.
    pub fn with_capacity(self, capacity: usize) -> Self {
        Self { capacity: capacity.max(self.bytes), ..self }
    }

    /// Where in the program it was wished.
    pub fn place(&self) -> &'static Location<'static> {
        self.place
    }
}

/// A buffer between two lives.
pub struct Block {
    pub(crate) core: Box<Core>,
    /// Which list of [`FreeLists`](super::FreeLists) it belongs to.
    pub(crate) shelf: u32,
    /// Of all blocks of one [`Fresh`](super::Fresh).
    pub(crate) number: u64,
}

impl Block {
    /// How many bytes were allocated.
    pub fn capacity(&self) -> usize {
        self.core.capacity
    }

    /// What no other block has meanwhile.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(&*self.core).addr()
    }

    /// In what form.
    pub fn memory_kind(&self) -> MemoryKind {
        self.core.plan.memory_kind
    }

    /// Whether nobody can still use it but work that is fenced: no guard was forgotten, no wait ran out
    /// of time, its memory was not detached. A memory resource that keeps blocks passes any other on to the one below.
    pub fn is_reusable(&mut self) -> bool {
        self.core.is_reusable()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes of {})", self.capacity(), self.memory_kind())
    }
}
