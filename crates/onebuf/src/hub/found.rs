//! Looking for devices: which libraries are asked, and what they had.

use super::Unavailable;
use crate::{
    Error, backend,
    backend::cuda_like::{Flavor, Libraries},
    foreign::{Known, Others},
    hal::{self, Device, Domain, LayeredHandles, LayeredRuntime, PhysicalId},
    sync::Arc,
    topology::Node,
};
use onebuf_sys::Probe;
use std::cell::RefCell;

/// Which library an API is looked for in.
#[derive(Clone, Debug, Default)]
pub(super) enum Switch {
    /// As the environment says, or the usual ones.
    #[default]
    Usual,
    /// This one, whatever the environment says.
    Library(String),
    /// None.
    Off,
}

impl Switch {
    fn library(&self) -> Option<&str> {
        match self {
            Switch::Library(library) => Some(library),
            Switch::Usual | Switch::Off => None,
        }
    }

    /// As its environment variable would have it.
    fn word(&self) -> Option<&str> {
        match self {
            Switch::Off => Some("none"),
            other => other.library(),
        }
    }
}

/// What allows managed memory.
const MANAGED: &str = "ONEBUF_MANAGED";

/// A switch for every library, and for what is only to be had by leave.
#[derive(Clone, Debug, Default)]
pub(super) struct Switches {
    pub opencl: Switch,
    pub cuda: Switch,
    pub hip: Switch,
    pub vulkan: Switch,
    pub egl: Switch,
    pub nvrtc: Switch,
    pub hiprtc: Switch,
    pub hsa: Switch,
    /// Whether memory may be asked for whose pages move; nothing where the environment says.
    pub managed: Option<bool>,
}

impl Switches {
    /// What a helper process must find in its environment to see the same devices.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("ONEBUF_OPENCL_LIB", &self.opencl),
            ("ONEBUF_CUDA_LIB", &self.cuda),
            ("ONEBUF_HIP_LIB", &self.hip),
            ("ONEBUF_VULKAN_LIB", &self.vulkan),
            ("ONEBUF_EGL_LIB", &self.egl),
            ("ONEBUF_NVRTC_LIB", &self.nvrtc),
            ("ONEBUF_HIPRTC_LIB", &self.hiprtc),
            ("ONEBUF_HSA_LIB", &self.hsa),
        ];
        let managed = self.managed.map(|on| (MANAGED, u8::from(on).to_string()));
        let all = all.into_iter().filter_map(|(name, s)| Some((name, s.word()?.to_owned())));
        all.chain(managed).collect()
    }

    /// Whether any driver is looked for.
    pub fn any(&self) -> bool {
        let all = [&self.opencl, &self.cuda, &self.hip, &self.vulkan, &self.egl];
        all.iter().any(|switch| !matches!(switch, Switch::Off))
    }

    fn wants_managed(&self) -> bool {
        let set = || std::env::var_os(MANAGED).is_some_and(|on| !on.is_empty() && on != "0");
        self.managed.unwrap_or_else(set)
    }
}

/// What was found so far.
#[derive(Default)]
pub(super) struct Found {
    pub devices: Vec<Arc<dyn hal::Device>>,
    pub nodes: Vec<Node>,
    pub unavailable: Vec<Unavailable>,
    pub notes: Vec<Error>,
    pub opencl: Option<Known>,
    pub others: Others,
}

impl Found {
    /// Numbers the devices of one API; the host has no number.
    pub fn add_all(&mut self, api: &str, devices: impl IntoIterator<Item = Arc<dyn hal::Device>>) {
        for (number, device) in devices.into_iter().enumerate() {
            let id = if api == "host" { api.into() } else { format!("{api}:{number}") };
            self.nodes.push(Node { id, info: device.info().clone() });
            self.devices.push(device);
        }
    }

    /// Asks every API that is not switched off.
    pub fn drivers(
        &mut self,
        switches: &Switches,
        probe: Option<Arc<Probe>>,
        next: &mut impl FnMut() -> Domain,
    ) {
        match &switches.opencl {
            Switch::Off => self.unavailable.push(switched_off("opencl")),
            on => self.opencl(on.library(), probe.clone(), next),
        }
        let like = [
            (Flavor::Cuda, &switches.cuda, &switches.nvrtc),
            (Flavor::Hip, &switches.hip, &switches.hiprtc),
        ];
        for (flavor, driver, compiler) in like {
            let (compiler, hsa) = (compiler.word(), switches.hsa.word());
            let managed = switches.wants_managed();
            let libraries = Libraries { driver: driver.library(), compiler, hsa, managed };
            match driver {
                Switch::Off => self.unavailable.push(switched_off(flavor.api())),
                _ => self.cuda_like(flavor, libraries, probe.clone(), next),
            }
        }
        match &switches.vulkan {
            Switch::Off => self.unavailable.push(switched_off("vulkan")),
            on => self.vulkan(on.library(), probe.clone(), next),
        }
        match &switches.egl {
            Switch::Off => self.unavailable.push(switched_off("gl")),
            on => self.gl(on.library(), probe.clone(), next),
        }
    }

    fn opencl(
        &mut self,
        library: Option<&str>,
        probe: Option<Arc<Probe>>,
        next: &mut impl FnMut() -> Domain,
    ) {
        match backend::opencl::discover(library, probe, next) {
            Ok(found) => {
                let first = self.nodes.len();
                self.add_all("opencl", found.devices.iter().map(|device| device.clone() as _));
                self.opencl = Some(Known { cl: found.cl, devices: found.devices, first });
                self.note("an OpenCL device", found.problems);
            }
            Err(missing) => self.unavailable.push(missing.into()),
        }
    }

    fn cuda_like(
        &mut self,
        flavor: Flavor,
        libraries: Libraries<'_>,
        probe: Option<Arc<Probe>>,
        next: &mut impl FnMut() -> Domain,
    ) {
        let notes = RefCell::new(Vec::new());
        let base_device = |layered: &LayeredHandles| self.base_device(layered, &notes);
        let found = backend::cuda_like::discover(flavor, libraries, probe, next, &base_device);
        self.notes.extend(notes.into_inner());
        match found {
            Ok(found) => {
                self.add_all(flavor.api(), found.devices.into_iter().map(|device| device as _));
                self.note(flavor.pick(["a CUDA device", "a HIP device"]), found.problems);
            }
            Err(missing) => self.unavailable.push(missing.into()),
        }
    }

    /// The device that a runtime is built on, used in that runtime's context from now on. None where it is another library's.
    fn base_device(
        &self,
        layered: &LayeredHandles,
        notes: &RefCell<Vec<Error>>,
    ) -> Option<LayeredRuntime> {
        let (ix, base_device) = self.opencl.as_ref()?.base_device_of(layered)?;
        let on = self.nodes[ix.get()].id.clone();
        let base_device = base_device.map_err(|why| notes.borrow_mut().push(why)).ok()?;
        Some(LayeredRuntime { on, base_device })
    }

    fn vulkan(
        &mut self,
        library: Option<&str>,
        probe: Option<Arc<Probe>>,
        next: &mut impl FnMut() -> Domain,
    ) {
        match backend::vulkan::discover(library, probe, next) {
            Ok(found) => {
                self.add_all("vulkan", found.devices.into_iter().map(|device| device as _));
                self.others.vulkan = Some(found.loader);
                self.note("a Vulkan device", found.problems);
            }
            Err(missing) => self.unavailable.push(missing.into()),
        }
    }

    fn gl(
        &mut self,
        library: Option<&str>,
        probe: Option<Arc<Probe>>,
        next: &mut impl FnMut() -> Domain,
    ) {
        let known = self.opencl.as_ref();
        // Only where UUIDs do not tell.
        let chip_of = |context, known_by_gl: &PhysicalId| {
            let devices = known.iter().flat_map(|known| &known.devices);
            let unknown = |device: &&Arc<backend::opencl::Device>| {
                known_by_gl.uuid.is_none() || device.info().physical.uuid.is_none()
            };
            devices.filter(unknown).find_map(|device| device.chip_of(context))
        };
        match backend::gl::discover(library, probe, next, &chip_of) {
            Ok(found) => {
                self.add_all("gl", found.devices.into_iter().map(|device| device as _));
                self.others.gl = Some(found.library);
                self.note("an OpenGL device", found.problems);
            }
            Err(missing) => self.unavailable.push(missing.into()),
        }
    }

    fn note(&mut self, what: &str, problems: Vec<String>) {
        let note = |reason| Error::Unavailable { what: what.into(), tried: vec![], reason };
        self.notes.extend(problems.into_iter().map(note));
    }
}

impl From<onebuf_sys::Missing> for Unavailable {
    fn from(missing: onebuf_sys::Missing) -> Self {
        let onebuf_sys::Missing { api, tried, loaded, code, reason, hint } = missing;
        let hint = Some(hint).filter(|hint| !hint.is_empty());
        Self { api, tried, loaded, code, reason, hint }
    }
}

fn switched_off(api: &'static str) -> Unavailable {
    Unavailable {
        api,
        tried: Vec::new(),
        loaded: false,
        code: None,
        reason: "switched off by the program".into(),
        hint: Some(format!("leave `without_{api}` away")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_told_what_was_asked_for() {
        assert!(Switches::default().environment().is_empty());
        let switches = Switches {
            opencl: Switch::Off,
            hip: Switch::Library("libx.so".into()),
            managed: Some(true),
            ..Switches::default()
        };
        let told =
            [("ONEBUF_OPENCL_LIB", "none"), ("ONEBUF_HIP_LIB", "libx.so"), ("ONEBUF_MANAGED", "1")];
        assert_eq!(switches.environment(), told.map(|(name, word)| (name, word.to_owned())));
    }
}
