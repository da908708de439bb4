//! The one owner of a core: gives it back to its pool, if it came from one.

use super::Core;
use std::ops::Deref;

/// A core in use.
pub(super) struct Owned(Option<Box<Core>>);

impl Owned {
    pub fn new(core: Box<Core>) -> Self {
        Self(Some(core))
    }
}

impl Deref for Owned {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        // Taken out only by the drop.
        self.0.as_deref().expect("a buffer has its core until it is dropped")
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            core.retire();
        }
    }
}
