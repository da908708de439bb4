//! Semaphores that devices signal and wait on, across APIs.

use super::Domain;
use crate::locks::Arc;
use std::{any::Any, fmt, os::fd::OwnedFd};

/// A binary semaphore that one device created or imported. A signal sets it and a wait clears it. Each wait is for exactly one
/// signal that was enqueued before it.
///
/// When it is dropped, no enqueued work may still use it.
pub trait Semaphore: Any + Send + Sync + fmt::Debug {
    /// The domain that it belongs to.
    fn domain(&self) -> Domain;
}

impl dyn Semaphore {
    /// Lets a backend downcast to its own type.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A new semaphore and the descriptor that exports it.
#[derive(Debug)]
pub struct SharedSemaphore {
    /// The semaphore of the device that created it.
    pub own: Arc<dyn Semaphore>,
    /// The exported descriptor. An importer passes a duplicate of it to its driver.
    pub fd: OwnedFd,
}
