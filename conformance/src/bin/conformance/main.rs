//! The conformance suite as a program: `conformance [--list] [--skips] [--device NAME]… [FILTER]…` runs the cases whose names
//! contain a FILTER on the host and every driver found, and on every ordered pair that includes a NAME. Exits with 1 if a check
//! failed.

use onebuf_conformance::{CASES, Ending, Options, Outcome, run_with};
use std::process::ExitCode;

const USAGE: &str = "usage: conformance [--list] [--skips] [--device NAME]... [FILTER]...";

fn main() -> ExitCode {
    let (mut options, mut skips) = (Options { strict: true, ..Options::default() }, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => {
                CASES.iter().for_each(|case| println!("{}", case.name));
                return ExitCode::SUCCESS;
            }
            "--skips" => skips = true,
            "--device" => match words.next() {
                Some(name) => options.devices.push(name),
                None => return wrong_usage("--device needs a name"),
            },
            option if option.starts_with('-') => return wrong_usage(option),
            _ => options.filter.push(word),
        }
    }
    // Most cases have no kernels in GLSL.
    let hub = || onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
    // Failures are printed below, with the devices.
    std::panic::set_hook(Box::new(|_| ()));
    let report = run_with(&hub, &options, &mut |outcomes| println!("{}", line(outcomes)));
    let told = report.outcomes.iter().filter(|one| skips && one.ending.is_skip());
    told.chain(report.failures()).for_each(|one| println!("{one}"));
    let failed = report.failures().count();
    println!(
        "{} checks passed, {} skipped, {failed} failed",
        report.passed(),
        report.skips().count()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn wrong_usage(what: &str) -> ExitCode {
    eprintln!("conformance: {what}\n{USAGE}");
    ExitCode::from(2)
}

/// Formats one case: its result, and the number of devices and pairs.
fn line(outcomes: &[Outcome]) -> String {
    let count = |fits: fn(&Ending) -> bool| outcomes.iter().filter(|one| fits(&one.ending)).count();
    let passed = count(|ending| *ending == Ending::Passed);
    let failed = count(|ending| matches!(ending, Ending::Failed(_)));
    let word = if failed > 0 {
        "fail"
    } else if passed > 0 {
        "ok"
    } else {
        "skip"
    };
    let name = outcomes.first().map_or("", |one| one.case);
    format!("{word:4} {name}: {passed} of {} checks", outcomes.len())
}
