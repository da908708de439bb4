//! The log
//!
//! Log messages go to standard error, one line each. The environment variable ONEBUF_LOG selects them when the first
//! hub is discovered: `off`, `error`, `warn`, `info`, `debug`, `trace`, or a list such as `warn,onebuf_opencl=debug`.
//! Without it only implied copies of buffers with ONEBUF_COPIES_WARN are logged. A program with its own log receives
//! the messages by onebuf_log_to().

use crate::{
    entry::entry,
    fault::{Fault, Result},
    status::onebuf_status,
};
use onebuf::Error;
use std::{
    cell::Cell,
    ffi::{CString, c_char, c_void},
    fmt::{self, Write as _},
    io::Write as _,
    sync::{OnceLock, PoisonError, RwLock},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::Interest,
};
use tracing_subscriber::filter::Targets;

/// Severity of a message.
pub type onebuf_log_level = u32;
/// Data is lost or something is broken.
pub const ONEBUF_LOG_ERROR: onebuf_log_level = 1;
/// Something is wrong; also implied copies of buffers that warn about them.
pub const ONEBUF_LOG_WARN: onebuf_log_level = 2;
/// Normal events.
pub const ONEBUF_LOG_INFO: onebuf_log_level = 3;
/// Details.
pub const ONEBUF_LOG_DEBUG: onebuf_log_level = 4;
/// Everything.
pub const ONEBUF_LOG_TRACE: onebuf_log_level = 5;

/// Receives one message, without a line break. `target` names the part of the library that it comes from. Any thread
/// may call it, several at once, and also while the library holds locks: it must not call the library. The strings are
/// valid until it returns.
pub type onebuf_log_function = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        level: onebuf_log_level,
        target: *const c_char,
        message: *const c_char,
    ),
>;

/// The target of messages about implied copies.
const UNASKED: &str = "onebuf::copies=warn";

/// Which messages are logged, and where they go.
struct Sink {
    wanted: Targets,
    callback: Option<LogFunction>,
}

/// A callback of the program.
struct LogFunction {
    function: unsafe extern "C" fn(*mut c_void, onebuf_log_level, *const c_char, *const c_char),
    user: *mut c_void,
}
// SAFETY: the caller guarantees that any thread may call the function; the pointer is only passed to it.
unsafe impl Send for LogFunction {}
// SAFETY: as above; several threads may call it at once.
unsafe impl Sync for LogFunction {}

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

thread_local! {
    /// Whether this thread is in a callback: messages logged there are discarded.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Installs the subscriber, once. If a Rust program has installed its own, that one gets the messages. Returns whether
/// ours is installed.
pub(crate) fn start() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| {
        set(Sink { wanted: of_environment(), callback: None });
        tracing::subscriber::set_global_default(Log).is_ok()
    })
}

fn set(sink: Sink) {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    tracing::callsite::rebuild_interest_cache();
}

fn of_environment() -> Targets {
    let given = std::env::var("ONEBUF_LOG").unwrap_or_default();
    let text = if given.trim().is_empty() { UNASKED } else { given.as_str() };
    text.parse().unwrap_or_else(|error| {
        to_stderr(format_args!("ONEBUF_LOG is not understood, `warn` is used: {error}"));
        Targets::new().with_default(LevelFilter::WARN)
    })
}

/// Sends messages of this level and of lower numbers to a function, and none to standard error; ONEBUF_LOG is ignored.
/// A NULL `callback` undoes this, and `level` is ignored. When this returns, the previous function is not running and
/// is not called again. Do not hold a lock that the function takes while calling onebuf, because such calls may log.
///
/// ONEBUF_BUSY inside of such a function; ONEBUF_UNSUPPORTED in a Rust program that collects the messages itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_log_to(
    level: onebuf_log_level,
    callback: onebuf_log_function,
    user: *mut c_void,
) -> onebuf_status {
    entry(|| {
        if IS_TELLING.get() {
            let what = "onebuf_log_to() must not be called inside the log function";
            return Err(Fault::Library(Error::Busy { what: what.into() }));
        }
        let sink = match callback {
            Some(function) => Sink {
                wanted: Targets::new().with_default(filter(level)?),
                callback: Some(LogFunction { function, user }),
            },
            None => Sink { wanted: of_environment(), callback: None },
        };
        if !start() {
            let what = "a log function in a Rust program with its own tracing subscriber";
            let needs = "a program without one: use that subscriber";
            return Err(Error::unsupported(what, needs).into());
        }
        set(sink);
        Ok(())
    })
}

fn filter(level: onebuf_log_level) -> Result<LevelFilter> {
    Ok(match level {
        ONEBUF_LOG_ERROR => LevelFilter::ERROR,
        ONEBUF_LOG_WARN => LevelFilter::WARN,
        ONEBUF_LOG_INFO => LevelFilter::INFO,
        ONEBUF_LOG_DEBUG => LevelFilter::DEBUG,
        ONEBUF_LOG_TRACE => LevelFilter::TRACE,
        other => return Err(Fault::invalid(format!("log level {other}: choose 1 to 5"))),
    })
}

fn number(level: Level) -> onebuf_log_level {
    match level {
        Level::ERROR => ONEBUF_LOG_ERROR,
        Level::WARN => ONEBUF_LOG_WARN,
        Level::INFO => ONEBUF_LOG_INFO,
        Level::DEBUG => ONEBUF_LOG_DEBUG,
        Level::TRACE => ONEBUF_LOG_TRACE,
    }
}

/// Writes a line in one call. A closed standard error is not an error.
fn to_stderr(line: fmt::Arguments<'_>) {
    let _ = std::io::stderr().lock().write_all(format!("onebuf: {line}\n").as_bytes());
}

/// The subscriber. It handles events and ignores spans.
struct Log;

impl Log {
    fn with_sink<T>(tell: impl FnOnce(&Sink) -> T) -> Option<T> {
        // The lock also guards the function that receives messages.
        if IS_TELLING.get() {
            return None;
        }
        SINK.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(tell)
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match () {
            // A message that the callback causes against the rules is decided again later.
            () if IS_TELLING.get() => Interest::sometimes(),
            () if self.enabled(metadata) => Interest::always(),
            () => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wants = |sink: &Sink| sink.wanted.would_enable(metadata.target(), metadata.level());
        metadata.is_event() && Log::with_sink(wants).unwrap_or(false)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Log::with_sink(|sink| {
            sink.wanted.iter().map(|(_, level)| level).chain(sink.wanted.default_level()).max()
        })
        .flatten()
        .or(Some(LevelFilter::OFF))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine::default();
        event.record(&mut line);
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        Log::with_sink(|sink| match &sink.callback {
            Some(callback) => callback.tell(level, target, line.0),
            None => to_stderr(format_args!("{level} {target}: {}", line.0)),
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl LogFunction {
    fn tell(&self, level: Level, target: &str, message: String) {
        let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let (target, message) = (text(target), text(&message));
        IS_TELLING.set(true);
        // SAFETY: the caller's function; the strings live until it returns.
        unsafe { (self.function)(self.user, number(level), target.as_ptr(), message.as_ptr()) };
        IS_TELLING.set(false);
    }
}

/// An event's message and fields, in one line.
#[derive(Default)]
struct LogLine(String);

impl LogLine {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{space}{value}"),
            name => write!(self.0, "{space}{name}={value}"),
        };
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }
}
