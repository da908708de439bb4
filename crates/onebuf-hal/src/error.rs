//! The one error type, its kinds chosen by what the caller can do about them.

use std::time::Duration;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library, driver or device is not on this machine. Install it, or do without.
    #[error("{what} is not available: {reason}{}", tried_list(.tried))]
    Unavailable {
        /// What was wanted.
        what: String,
        /// Where it was looked for, in order.
        tried: Vec<String>,
        /// What the last attempt answered, and how to mend it.
        reason: String,
    },
    /// The device or route cannot do this. Choose another, or ask for less.
    #[error("not supported: {what} needs {needs}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What would have to be there.
        needs: String,
    },
    /// It would need a copy that nobody asked for, and the policy forbids those.
    #[error("an implied copy is forbidden, and {route} would need one: {why}")]
    CopyForbidden {
        /// The route that was missing, as `from -> to`.
        route: String,
        /// Why there is no zero-copy way.
        why: String,
    },
    /// The buffer was built without this device. Add it to `shared_with`.
    #[error("the buffer is not shared with {device}; it was built for {shared_with}")]
    NotShared {
        /// The device that was asked to use it.
        device: String,
        /// The devices that may.
        shared_with: String,
    },
    /// Not now: somebody holds a conflicting view or map guard, or the work asked about is not done. The
    /// message says what to do first.
    #[error("busy: {what}")]
    Busy {
        /// Who holds what, or what is not done, and what to do.
        what: String,
    },
    /// Memory ran out.
    #[error("out of memory on {device}: asked for {asked} bytes{}", limit_text(.limit))]
    OutOfMemory {
        /// Which device.
        device: String,
        /// Bytes asked for.
        asked: u64,
        /// The device's own limit for one allocation, where known.
        limit: Option<u64>,
    },
    /// The device stopped working; what was queued on it is lost.
    #[error("device {device} was lost: {reason}")]
    DeviceLost {
        /// Which device.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// The process at the other end is gone.
    #[error("the peer process is gone: {reason}")]
    PeerLost {
        /// How that was noticed.
        reason: String,
    },
    /// What the process at the other end is, or sent, cannot be trusted; nothing of it was used. Let it go.
    #[error("the peer process was refused: {reason}")]
    PeerRefused {
        /// Which check it failed.
        reason: String,
    },
    /// The call itself is wrong; the message names the argument and the rule.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// A handle of one context was given where another's is needed.
    #[error("foreign context: {have} where {want} is needed")]
    ForeignContext {
        /// What was given.
        have: String,
        /// What is needed.
        want: String,
    },
    /// The driver's compiler refused the program.
    #[error("program did not build for {device}:\n{log}")]
    Build {
        /// Which device's compiler.
        device: String,
        /// Its log, with the source lines it speaks of.
        log: String,
    },
    /// A wait ran out of time. The work may still finish; its memory is kept until then.
    #[error("timed out after {after_ms} ms: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after_ms: u64,
    },
    /// The driver answered with a status that has no better name here.
    #[error("{api}: {call} returned {name} ({code})")]
    Driver {
        /// Which API.
        api: &'static str,
        /// Which call.
        call: &'static str,
        /// Its status.
        code: i32,
        /// The status' name in that API, or `unknown`.
        name: String,
    },
    /// A file of onebuf's own cannot be used.
    #[error("{path}: {reason}")]
    Cache {
        /// Which file.
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
