//! The math libraries of one hub, loaded on demand.

use onebuf_core::{Hub, HubBuilder};
use onebuf_hal::{
    Error, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Flavor, Missing, Probe, Refused,
    cuda_like::{Blas, CuStatus, Fft, Solver},
};
use std::{collections::BTreeMap, fmt};

/// A library that [`crate`] loads, for [`HubBuilderLibs::math_library`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The names are the libraries' own.
pub enum Library {
    CuBlas,
    CuFft,
    CuSolver,
    RocBlas,
    RocFft,
    RocSolver,
}

/// Adds the math libraries' settings to [`HubBuilder`].
///
/// ```
/// use onebuf::{libs::Library, prelude::*};
///
/// let hub = onebuf::builder().math_library(Library::CuBlas, "none").build()?;
/// # drop(hub);
/// # Ok::<(), onebuf::Error>(())
/// ```
pub trait HubBuilderLibs: Sized {
    /// Loads this file as one of the libraries of [`crate`], regardless of environment variables. `none` disables the
    /// library.
    fn math_library(self, which: Library, path_or_soname: impl Into<String>) -> Self;
}

impl HubBuilderLibs for HubBuilder {
    fn math_library(mut self, which: Library, path_or_soname: impl Into<String>) -> Self {
        let libraries = self.extensions_mut().get_mut::<Libraries>();
        libraries.instead.insert(which, path_or_soname.into());
        self
    }
}

/// The libraries, loaded at first use and kept while the hub lives.
#[derive(Default)]
pub(super) struct Libraries {
    instead: BTreeMap<Library, String>,
    blas: [Slot<Blas>; 2],
    fft: [Slot<Fft>; 2],
    solver: [Slot<Solver>; 2],
}

type Slot<T> = Mutex<Option<Arc<T>>>;

impl Libraries {
    pub fn blas(hub: &Hub, flavor: Flavor) -> Result<Arc<Blas>> {
        let which = flavor.pick([Library::CuBlas, Library::RocBlas]);
        Self::load(hub, flavor, which, |all| &all.blas, Blas::load)
    }

    pub fn fft(hub: &Hub, flavor: Flavor) -> Result<Arc<Fft>> {
        let which = flavor.pick([Library::CuFft, Library::RocFft]);
        Self::load(hub, flavor, which, |all| &all.fft, Fft::load)
    }

    pub fn solver(hub: &Hub, flavor: Flavor) -> Result<Arc<Solver>> {
        let which = flavor.pick([Library::CuSolver, Library::RocSolver]);
        Self::load(hub, flavor, which, |all| &all.solver, Solver::load)
    }

    /// Returns a loaded library, or loads it. A failure is not cached, so the next call tries again.
    fn load<T>(
        hub: &Hub,
        flavor: Flavor,
        which: Library,
        slots: impl Fn(&Libraries) -> &[Slot<T>; 2],
        load: impl Fn(Flavor, Option<&str>, Option<std::sync::Arc<Probe>>) -> Result<T, Missing>,
    ) -> Result<Arc<T>> {
        let libraries: &Libraries = hub.extensions().get();
        let [cuda, hip] = slots(libraries);
        let mut slot = lock(flavor.pick([cuda, hip]));
        if let Some(table) = &*slot {
            return Ok(table.clone());
        }
        let file = libraries.instead.get(&which).map(String::as_str);
        let table = load(flavor, file, hub.probe().cloned()).map_err(unavailable)?;
        Ok(slot.insert(Arc::new(table)).clone())
    }
}

impl fmt::Debug for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Libraries").field("instead", &self.instead).finish_non_exhaustive()
    }
}

fn unavailable(missing: Missing) -> Error {
    let Missing { api, tried, reason, hint, .. } = missing;
    let reason = if hint.is_empty() { reason } else { format!("{reason}; {hint}") };
    Error::Unavailable { what: format!("the library {api}"), tried, reason }
}

/// A library's table that knows the names of its status codes.
pub(super) trait Named {
    fn api(&self) -> &'static str;
    fn name(&self, status: CuStatus) -> String;
}

macro_rules! named {
    ($($table:ident $apis:expr;)*) => {$(
        impl Named for $table {
            fn api(&self) -> &'static str {
                self.flavor().pick($apis)
            }
            fn name(&self, status: CuStatus) -> String {
                self.error_name(status)
            }
        }
    )*};
}

named! {
    Blas ["cublas", "rocblas"];
    Fft ["cufft", "rocfft"];
    Solver ["cusolver", "rocsolver"];
}

/// Converts a library's status to a result.
pub(super) fn check<T>(table: &impl Named, answer: Result<T, Refused>) -> Result<T> {
    answer.map_err(|refused| refusal(table.api(), table.name(refused.status), refused))
}

/// Converts a refused call to an error.
pub(super) fn refusal(api: &'static str, name: String, Refused { call, status }: Refused) -> Error {
    match status {
        CuStatus::NOT_LOADED => Error::unsupported(call, format!("a version of {api} that has it")),
        CuStatus(code) => Error::Driver { api, call, code, name },
    }
}
