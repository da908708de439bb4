//! The input of a case: the machine, the devices under test, and a list for its outcomes.

use super::{Ending, Outcome, Scope};
use crate::{Held, Machine, Side, fake_machine, fakes, kinds, sync_methods};
use onebuf::{Buffer, Hub, HubBuilder, MemoryKind, RouteKind, SyncMethod, fake::FakeConfig};
use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// One case on one machine. Each check runs on some of the devices, which the outcome names. A check that panics has failed;
/// the other checks still run.
pub struct Trial<'m> {
    pub(crate) machine: &'m Machine,
    hub: &'m dyn Fn() -> HubBuilder,
    /// The ids of the devices under test.
    chosen: &'m [String],
    scope: Scope,
    case: &'static str,
    outcomes: Mutex<Vec<Outcome>>,
}

impl<'m> Trial<'m> {
    pub(super) fn new(
        machine: &'m Machine,
        hub: &'m dyn Fn() -> HubBuilder,
        chosen: &'m [String],
        scope: Scope,
        case: &'static str,
    ) -> Self {
        Self { machine, hub, chosen, scope, case, outcomes: Mutex::default() }
    }

    pub(super) fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn found_nothing(&self) -> bool {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn hub(&self) -> &'m Hub {
        &self.machine.hub
    }

    /// Returns a builder with the same backends, for a separate hub.
    pub(crate) fn builder(&self) -> HubBuilder {
        (self.hub)()
    }

    fn is_chosen(&self, side: &Side) -> bool {
        self.chosen.iter().any(|id| id == side.device.id())
    }

    /// The devices under test.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &'m Side> {
        self.machine.sides.iter().filter(|side| self.is_chosen(side))
    }

    /// Every ordered pair of different devices, at least one of them under test.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'m Side, &'m Side)> {
        crate::pairs(&self.machine.sides).filter(|(a, b)| self.is_chosen(a) || self.is_chosen(b))
    }

    /// Whether the hub has a device of this API.
    pub(crate) fn has_api(&self, api: &str) -> bool {
        self.machine.sides.iter().any(|side| side.device.info().api.0 == api)
    }

    /// Whether this run covers all of [`fakes`]. Cases then count their checks, because none may be left out.
    pub(crate) fn counts(&self) -> bool {
        let is_fake = |side: &&Side| side.device.info().api.0 == "fake";
        self.sides().filter(is_fake).count() >= fakes().len()
    }

    /// Runs one check on these devices if the scope admits them. They may be of another hub with the same devices.
    pub(crate) fn on<E: Into<Ending>>(
        &self,
        sides: &[&Side],
        detail: impl Display,
        check: impl FnOnce() -> E,
    ) {
        let ids: Vec<&str> = sides.iter().map(|side| side.device.id()).collect();
        if !self.scope.admits(&ids, self.chosen) {
            return;
        }
        let ending = catch_unwind(AssertUnwindSafe(|| check().into()));
        let ending = ending.unwrap_or_else(|panic| Ending::panicked(&*panic));
        let devices = sides.iter().map(|side| side.device.id().to_owned()).collect();
        self.record(devices, detail.to_string(), ending);
    }

    pub(super) fn record(&self, devices: Vec<String>, detail: String, ending: Ending) {
        let outcome = Outcome { case: self.case, devices, detail, ending };
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    }

    /// Runs one check that needs all devices together. Does nothing if some of them are not open.
    pub(crate) fn together<E: Into<Ending>>(&self, check: impl FnOnce() -> E) {
        if self.machine.sides.len() < self.hub().devices().len() {
            return;
        }
        self.on(&self.machine.sides.iter().collect::<Vec<_>>(), "", check);
    }

    /// Runs a check on each device under test.
    pub(crate) fn each_device<E: Into<Ending>>(&self, check: impl Fn(&'m Side) -> E) {
        self.sides().for_each(|side| self.on(&[side], "", || check(side)));
    }

    /// Runs a check on each device under test whose work can be [held](Held). If the hub has fake devices, also on one in a
    /// separate hub.
    pub(crate) fn each_holding<E: Into<Ending>>(&self, check: impl Fn(&Machine, &Side) -> E) {
        self.each_device(|side| match Held::works_on(&side.device) {
            true => check(self.machine, side).into(),
            false => Ending::not_applicable("its work cannot be held up"),
        });
        if self.has_api("fake") {
            let machine = fake_machine(FakeConfig::default());
            let side = machine.side("fake:0");
            self.on(&[side], "in a hub of its own", || check(&machine, side));
        }
    }

    /// Runs a check on each device under test with a new buffer of each memory kind that it allocates. The text names both.
    pub(crate) fn each_memory_kind<E: Into<Ending>>(
        &self,
        n: usize,
        check: impl Fn(&'m Side, &Buffer<u32>, &str) -> E,
    ) {
        for side in self.sides() {
            for &memory_kind in &side.device.info().caps.memory_kinds {
                let what = format!("{} {memory_kind}", side.device);
                self.on(&[side], memory_kind, || {
                    check(side, &self.buffer(side, memory_kind, n), &what)
                });
            }
        }
    }

    /// Builds a buffer on one device.
    pub(crate) fn buffer(&self, side: &Side, memory_kind: MemoryKind, n: usize) -> Buffer<u32> {
        let builder = self.hub().buffer::<u32>(n).shared_with([&side.device]);
        let built = builder.allocate_on(&side.device).memory_kind(memory_kind).build();
        built.unwrap_or_else(|e| panic!("{} {memory_kind}: {e}", side.device))
    }

    /// Runs a check on each ordered pair. The text names both devices.
    pub(crate) fn each_pair<E: Into<Ending>>(&self, check: impl Fn(&'m Side, &'m Side, &str) -> E) {
        for (from, to) in self.pairs() {
            let what = format!("{} -> {}", from.device, to.device);
            self.on(&[from, to], "", || check(from, to, &what));
        }
    }

    /// Runs a check on each ordered pair with each declared route.
    pub(crate) fn each_route<E: Into<Ending>>(
        &self,
        check: impl Fn(&'m Side, &'m Side, RouteKind, &str) -> E,
    ) {
        for (from, to) in self.pairs() {
            for kind in kinds(self.hub(), from, to) {
                let what = format!("{} -> {} {kind}", from.device, to.device);
                self.on(&[from, to], kind, || check(from, to, kind, &what));
            }
        }
    }

    /// Runs a check on each ordered pair with each route and each sync method.
    pub(crate) fn each_join<E: Into<Ending>>(
        &self,
        check: impl Fn(&'m Side, &'m Side, RouteKind, SyncMethod, &str) -> E,
    ) {
        for (from, to) in self.pairs() {
            for kind in kinds(self.hub(), from, to) {
                for &sync in sync_methods(from, to) {
                    let detail = format!("{kind}, {sync} or lower");
                    let what = format!("{} -> {} {detail}", from.device, to.device);
                    self.on(&[from, to], detail, || check(from, to, kind, sync, &what));
                }
            }
        }
    }
}
