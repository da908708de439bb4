//! Opens driver libraries, and explains why one could not be opened.
//!
//! # Safety
//!
//! Loading a library runs its constructors, and a symbol is only an address. Both are trusted to be the driver that the
//! name stands for. In a process that runs with more rights than its caller ([`is_privileged`]) that trust is not
//! justified, and nothing is opened: the drivers' own loaders run code that the caller's environment names. OpenCL's
//! loader opens every library in `OCL_ICD_VENDORS`; libglvnd reads `__EGL_VENDOR_LIBRARY_FILENAMES` unless the user ids
//! differ, which is not the case for a program with file capabilities; ROCr opens `HSA_TOOLS_LIB`, and CUDA
//! `CUDA_INJECTION64_PATH`.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::{CStr, OsStr, OsString, c_void};
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

use libloading::{Library, os::unix};

/// An API that this process cannot use, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The API, as in a device's name: `opencl`, `cuda`, …
    pub api: &'static str,
    /// The library names that were tried, in order.
    pub tried: Vec<String>,
    /// Whether a library was opened, so the problem is inside it.
    pub loaded: bool,
    /// The driver's status, if the driver refused.
    pub code: Option<i32>,
    /// What went wrong.
    pub reason: String,
    /// What usually helps; may be empty.
    pub hint: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is unavailable: {}", self.api, self.reason)?;
        if let Some(code) = self.code {
            write!(f, " (status {code})")?;
        }
        if !self.tried.is_empty() {
            write!(f, "; tried {}", self.tried.join(", "))?;
        }
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl Error for Missing {}

impl Missing {
    /// The library was opened, but lacks required symbols.
    pub(crate) fn incomplete(
        api: &'static str,
        loaded: Loaded,
        lacking: &[&str],
        hint: &str,
    ) -> Self {
        Self {
            api,
            reason: format!("{} lacks {}", loaded.name, lacking.join(", ")),
            tried: vec![loaded.name],
            loaded: true,
            code: None,
            hint: hint.into(),
        }
    }
}

/// A library that was opened. It is never closed: drivers run threads and register exit handlers, whose code would be
/// unmapped.
#[derive(Debug)]
pub struct Loaded {
    /// The name that worked.
    pub name: String,
    library: ManuallyDrop<Library>,
}

impl Loaded {
    /// The address of an exported symbol.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: read as an address only; the code that calls through it is responsible for the prototype.
        let symbol = unsafe { self.library.get::<*mut c_void>(name) }.ok()?;
        NonNull::new(*symbol)
    }

    /// A library that the process has loaded already, by anyone; `None` as the name is the program itself.
    pub fn already(name: Option<&OsStr>) -> Option<Self> {
        // SAFETY: the library is mapped, so that nothing of it runs now.
        let library =
            unsafe { unix::Library::open(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
        let name = name.map_or("the program".into(), text);
        Some(Self { name, library: ManuallyDrop::new(library.into()) })
    }

    /// Makes the library's symbols visible to libraries that are loaded later.
    pub fn make_global(self) -> Self {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_GLOBAL;
        // SAFETY: the library is mapped, so that nothing of it runs now.
        if let Ok(again) = unsafe { unix::Library::open(Some(&self.name), flags) } {
            std::mem::forget(again);
        }
        self
    }
}

/// Converts an address to a function pointer.
///
/// # Safety
///
/// `F` is a function pointer with the prototype of the function at `at`.
pub(crate) unsafe fn as_function<F: Copy>(at: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: guaranteed by the caller; a function's address is not null, and as large as any pointer.
    unsafe { std::mem::transmute_copy(&at) }
}

/// Whether this process runs with more rights than its caller: a setuid or setgid program, or one with file
/// capabilities. The kernel reports this in `AT_SECURE`.
pub fn is_privileged() -> bool {
    // SAFETY: reads one word of the auxiliary vector, without preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

const PRIVILEGED: &str = "this process has more rights than its caller (setuid, setgid or file \
    capabilities), and drivers load code that the caller's environment names";

/// Refuses a 32-bit process, for APIs whose layouts are declared for 64 bits here: `CUdeviceptr` and the structures with
/// pointers are smaller there, and the vendors support 64-bit programs only.
pub(crate) fn require_64_bits(api: &'static str) -> Result<(), Missing> {
    if cfg!(target_pointer_width = "64") {
        return Ok(());
    }
    Err(Missing {
        api,
        tried: vec![],
        loaded: false,
        code: None,
        reason: "this is a 32-bit process".into(),
        hint: "build the program for a 64-bit target".into(),
    })
}

/// Opens the first of `sonames` that can be opened; opens nothing if this process [`is_privileged`].
///
/// An override is tried alone, so that a wrong one is noticed: `library`, from the caller, or else the environment
/// variable `env_var`. The value is a path, a soname, or `none` to disable the API.
pub fn open(
    api: &'static str,
    library: Option<&str>,
    env_var: &str,
    sonames: &[&str],
    hint: &str,
) -> Result<Loaded, Missing> {
    let missing = |tried, reason, hint: &str| Missing {
        api,
        tried,
        loaded: false,
        code: None,
        reason,
        hint: hint.into(),
    };
    if is_privileged() {
        return Err(missing(vec![], PRIVILEGED.into(), "run it without these rights"));
    }
    let (only, by) = match library {
        Some(library) => (Some(Cow::Borrowed(OsStr::new(library))), "the caller"),
        None => (from_env(env_var).map(Cow::Owned), env_var),
    };
    if only.as_deref().is_some_and(|only| only == "none") {
        return Err(missing(vec![], format!("switched off by {by} (\"none\")"), ""));
    }
    let names = match &only {
        Some(only) => vec![&**only],
        None => sonames.iter().map(OsStr::new).collect(),
    };
    let mut reasons = Vec::new();
    for name in &names {
        // SAFETY: a driver library's constructors are sound to run; see the module page.
        match unsafe { Library::new(*name) } {
            Ok(library) => {
                crate::fork::watch();
                return Ok(Loaded { name: text(name), library: ManuallyDrop::new(library) });
            }
            Err(error) => reasons.push(root_cause(&error)),
        }
    }
    Err(missing(names.into_iter().map(text).collect(), reasons.join("; "), hint))
}

/// The dynamic linker's message, which is the last in libloading's chain of errors.
fn root_cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}

fn text(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

fn from_env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The file that the code or data at `addr` was mapped from, as the dynamic linker spells it.
///
/// This distinguishes two platforms in one process even if their names are equal.
#[allow(clippy::not_unsafe_ptr_arg_deref)] // The address is compared, never followed.
pub fn library_of(addr: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` takes any address, compares it with the mapped libraries, and writes `info`.
    if unsafe { libc::dladdr(addr, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all-zero is a valid `Dl_info`, and `dladdr` succeeded in filling it.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated name, owned by the dynamic linker while the library is mapped.
    let name = unsafe { CStr::from_ptr(name) };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_libc(library: Option<&str>, env_var: &str) -> Result<Loaded, Missing> {
        open("test", library, env_var, &["libnothere.so.9", "libc.so.6"], "install it")
    }

    #[test]
    fn the_first_name_that_opens_wins() {
        let libc = open_libc(None, "ONEBUF_TEST_UNSET").unwrap();
        assert_eq!(libc.name, "libc.so.6");
        assert!(libc.symbol(c"no_such_function").is_none());
        let file = library_of(libc.symbol(c"malloc").unwrap().as_ptr()).unwrap();
        assert!(file.to_str().unwrap().contains("libc"), "{file:?}");
    }

    #[test]
    fn an_override_is_tried_alone() {
        let missing = open_libc(Some("/nonexistent.so"), "ONEBUF_TEST_UNSET").unwrap_err();
        assert_eq!(missing.tried, ["/nonexistent.so"]);
        assert!(!missing.loaded && missing.code.is_none());
        let said = missing.to_string();
        assert!(said.starts_with("test is unavailable: /nonexistent.so: cannot open"), "{said}");
        assert!(said.ends_with("; tried /nonexistent.so; install it"), "{said}");
    }

    #[test]
    fn none_switches_off() {
        let missing = open_libc(Some("none"), "ONEBUF_TEST_UNSET").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "test is unavailable: switched off by the caller (\"none\")"
        );
    }

    #[test]
    fn the_environment_is_asked_after_the_caller() {
        // PATH stands in for an override variable: it is always set, and never names a library.
        let missing = open_libc(None, "PATH").unwrap_err();
        assert_eq!(missing.tried, [std::env::var("PATH").unwrap()]);
        assert_eq!(open_libc(Some("libc.so.6"), "PATH").unwrap().name, "libc.so.6");
    }

    #[test]
    fn no_library_has_no_name() {
        assert_eq!(library_of(std::ptr::null()), None);
    }
}
