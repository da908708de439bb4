//! Skips that are seen, and failures instead of them in strict mode.

use std::io::Write;

/// Whether a missing device fails the test: `ONEBUF_STRICT` set, and not to `0`.
pub fn strict() -> bool {
    std::env::var_os("ONEBUF_STRICT").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Prints one line that the test harness does not swallow.
pub fn note(line: &str) {
    // Nobody is left to be told when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says that something is not here.
///
/// # Panics
/// In strict mode.
pub fn absent(what: &str, why: &str) {
    assert!(!strict(), "{what}: {why}, and ONEBUF_STRICT is set");
    note(&format!("skip: {what}: {why}"));
}
