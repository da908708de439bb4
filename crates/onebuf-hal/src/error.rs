//! The error type, with kinds sorted by what the caller can do about them.

use crate::printable;
use std::{fmt, sync::Arc, time::Duration};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed, and what to do about it.
///
/// `Display` is one sentence (and the log, for [`Error::Build`]). `Debug`, which `fn main() -> Result<()>` prints, has one line
/// for each fact, and the lines of a compiler's log as they are:
///
/// ```
/// # use onebuf_hal::Error;
/// let error = Error::Unsupported { what: "a cl_mem".into(), needs: "an OpenCL queue".into() };
/// assert_eq!(format!("{error:?}"), "Unsupported: a cl_mem\n  needs: an OpenCL queue");
/// assert_eq!(error.to_string(), "not supported: a cl_mem needs an OpenCL queue");
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
    /// A function of the application failed, such as a stage of a pipeline: see [`Error::application`].
    #[error("{0}")]
    Application(ApplicationError),
}

/// An error of the application's own, as a pipeline's stage returns it.
#[derive(Clone, Debug)]
pub struct ApplicationError(Arc<dyn std::error::Error + Send + Sync>);

impl ApplicationError {
    /// The application's error, if it is of this type.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Display for ApplicationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Two are equal if they are the same error: other errors need not be comparable.
impl PartialEq for ApplicationError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ApplicationError {}

impl Error {
    /// An [`Error::Application`] from the application's own error or message, for `map_err` in functions that onebuf calls.
    ///
    /// ```
    /// use onebuf_hal::Error;
    ///
    /// fn stage(text: &str) -> onebuf_hal::Result<u32> {
    ///     text.parse().map_err(Error::application)
    /// }
    /// let Err(Error::Application(error)) = stage("seven") else { panic!() };
    /// assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
    /// ```
    pub fn application(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Application(ApplicationError(Arc::from(error.into())))
    }

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

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unavailable { what, tried, reason } => {
                title(f, "Unavailable", what)?;
                fact(f, "reason", reason)?;
                tried.iter().try_for_each(|tried| fact(f, "tried", tried))
            }
            Error::Unsupported { what, needs } => {
                title(f, "Unsupported", what)?;
                fact(f, "needs", needs)
            }
            Error::CopyForbidden { route, why } => {
                title(f, "CopyForbidden", &format!("{route} would need an implied copy"))?;
                fact(f, "why", why)
            }
            Error::NotShared { device, shared_with } => {
                title(f, "NotShared", &format!("the buffer is not shared with {device}"))?;
                fact(f, "shared with", shared_with)
            }
            Error::Busy { what } => title(f, "Busy", what),
            Error::OutOfMemory { device, asked, limit } => {
                title(f, "OutOfMemory", device)?;
                fact(f, "asked", &format!("{asked} bytes"))?;
                limit.iter().try_for_each(|limit| fact(f, "limit", &format!("{limit} bytes")))
            }
            Error::DeviceLost { device, reason } => {
                title(f, "DeviceLost", device)?;
                fact(f, "reason", reason)
            }
            Error::PeerLost { reason } => title(f, "PeerLost", reason),
            Error::PeerRefused { reason } => title(f, "PeerRefused", reason),
            Error::InvalidArgument(message) => title(f, "InvalidArgument", message),
            Error::ForeignContext { have, want } => {
                title(f, "ForeignContext", have)?;
                fact(f, "needed", want)
            }
            Error::Build { device, log } => {
                title(f, "Build", &format!("program did not build for {device}"))?;
                log.lines().try_for_each(|line| write!(f, "\n  {}", shown(line)))
            }
            Error::Timeout { what, after_ms } => {
                title(f, "Timeout", what)?;
                fact(f, "after", &format!("{after_ms} ms"))
            }
            Error::Driver { api, call, code, name } => {
                title(f, "Driver", &format!("{api}: {call}"))?;
                fact(f, "returned", &format!("{name} ({code})"))
            }
            Error::Cache { path, reason } => {
                title(f, "Cache", path)?;
                fact(f, "reason", reason)
            }
            Error::Application(error) => title(f, "Application", &error.to_string()),
        }
    }
}

/// Writes the kind of the error and its first fact.
fn title(f: &mut fmt::Formatter<'_>, kind: &str, text: &str) -> fmt::Result {
    write!(f, "{kind}: ")?;
    indented(f, text.lines())
}

/// Writes a further fact, on a line of its own. Reasons list several facts with semicolons between them.
fn fact(f: &mut fmt::Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    write!(f, "\n  {name}: ")?;
    indented(f, text.lines().flat_map(|line| line.split("; ")))
}

/// Writes lines, those after the first indented.
fn indented<'t>(f: &mut fmt::Formatter<'_>, lines: impl Iterator<Item = &'t str>) -> fmt::Result {
    let mut lines = lines.enumerate();
    lines.try_for_each(|(at, line)| {
        let indent = if at == 0 { "" } else { "\n    " };
        write!(f, "{indent}{}", shown(line))
    })
}

/// A line as a terminal may print it. Compilers indent with tabs.
fn shown(line: &str) -> String {
    printable(&line.replace('\t', "    "))
}

fn tried_list(tried: &[String]) -> String {
    if tried.is_empty() { String::new() } else { format!(" (tried {})", tried.join(", ")) }
}

fn limit_text(limit: &Option<u64>) -> String {
    limit.map_or_else(String::new, |limit| format!(", the limit is {limit}"))
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_and_what_is_allowed_is_told() {
        let tried = |names: &[&str]| {
            let tried = names.iter().map(|name| name.to_string()).collect();
            Error::Unavailable { what: "X".into(), tried, reason: "no".into() }.to_string()
        };
        assert!(tried(&["a.so", "b.so"]).contains("(tried a.so, b.so)"));
        assert!(!tried(&[]).contains("tried"));
        let limited =
            |limit| Error::OutOfMemory { device: "d".into(), asked: 9, limit }.to_string();
        assert!(limited(Some(7)).contains(", the limit is 7"));
        assert!(!limited(None).contains("limit"));
    }

    #[test]
    fn an_applications_error_comes_back_as_it_was() {
        let error = |text: &str| match Error::application(std::io::Error::other(text.to_owned())) {
            Error::Application(error) => error,
            other => panic!("{other}"),
        };
        let (one, other) = (error("x"), error("x"));
        assert_eq!(
            one.downcast_ref::<std::io::Error>().map(ToString::to_string),
            Some("x".to_owned())
        );
        assert!(one.downcast_ref::<fmt::Error>().is_none());
        assert!(one == one.clone() && one != other, "two errors, though they read alike");
    }

    #[test]
    fn each_fact_has_a_line_of_its_own() {
        let none = Error::Unavailable {
            what: "device `gpu`".into(),
            tried: vec!["host (CPU)".into(), "opencl:0 (PoCL)".into()],
            reason: "no device of this hub fits; cuda: libcuda.so.1 is missing".into(),
        };
        let told = "Unavailable: device `gpu`\n  reason: no device of this hub fits\n    cuda: libcuda.so.1 is missing\n  \
                    tried: host (CPU)\n  tried: opencl:0 (PoCL)";
        assert_eq!(format!("{none:?}"), told);
        assert_eq!(format!("{none:#?}"), told, "with or without `#`");
        let memory = Error::OutOfMemory { device: "opencl:0".into(), asked: 9, limit: Some(5) };
        assert_eq!(
            format!("{memory:?}"),
            "OutOfMemory: opencl:0\n  asked: 9 bytes\n  limit: 5 bytes"
        );
        let memory = Error::OutOfMemory { device: "opencl:0".into(), asked: 9, limit: None };
        assert_eq!(format!("{memory:?}"), "OutOfMemory: opencl:0\n  asked: 9 bytes");
        let driver = Error::Driver {
            api: "OpenCL",
            call: "clFinish",
            code: -36,
            name: "CL_INVALID_COMMAND_QUEUE".into(),
        };
        let told = "Driver: OpenCL: clFinish\n  returned: CL_INVALID_COMMAND_QUEUE (-36)";
        assert_eq!(format!("{driver:?}"), told);
        assert_eq!(
            format!("{:?}", Error::invalid("an empty range")),
            "InvalidArgument: an empty range"
        );
    }

    #[test]
    fn a_compile_log_keeps_its_lines_and_cannot_drive_a_terminal() {
        let log = "x.cl:1:9: error: unknown type\n\tfloat5 *x\r\n\t^~~~~~\n\x1b[2Jgone".to_owned();
        let error = Error::Build { device: "opencl:0".into(), log };
        assert_eq!(
            format!("{error:?}"),
            "Build: program did not build for opencl:0\n  x.cl:1:9: error: unknown type\n      float5 *x\n      ^~~~~~\n  \u{fffd}[2Jgone"
        );
    }

    #[test]
    fn every_kind_names_itself_and_all_that_it_knows() {
        let word = |word: &str| word.to_owned();
        let all = [
            (Error::unsupported("W1", "W2"), "Unsupported", 2),
            (Error::CopyForbidden { route: word("W1"), why: word("W2") }, "CopyForbidden", 2),
            (Error::NotShared { device: word("W1"), shared_with: word("W2") }, "NotShared", 2),
            (Error::Busy { what: word("W1") }, "Busy", 1),
            (Error::DeviceLost { device: word("W1"), reason: word("W2") }, "DeviceLost", 2),
            (Error::PeerLost { reason: word("W1") }, "PeerLost", 1),
            (Error::refused("W1"), "PeerRefused", 1),
            (Error::ForeignContext { have: word("W1"), want: word("W2") }, "ForeignContext", 2),
            (Error::Timeout { what: word("W1"), after_ms: 20 }, "Timeout", 2),
            (Error::Cache { path: word("W1"), reason: word("W2") }, "Cache", 2),
            (Error::application("W1"), "Application", 1),
        ];
        for (error, kind, lines) in all {
            let told = format!("{error:?}");
            assert!(told.starts_with(&format!("{kind}: ")) && told.contains("W1"), "{told}");
            assert_eq!(told.lines().count(), lines, "{told}");
            assert!(lines == 1 || told.contains("W2") || told.contains("20 ms"), "{told}");
        }
    }
}
