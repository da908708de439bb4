//! Foreign contexts: the loaded API, and device entries for their devices.
//!
//! # Safety
//! The unsafe method is a contract for its callers: which handles they may pass.

#![allow(unsafe_code)]

use super::{Device, Domain};
use crate::{Error, Result, locks::Arc};
use std::{any::Any, fmt};

/// A loaded API. The crate `onebuf`, which depends on the backends, downcasts it to create foreign objects.
pub trait Library: Any + Send + Sync + fmt::Debug {
    /// Creates another context on a discovered device, as another library of this process would. It is released when dropped.
    fn second_context(&self, device: usize) -> Result<Box<dyn SecondContext>> {
        let _ = device;
        Err(Error::unsupported("a second context", "a device whose API has contexts"))
    }

    /// Uses a foreign context while the returned value lives. Each of its devices takes a device entry, in the context's order.
    ///
    /// # Safety
    /// `context` is null, or the handle of a live context of this library.
    unsafe fn adopt(
        &self,
        context: usize,
        entries: &mut dyn DeviceEntries,
    ) -> Result<Arc<dyn Any + Send + Sync>> {
        let _ = (context, entries);
        Err(Error::unsupported("a foreign context", "an API whose contexts are known by a handle"))
    }
}

/// A context that is released when this value is dropped.
pub trait SecondContext {
    /// The context's native handle.
    fn raw(&self) -> usize;
}

/// The device entries of foreign contexts.
pub trait DeviceEntries {
    /// A new domain, for another context.
    fn new_domain(&self) -> Domain;

    /// Returns the device of an entry for `device`: a free entry whose device satisfies `same`, with the device that it already
    /// has, or a new entry with `device`.
    fn entry(
        &mut self,
        device: Arc<dyn Device>,
        known: KnownAs,
        same: &dyn Fn(&dyn Device) -> bool,
    ) -> Result<Arc<dyn Device>>;
}

/// Which discovered device a foreign device corresponds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownAs {
    /// The API's device with this index.
    Found(usize),
    /// The device of the same chip, or of the same name.
    Like,
    /// No discovered device.
    Unlisted,
}
