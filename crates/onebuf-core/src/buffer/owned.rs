//! Who owns a core: one buffer, which gives it back to its pool if it came from one, or all that were wrapped
//! around the same memory.

use super::Core;
use onebuf_hal::locks::Arc;
use std::ops::Deref;

/// A core in use.
pub(super) enum Owned {
    /// By one buffer.
    Alone(Option<Box<Core>>),
    /// By several.
    Together(Arc<Core>),
}

impl Owned {
    pub fn new(core: Box<Core>) -> Self {
        Self::Alone(Some(core))
    }

    /// Lets others have the core, too.
    pub fn share(&mut self) -> Arc<Core> {
        match self {
            Owned::Together(core) => core.clone(),
            Owned::Alone(alone) => {
                let core = alone.take().expect("a buffer has its core until it is dropped");
                let core = Arc::new(*core);
                *self = Owned::Together(core.clone());
                core
            }
        }
    }
}

impl Deref for Owned {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        match self {
            // Taken out only by the drop.
            Owned::Alone(core) => {
                core.as_deref().expect("a buffer has its core until it is dropped")
            }
            Owned::Together(core) => core,
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Owned::Alone(core) = self
            && let Some(core) = core.take()
        {
            core.retire();
        }
    }
}
