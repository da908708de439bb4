//! The error type, with kinds sorted by what the caller can do about them.

use std::time::Duration;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library, driver or device is unavailable on this machine. Install it, or do without.
    #[error("{what} is not available: {reason}{}", tried_list(.tried))]
    Unavailable {
        /// What was requested.
        what: String,
        /// Where it was looked for, in order.
        tried: Vec<String>,
        /// The result of the last attempt, and how to fix it.
        reason: String,
    },
    /// The device or route does not support this. Choose another, or ask for less.
    #[error("not supported: {what} needs {needs}")]
    Unsupported {
        /// What was requested.
        what: String,
        /// What would be needed.
        needs: String,
    },
    /// The call would need an implied copy, which the policy forbids.
    #[error("an implied copy is forbidden, and {route} would need one: {why}")]
    CopyForbidden {
        /// The route that was missing, as `from -> to`.
        route: String,
        /// Why there is no zero-copy route.
        why: String,
    },
    /// The buffer is not shared with this device. Add it to `shared_with`.
    #[error("the buffer is not shared with {device}; it was built for {shared_with}")]
    NotShared {
        /// The device that tried to use it.
        device: String,
        /// The devices that the buffer is shared with.
        shared_with: String,
    },
    /// A conflicting view or map guard is held, or the work is not done yet. The message says what to do first.
    #[error("busy: {what}")]
    Busy {
        /// What is held or not done, and what to do.
        what: String,
    },
    /// Out of memory.
    #[error("out of memory on {device}: asked for {asked} bytes{}", limit_text(.limit))]
    OutOfMemory {
        /// The device.
        device: String,
        /// Requested bytes.
        asked: u64,
        /// The device's limit for one allocation, if known.
        limit: Option<u64>,
    },
    /// The device stopped working; what was queued on it is lost.
    #[error("device lost: {device}: {reason}")]
    DeviceLost {
        /// The device.
        device: String,
        /// The driver's message.
        reason: String,
    },
    /// The process at the other end is gone.
    #[error("the peer process is gone: {reason}")]
    PeerLost {
        /// How the loss was detected.
        reason: String,
    },
    /// The process at the other end, or what it sent, cannot be trusted; nothing of it was used. Drop the connection.
    #[error("the peer process was refused: {reason}")]
    PeerRefused {
        /// The check that failed.
        reason: String,
    },
    /// An argument is invalid; the message names the argument and the rule.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// An object of one context was passed where another's is needed.
    #[error("foreign context: {have} where {want} is needed")]
    ForeignContext {
        /// What was passed.
        have: String,
        /// What is needed.
        want: String,
    },
    /// The driver's compiler rejected the program.
    #[error("program did not build for {device}:\n{log}")]
    Build {
        /// The device of the compiler.
        device: String,
        /// Its log, with the source lines it refers to.
        log: String,
    },
    /// A wait timed out. The work may still finish; its memory is kept until then.
    #[error("timed out after {after_ms} ms: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// The timeout.
        after_ms: u64,
    },
    /// The driver returned a status that has no other kind here.
    #[error("{api}: {call} returned {name} ({code})")]
    Driver {
        /// The API.
        api: &'static str,
        /// The name of the call.
        call: &'static str,
        /// The status.
        code: i32,
        /// The name of the status in that API, or `unknown`.
        name: String,
    },
    /// A file in onebuf's cache cannot be used.
    #[error("{path}: {reason}")]
    Cache {
        /// The path of the file.
        path: String,
        /// What is wrong with it and what to do.
        reason: String,
    },
}

impl Error {
    /// An [`Error::InvalidArgument`] from anything printable.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidArgument(message.into())
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, needs: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into(), needs: needs.into() }
    }

    /// An [`Error::PeerRefused`].
    pub fn refused(reason: impl Into<String>) -> Self {
        Error::PeerRefused { reason: reason.into() }
    }

    /// An [`Error::DeviceLost`]: this process is a forked child, in which drivers are not called.
    pub fn forked(device: &str) -> Self {
        Error::DeviceLost { device: device.into(), reason: onebuf_sys::fork::WHY.into() }
    }

    /// An [`Error::Timeout`].
    pub fn timeout(what: impl Into<String>, after: Duration) -> Self {
        Error::Timeout { what: what.into(), after_ms: after.as_millis() as u64 }
    }
}

fn tried_list(tried: &[String]) -> String {
    if tried.is_empty() { String::new() } else { format!(" (tried {})", tried.join(", ")) }
}

fn limit_text(limit: &Option<u64>) -> String {
    limit.map_or_else(String::new, |limit| format!(", the limit is {limit}"))
}
