//! What a backend is: an API's name, the libraries that it loads, and a search for its devices.
//!
//! # Safety
//! The unsafe trait and methods are contracts between backends and what stands above them.

#![allow(unsafe_code)]

use super::{
    Api, ContextHandles, Device, Domain, Language, LayeredHandles, LayeredRuntime, Library,
    PhysicalId,
};
use crate::{
    Error,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::Probe;
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

impl Api {
    /// The CPU of this machine, which every hub has.
    pub const HOST: Api = Api("host");
}

/// One API, as a hub finds its devices.
///
/// # Safety
/// Safe code relies on what the devices, memories, queues and events do that come from here: host pointers are valid for as
/// many bytes and as long as the traits of this module say, and an event that is complete means that its work is over.
/// Handles in a `LayeredHandles` are live.
pub unsafe trait Backend: Send + Sync + fmt::Debug {
    /// The API's name in device ids. No two backends of a list have the same one, except that several may add devices of
    /// one API for tests.
    fn api(&self) -> Api;

    /// The libraries that it loads, the driver first. None where it needs no driver: then it also works in a forked child.
    fn libraries(&self) -> &'static [DriverLibrary] {
        &[]
    }

    /// The languages that its devices compile.
    fn languages(&self) -> &'static [Language] {
        &[]
    }

    /// Loads the libraries and lists the devices. A device that cannot be used is left out, with a note.
    ///
    /// # Errors
    /// Why there is no device at all.
    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable>;
}

/// A library that a backend loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverLibrary {
    /// What a program calls it: the API's name for its driver, another for a compiler and the like.
    pub name: &'static str,
    /// The environment variable that names another file.
    pub variable: &'static str,
}

/// What a backend has found.
#[derive(Default)]
pub struct Discovered {
    /// In the driver's order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Devices that were left out, and why.
    pub notes: Vec<Error>,
    /// What was loaded, for foreign objects of this API.
    pub library: Option<Arc<dyn Library>>,
}

impl Discovered {
    /// Devices of one type, and why others were left out: `what` is one of them, in words.
    pub fn new<D: Device + 'static>(
        devices: impl IntoIterator<Item = Arc<D>>,
        what: &str,
        problems: Vec<String>,
    ) -> Self {
        let note = |reason| Error::Unavailable { what: what.into(), tried: vec![], reason };
        let devices = devices.into_iter().map(|device| device as _).collect();
        Self { devices, notes: problems.into_iter().map(note).collect(), library: None }
    }
}

/// What a backend is told, and whom it may ask.
pub struct Search<'s> {
    /// Libraries that the program has named, by [`DriverLibrary::name`].
    pub libraries: &'s BTreeMap<String, String>,
    /// Counts driver calls and lets chosen ones fail.
    pub probe: Option<Arc<Probe>>,
    /// Whether memory is wanted whose pages move.
    pub managed: bool,
    /// Numbers the devices' contexts.
    pub next_domain: fn() -> Domain,
    /// The devices of backends before this one, with their ids.
    pub earlier: Vec<(String, Arc<dyn Device>)>,
    /// What went wrong without stopping the search.
    pub notes: Mutex<Vec<Error>>,
}

impl Search<'_> {
    /// The file that the program has named for a library.
    pub fn library(&self, name: &str) -> Option<&str> {
        self.libraries.get(name).map(String::as_str)
    }

    /// The device that a runtime is built on, used in that runtime's context from now on. None where it is another
    /// library's.
    ///
    /// # Safety
    /// Live handles that live as long as the runtime, whose library and that of the device are one where the device is
    /// found.
    pub unsafe fn base_device(&self, layered: &LayeredHandles) -> Option<LayeredRuntime> {
        let mut earlier = self.earlier.iter();
        let (on, base_device) = earlier.find_map(|(id, device)| {
            // SAFETY: the caller's promise.
            let base_device = unsafe { device.clone().base_device(layered) }?;
            Some((id.clone(), base_device))
        })?;
        let base_device = base_device.map_err(|why| lock(&self.notes).push(why)).ok()?;
        Some(LayeredRuntime { on, base_device })
    }

    /// What devices of other APIs know of the chip that a context is on, where UUIDs do not tell.
    ///
    /// # Safety
    /// A live context that is current on this thread.
    pub unsafe fn chip_of(&self, context: ContextHandles, own: &PhysicalId) -> Option<PhysicalId> {
        let unknown =
            |device: &Arc<dyn Device>| own.uuid.is_none() || device.info().physical.uuid.is_none();
        let devices = self.earlier.iter().map(|(_, device)| device);
        // SAFETY: the caller's promise.
        devices
            .filter(|device| unknown(device))
            .find_map(|device| unsafe { device.chip_of(context) })
    }
}

/// An API that is not to be had here: a fact, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// Which API.
    pub api: &'static str,
    /// What was tried, in order.
    pub tried: Vec<String>,
    /// Whether its library was there.
    pub loaded: bool,
    /// What the driver answered.
    pub code: Option<i32>,
    /// Why, in words.
    pub reason: String,
    /// What would help, if anything is known to.
    pub hint: Option<String>,
}

impl From<onebuf_sys::Missing> for Unavailable {
    fn from(missing: onebuf_sys::Missing) -> Self {
        let onebuf_sys::Missing { api, tried, loaded, code, reason, hint } = missing;
        let hint = Some(hint).filter(|hint| !hint.is_empty());
        Self { api, tried, loaded, code, reason, hint }
    }
}
