//! What MPI says, as errors of onebuf's kinds.
//!
//! # Safety
//! Errors are described on the communication thread, which may call MPI.

#![allow(unsafe_code)]

use onebuf_hal::Error;
use onebuf_sys::{
    Missing, MpiRefused, MpiStatus,
    mpi::{API, Mpi},
};

/// A failed call. The library describes its own code.
pub(crate) fn refused(mpi: &Mpi, refused: MpiRefused) -> Error {
    described(mpi, refused.call, refused.status)
}

/// A failed call, or a request that failed in one.
pub(crate) fn described(mpi: &Mpi, call: &'static str, status: MpiStatus) -> Error {
    match status {
        MpiStatus::FORKED => return Error::forked(API),
        MpiStatus::NOT_LOADED => {
            return Error::unsupported(
                call,
                format!("a library that has it, not {}", mpi.version()),
            );
        }
        _ => {}
    }
    // SAFETY: called by the communication thread while MPI is initialised.
    let (class, text) = unsafe { mpi.describe(status) };
    let classes = &mpi.constants().classes;
    if classes.is_lost_peer(class) {
        return Error::PeerLost { reason: format!("{call}: {text}") };
    }
    let name = match classes.name(class) {
        Some(name) if text.is_empty() => name.to_owned(),
        Some(name) => format!("{name}: {text}"),
        None if text.is_empty() => "unknown".to_owned(),
        None => text,
    };
    Error::Driver { api: API, call, code: status.0, name }
}

/// A library that cannot be used.
pub(crate) fn missing(missing: Missing) -> Error {
    let Missing { tried, reason, hint, .. } = missing;
    let reason = if hint.is_empty() { reason } else { format!("{reason}; {hint}") };
    Error::Unavailable { what: "MPI".into(), tried, reason }
}
