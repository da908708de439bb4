//! Runtimes that are built on a device of another API.
//!
//! # Safety
//! The unsafe method is a contract for backends: which handles they are given.

#![allow(unsafe_code)]

use super::Queue;
use crate::{Result, locks::Arc};
use std::fmt;

/// The device that a runtime is built on, by handles of the underlying API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayeredHandles {
    /// The device.
    pub device: usize,
    /// The context that the runtime works in. It lives as long as the runtime.
    pub context: usize,
}

/// A device that another API's runtime is built on. Both use one context, so that their queues can wait for each other.
pub trait BaseDevice: Send + Sync + fmt::Debug {
    /// A queue of the runtime's, as one of this device.
    ///
    /// # Safety
    /// A live queue of the API beneath, by its handle.
    unsafe fn queue(&self, raw: usize) -> Result<Arc<dyn Queue>>;
}

/// The device that another device's runtime is built on.
#[derive(Clone, Debug)]
pub struct LayeredRuntime {
    /// The other's id.
    pub on: String,
    /// The other.
    pub base_device: Arc<dyn BaseDevice>,
}
