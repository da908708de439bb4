//! The libraries of one hub: which, and the tables of those that were asked for.

use crate::{
    Error, Result,
    sync::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Flavor, Missing, Probe, Refused,
    cuda_like::{Blas, CuStatus, Fft, Solver},
};
use std::{collections::BTreeMap, fmt};

/// A library that [`crate::libs`] loads, for [`HubBuilder::math_library`](crate::HubBuilder::math_library).
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

/// Loaded when they are first needed, and kept while the hub lives.
#[derive(Default)]
pub(crate) struct Libraries {
    instead: BTreeMap<Library, String>,
    probe: Option<std::sync::Arc<Probe>>,
    blas: [Slot<Blas>; 2],
    fft: [Slot<Fft>; 2],
    solver: [Slot<Solver>; 2],
}

type Slot<T> = Mutex<Option<Arc<T>>>;

impl Libraries {
    /// With other files than the usual ones.
    pub fn new(
        instead: BTreeMap<Library, String>,
        probe: Option<std::sync::Arc<Probe>>,
    ) -> Libraries {
        Libraries { instead, probe, ..Libraries::default() }
    }

    pub fn blas(&self, flavor: Flavor) -> Result<Arc<Blas>> {
        let which = flavor.pick([Library::CuBlas, Library::RocBlas]);
        self.load(flavor, which, &self.blas, Blas::load)
    }

    pub fn fft(&self, flavor: Flavor) -> Result<Arc<Fft>> {
        let which = flavor.pick([Library::CuFft, Library::RocFft]);
        self.load(flavor, which, &self.fft, Fft::load)
    }

    pub fn solver(&self, flavor: Flavor) -> Result<Arc<Solver>> {
        let which = flavor.pick([Library::CuSolver, Library::RocSolver]);
        self.load(flavor, which, &self.solver, Solver::load)
    }

    /// A failure is not remembered, so that the next call tries again.
    fn load<T>(
        &self,
        flavor: Flavor,
        which: Library,
        [cuda, hip]: &[Slot<T>; 2],
        load: impl Fn(Flavor, Option<&str>, Option<std::sync::Arc<Probe>>) -> Result<T, Missing>,
    ) -> Result<Arc<T>> {
        let mut slot = lock(flavor.pick([cuda, hip]));
        if let Some(table) = &*slot {
            return Ok(table.clone());
        }
        let file = self.instead.get(&which).map(String::as_str);
        let table = load(flavor, file, self.probe.clone()).map_err(unavailable)?;
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

/// A table that knows its statuses' names.
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

/// A library's answer as ours.
pub(super) fn check<T>(table: &impl Named, answer: Result<T, Refused>) -> Result<T> {
    answer.map_err(|refused| refusal(table.api(), table.name(refused.status), refused))
}

/// A refusal as an error.
pub(super) fn refusal(api: &'static str, name: String, Refused { call, status }: Refused) -> Error {
    match status {
        CuStatus::NOT_LOADED => Error::unsupported(call, format!("a release of {api} that has it")),
        CuStatus(code) => Error::Driver { api, call, code, name },
    }
}
