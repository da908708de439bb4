//! Contexts that the application created: the loaded API, and device entries for their devices.
//!
//! # Safety
//! The unsafe method is a contract for backends: which handles they are given.

#![allow(unsafe_code)]

use super::{Device, Domain};
use crate::{Error, Result, locks::Arc};
use std::{any::Any, fmt};

/// A loaded API. The façade, which knows the backend, downcasts it to create foreign objects.
pub trait Library: Any + Send + Sync + fmt::Debug {
    /// Another context on one of the devices that were found, as another library of this process would make it. Released
    /// when dropped.
    fn second_context(&self, device: usize) -> Result<Box<dyn SecondContext>> {
        let _ = device;
        Err(Error::unsupported("a second context", "a device whose API has contexts"))
    }

    /// Uses a context from now on, while what is returned lives. Its devices take device entries, in the context's order.
    ///
    /// # Safety
    /// Null, or the handle of a live context of this library.
    unsafe fn adopt(
        &self,
        context: usize,
        entries: &mut dyn DeviceEntries,
    ) -> Result<Arc<dyn Any + Send + Sync>> {
        let _ = (context, entries);
        Err(Error::unsupported("a foreign context", "an API whose contexts are known by a handle"))
    }
}

/// A context that is released when this is dropped.
pub trait SecondContext {
    /// Its handle.
    fn raw(&self) -> usize;
}

/// The device entries of foreign contexts.
pub trait DeviceEntries {
    /// A number for another context.
    fn new_domain(&self) -> Domain;

    /// An entry for one device: one that was left by another that is the same, or a new one. Returns the device of that entry,
    /// which is the one that was left if there was one.
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
    /// None.
    Unlisted,
}
