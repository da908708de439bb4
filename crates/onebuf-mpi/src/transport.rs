//! What moves bytes between ranks: MPI, or copies in memory in a world of one rank without MPI.
//!
//! Only the communication thread has a transport, and calls it.

#![allow(unsafe_code)] // Contracts alone: see `Transport`.

pub(crate) mod alone;
pub(crate) mod datatypes;
#[cfg(test)]
pub(crate) mod fabric;
pub(crate) mod mpi;

use crate::{deadline::Deadline, layout::Layout};
use onebuf_hal::{Error, Result};
use onebuf_sys::mpi::{Comm, Mpi};

/// An address that another thread uses. The owner of the memory keeps it in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(*mut u8);

// SAFETY: a number until it is dereferenced, which is unsafe; the contract of `Transport` says who may.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    pub fn new(at: *mut u8) -> Self {
        Self(at)
    }

    /// The address of memory that is only read.
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.as_ptr().cast_mut())
    }

    pub fn get(self) -> *mut u8 {
        self.0
    }

    /// The address this many bytes further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Send,
    Receive,
}

/// Records and the bytes that belong to them travel apart, each in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Head,
    Data,
}

/// A message to send or to receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub way: Way,
    pub at: Address,
    pub layout: Layout,
    pub peer: usize,
    pub lane: Lane,
    pub tag: i32,
}

/// A number by which the caller knows a request.
pub(crate) type Key = usize;

/// A request that can be started again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prepared(pub usize);

/// How a request has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// All bytes were sent, or this many were received.
    Done(u64),
    /// It was cancelled before a message came.
    Cancelled,
    /// A message was longer than the memory for it. Nothing was written beyond.
    Truncated,
    Failed(Error),
}

impl Outcome {
    /// An error, unless the request has ended as it should, or was cancelled. `rank` is the other end.
    pub fn check(self, rank: usize) -> Result<()> {
        match self {
            Outcome::Done(_) | Outcome::Cancelled => Ok(()),
            Outcome::Truncated => {
                Err(Error::refused(format!("rank {rank} sent more bytes than were expected")))
            }
            Outcome::Failed(error) => Err(error),
        }
    }
}

/// Moves bytes between ranks.
///
/// # Safety
/// The memory of a transfer, `layout` from `at` on, is valid until its key has been reported by `poll`, or forever. Memory to
/// receive into has no other user meanwhile; memory to send from has no writer. Memory of a prepared request is valid while it
/// is started, and when it is released. A key is in use until it has been reported.
pub(crate) trait Transport {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Begins a transfer.
    unsafe fn begin(&mut self, transfer: &Transfer, key: Key) -> Result<()>;
    /// Prepares a transfer that is started later, and often.
    unsafe fn prepare(&mut self, transfer: &Transfer) -> Result<Prepared>;
    unsafe fn start(&mut self, prepared: Prepared, key: Key) -> Result<()>;
    /// Frees a prepared request that is not under way.
    fn release(&mut self, prepared: Prepared);
    /// Gives up a receive. Its key is reported all the same, now or when a message comes.
    fn cancel(&mut self, key: Key);

    /// Begins to copy the root's bytes to all ranks.
    unsafe fn broadcast(&mut self, at: Address, bytes: usize, root: usize, key: Key) -> Result<()>;
    /// Begins to copy `each` bytes of every rank to all ranks, in the order of the ranks.
    unsafe fn all_gather(
        &mut self,
        from: Address,
        into: Address,
        each: usize,
        key: Key,
    ) -> Result<()>;
    /// Begins to wait for all ranks.
    fn barrier(&mut self, key: Key) -> Result<()>;

    /// Appends the requests that have ended since the last call.
    fn poll(&mut self, ended: &mut Vec<(Key, Outcome)>) -> Result<()>;

    /// The library, and a communicator of all ranks; `None` without MPI.
    fn raw(&self) -> Option<(&Mpi, Comm)>;

    /// Ends the work with MPI, after all ranks have come to this point and nothing is under way. Without `orderly` nothing is
    /// called that could wait for another rank.
    fn close(&mut self, orderly: bool, until: Deadline) -> Result<()>;

    /// Gives up a communicator in which a rank has failed, and makes one of the remaining ranks; `Ok(None)` without that
    /// ability. The old transport is then useless.
    fn shrink(&mut self, until: Deadline) -> Result<Option<Box<dyn Transport>>>;
}
