//! Who a buffer's memory goes back to: a pool, or the owner of memory that was wrapped.

use super::Core;
use onebuf_hal::locks::Arc;
use std::{ffi::c_void, fmt};

/// Who lends memory to buffers.
pub(crate) trait Owner: Send + Sync {
    /// The buffer was dropped, and nothing else has its core.
    fn take_back(&self, core: Box<Core>, tag: Tag) {
        let _ = tag;
        drop(core);
    }

    /// A core no longer uses the memory: all work on it is over.
    fn forget(&self, tag: Tag) {
        let _ = tag;
    }
}

/// What a core remembers of who lent its memory.
#[derive(Clone)]
pub(crate) struct Loan {
    pub owner: Arc<dyn Owner>,
    pub lender: Lender,
    pub tag: Tag,
}

/// What sort of owner it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lender {
    /// Gets the whole core back, to use it again.
    Pool,
    /// The memory is somebody else's, who gets it back as it was lent.
    Foreign,
}

/// Numbers by which the owner knows what it lent. Only the owner reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub place: u32,
    pub number: u64,
}

impl Loan {
    /// Whether this is the one who lent it.
    pub fn is_by<O>(&self, owner: &Arc<O>) -> bool {
        Arc::as_ptr(&self.owner).addr() == Arc::as_ptr(owner).addr()
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({:?}, {:#x})", self.lender, self.tag.number)
    }
}

/// What is owed to the former owner: runs when it is dropped, if it has fallen due. Where nothing was wrapped the
/// handle stays the caller's.
pub(crate) struct Claim {
    raw: usize,
    release: Option<Release>,
    due: bool,
}

type Release = Box<dyn FnOnce(*mut c_void) + Send>;

impl Claim {
    pub fn new(raw: usize, release: Release) -> Self {
        Self { raw, release: Some(release), due: false }
    }

    /// The memory was taken over.
    pub fn due(mut self) -> Self {
        self.due = true;
        self
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(release) = self.release.take().filter(|_| self.due) {
            release(self.raw as *mut c_void);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:#x})", self.raw)
    }
}
