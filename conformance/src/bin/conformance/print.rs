//! What the program prints: text, or a line of JSON for each check.

use crate::{arguments::Work, name};
use onebuf::Hub;
use onebuf_conformance::{Ending, Outcome};
use onebuf_verdicts::device_json;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Prints and counts the checks.
pub struct Printer {
    lines: bool,
    skips: bool,
    counts: [usize; 3],
    /// Failures, which text lists at the end.
    told: Vec<String>,
}

impl Printer {
    pub fn new(lines: bool, skips: bool) -> Self {
        Self { lines, skips, counts: [0; 3], told: Vec::new() }
    }

    /// Prints a case that has ended.
    pub fn case(&mut self, outcomes: &[Outcome]) {
        if outcomes.is_empty() {
            return;
        }
        match self.lines {
            true => outcomes.iter().for_each(|one| println!("{}", row(one))),
            false => println!("{}", line(outcomes)),
        }
        outcomes.iter().for_each(|one| self.count(one));
    }

    /// Takes all outcomes of a suite, of which some belong to no case.
    pub fn end(&mut self, outcomes: &[Outcome]) {
        let counted = self.counts.iter().sum::<usize>();
        let rest: Vec<Outcome> = match outcomes.len() > counted {
            true => outcomes.iter().filter(|one| one.case == "devices").cloned().collect(),
            false => Vec::new(),
        };
        if !rest.is_empty() {
            self.case(&rest);
        }
    }

    /// Prints checks that are no cases of the suite.
    pub fn part(&mut self, outcomes: Vec<Outcome>) {
        match self.lines {
            true => self.case(&outcomes),
            false => outcomes.iter().for_each(|one| {
                println!("{one}");
                self.count(one);
            }),
        }
    }

    fn count(&mut self, one: &Outcome) {
        let (at, tell) = match &one.ending {
            Ending::Passed => (0, false),
            Ending::Failed(_) => (2, true),
            _ => (1, self.skips),
        };
        self.counts[at] += 1;
        if tell && !self.lines {
            self.told.push(one.to_string());
        }
    }

    /// Prints the end, and returns the exit status.
    pub fn finish(self, work: &Work) -> ExitCode {
        let [passed, skipped, failed] = self.counts;
        let has_checks = matches!(work, Work::Suite | Work::HandOvers(_) | Work::Large(_));
        if has_checks && self.lines {
            println!("{}", json!({ "checks": passed + skipped + failed }));
        } else if has_checks {
            self.told.iter().for_each(|line| println!("{line}"));
            println!("{passed} checks passed, {skipped} skipped, {failed} failed");
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Formats one case: its result, and the number of devices and pairs.
fn line(outcomes: &[Outcome]) -> String {
    let count = |fits: fn(&Ending) -> bool| outcomes.iter().filter(|one| fits(&one.ending)).count();
    let passed = count(|ending| *ending == Ending::Passed);
    let failed = count(|ending| matches!(ending, Ending::Failed(_)));
    let word = match (failed, passed) {
        (0, 0) => "skip",
        (0, _) => "ok",
        _ => "fail",
    };
    format!("{word:4} {}: {passed} of {} checks", name(outcomes), outcomes.len())
}

/// One check as JSON.
fn row(one: &Outcome) -> Value {
    let (result, why) = match &one.ending {
        Ending::Passed => ("passed", ""),
        Ending::NotApplicable(why) => ("not_applicable", why.as_str()),
        Ending::Skipped(why) => ("skipped", why.as_str()),
        Ending::Failed(why) => ("failed", why.as_str()),
    };
    let Outcome { case, devices, detail, .. } = one;
    json!({ "case": case, "devices": devices, "detail": detail, "result": result, "why": why })
}

/// The devices of a hub, and the APIs without one.
pub fn devices_json(hub: &Hub) -> Value {
    let devices: Vec<Value> = hub.devices().iter().map(device_json).collect();
    json!({ "devices": devices, "unavailable": hub.unavailable() })
}
