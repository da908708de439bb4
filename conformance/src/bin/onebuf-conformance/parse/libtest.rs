//! The output of Rust's test harness.

use crate::{
    process::{Ended, How},
    result::{Counts, shortened},
};
use std::collections::BTreeSet;

/// The longest text of one failure.
const MOST_TEXT: usize = 1500;

/// A test that printed a skip has tested less than its name says, so it does not count as passed.
pub fn counts(ended: &Ended) -> Counts {
    let mut counts = Counts::default();
    // A test may have printed the output of another harness: the first line and the last summary are this one's.
    let begun = ended.stdout.lines().find_map(running).unwrap_or(0);
    let total = ended.stdout.lines().rev().find_map(summary);
    [counts.passed, counts.failed] = total.unwrap_or_default();
    counts.failures = failures(&ended.stdout);
    if counts.failures.len() < counts.failed {
        counts.failures.push(format!("{} tests failed", counts.failed));
    }
    // Without an end of its own, a last summary is another harness's.
    if total.is_none() || !matches!(ended.how, How::Exit(_)) {
        unfinished(&mut counts, ended, begun);
    }
    if counts.passed + counts.failed == 0 {
        counts.fail("it ran no tests");
    }
    take_skips(&mut counts, &ended.stderr);
    counts
}

/// Counts the tests that ended before the program did.
fn unfinished(counts: &mut Counts, ended: &Ended, begun: usize) {
    let tests = ended.stdout.lines().filter_map(|line| line.strip_prefix("test "));
    let (mut passed, mut failed) = (0, 0);
    for (_, word) in tests.filter_map(|line| line.rsplit_once(" ... ")) {
        match word {
            "ok" => passed += 1,
            "FAILED" => failed += 1,
            _ => {}
        }
    }
    counts.passed = passed;
    counts.failed = failed;
    let how = ended.how.trouble();
    let how = how.unwrap_or_else(|| "ended without a result".into());
    counts.fail(super::with_last_words(&format!("{how} after {passed} of {begun} tests"), ended));
}

fn take_skips(counts: &mut Counts, stderr: &str) {
    let mut skips = 0;
    for line in stderr.lines() {
        if let Some(why) = said(line, "skip: ") {
            skips += 1;
            counts.note_skip(why.to_owned(), 1);
        } else if let Some(what) = said(line, "missing: ") {
            // The tests used other devices, so none was skipped.
            counts.note_skip(what.to_owned(), 1);
        }
    }
    counts.skipped += skips;
    counts.passed = counts.passed.saturating_sub(skips);
}

/// What follows the word that begins a line. The harness may have begun it: `test name ... skip: why`.
fn said<'l>(line: &'l str, word: &str) -> Option<&'l str> {
    let (before, rest) = line.split_once(word)?;
    (before.is_empty() || before.starts_with("test ")).then(|| rest.trim())
}

/// `running 5 tests`
fn running(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    rest.split(' ').next()?.parse().ok()
}

/// `test result: ok. 5 passed; 0 failed; 1 ignored; …`: how many passed and failed.
fn summary(line: &str) -> Option<[usize; 2]> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        let part = rest.split(';').find(|part| part.trim().ends_with(word))?;
        part.split_whitespace().next()?.parse::<usize>().ok()
    };
    Some([number(" passed")?, number(" failed")?])
}

/// The tests that failed, with the first lines that each printed. A test may have printed the output of another harness, so only
/// names of the list at the end begin a text.
fn failures(stdout: &str) -> Vec<String> {
    let Some((texts, names)) = stdout.rsplit_once("\nfailures:\n") else { return Vec::new() };
    let names = names.lines().map_while(|line| line.strip_prefix("    "));
    let names: BTreeSet<&str> = names.collect();
    let mut found: Vec<String> = Vec::new();
    for line in texts.lines() {
        let head = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = head.filter(|name| names.contains(name)) {
            found.push(format!("{name}:"));
        } else if let Some(text) = found.last_mut().filter(|_| !line.trim().is_empty())
            && !line.starts_with("note: ")
        {
            text.push(' ');
            text.push_str(line.trim());
        }
    }
    found.iter().map(|text| shortened(text, MOST_TEXT)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::ended;

    const GOOD: &str = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... ok\ntest d ... ignored, why\n\n\
        test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";

    const BAD: &str = "\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\n\
        thread 'b' (7) panicked at tests/x.rs:3:5:\nleft is not right\nnote: run with `RUST_BACKTRACE=1`\n\n\n\
        failures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    fn plain(counts: &Counts) -> [usize; 3] {
        [counts.passed, counts.failed, counts.skipped]
    }

    #[test]
    fn results_are_counted() {
        assert_eq!(plain(&counts(&ended(How::Exit(0), GOOD, ""))), [2, 0, 0]);
        let bad = counts(&ended(How::Exit(101), BAD, ""));
        assert_eq!(plain(&bad), [1, 1, 0]);
        let why = "b: thread 'b' (7) panicked at tests/x.rs:3:5: left is not right";
        assert_eq!(bad.failures, [why]);
    }

    #[test]
    fn the_output_of_another_harness_is_part_of_the_text() {
        let inner = format!(
            "panicked\n{}\nafter\n\n\nfailures:\n    b\n",
            BAD.replace("b stdout", "c stdout")
        );
        let outer = BAD.replace("left is not right\n", &inner);
        let told = failures(&outer);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("b: ") && told[0].ends_with("after failures: b"), "{told:?}");
        assert_eq!(plain(&counts(&ended(How::Exit(101), &outer, ""))), [1, 1, 0]);
    }

    #[test]
    fn a_test_that_skipped_has_not_passed() {
        let skips = "noise\nskip: PoCL: not found\nskip: PoCL: not found\n";
        let both = counts(&ended(How::Exit(0), GOOD, skips));
        assert_eq!(plain(&both), [0, 0, 2]);
        assert_eq!(both.why(), "PoCL: not found (2)");
    }

    #[test]
    fn what_is_missing_is_told_and_takes_nothing() {
        let told = "missing: rusticl: no device\ntest a ... missing: Clover: no device\n";
        let both = counts(&ended(How::Exit(0), GOOD, told));
        assert_eq!(plain(&both), [2, 0, 0]);
        assert_eq!(both.why(), "rusticl: no device; Clover: no device");
        let one = counts(&ended(How::Exit(0), GOOD, &format!("{told}skip: a: no b\n")));
        assert_eq!(plain(&one), [1, 0, 1], "the control");
    }

    #[test]
    fn a_crash_keeps_what_passed_before() {
        let part = "running 9 tests\ntest a ... ok\ntest b ... ok\ntest c ... ";
        let crashed = counts(&ended(How::Signal(11), part, "in the driver\n"));
        assert_eq!(plain(&crashed), [2, 1, 0]);
        let why = "crashed: SIGSEGV after 2 of 9 tests; its last words: in the driver";
        assert_eq!(crashed.why(), why);
    }

    #[test]
    fn no_tests_are_a_failure() {
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n";
        let none = counts(&ended(How::Exit(0), none, ""));
        assert_eq!((plain(&none), none.why()), ([0, 1, 0], "it ran no tests".into()));
    }
}
