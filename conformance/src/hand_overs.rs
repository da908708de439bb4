//! Thousands of hand-overs between two devices by each sync method that joins them, with every element checked.

use crate::{Ending, GROUP, Machine, Outcome, Side, Step, assert_same, step_model};
use onebuf::{Buffer, Grid, Result, SyncMethod, args};
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

/// Hands buffers over at least `rounds` times between the two sides by each sync method, on memory of the first. The hub's verdicts
/// decide which routes and methods are used, as in a program. A method that never joins the two is skipped.
///
/// Work that has ended needs no wait, and in one direction another method may be the best one. So it takes up to twice as many
/// hand-overs, and the detail of the outcome says how many were by the method.
pub fn hand_overs(machine: &Machine, [from, to]: [&Side; 2], rounds: u32) -> Vec<Outcome> {
    let outcome = |method: &SyncMethod| {
        let run = AssertUnwindSafe(|| by_method(machine, [from, to], *method, rounds));
        let ended = catch_unwind(run).unwrap_or_else(|panic| {
            (String::new(), Ending::Failed(panic_text(&*panic).to_owned()))
        });
        let devices = [from, to].map(|side| side.device.id().to_owned()).into();
        let (by, ending) = ended;
        Outcome { case: CASE, devices, detail: format!("{method}{by}"), ending }
    };
    SyncMethod::ALL.iter().map(outcome).collect()
}

/// Returns the route as text, and how it ended.
fn by_method(
    machine: &Machine,
    sides: [&Side; 2],
    method: SyncMethod,
    rounds: u32,
) -> (String, Ending) {
    let mut turns = Turns { machine, sides, method, used: [0; SyncMethod::ALL.len()] };
    let probed = turns.live(0, PROBED, PROBED);
    let route = match probed {
        Ok(route) => route,
        Err(why) => return (String::new(), Ending::Failed(why)),
    };
    if turns.counted() == 0 {
        let others = turns.others();
        return (route, Ending::not_applicable(format!("the two are joined by {others}")));
    }
    turns.used = [0; SyncMethod::ALL.len()];
    let most = rounds.saturating_mul(2);
    for first in (0..most).step_by(LIFE as usize) {
        let wanted = rounds.saturating_sub(turns.counted());
        if wanted == 0 {
            break;
        }
        if let Err(why) = turns.live(first, LIFE.min(most - first), wanted) {
            return (route, Ending::Failed(why));
        }
    }
    let (counted, all) = (turns.counted(), turns.used.iter().sum::<u32>());
    (format!("{route}, {counted} of {all} hand-overs"), Ending::Passed)
}

/// Two sides that take turns, and how often each method joined them.
struct Turns<'m> {
    machine: &'m Machine,
    sides: [&'m Side; 2],
    method: SyncMethod,
    used: [u32; SyncMethod::ALL.len()],
}

impl Turns<'_> {
    fn counted(&self) -> u32 {
        self.used[self.method as usize]
    }

    /// The methods that were used instead.
    fn others(&self) -> String {
        let used = SyncMethod::ALL.iter().zip(self.used);
        let used = used.filter(|(method, times)| *times > 0 && **method != self.method);
        used.map(|(method, _)| method.to_string()).collect::<Vec<_>>().join(" and ")
    }

    /// Up to `steps` steps on a new buffer, until `wanted` hand-overs were by the method; returns the route as text.
    fn live(&mut self, first: u32, steps: u32, wanted: u32) -> Result<String, String> {
        let failed = |error: onebuf::Error| error.to_string();
        let buffer = self.buffer().map_err(failed)?;
        let goal = self.counted().saturating_add(wanted);
        let (mut model, mut seen) = (vec![0; WORDS], vec![0; WORDS]);
        let last = first + steps;
        for n in first..last {
            self.step(&buffer, n, n > first).map_err(|e| format!("hand-over {n}: {e}"))?;
            step_model(&mut model, Step::nth(n));
            let is_last = n + 1 == last || self.counted() >= goal;
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
        let side = self.sides[n as usize % 2];
        let view = buffer.write_on(&side.queue)?;
        // After a check the host was the last user.
        if is_hand_over && !n.is_multiple_of(CHECK) {
            self.used[view.sync_method() as usize] += 1;
        }
        let step = Step::nth(n);
        let arguments = args![view, 0u32, WORDS as u32, step.mul, step.add];
        side.queue.launch(side.kernel(), Grid::from([WORDS]).local([GROUP]), arguments)
    }

    fn route(&self, buffer: &Buffer<u32>) -> String {
        let to = self.sides[1].device.index();
        let hop = buffer.plan().routes.iter().find(|hop| hop.to == to);
        hop.map_or_else(String::new, |hop| format!(" over {}", hop.kind))
    }
}
