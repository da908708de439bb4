//! Objects of one API for which another API has sharing calls.

use super::{Api, DeviceInfo};
use crate::{Error, Result, locks::Arc};
use std::fmt;

/// An object and the context that it belongs to. The importing API keeps this value until it has released the object.
#[derive(Clone, Debug)]
pub struct ObjectRange {
    /// The API of the object.
    pub api: Api,
    /// The object's name in that API.
    pub name: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The [native context](NativeContext) that it belongs to.
    pub context: ContextHandles,
    /// Keeps the object alive, and runs calls in its context.
    pub home: Arc<dyn ObjectHome>,
}

/// The native handles of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextHandles {
    /// The context itself.
    pub context: usize,
    /// The display that the context was created on.
    pub display: usize,
}

/// A context of one API. Another API uses it to create a context of its own that shares objects with it, and keeps this value.
#[derive(Clone, Debug)]
pub struct NativeContext {
    /// The API of the context.
    pub api: Api,
    /// Its native handles.
    pub handles: ContextHandles,
    /// Keeps the context alive, and runs calls while it is current.
    pub home: Arc<dyn ObjectHome>,
}

impl ObjectRange {
    /// Checks that a device has sharing calls for objects of this API.
    pub fn check_for(&self, info: &DeviceInfo) -> Result<()> {
        if info.caps.shares_objects_of.contains(&self.api) {
            return Ok(());
        }
        let what = format!("an object of {} on {}", self.api, info.name);
        Err(Error::unsupported(what, "a driver with sharing calls for that API"))
    }
}

/// The owner of an object or context.
pub trait ObjectHome: Send + Sync + fmt::Debug {
    /// Runs a sharing call of another API with the object's context current, as such calls require, after all work submitted to
    /// that context before. Fails if the context does not get to it in time, or with the call's own error.
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()>;
}
