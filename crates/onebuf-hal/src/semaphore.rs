//! Semaphores that the devices themselves signal and wait on, across APIs.

use super::Domain;
use crate::locks::Arc;
use std::{any::Any, fmt, os::fd::OwnedFd};

/// A binary semaphore as one device knows it: made by it, or imported. A signal sets it, a wait clears it, and each wait is
/// for exactly one signal, which was enqueued before.
///
/// Nothing that was enqueued may still use it when it is dropped.
pub trait Semaphore: Any + Send + Sync + fmt::Debug {
    /// Where it belongs.
    fn domain(&self) -> Domain;
}

impl dyn Semaphore {
    /// For the backend's own downcasts.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A new semaphore, and what others import it by.
#[derive(Debug)]
pub struct SharedSemaphore {
    /// As its maker knows it.
    pub own: Arc<dyn Semaphore>,
    /// Whoever imports it gives the driver a duplicate.
    pub fd: OwnedFd,
}
