//! Which MPI library this process uses.
//!
//! A process has one MPI. The application may have loaded it already; then no other may be opened. Otherwise the launcher
//! decides: the library must be the one that the launcher's other processes use. A process that no launcher started needs none.
//!
//! # Safety
//!
//! As for [`crate::loader`]: opening a library runs its constructors. `dl_iterate_phdr` passes names that are valid
//! during its callback.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, OsString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::{API, Abi, HINT, Mpi, mpich, open_mpi, text_of};
use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

/// The environment variable that names the library: a path, a soname, or `none`.
pub const VARIABLE: &str = "ONEBUF_MPI_LIB";

const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi_abi.so.1", "libmpi.so"];
const HYDRA: &[&str] = &["libmpi_abi.so.1", "libmpich.so.12", "libmpi.so.12"];
const EITHER: &[&str] = &["libmpi.so.40", "libmpi_abi.so.1", "libmpich.so.12", "libmpi.so.12"];

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's `mpirun`, or PRRTE.
    OpenMpi,
    /// Hydra (MPICH, Intel MPI), or Slurm with PMI.
    Pmi,
    /// Slurm or another one with PMIx, which either family of libraries understands.
    Pmix,
}

impl Launcher {
    /// The launcher that the environment describes.
    pub fn of(get: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let has = |name: &str| get(name).is_some_and(|value| !value.is_empty());
        if has("OMPI_COMM_WORLD_SIZE") {
            Some(Launcher::OpenMpi)
        } else if has("PMI_RANK") && has("PMI_SIZE") {
            Some(Launcher::Pmi)
        } else if has("PMIX_RANK") && has("PMIX_NAMESPACE") {
            Some(Launcher::Pmix)
        } else {
            None
        }
    }

    /// The launcher of this process.
    pub fn here() -> Option<Self> {
        Self::of(|name| std::env::var_os(name))
    }

    /// The libraries that its processes may have, best first. Open MPI 5 tells where it is installed.
    fn names(self, get: impl Fn(&str) -> Option<OsString>) -> Vec<OsString> {
        let usual = match self {
            Launcher::OpenMpi => OPEN_MPI,
            Launcher::Pmi => HYDRA,
            Launcher::Pmix => EITHER,
        };
        let at = |name: &str| Some(PathBuf::from(get(name)?).join("lib/libmpi.so.40"));
        let prefixes =
            ["OPAL_PREFIX", "PMIX_PREFIX"].into_iter().filter(|_| self == Launcher::OpenMpi);
        let beside = prefixes.filter_map(at).filter(|path| path.is_file()).map(OsString::from);
        beside.chain(usual.iter().map(OsString::from)).collect()
    }

    /// Whether a library of this version belongs to the launcher. Another one would start as a world of its own.
    fn fits(self, version: &str) -> bool {
        let open_mpi = version.starts_with("Open MPI");
        match self {
            Launcher::OpenMpi => open_mpi,
            Launcher::Pmi => !open_mpi,
            Launcher::Pmix => true,
        }
    }
}

/// Finds the library and reads its symbols: the one that `library` or `ONEBUF_MPI_LIB` names; else one that the process has
/// loaded; else the launcher's. `Ok(None)` if there is no launcher either.
///
/// # Errors
/// [`Missing`] if the library cannot be used, if the process has loaded two, or another one than is named here.
pub fn load(library: Option<&str>, probe: Option<Arc<Probe>>) -> Result<Option<Mpi>, Missing> {
    loader::require_64_bits(API)?;
    let named =
        library.is_some() || std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty());
    let loaded = match (named, Launcher::here()) {
        (true, _) => loader::open(API, library, VARIABLE, &[], HINT)?,
        (false, launcher) => match (loaded()?, launcher) {
            (Some(loaded), _) => loaded,
            (None, Some(launcher)) => by_launcher(launcher)?,
            (None, None) => return Ok(None),
        },
    };
    // Open MPI's plugins find the library's symbols only if they are global.
    let loaded = loaded.make_global();
    // Again: the one that was opened may be a second.
    self::loaded()?;
    Mpi::of(loaded, probe).map(Some)
}

/// Opens the first library that belongs to the launcher.
fn by_launcher(launcher: Launcher) -> Result<Loaded, Missing> {
    let names = launcher.names(|name| std::env::var_os(name));
    let (mut tried, mut reasons) = (Vec::new(), Vec::new());
    for name in &names {
        let name = name.to_string_lossy();
        match loader::open(API, Some(&name), "", &[], HINT) {
            Ok(loaded) => match version(&loaded) {
                Some(version) if launcher.fits(&version) => return Ok(loaded),
                Some(version) => {
                    reasons.push(format!("{name} is {version}, which {launcher:?} does not start"))
                }
                None => reasons.push(format!("{name} is no MPI")),
            },
            Err(missing) => reasons.push(missing.reason),
        }
        tried.push(name.into_owned());
    }
    let reason = format!("{} started this process: {}", launcher.name(), reasons.join("; "));
    Err(Missing { api: API, tried, loaded: false, code: None, reason, hint: HINT.into() })
}

impl Launcher {
    fn name(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Pmi => "a launcher with PMI",
            Launcher::Pmix => "a launcher with PMIx",
        }
    }
}

/// The MPI library that this process has loaded, however it was loaded.
///
/// # Errors
/// [`Missing`] with both names if there are two.
pub fn loaded() -> Result<Option<Loaded>, Missing> {
    let mut found = BTreeMap::new();
    for name in objects() {
        let Some(object) = Loaded::already(name.as_deref()) else { continue };
        // Not `MPI_Init_thread`, which profilers define, too.
        let Some(at) = object.symbol(c"PMPI_Init_thread") else { continue };
        found.entry(at).or_insert_with(|| library_of(at.as_ptr()));
    }
    let files: Vec<_> = found.into_values().flatten().collect();
    match files.as_slice() {
        [] => Ok(None),
        [only] => Ok(Loaded::already(Some(only.as_os_str())).or_else(|| Loaded::already(None))),
        several => {
            let names: Vec<String> =
                several.iter().map(|file| file.display().to_string()).collect();
            Err(Missing {
                api: API,
                reason: format!("this process has loaded {} MPI libraries: {}", names.len(), names.join(", ")),
                tried: names,
                loaded: true,
                code: None,
                hint: "a process can use one: link everything to the same, or set ONEBUF_MPI_LIB to the one in use".into(),
            })
        }
    }
}

/// The names of all objects that are mapped; `None` is the program itself.
fn objects() -> Vec<Option<OsString>> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, all: *mut c_void) -> i32 {
        // SAFETY: the linker passes a valid description, whose name is a C string or null.
        let name = unsafe { (*info).dlpi_name };
        let name = (!name.is_null()).then(|| {
            // SAFETY: as above; the name is copied.
            OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()).to_owned()
        });
        // SAFETY: the vector below, which outlives the call.
        let all = unsafe { &mut *all.cast::<Vec<Option<OsString>>>() };
        all.push(name.filter(|name| !name.is_empty()));
        0
    }
    let mut all: Vec<Option<OsString>> = Vec::new();
    // SAFETY: the callback copies names into the vector, and nothing else.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut all).cast()) };
    all
}

/// The first line of the library's version text.
pub(super) fn version(loaded: &Loaded) -> Option<String> {
    let at = loaded.symbol(c"MPI_Get_library_version")?;
    // SAFETY: the prototype is that of MPI's headers.
    let ask: unsafe extern "C" fn(*mut c_char, *mut i32) -> i32 = unsafe { as_function(at) };
    let (mut room, mut len) = (vec![0u8; 8193], 0);
    // SAFETY: room for the longest text of any library; the call is allowed before MPI is initialised.
    let told = unsafe { ask(room.as_mut_ptr().cast(), &raw mut len) };
    (told == 0).then(|| text_of(&room)).filter(|text| !text.is_empty())
}

/// The library's binary interface, by its symbols and its version text.
pub(super) fn abi(loaded: &Loaded, version: &str) -> Option<Abi> {
    if loaded.symbol(open_mpi::WORLD).is_some() {
        return Some(Abi::OpenMpi);
    }
    if is_standard(loaded) {
        return Some(Abi::Standard);
    }
    mpich::VENDORS.iter().any(|vendor| version.starts_with(vendor)).then_some(Abi::Mpich)
}

/// Whether the library has the standard interface. A library that has both under two names answers for this one.
fn is_standard(loaded: &Loaded) -> bool {
    let Some(at) = loaded.symbol(c"MPI_Abi_get_version") else { return false };
    // SAFETY: the prototype is that of MPI's headers.
    let ask: unsafe extern "C" fn(*mut i32, *mut i32) -> i32 = unsafe { as_function(at) };
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: stores two numbers; the call is allowed before MPI is initialised.
    let told = unsafe { ask(&raw mut major, &raw mut minor) };
    told == 0 && major == 1
}
