//! Reads what chapter programs print. Output is data from a process that may have crashed at any byte.

mod doctor;
mod libtest;
mod lines;

pub use doctor::{Route, routes};

use crate::{process::Ended, result::Counts};

/// What a chapter program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Rust's test harness; skips are lines on standard error.
    Libtest,
    /// A line of JSON for each check.
    Lines,
    /// The report of the doctor, one JSON object.
    Doctor,
}

/// Counts the checks of a program that has ended.
pub fn counts(format: Format, ended: &Ended) -> Counts {
    let mut counts = match format {
        Format::Libtest => libtest::counts(ended),
        Format::Lines => lines::counts(ended),
        Format::Doctor => doctor::counts(ended),
    };
    if let Some(trouble) = ended.how.trouble()
        && counts.failed == 0
    {
        counts.fail(with_last_words(&trouble, ended));
    }
    counts.refuse_nothing();
    counts
}

/// Adds the last line of standard error.
fn with_last_words(trouble: &str, ended: &Ended) -> String {
    match ended.stderr.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{trouble}; its last words: {}", line.trim()),
        None => trouble.to_owned(),
    }
}

#[cfg(test)]
fn ended(how: crate::process::How, stdout: &str, stderr: &str) -> Ended {
    Ended { how, stdout: stdout.into(), stderr: stderr.into(), took: Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::How;
    use std::time::Duration;

    #[test]
    fn whatever_goes_wrong_is_a_failure() {
        let hows = [
            How::Exit(0),
            How::Exit(3),
            How::Signal(11),
            How::TimedOut(Duration::from_secs(1)),
            How::TooMuchOutput,
            How::NotStarted("not found".into()),
        ];
        let outputs = ["", "\u{0}\u{fffd}{", "{}", "[]", "null", "test a ... ok\n", "test result:"];
        for format in [Format::Libtest, Format::Lines, Format::Doctor] {
            for how in &hows {
                for output in outputs {
                    let counts = counts(format, &ended(how.clone(), output, ""));
                    assert!(counts.failed > 0, "{format:?} {how:?} {output:?}: {counts:?}");
                    assert!(!counts.why().is_empty());
                }
            }
        }
    }

    #[test]
    fn the_last_words_are_told() {
        let crashed = ended(How::Signal(6), "", "assertion failed in the driver\n\n");
        let why = counts(Format::Lines, &crashed).why();
        assert!(why.contains("SIGABRT") && why.contains("assertion failed in the driver"), "{why}");
    }
}
