//! Printed skips, which are failures in strict mode.

use std::io::Write;

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
