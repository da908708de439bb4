//! Objects of one API that another has sharing calls for.

use super::{Api, DeviceInfo};
use crate::{Error, Result, locks::Arc};
use std::fmt;

/// An object, and where it is at home. Whoever shares it keeps this until its own API has let go of it.
#[derive(Clone, Debug)]
pub struct ObjectRange {
    /// Whose it is.
    pub api: Api,
    /// Its name there.
    pub name: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// The [native context](NativeContext) that it belongs to.
    pub context: ContextHandles,
    /// Keeps it, and runs what wants its context.
    pub home: Arc<dyn ObjectHome>,
}

/// What a context is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextHandles {
    /// The context itself.
    pub context: usize,
    /// What it was made on.
    pub display: usize,
}

/// A context of one API, for another that makes its own for sharing objects with it. Whoever did so keeps this.
#[derive(Clone, Debug)]
pub struct NativeContext {
    /// Whose it is.
    pub api: Api,
    /// What that knows it by.
    pub handles: ContextHandles,
    /// Keeps it, and runs what wants it to be current.
    pub home: Arc<dyn ObjectHome>,
}

impl ObjectRange {
    /// Whether a device has sharing calls for such.
    pub fn check_for(&self, info: &DeviceInfo) -> Result<()> {
        if info.caps.shares_objects_of.contains(&self.api) {
            return Ok(());
        }
        let what = format!("an object of {} on {}", self.api, info.name);
        Err(Error::unsupported(what, "a driver with sharing calls for that API"))
    }
}

/// Where an object lives, or a context.
pub trait ObjectHome: Send + Sync + fmt::Debug {
    /// Runs a sharing call of another API's where the object's own context is current, as such calls want it, and behind
    /// everything that was asked of that context before. An error where its turn does not come, or the call's own.
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()>;
}
