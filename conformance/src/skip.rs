//! Printed skips, which are failures in strict mode.

use std::{
    collections::BTreeSet,
    io::Write,
    sync::{Mutex, PoisonError},
};

/// Whether a missing device fails the test: `ONEBUF_STRICT` is set, not empty and not `0`.
pub fn strict() -> bool {
    std::env::var_os("ONEBUF_STRICT").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Prints one line that the test harness does not capture.
pub fn note(line: &str) {
    // An error means that standard error is closed, so there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints that something is missing.
///
/// # Panics
/// In strict mode.
pub fn absent(what: &str, why: &str) {
    assert!(!strict(), "{what}: {why}, and ONEBUF_STRICT is set");
    note(&format!("skip: {what}: {why}"));
}

/// Prints, once in a process, that something is missing of which a test needs one and has another. The test has not skipped.
///
/// # Panics
/// In strict mode.
pub fn missing(what: &str, why: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    assert!(!strict(), "{what}: {why}, and ONEBUF_STRICT is set");
    let line = format!("missing: {what}: {why}");
    let is_new = TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone());
    if is_new {
        note(&line);
    }
}
