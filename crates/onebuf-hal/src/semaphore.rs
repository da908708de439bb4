//! Semaphores that devices signal and wait on, across APIs.

use super::Domain;
use crate::locks::Arc;
use std::{any::Any, fmt, os::fd::OwnedFd};

/// A binary semaphore as one device knows it: created by it, or imported. A signal sets it, a wait clears it, and each
/// wait is for exactly one signal, which was enqueued before.
///
/// No enqueued work may still use it when it is dropped.
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

/// A new semaphore, and the descriptor by which others import it.
#[derive(Debug)]
pub struct SharedSemaphore {
    /// As its maker knows it.
    pub own: Arc<dyn Semaphore>,
    /// The importer gives the driver a duplicate.
    pub fd: OwnedFd,
}
