//! Device discovery: the selected backends, the libraries that they load, and the devices found.
//!
//! # Safety
//! Adding a backend is unsafe: see [`Backend`].

#![allow(unsafe_code)]

use super::turn::DiscoveryTurn;
use crate::{device::HiddenDevices, foreign::Loaded, topology::Node};
use onebuf_hal::{
    self as hal, Api, Backend, DriverLibrary, Error, Result, Search, Unavailable,
    locks::{Arc, Mutex},
};
use onebuf_sys::Probe;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The environment variable that allows managed memory.
const MANAGED: &str = "ONEBUF_MANAGED";

/// The backends of a hub, and how the program has configured them.
pub(super) struct Backends {
    known: Vec<Box<dyn Backend>>,
    /// Backends that the program added; only `without` excludes them.
    added: Vec<Box<dyn Backend>>,
    only: Option<Vec<String>>,
    without: Vec<String>,
    /// The file to load for each [`DriverLibrary::name`].
    libraries: BTreeMap<String, String>,
    /// Whether managed memory may be requested; `None` leaves it to the environment.
    pub managed: Option<bool>,
}

impl Backends {
    /// # Safety
    /// The backends fulfil the contract of [`Backend`].
    pub unsafe fn new(mut known: Vec<Box<dyn Backend>>) -> Self {
        known.sort_by_key(|backend| backend.api() != Api::HOST);
        let (added, without, libraries) = Default::default();
        Self { known, added, only: None, without, libraries, managed: None }
    }

    /// # Safety
    /// As for [`Backends::new`].
    pub unsafe fn add(&mut self, backend: Box<dyn Backend>) {
        self.added.push(backend);
    }

    pub fn only(&mut self, apis: impl IntoIterator<Item = impl Into<String>>) {
        self.only.get_or_insert_default().extend(apis.into_iter().map(Into::into));
    }

    pub fn without(&mut self, apis: impl IntoIterator<Item = impl Into<String>>) {
        self.without.extend(apis.into_iter().map(Into::into));
    }

    pub fn library(&mut self, name: String, path_or_soname: String) {
        self.libraries.insert(name, path_or_soname);
    }

    fn all(&self) -> impl Iterator<Item = &dyn Backend> {
        self.known.iter().chain(&self.added).map(|backend| &**backend)
    }

    /// Refuses names that no backend has.
    pub fn check(&self) -> Result<()> {
        let apis: Vec<&str> = self.all().map(|backend| backend.api().0).collect();
        let libraries = self.all().flat_map(|backend| backend.libraries()).map(|one| one.name);
        let libraries: Vec<&str> = libraries.collect();
        let known = |name: &str, names: &[&str], what: &str| match names.contains(&name) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} `{name}`: this build knows {}",
                names.join(", ")
            ))),
        };
        let mut named = self.only.iter().flatten().chain(&self.without);
        named.try_for_each(|name| known(name, &apis, "API"))?;
        self.libraries.keys().try_for_each(|name| known(name, &libraries, "library"))
    }

    /// Whether the backend is enabled. The host always is.
    fn is_on(&self, backend: &dyn Backend) -> bool {
        let api = backend.api();
        let named = |names: &Vec<String>| names.iter().any(|name| name == api.0);
        let added = || self.added.iter().any(|added| added.api() == api);
        let chosen = self.only.as_ref().is_none_or(|only| named(only) || added());
        api == Api::HOST || chosen && !named(&self.without)
    }

    /// Whether any enabled backend loads a driver.
    pub fn any(&self) -> bool {
        self.all().any(|backend| !backend.libraries().is_empty() && self.is_on(backend))
    }

    /// The environment variables with which a helper process sees the same devices.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let word = |on: bool, at: usize, library: &DriverLibrary| match (on, at) {
            (false, 0) => Some("none".to_owned()),
            _ => self.libraries.get(library.name).cloned(),
        };
        let of = |backend: &dyn Backend| {
            let on = self.is_on(backend);
            let all = backend.libraries().iter().enumerate();
            all.filter_map(|(at, one)| Some((one.variable, word(on, at, one)?))).collect::<Vec<_>>()
        };
        let managed = self.managed.map(|on| (MANAGED, u8::from(on).to_string()));
        self.all().flat_map(of).chain(managed).collect()
    }

    fn wants_managed(&self) -> bool {
        let set = || std::env::var_os(MANAGED).is_some_and(|on| !on.is_empty() && on != "0");
        self.managed.unwrap_or_else(set)
    }
}

/// The devices found so far.
#[derive(Default)]
pub(super) struct FoundDevices {
    pub devices: Vec<Arc<dyn hal::Device>>,
    pub nodes: Vec<Node>,
    pub unavailable: Vec<Unavailable>,
    pub notes: Vec<Error>,
    pub loaded: BTreeMap<&'static str, Loaded>,
    pub hidden: HiddenDevices,
}

impl FoundDevices {
    /// Searches all enabled backends. `timeout` limits how long it waits for other threads that search.
    pub fn search(
        &mut self,
        backends: &Backends,
        probe: Option<Arc<Probe>>,
        next_domain: fn() -> hal::Domain,
        timeout: Duration,
    ) {
        let start = Instant::now();
        for backend in backends.all() {
            if !backends.is_on(backend) {
                self.unavailable.push(switched_off(backend.api().0));
                continue;
            }
            let ids = self.nodes.iter().map(|node| node.id.clone());
            let search = Search {
                libraries: &backends.libraries,
                probe: probe.clone(),
                managed: backends.wants_managed(),
                next_domain,
                earlier: ids.zip(self.devices.iter().cloned()).collect(),
                notes: Mutex::default(),
            };
            let found = {
                let loads = !backend.libraries().is_empty();
                let _turn =
                    loads.then(|| DiscoveryTurn::wait(timeout.saturating_sub(start.elapsed())));
                backend.discover(&search)
            };
            self.notes.extend(search.notes.into_inner().unwrap_or_else(|e| e.into_inner()));
            match found {
                Ok(found) => {
                    let hint = backend.hidden_devices();
                    self.hidden.0.extend(hint.map(|hint| (backend.api().0, hint)));
                    self.add(backend.api(), found);
                }
                Err(missing) => self.unavailable.push(missing),
            }
        }
    }

    fn add(&mut self, api: Api, found: hal::Discovered) {
        let first = self.nodes.len();
        self.add_all(api, found.devices);
        self.notes.extend(found.notes);
        let loaded = found.library.map(|library| (api.0, Loaded { library, first }));
        self.loaded.extend(loaded);
    }

    /// Numbers the devices of one API. The host has no number.
    fn add_all(&mut self, api: Api, devices: Vec<Arc<dyn hal::Device>>) {
        let before = self.nodes.iter().filter(|node| node.info.api == api).count();
        for (number, device) in (before..).zip(devices) {
            let id = if api == Api::HOST { api.0.into() } else { format!("{api}:{number}") };
            self.nodes.push(Node { id, info: device.info().clone() });
            self.devices.push(device);
        }
    }
}

fn switched_off(api: &'static str) -> Unavailable {
    Unavailable {
        api,
        tried: Vec::new(),
        loaded: false,
        code: None,
        reason: "switched off by the program".into(),
        hint: Some(format!("add `{api}` to `HubBuilder::only`, or remove it from `without`")),
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
