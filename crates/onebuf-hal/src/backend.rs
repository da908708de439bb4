//! A backend: an API's name, the libraries that it loads, and device discovery.
//!
//! # Safety
//! The unsafe trait and methods are contracts between backends and the crates that use them.

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

/// One API, through which a hub finds devices.
///
/// # Safety
/// Safe code relies on the devices, memories, queues and events that a backend creates: host pointers are valid for the size
/// and lifetime that the traits of this module state, and an event completes only after its work has ended. The handles in a
/// `LayeredHandles` are live.
pub unsafe trait Backend: Send + Sync + fmt::Debug {
    /// The API's name in device ids. It is unique in a hub's list of backends, except that tests may add several backends of
    /// one API.
    fn api(&self) -> Api;

    /// The libraries that it loads, the driver first. Empty if it needs no driver: such a backend also works in a forked child.
    fn libraries(&self) -> &'static [DriverLibrary] {
        &[]
    }

    /// What to try if a device is missing although the API was found: some drivers show their devices only on request.
    fn hidden_devices(&self) -> Option<&'static str> {
        None
    }

    /// The kernel languages that its devices compile.
    fn languages(&self) -> &'static [Language] {
        &[]
    }

    /// Loads the libraries and lists the devices. Devices that cannot be used are left out and reported as notes.
    ///
    /// # Errors
    /// The reason why the API has no usable device.
    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable>;
}

/// A library that a backend loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverLibrary {
    /// The name by which programs refer to it: the API's name for the driver, a different name for a compiler or helper
    /// library.
    pub name: &'static str,
    /// The environment variable that overrides the file.
    pub variable: &'static str,
}

/// The result of a backend's discovery.
#[derive(Default)]
pub struct Discovered {
    /// The devices, in the driver's order.
    pub devices: Vec<Arc<dyn Device>>,
    /// The devices that were left out, and why.
    pub notes: Vec<Error>,
    /// The loaded API, for foreign objects.
    pub library: Option<Arc<dyn Library>>,
}

impl Discovered {
    /// Creates a result from devices of one type. Each of `problems` becomes a note about `what`, a description of one device.
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

/// The input of a backend's discovery.
pub struct Search<'s> {
    /// The library files that the program chose, by [`DriverLibrary::name`].
    pub libraries: &'s BTreeMap<String, String>,
    /// Counts driver calls and makes selected ones fail.
    pub probe: Option<Arc<Probe>>,
    /// Whether managed memory is enabled.
    pub managed: bool,
    /// Returns a new domain for a context.
    pub next_domain: fn() -> Domain,
    /// The devices of backends before this one, with their ids.
    pub earlier: Vec<(String, Arc<dyn Device>)>,
    /// Problems that did not stop the discovery.
    pub notes: Mutex<Vec<Error>>,
}

impl Search<'_> {
    /// The file that the program chose for a library.
    pub fn library(&self, name: &str) -> Option<&str> {
        self.libraries.get(name).map(String::as_str)
    }

    /// Returns the device of an earlier backend that a runtime is built on, and uses it in the runtime's context from now on.
    /// `None` if no such device exists, or if its driver refuses (a note is recorded).
    ///
    /// # Safety
    /// The handles are live and stay so as long as the runtime. If an earlier device matches them, its library is the one that
    /// created them.
    pub unsafe fn base_device(&self, layered: &LayeredHandles) -> Option<LayeredRuntime> {
        let mut earlier = self.earlier.iter();
        let (on, base_device) = earlier.find_map(|(id, device)| {
            // SAFETY: the caller upholds the same contract.
            let base_device = unsafe { device.clone().base_device(layered) }?;
            Some((id.clone(), base_device))
        })?;
        let base_device = base_device.map_err(|why| lock(&self.notes).push(why)).ok()?;
        Some(LayeredRuntime { on, base_device })
    }

    /// The physical id of the chip that a context runs on, as a device of an earlier backend reports it. Only devices that
    /// cannot be matched by UUID are queried.
    ///
    /// # Safety
    /// The context is live and current on this thread.
    pub unsafe fn chip_of(&self, context: ContextHandles, own: &PhysicalId) -> Option<PhysicalId> {
        let unknown =
            |device: &Arc<dyn Device>| own.uuid.is_none() || device.info().physical.uuid.is_none();
        let devices = self.earlier.iter().map(|(_, device)| device);
        // SAFETY: the caller upholds the same contract.
        devices
            .filter(|device| unknown(device))
            .find_map(|device| unsafe { device.chip_of(context) })
    }
}

/// An API that is unavailable on this machine. This is information, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// The API.
    pub api: &'static str,
    /// The library files that were tried, in order.
    pub tried: Vec<String>,
    /// Whether its library was loaded.
    pub loaded: bool,
    /// The driver's status code.
    pub code: Option<i32>,
    /// The reason, as text.
    pub reason: String,
    /// How to fix it, if known.
    pub hint: Option<String>,
}

impl From<onebuf_sys::Missing> for Unavailable {
    fn from(missing: onebuf_sys::Missing) -> Self {
        let onebuf_sys::Missing { api, tried, loaded, code, reason, hint } = missing;
        let hint = Some(hint).filter(|hint| !hint.is_empty());
        Self { api, tried, loaded, code, reason, hint }
    }
}
