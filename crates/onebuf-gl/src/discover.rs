//! Discovers the library and its devices.

use super::{
    asked::{Asked, Unfit, ask},
    device::{Device, Driver},
    stage::Stage,
};
use onebuf_hal::{
    ContextHandles, DeviceKind, Domain, Error, PhysicalId, locks::Arc, watchdog::Post,
};
use onebuf_sys::{
    Missing, Probe,
    gl::{EglDevice, EglDisplay, Gl, GlRefused, GlStatus, consts},
};
use std::{fs, os::unix::fs::MetadataExt, path::Path, ptr};

/// Upper bound of EGL's devices.
const MANY: usize = 32;
const NO_DEVICE_HINT: &str = "may this process use /dev/dri/* or /dev/nvidia*? OpenGL 4.4 on the CPU: \
                              apt install libegl1 libgl1-mesa-dri";
const OLD_HINT: &str = "a newer driver";
/// Set to `none`, this variable leaves out CPU renderers.
const SOFTWARE: &str = "ONEBUF_GL_SOFTWARE";

/// The devices of OpenGL.
#[derive(Debug)]
pub struct Discovered {
    /// The library that found them, which can adopt foreign contexts.
    pub library: Library,
    /// In EGL's order.
    pub devices: Vec<Arc<Device>>,
    /// Devices that were left out, and why.
    pub problems: Vec<String>,
}

/// EGL's library, and the identity of its file.
#[derive(Debug)]
pub struct Library {
    pub(super) table: Arc<Gl>,
    pub(super) identity: String,
    /// The chips of the devices that were found.
    pub(super) chips: Vec<PhysicalId>,
}

/// Returns what another API reports about a context's chip, beyond OpenGL's own report. Called on the thread where the
/// context is current.
pub type ChipOf<'c> = dyn Fn(ContextHandles, &PhysicalId) -> Option<PhysicalId> + Sync + 'c;

/// Loads EGL and queries its devices, each in a temporary context on a separate thread: the caller's current context is
/// not affected.
///
/// `next_domain` numbers the devices' contexts; `chip_of` may return more about a device's chip than OpenGL reports. A
/// device that cannot be used is left out and named in `Discovered::problems`; [`Missing`] means no library, or no
/// device.
pub fn discover(
    library: Option<&str>,
    probe: Option<std::sync::Arc<Probe>>,
    next_domain: &mut impl FnMut() -> Domain,
    chip_of: &ChipOf<'_>,
) -> Result<Discovered, Missing> {
    let table = Arc::new(Gl::load(library, probe)?);
    let path = table.library();
    let identity = path.as_deref().map_or_else(String::new, identity);
    let library = Library { table: table.clone(), identity: identity.clone(), chips: Vec::new() };
    let mut found = Discovered { library, devices: Vec::new(), problems: Vec::new() };
    let search = Search { table: &table, identity: &identity, chip_of };
    for place in search.places() {
        match search.open(place) {
            Ok((display, asked)) => found.add(&table, display, asked, next_domain()),
            Err(why) => found.problems.push(format!("{}: {why}", place.name())),
        }
    }
    if found.devices.is_empty() {
        let tried = path.map(|path| path.display().to_string()).into_iter().collect();
        return Err(none(tried, &found.problems));
    }
    Ok(found)
}

fn none(tried: Vec<String>, problems: &[String]) -> Missing {
    let reason = match problems {
        [] => "EGL names no device, and offers no display without one".to_owned(),
        problems => format!("no device can be used: {}", problems.join("; ")),
    };
    let hint = if reason.contains("is too old") { OLD_HINT } else { NO_DEVICE_HINT };
    Missing { api: "gl", tried, loaded: true, code: None, reason, hint: hint.to_owned() }
}

/// Identifies a driver file by path, size and modification time.
fn identity(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&path) {
        Ok(file) => {
            format!("{} {} {}.{:09}", path.display(), file.size(), file.mtime(), file.mtime_nsec())
        }
        Err(_) => path.display().to_string(),
    }
}

/// The source of a display.
#[derive(Clone, Copy)]
enum DisplaySource {
    Device(usize, EglDevice),
    Surfaceless,
}

impl DisplaySource {
    fn name(&self) -> String {
        match self {
            DisplaySource::Device(number, _) => format!("EGL device {number}"),
            DisplaySource::Surfaceless => "EGL without a surface".to_owned(),
        }
    }
}

struct Search<'s> {
    table: &'s Arc<Gl>,
    identity: &'s str,
    chip_of: &'s ChipOf<'s>,
}

impl Search<'_> {
    /// Lists every device; if EGL cannot list them, the surfaceless platform.
    fn places(&self) -> Vec<DisplaySource> {
        // SAFETY: without a display the call returns the library's own extensions.
        let can = unsafe { self.table.egl_text(EglDisplay::NULL, consts::EGL_EXTENSIONS) };
        let can = |name: &str| can.split_whitespace().any(|own| own == name);
        let by_device = can("EGL_EXT_platform_device")
            && (can("EGL_EXT_device_base") || can("EGL_EXT_device_enumeration"));
        let devices = if by_device { self.devices() } else { Vec::new() };
        match devices.is_empty() {
            true if can("EGL_MESA_platform_surfaceless") => vec![DisplaySource::Surfaceless],
            _ => devices
                .into_iter()
                .enumerate()
                .map(|(n, device)| DisplaySource::Device(n, device))
                .collect(),
        }
    }

    fn devices(&self) -> Vec<EglDevice> {
        let (mut devices, mut count) = ([EglDevice::NULL; MANY], 0);
        // SAFETY: room for `MANY` devices, and for their number.
        let asked =
            unsafe { self.table.egl_devices(MANY as i32, devices.as_mut_ptr(), &raw mut count) };
        let count = if asked.is_ok() { usize::try_from(count).unwrap_or(0) } else { 0 };
        devices[..count.min(MANY)].to_vec()
    }

    /// Opens a display and queries the properties of its context.
    fn open(&self, place: DisplaySource) -> Result<(EglDisplay, Asked), String> {
        let display = self.display(place).map_err(|refused| refused.to_string())?;
        let stage = Stage::open(self.table, display, &Post::new("gl", place.name()));
        let stage = stage.map_err(|why| too_old(&why).unwrap_or_else(|| why.to_string()))?;
        let mut outcome = None;
        let asked = stage.run(|gl| {
            let asked = ask(gl, self.identity);
            outcome = Some(asked.map(|asked| self.completed(asked, stage.handles())));
            Ok(())
        });
        asked.map_err(|why| why.to_string())?;
        match outcome {
            Some(Ok(asked)) => Ok((display, asked)),
            Some(Err(Unfit::TooOld(version))) => Err(format!(
                "OpenGL {version} is too old: 4.4, or 4.3 with GL_ARB_buffer_storage, is needed"
            )),
            Some(Err(Unfit::Refused(refused))) => Err(refused.to_string()),
            None => Err("its context was not queried".to_owned()),
        }
    }

    /// Fills in what OpenGL does not report: the PCI address, and with some drivers the UUID.
    fn completed(&self, mut asked: Asked, context: ContextHandles) -> Asked {
        let own = asked.info.physical;
        if let Some(chip) = (self.chip_of)(context, &own) {
            asked.info.physical =
                PhysicalId { uuid: own.uuid.or(chip.uuid), pci: own.pci.or(chip.pci) };
        }
        asked
    }

    fn display(&self, place: DisplaySource) -> Result<EglDisplay, GlRefused> {
        let (platform, native) = match place {
            DisplaySource::Device(_, device) => (consts::EGL_PLATFORM_DEVICE_EXT, device.0),
            DisplaySource::Surfaceless => (consts::EGL_PLATFORM_SURFACELESS_MESA, ptr::null_mut()),
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: a device that EGL listed, or none; no attributes; room for two numbers. Initialising a display twice
        // is allowed.
        unsafe {
            let display = self.table.egl_platform_display(platform, native, ptr::null())?;
            self.table.egl_initialize(display, &raw mut major, &raw mut minor)?;
            Ok(display)
        }
    }
}

/// The message for a context that was refused because of its version or attributes.
fn too_old(error: &Error) -> Option<String> {
    let codes = [GlStatus::EGL_BAD_MATCH, GlStatus::EGL_BAD_ATTRIBUTE, GlStatus::EGL_BAD_CONFIG]
        .map(|s| s.0);
    match error {
        Error::Driver { call: "eglCreateContext", code, .. } if codes.contains(code) => {
            Some(format!("it is too old for a context of OpenGL 4.3 without a window ({error})"))
        }
        _ => None,
    }
}

impl Discovered {
    /// Adds a device unless it is known already or excluded.
    fn add(&mut self, table: &Arc<Gl>, display: EglDisplay, asked: Asked, domain: Domain) {
        let Asked { info, limits, habits } = asked;
        let software = std::env::var_os(SOFTWARE).is_none_or(|value| value != "none");
        if info.kind == DeviceKind::Cpu && !software {
            return self.problems.push(format!("{}: left out, as {SOFTWARE} says", info.name));
        }
        // EGL may list a chip twice: for its display and for its renderer.
        let same = |other: &Arc<Device>| {
            let other = other.driver();
            let known = info.physical.uuid.is_some() && info.physical == other.info.physical;
            known && (&info.name, &info.driver) == (&other.info.name, &other.info.driver)
        };
        if !self.devices.iter().any(same) {
            self.library.chips.push(info.physical);
            let (table, post) = (table.clone(), Post::new("gl", info.name.clone()));
            self.devices.push(Arc::new(Device::new(Driver {
                post,
                table,
                display,
                domain,
                info,
                limits,
                habits,
            })));
        }
    }
}
