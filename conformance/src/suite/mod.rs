//! Runs the cases: all of them on one hub for a program, or one at a time for tests.

mod report;
mod trial;

pub use report::{Ending, Outcome, Report};
pub use trial::Trial;

use crate::{Machine, Watchdog, cases::CASES, strict};
use onebuf::{Hub, HubBuilder};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// The limit of one case. The longest case takes seconds; a backend whose work never ends is stopped.
const CASE_LIMIT: Duration = Duration::from_secs(600);

/// One requirement that every backend must meet.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `group::name`; the name states the requirement.
    pub name: &'static str,
    pub(crate) run: fn(&Trial<'_>),
}

/// Selects the cases and the devices.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only cases whose names contain one of these; all if empty.
    pub filter: Vec<String>,
    /// Devices under test, by id, API or part of the name (as for [`onebuf::Hub::select`]); all if empty. Tested pairs contain
    /// at least one of them.
    pub devices: Vec<String>,
    /// Whether a device that is named above but not found is a failure instead of a skip.
    pub strict: bool,
    /// Which checks of the cases run, by the devices that take part.
    pub scope: Scope,
}

/// Selects everything; strict if `ONEBUF_STRICT` is set.
impl Default for Options {
    fn default() -> Self {
        let (filter, devices) = Default::default();
        Self { filter, devices, strict: strict(), scope: Scope::default() }
    }
}

/// Selects checks by the devices that take part, so that a run can be divided among processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Checks in which a device under test takes part.
    #[default]
    Any,
    /// Checks of exactly the devices under test: one device alone, or one pair in both orders. No other device is opened,
    /// except the host.
    Exactly,
    /// Checks of three or more devices.
    Many,
}

impl Scope {
    /// Whether a check of these devices runs.
    fn admits(self, devices: &[&str], chosen: &[String]) -> bool {
        let distinct: BTreeSet<&str> = devices.iter().copied().collect();
        let any = chosen.iter().any(|id| distinct.contains(id.as_str()));
        match self {
            Scope::Any => any,
            Scope::Exactly => distinct == chosen.iter().map(String::as_str).collect(),
            Scope::Many => any && distinct.len() > 2,
        }
    }
}

/// Runs the suite on every device of the hub and every ordered pair of them. `hub` is called again for cases that need a
/// separate hub; its builder must have no verdicts.
///
/// ```no_run
/// # use onebuf_conformance::{Options, run};
/// let hub = || onebuf::builder().only(["opencl"]).verdicts(Default::default());
/// let report = run(&hub, &Options::default());
/// println!("{report}");
/// assert_eq!(report.failures().count(), 0);
/// ```
///
/// # Panics
/// If a device cannot be opened.
pub fn run(hub: &dyn Fn() -> HubBuilder, options: &Options) -> Report {
    run_with(hub, options, &mut |_| ())
}

/// As [`run`], and reports each case when it ends.
///
/// # Panics
/// If a device cannot be opened.
pub fn run_with(
    hub: &dyn Fn() -> HubBuilder,
    options: &Options,
    ended: &mut dyn FnMut(&[Outcome]),
) -> Report {
    let opened = hub().build().expect("the host");
    let mut report = Report::default();
    let chosen = choose(&opened, options, &mut report);
    let machine = Machine::open_some(opened, |device| {
        options.scope != Scope::Exactly || chosen.iter().any(|id| id == device.id())
    });
    let wanted = |case: &&Case| {
        options.filter.is_empty() || options.filter.iter().any(|part| case.name.contains(part))
    };
    for case in CASES.iter().filter(wanted) {
        let outcomes = run_case(case, &machine, hub, &chosen, options.scope);
        ended(&outcomes);
        report.outcomes.extend(outcomes);
    }
    report
}

/// Returns the ids of the devices under test. A name that matches no device is recorded as an outcome.
fn choose(hub: &Hub, options: &Options, report: &mut Report) -> Vec<String> {
    if options.devices.is_empty() {
        return all(hub);
    }
    let mut chosen = Vec::new();
    for name in &options.devices {
        let found = hub.select(name);
        chosen.extend(found.iter().map(|device| device.id().to_owned()));
        if found.is_empty() {
            let why = format!("no device fits `{name}`");
            let ending = if options.strict { Ending::Failed(why) } else { Ending::Skipped(why) };
            let (case, devices, detail) = ("devices", Vec::new(), String::new());
            report.outcomes.push(Outcome { case, devices, detail, ending });
        }
    }
    chosen
}

fn all(hub: &Hub) -> Vec<String> {
    hub.devices().iter().map(|device| device.id().to_owned()).collect()
}

fn run_case(
    case: &Case,
    machine: &Machine,
    hub: &dyn Fn() -> HubBuilder,
    chosen: &[String],
    scope: Scope,
) -> Vec<Outcome> {
    let _watchdog = Watchdog::new(case.name, CASE_LIMIT);
    let trial = Trial::new(machine, hub, chosen, scope, case.name);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (case.run)(&trial))) {
        trial.record(Vec::new(), String::new(), Ending::panicked(&*panic));
    }
    if scope == Scope::Any && trial.found_nothing() {
        let why = "there is no device or pair that it applies to";
        trial.record(Vec::new(), String::new(), Ending::Skipped(why.into()));
    }
    trial.into_outcomes()
}

/// One hub for all tests of a program, used by one test at a time: drivers in one process share LLVM and llvmpipe, which are
/// not all thread-safe at start-up, and tests read the hub's ledger. [`suite!`](crate::suite) creates one.
pub struct Suite {
    hub: fn() -> HubBuilder,
    machine: OnceLock<Mutex<Machine>>,
}

impl Suite {
    /// Creates a suite. The first case opens the hub.
    pub const fn new(hub: fn() -> HubBuilder) -> Self {
        Self { hub, machine: OnceLock::new() }
    }

    /// Locks the hub and its devices for this thread.
    ///
    /// # Panics
    /// If a device cannot be opened.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        let machine = self.machine.get_or_init(|| Mutex::new(Machine::open((self.hub)())));
        machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one case on every device and pair, as a test.
    ///
    /// # Panics
    /// If a check fails. The message has the case, the devices and the error of each failed check.
    #[track_caller]
    pub fn check(&self, case: &str) {
        let case = CASES.iter().find(|one| one.name == case).expect("the name of a case");
        let machine = self.machine();
        let outcomes = run_case(case, &machine, &self.hub, &all(&machine.hub), Scope::Any);
        let report = Report { outcomes };
        report.note_skips();
        report.assert_passed();
    }
}

/// Expands to the whole suite as tests: a module for each group, a `#[test]` for each case. The expression is a
/// [`HubBuilder`](onebuf::HubBuilder) with the backend under test.
///
/// ```no_run
/// onebuf_conformance::suite!(onebuf::builder().only(["opencl"]).verdicts(Default::default()));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! suite {
    ($hub:expr) => {
        /// The hub of all these tests.
        static SUITE: $crate::Suite = $crate::Suite::new(|| $hub);
        $crate::__cases!($crate::__tests);
    };
}

/// Expands to a `#[test]` for each case of the table.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($($group:ident { $($case:ident)* })*) => {$(
        mod $group {
            $(
                #[test]
                fn $case() {
                    super::SUITE.check(concat!(stringify!($group), "::", stringify!($case)));
                }
            )*
        }
    )*};
}
