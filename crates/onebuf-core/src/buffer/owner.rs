//! What a buffer keeps of the lender and of the former owner of its memory.

use std::{ffi::c_void, fmt};

/// Identifies the loan to its lender. Only the lender interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub place: u32,
    pub number: u64,
}

/// A release callback of the memory's former owner. Dropping the claim runs it, but only if the memory was taken over:
/// if wrapping fails the caller keeps the handle.
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

    /// Arms the callback: the memory was taken over.
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
