//! Why a call failed, and the status for it.

use crate::status::{
    ONEBUF_BUILD, ONEBUF_BUSY, ONEBUF_CACHE, ONEBUF_COPY_FORBIDDEN, ONEBUF_DEVICE_LOST,
    ONEBUF_DRIVER, ONEBUF_FOREIGN_CONTEXT, ONEBUF_INVALID_ARGUMENT, ONEBUF_INVALID_HANDLE,
    ONEBUF_NOT_SHARED, ONEBUF_NULL_POINTER, ONEBUF_OTHER, ONEBUF_OUT_OF_MEMORY, ONEBUF_PEER_LOST,
    ONEBUF_PEER_REFUSED, ONEBUF_TIMEOUT, ONEBUF_UNAVAILABLE, ONEBUF_UNSUPPORTED, onebuf_status,
};
use onebuf::Error;
use std::fmt;

/// Why a call from C failed.
pub(crate) enum Fault {
    /// An invalid handle; the text says why.
    Handle(String),
    /// A null pointer that is not allowed; the parameter's name.
    Null(&'static str),
    /// An error of the library.
    Library(Error),
    /// The status that a callback returned, and its message.
    Callback(onebuf_status, String),
}

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Library(error)
    }
}

/// The parts of a failure. Those that do not apply are zero or empty.
#[derive(Default)]
pub(crate) struct Details {
    pub status: onebuf_status,
    pub driver_code: i32,
    pub asked_bytes: u64,
    pub limit_bytes: u64,
    pub timeout_ms: u64,
    pub subject: String,
    pub reason: String,
    pub driver_call: String,
}

impl Details {
    fn of(error: &Error) -> Self {
        let two = |subject: &str, reason: &str| Self {
            subject: subject.to_owned(),
            reason: reason.to_owned(),
            ..Self::default()
        };
        match error {
            Error::Unavailable { what, reason, .. } => two(what, reason),
            Error::Unsupported { what, needs } => two(what, needs),
            Error::CopyForbidden { route, why } => two(route, why),
            Error::NotShared { device, shared_with } => two(device, shared_with),
            Error::Busy { what } => two("", what),
            Error::OutOfMemory { device, asked, limit } => {
                Self { asked_bytes: *asked, limit_bytes: limit.unwrap_or(0), ..two(device, "") }
            }
            Error::DeviceLost { device, reason } => two(device, reason),
            Error::PeerLost { reason } | Error::PeerRefused { reason } => two("", reason),
            Error::InvalidArgument(reason) => two("", reason),
            Error::ForeignContext { have, want } => two(have, want),
            Error::Build { device, log } => two(device, log),
            Error::Timeout { what, after_ms } => Self { timeout_ms: *after_ms, ..two(what, "") },
            Error::Driver { api, call, code, name } => {
                Self { driver_code: *code, driver_call: (*call).to_owned(), ..two(api, name) }
            }
            Error::Cache { path, reason } => two(path, reason),
            other => two("", &other.to_string()),
        }
    }
}

impl Fault {
    pub fn details(&self) -> Details {
        let found = match self {
            Fault::Library(error) => Details::of(error),
            other => Details { reason: other.to_string(), ..Details::default() },
        };
        Details { status: self.status(), ..found }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Fault::Library(Error::invalid(message))
    }

    pub fn status(&self) -> onebuf_status {
        match self {
            Fault::Handle(_) => ONEBUF_INVALID_HANDLE,
            Fault::Null(_) => ONEBUF_NULL_POINTER,
            Fault::Library(error) => status_of(error),
            Fault::Callback(status, _) => *status,
        }
    }
}

fn status_of(error: &Error) -> onebuf_status {
    match error {
        Error::Unavailable { .. } => ONEBUF_UNAVAILABLE,
        Error::Unsupported { .. } => ONEBUF_UNSUPPORTED,
        Error::CopyForbidden { .. } => ONEBUF_COPY_FORBIDDEN,
        Error::NotShared { .. } => ONEBUF_NOT_SHARED,
        Error::Busy { .. } => ONEBUF_BUSY,
        Error::OutOfMemory { .. } => ONEBUF_OUT_OF_MEMORY,
        Error::DeviceLost { .. } => ONEBUF_DEVICE_LOST,
        Error::PeerLost { .. } => ONEBUF_PEER_LOST,
        Error::PeerRefused { .. } => ONEBUF_PEER_REFUSED,
        Error::InvalidArgument(_) => ONEBUF_INVALID_ARGUMENT,
        Error::ForeignContext { .. } => ONEBUF_FOREIGN_CONTEXT,
        Error::Build { .. } => ONEBUF_BUILD,
        Error::Timeout { .. } => ONEBUF_TIMEOUT,
        Error::Driver { .. } => ONEBUF_DRIVER,
        Error::Cache { .. } => ONEBUF_CACHE,
        _ => ONEBUF_OTHER,
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Handle(why) | Fault::Callback(_, why) => f.write_str(why),
            Fault::Null(name) => write!(f, "`{name}` is NULL"),
            Fault::Library(error) => error.fmt(f),
        }
    }
}
