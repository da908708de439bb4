//! Thousands of hand-overs between two devices by each sync method that joins them, with every element checked.

use crate::{Ending, GROUP, Machine, Outcome, Side, Step, assert_same, step_model};
use onebuf::{Buffer, Grid, Result, RouteKind, SyncMethod, args};
use onebuf_hal::native::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CASE: &str = "sync::hand_overs";
const WORDS: usize = 4096;
/// Hand-overs between two checks. A step is invertible, so an error persists.
const CHECK: u32 = 100;
/// Hand-overs for one buffer.
const LIFE: u32 = 1000;
/// Hand-overs that show which methods join the two.
const PROBED: u32 = 6;

/// Hands buffers over at least `rounds` times between the two sides by each sync method: see [`hand_overs_by`].
pub fn hand_overs(machine: &Machine, sides: [&Side; 2], rounds: u32) -> Vec<Outcome> {
    SyncMethod::ALL.iter().map(|method| hand_overs_by(machine, sides, *method, rounds)).collect()
}

/// Hands buffers over at least `rounds` times between the two sides by one sync method, on memory of the first. The hub's
/// verdicts decide which routes and methods are used, as in a program. A method that never joins the two is skipped.
///
/// Work that has ended needs no wait, and in one direction another method may be the best one. So it takes more hand-overs, up
/// to two and a half times as many, and the detail of the outcome says how many were by the method. If they are fewer than
/// `rounds`, the check has not passed: it is skipped, or has failed if a lower method took this one's place.
pub fn hand_overs_by(
    machine: &Machine,
    sides: [&Side; 2],
    method: SyncMethod,
    rounds: u32,
) -> Outcome {
    let run = AssertUnwindSafe(|| by_method(machine, sides, method, rounds));
    let (by, ending) = catch_unwind(run)
        .unwrap_or_else(|panic| (String::new(), Ending::Failed(panic_text(&*panic).to_owned())));
    let devices = sides.map(|side| side.device.id().to_owned()).into();
    Outcome { case: CASE, devices, detail: format!("{method}{by}"), ending }
}

/// Returns the route as text, and how it ended.
fn by_method(
    machine: &Machine,
    sides: [&Side; 2],
    method: SyncMethod,
    rounds: u32,
) -> (String, Ending) {
    let mut turns = Turns { machine, sides, method, used: Used::default() };
    let probed = turns.live(0, PROBED, PROBED);
    let route = match probed {
        Ok(route) => route,
        Err(why) => return (String::new(), Ending::Failed(why)),
    };
    if turns.used.by(method) == 0 {
        let others = turns.used.others(method);
        return (told(route), Ending::not_applicable(format!("the two are joined by {others}")));
    }
    turns.used = Used::default();
    let most = rounds.saturating_mul(5) / 2;
    for first in (0..most).step_by(LIFE as usize) {
        let wanted = rounds.saturating_sub(turns.used.by(method));
        if wanted == 0 {
            break;
        }
        if let Err(why) = turns.live(first, LIFE.min(most - first), wanted) {
            return (told(route), Ending::Failed(why));
        }
    }
    let ending = turns.used.ending(method, rounds, route == Some(RouteKind::Staged));
    let (by, all) = (turns.used.by(method), turns.used.all());
    (format!("{}, {by} of {all} hand-overs", told(route)), ending)
}

fn told(route: Option<RouteKind>) -> String {
    route.map_or_else(String::new, |kind| format!(" over {kind}"))
}

/// How often each method joined the two, by the side that waited.
#[derive(Clone, Copy, Debug, Default)]
struct Used([[u32; SyncMethod::ALL.len()]; 2]);

impl Used {
    fn by(&self, method: SyncMethod) -> u32 {
        self.0.iter().map(|used| used[method as usize]).sum()
    }

    fn all(&self) -> u32 {
        self.0.iter().flatten().sum()
    }

    /// The methods that were used instead.
    fn others(&self, method: SyncMethod) -> String {
        let is_other = |other: &&SyncMethod| **other != method && self.by(**other) > 0;
        let others = SyncMethod::ALL.iter().filter(is_other);
        others.map(SyncMethod::to_string).collect::<Vec<_>>().join(" and ")
    }

    /// How often a lower method joined a side that this one joined, too. The policy chooses one method for each direction, so
    /// it replaced this one after a failed call.
    fn replaced(&self, method: SyncMethod) -> u32 {
        let joined = self.0.iter().filter(|used| used[method as usize] > 0);
        let lower = |used: &[u32; SyncMethod::ALL.len()]| used[method as usize + 1..].iter().sum();
        match method {
            // Nothing to wait for once does not mean nothing to wait for the next time.
            SyncMethod::SameQueue => 0,
            _ => joined.map(lower).map(|times: u32| times).sum(),
        }
    }

    /// The judgement. A hand-over by copies may wait for several pieces of work, by several methods, and counts the lowest.
    fn ending(&self, method: SyncMethod, rounds: u32, is_staged: bool) -> Ending {
        let (by, all, replaced) = (self.by(method), self.all(), self.replaced(method));
        let others = self.others(method);
        match (by >= rounds, is_staged || replaced == 0) {
            (true, _) => Ending::Passed,
            (false, true) => Ending::not_applicable(format!(
                "only {by} of {all} hand-overs were by {method}, of {rounds} wanted; the others by {others}"
            )),
            (false, false) => Ending::Failed(format!(
                "{method} joined {by} of {all} hand-overs, of {rounds} wanted, and a lower method took its place {replaced} times: {others}"
            )),
        }
    }
}

/// Two sides that take turns, and how often each method joined them.
struct Turns<'m> {
    machine: &'m Machine,
    sides: [&'m Side; 2],
    method: SyncMethod,
    used: Used,
}

impl Turns<'_> {
    /// Up to `steps` steps on a new buffer, until `wanted` hand-overs were by the method; returns the route.
    fn live(&mut self, first: u32, steps: u32, wanted: u32) -> Result<Option<RouteKind>, String> {
        let failed = |error: onebuf::Error| error.to_string();
        let buffer = self.buffer().map_err(failed)?;
        let goal = self.used.by(self.method).saturating_add(wanted);
        let (mut model, mut seen) = (vec![0; WORDS], vec![0; WORDS]);
        let last = first + steps;
        for n in first..last {
            self.step(&buffer, n, n > first).map_err(|e| format!("hand-over {n}: {e}"))?;
            step_model(&mut model, Step::nth(n));
            let is_last = n + 1 == last || self.used.by(self.method) >= goal;
            if n % CHECK == CHECK - 1 || is_last {
                buffer.read(&mut seen).map_err(|e| format!("after {n} hand-overs: {e}"))?;
                assert_same(&seen, &model, &format!("hand-over {n}, {}", buffer.explain()));
            }
            if is_last {
                break;
            }
        }
        Ok(self.route(&buffer))
    }

    fn buffer(&self) -> Result<Buffer<u32>> {
        let [from, to] = self.sides.map(|side| &side.device);
        let builder = self.machine.hub.buffer::<u32>(WORDS).shared_with([from, to]);
        builder.allocate_on(from).sync(self.method).build()
    }

    /// One step by the side whose turn it is; counts the method that joined it to the other one's last step.
    fn step(&mut self, buffer: &Buffer<u32>, n: u32, is_hand_over: bool) -> Result<()> {
        let at = n as usize % 2;
        let side = self.sides[at];
        let view = buffer.write_on(&side.queue)?;
        // After a check the host was the last user.
        if is_hand_over && !n.is_multiple_of(CHECK) {
            self.used.0[at][view.sync_method() as usize] += 1;
        }
        let step = Step::nth(n);
        let arguments = args![view, 0u32, WORDS as u32, step.mul, step.add];
        side.queue.launch(side.kernel(), Grid::from([WORDS]).local([GROUP]), arguments)
    }

    fn route(&self, buffer: &Buffer<u32>) -> Option<RouteKind> {
        let to = self.sides[1].device.index();
        buffer.plan().routes.iter().find(|hop| hop.to == to).map(|hop| hop.kind)
    }
}
