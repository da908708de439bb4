//! The library's messages, as records of Python's `logging`.
//!
//! A message may come from any thread, also while the library holds locks, so it is only queued. A thread of its own hands the queue to Python, and
//! the interpreter's end hands over what is left.

use crate::{
    ending,
    error::{Fault, Result},
};
use pyo3::prelude::*;
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, Registry,
    filter::{ParseError, Targets},
    fmt::{FormatFields, format::DefaultFields, format::Writer},
    layer::{Context, SubscriberExt},
    reload,
};

/// What is told unless `ONEBUF_LOG` says otherwise: lost data, and copies of buffers that warn about them. Why a pipeline stopped is an exception.
const DEFAULT: &str = "error,onebuf_pipeline=off,onebuf::copies=warn";
/// Messages that wait for Python. Further ones are counted alone.
const MOST: usize = 1024;

/// A message.
struct Record {
    level: Level,
    target: String,
    text: String,
}

struct Waiting {
    records: VecDeque<Record>,
    lost: u64,
    has_thread: bool,
    is_over: bool,
}

static WAITING: Mutex<Waiting> =
    Mutex::new(Waiting { records: VecDeque::new(), lost: 0, has_thread: false, is_over: false });
static CAME: Condvar = Condvar::new();
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues what passes the filter.
struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = DefaultFields::new().format_fields(Writer::new(&mut text), event);
        let (level, target) = (*event.metadata().level(), event.metadata().target().to_owned());
        let mut waiting = waiting();
        if waiting.is_over || waiting.records.len() >= MOST {
            waiting.lost += 1;
            return;
        }
        waiting.records.push_back(Record { level, target, text });
        if !waiting.has_thread {
            let started = thread::Builder::new().name("onebuf log".into()).spawn(hand_over);
            waiting.has_thread = started.is_ok();
        }
        CAME.notify_one();
    }
}

/// Hands messages to Python until the interpreter ends.
fn hand_over() {
    loop {
        let (records, lost) = {
            let idle = |waiting: &mut Waiting| waiting.records.is_empty() && !waiting.is_over;
            let waited = CAME.wait_while(waiting(), idle);
            take(&mut waited.unwrap_or_else(PoisonError::into_inner))
        };
        if records.is_empty() || ending::visit(|py| tell(py, records, lost)).is_none() {
            return;
        }
    }
}

fn take(waiting: &mut Waiting) -> (VecDeque<Record>, u64) {
    (std::mem::take(&mut waiting.records), std::mem::take(&mut waiting.lost))
}

fn tell(py: Python<'_>, records: VecDeque<Record>, lost: u64) {
    let emit = |level: Level, target: &str, text: &str| {
        let told = py
            .import("onebuf._log")
            .and_then(|log| log.call_method1("emit", (level.as_str(), target, text)));
        if let Err(error) = told {
            error.write_unraisable(py, None);
        }
    };
    for Record { level, target, text } in records {
        emit(level, &target, &text);
    }
    if lost > 0 {
        emit(Level::WARN, "onebuf::log", &format!("{lost} messages came too fast, and are lost"));
    }
}

/// Tells what is left. Nothing is told afterwards.
pub(crate) fn end(py: Python<'_>) {
    let (records, lost) = {
        let mut waiting = waiting();
        waiting.is_over = true;
        take(&mut waiting)
    };
    CAME.notify_one();
    tell(py, records, lost);
}

/// Collects the messages from now on.
pub(crate) fn start() {
    let named = std::env::var("ONEBUF_LOG").unwrap_or_default();
    let wanted = match parse(&named) {
        Ok(wanted) => wanted,
        // Without the module there is no logger that could get the message.
        Err(_) => Targets::new().with_default(Level::WARN),
    };
    let (filter, handle) = reload::Layer::new(wanted);
    let all = tracing_subscriber::registry().with(ToPython.with_filter(filter));
    // A program in Rust that embeds Python may have a subscriber of its own, which gets the messages then.
    if tracing::subscriber::set_global_default(all).is_ok() {
        let _ = FILTER.set(handle);
    }
}

fn parse(text: &str) -> Result<Targets> {
    let text = if text.trim().is_empty() { DEFAULT } else { text };
    let wrong = |why: String| Fault::invalid(format!("log level {text:?}: {why}"));
    // A word alone would be a target, of which everything is told.
    let mut words = text.split(',').map(str::trim).filter(|part| !part.contains('='));
    if let Some(word) = words.find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(wrong(format!("{word:?} is no level")));
    }
    text.parse().map_err(|why: ParseError| wrong(why.to_string()))
}

/// Chooses the messages that the library logs: "off", "error", "warn", "info", "debug", "trace", or a list such as "warn,onebuf_opencl=debug", as
/// the environment variable `ONEBUF_LOG` does. Without an argument: errors, and implied copies of buffers with `copies="warn"`.
///
/// They are records of the logger "onebuf" and its children, such as "onebuf.copies".
#[pyfunction]
#[pyo3(signature = (level=""))]
pub(crate) fn log_level(level: &str) -> Result<()> {
    let wanted = parse(level)?;
    let handle = FILTER.get().ok_or_else(|| {
        onebuf::Error::unsupported(
            "a log level",
            "a program without a tracing subscriber of its own",
        )
    })?;
    handle.reload(wanted).map_err(|why| Fault::invalid(why.to_string()))
}
