//! Ownership of a core: by one buffer, which returns it to its pool if it came from one, or by all buffers that were
//! wrapped around the same memory.

use super::Core;
use onebuf_hal::locks::Arc;
use std::ops::Deref;

/// The owner of a core.
pub(super) enum Owned {
    /// One buffer.
    Alone(Option<Box<Core>>),
    /// Several buffers.
    Together(Arc<Core>),
}

impl Owned {
    pub fn new(core: Box<Core>) -> Self {
        Self::Alone(Some(core))
    }

    /// Makes the core shared, and returns it.
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
            // Only `drop` takes the core out, and `share`, which replaces it.
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
