//! Layered runtimes: runtimes built on a device of another API.
//!
//! # Safety
//! The unsafe method is a contract for its callers: which handles they may pass.

#![allow(unsafe_code)]

use super::Queue;
use crate::{Result, locks::Arc};
use std::fmt;

/// The native handles of the device that a layered runtime is built on, in the underlying API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayeredHandles {
    /// The device.
    pub device: usize,
    /// The context that the runtime uses. It lives as long as the runtime.
    pub context: usize,
}

/// A device that another API's runtime is built on. Both use one context, so their queues can wait for each other.
pub trait BaseDevice: Send + Sync + fmt::Debug {
    /// Wraps a queue of the runtime as a queue of this device.
    ///
    /// # Safety
    /// `raw` is the handle of a live queue of the underlying API.
    unsafe fn queue(&self, raw: usize) -> Result<Arc<dyn Queue>>;
}

/// The base device of a layered runtime.
#[derive(Clone, Debug)]
pub struct LayeredRuntime {
    /// The id of the base device.
    pub on: String,
    /// The base device.
    pub base_device: Arc<dyn BaseDevice>,
}
