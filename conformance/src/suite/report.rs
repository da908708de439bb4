//! The results of a run of the suite: one outcome for each case at each place.

use crate::note;
use onebuf_hal::native::panic_text;
use std::{
    any::Any,
    collections::BTreeMap,
    fmt::{self, Display},
};

/// How a case ended on one device or pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The check passed.
    Passed,
    /// The device lacks the required feature: an expected skip.
    NotApplicable(String),
    /// The check could not run: a device is missing, or its driver is known not to survive it.
    Skipped(String),
    /// The check failed, with this message.
    Failed(String),
}

impl Ending {
    pub(crate) fn not_applicable(why: impl Into<String>) -> Self {
        Self::NotApplicable(why.into())
    }

    /// Whether the check did not run.
    pub fn is_skip(&self) -> bool {
        matches!(self, Self::NotApplicable(_) | Self::Skipped(_))
    }

    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self::Failed(panic_text(panic).to_owned())
    }
}

/// A check that returns has passed.
impl From<()> for Ending {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

/// How one case ended on one device, one pair of devices, or all of them together.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case, `group::name`.
    pub case: &'static str,
    /// The ids of the devices that took part. In a pair, the first device owns the memory. Empty if the case applies to no
    /// device.
    pub devices: Vec<String>,
    /// What distinguishes this check from others of the case: a memory kind, a route. Often empty.
    pub detail: String,
    /// How it ended.
    pub ending: Ending,
}

impl Outcome {
    /// The devices and the detail as text: `host -> toy:0 (staged)`.
    pub fn place(&self) -> String {
        let who = self.who();
        if self.detail.is_empty() { who } else { format!("{who} ({})", self.detail) }
    }

    fn who(&self) -> String {
        match &self.devices[..] {
            [] => "this hub".to_owned(),
            [one] => one.clone(),
            [from, to] => format!("{from} -> {to}"),
            many => many.join(" and "),
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (case, place) = (self.case, self.place());
        match &self.ending {
            Ending::Passed => write!(f, "ok: {case} on {place}"),
            Ending::NotApplicable(why) | Ending::Skipped(why) => {
                write!(f, "skip: {case} on {place}: {why}")
            }
            Ending::Failed(why) => write!(f, "fail: {case} on {place}: {why}"),
        }
    }
}

/// The results of a run of the suite. Prints the skips, the failures and the counts.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The outcomes, in the order of the cases.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Returns the checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| matches!(outcome.ending, Ending::Failed(_)))
    }

    /// Returns the checks that did not run, expected or not.
    pub fn skips(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.ending.is_skip())
    }

    /// Returns the number of checks that passed.
    pub fn passed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.ending == Ending::Passed).count()
    }

    /// Returns the number of skips of one device alone.
    pub fn skips_of(&self, device: &str) -> usize {
        self.skips().filter(|outcome| outcome.devices == [device]).count()
    }

    /// Returns the number of skips in which a device takes part, alone or with others.
    pub fn skips_with(&self, device: &str) -> usize {
        self.skips().filter(|outcome| outcome.devices.iter().any(|id| id == device)).count()
    }

    /// Asserts that no check failed.
    ///
    /// # Panics
    /// If a check failed; the message has every failure.
    #[track_caller]
    pub fn assert_passed(&self) {
        let failures: Vec<String> = self.failures().map(Outcome::to_string).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    /// Prints one line for each case and reason of an unexpected skip to standard error: `skip: CASE on DEVICES: WHY`.
    pub fn note_skips(&self) {
        let mut said: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for outcome in self.skips() {
            let Ending::Skipped(why) = &outcome.ending else { continue };
            let devices = said.entry((outcome.case, why)).or_default();
            if !devices.contains(&outcome.who()) {
                devices.push(outcome.who());
            }
        }
        for ((case, why), devices) in said {
            note(&format!("skip: {case} on {}: {why}", devices.join(", ")));
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.skips().chain(self.failures()).try_for_each(|outcome| writeln!(f, "{outcome}"))?;
        let (skips, failures) = (self.skips().count(), self.failures().count());
        write!(f, "{} checks passed, {skips} skipped, {failures} failed", self.passed())
    }
}
