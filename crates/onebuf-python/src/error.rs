//! The library's errors as Python exceptions: `onebuf.errors` has one class for each kind.

use crate::ending::enter;
use onebuf::Error;
use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyModule},
};
use std::fmt;

/// A failure of this module: the library's, or an exception that Python code raised.
pub(crate) enum Fault {
    Library(Error),
    Python(PyErr),
}

/// What functions of this module return.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub fn invalid(message: impl Into<String>) -> Self {
        Fault::Library(Error::invalid(message))
    }

    /// Logs the error, where no caller can get it.
    pub fn log(&self, what: &str) {
        match self {
            Fault::Library(error) => tracing::error!("{what}: {error}"),
            Fault::Python(_) => tracing::error!("{what}"),
        }
    }

    pub fn busy(what: impl Into<String>) -> Self {
        Fault::Library(Error::Busy { what: what.into() })
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Library(error)
    }
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Self {
        Fault::Python(error)
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Python(error) => error,
            Fault::Library(error) => Python::attach(|py| exception(py, &error)),
        }
    }
}

/// The module with the classes.
fn classes(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = CLASSES.get_or_try_init(py, || py.import("onebuf.errors").map(Bound::unbind))?;
    Ok(module.bind(py))
}

/// A Python exception that a function of a pipeline raised, on its way through the library.
#[derive(Debug)]
pub(crate) struct Raised(pub PyErr);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Raised {}

/// The class of an error, and the facts that become attributes of the exception.
fn parts<'py>(py: Python<'py>, error: &Error) -> PyResult<(&'static str, Bound<'py, PyDict>)> {
    let facts = PyDict::new(py);
    let class = match error {
        Error::Unavailable { what, tried, .. } => {
            facts.set_item("what", what)?;
            facts.set_item("tried", tried)?;
            "Unavailable"
        }
        Error::Unsupported { needs, .. } => {
            facts.set_item("needs", needs)?;
            "Unsupported"
        }
        Error::CopyForbidden { route, why } => {
            facts.set_item("route", route)?;
            facts.set_item("why", why)?;
            "CopyForbidden"
        }
        Error::NotShared { device, .. } => {
            facts.set_item("device", device)?;
            "NotShared"
        }
        Error::Busy { .. } => "Busy",
        Error::OutOfMemory { device, asked, limit } => {
            facts.set_item("device", device)?;
            facts.set_item("asked", asked)?;
            facts.set_item("limit", limit)?;
            "OutOfMemory"
        }
        Error::DeviceLost { device, .. } => {
            facts.set_item("device", device)?;
            "DeviceLost"
        }
        Error::PeerLost { .. } => "PeerLost",
        Error::PeerRefused { .. } => "PeerRefused",
        Error::InvalidArgument(_) => "InvalidArgument",
        Error::ForeignContext { .. } => "ForeignContext",
        Error::Build { device, log } => {
            facts.set_item("device", device)?;
            facts.set_item("log", log)?;
            "BuildFailed"
        }
        Error::Timeout { after_ms, .. } => {
            facts.set_item("after_ms", after_ms)?;
            "Timeout"
        }
        Error::Driver { api, call, code, name } => {
            facts.set_item("api", api)?;
            facts.set_item("call", call)?;
            facts.set_item("code", code)?;
            facts.set_item("name", name)?;
            "DriverError"
        }
        Error::Cache { path, .. } => {
            facts.set_item("path", path)?;
            "CacheError"
        }
        Error::Application(_) => "ApplicationError",
        _ => "Error",
    };
    Ok((class, facts))
}

/// The exception of an error. One that Python code raised is returned as it was.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if let Error::Application(application) = error
        && let Some(Raised(raised)) = application.downcast_ref()
    {
        return raised.clone_ref(py);
    }
    let _inside = enter(py);
    let made = parts(py, error).and_then(|(class, facts)| {
        let class = classes(py)?.getattr(class)?;
        let made = class.call1((error.to_string(),))?;
        facts.iter().try_for_each(|(name, fact)| made.setattr(name.extract::<&str>()?, fact))?;
        Ok(PyErr::from_value(made))
    });
    made.unwrap_or_else(|_| PyRuntimeError::new_err(error.to_string()))
}

/// The exception of a failed export, as the DLPack protocol and the buffer protocol ask for it: a `BufferError`, and one of onebuf's.
pub(crate) fn export_error(py: Python<'_>, fault: Fault) -> PyErr {
    let message = match fault {
        Fault::Library(error) => error.to_string(),
        Fault::Python(error) => return error,
    };
    let _inside = enter(py);
    let made = classes(py).and_then(|all| all.getattr("ExportError")?.call1((message.clone(),)));
    made.map_or_else(|_| PyRuntimeError::new_err(message), PyErr::from_value)
}
