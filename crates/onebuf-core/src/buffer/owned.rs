//! Ownership of a core: by one buffer, which returns it to its pool if it came from one, or by all buffers that were
//! wrapped around the same memory.

use super::Core;
use onebuf_hal::locks::Arc;
use std::ops::Deref;

const HAS_CORE: &str = "a buffer has its core until it is dropped";

/// The owner of a core.
pub(super) enum Owned {
    /// One buffer.
    Alone(Option<Box<Core>>),
    /// Several buffers.
    Together(Option<Arc<Core>>),
}

impl Owned {
    pub fn new(core: Box<Core>) -> Self {
        Self::Alone(Some(core))
    }

    /// Makes the core shared, and returns it.
    pub fn share(&mut self) -> Arc<Core> {
        match self {
            Owned::Together(core) => core.clone().expect(HAS_CORE),
            Owned::Alone(alone) => {
                let core = Arc::new(*alone.take().expect(HAS_CORE));
                *self = Owned::Together(Some(core.clone()));
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
            Owned::Alone(core) => core.as_deref().expect(HAS_CORE),
            Owned::Together(core) => core.as_deref().expect(HAS_CORE),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match self {
            Owned::Alone(core) => core.take().map(Core::retire).unwrap_or_default(),
            Owned::Together(core) => core.take().map(Core::retire_shared).unwrap_or_default(),
        }
    }
}
