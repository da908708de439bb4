//! Explores every state that a buffer of up to four devices can reach, with every request and a failure of every step.
//!
//! The steps that [`transition`](super::transition) decides are performed on a [model](world) of memory and queues, which
//! tracks what every byte holds and which work is ordered before which. After each request, failed or not, the state must be
//! true. A queue that takes the buffer must see the newest contents, exclude others if it writes, and be ordered after all
//! conflicting work.

mod layout;
mod simulation;
mod world;

use super::{
    super::{guard_entries::GuardEntry, span::Span},
    Acquire, On, OrderAfter, Rules, Step, Steps, transition,
};
use layout::{Kind, Layout};
use onebuf_hal::AccessState::Acquired;
use simulation::{Error, Fault, FaultAt, Request, Simulation, Spoil};
use std::{collections::HashSet, fmt::Write as _, io::Write as _};
use world::World;

const ANY: Rules = Rules { forbids_copies: false, keeps_routes: false, is_foreign: false };
const KEPT: Rules = Rules { keeps_routes: true, ..ANY };
const FORBID: Rules = Rules { forbids_copies: true, ..ANY };
const FOREIGN: Rules = Rules { is_foreign: true, ..ANY };

/// Checks where the contents are, and which alias may use them.
const CONTENTS: Layout = Layout {
    kinds: &[],
    on_host: false,
    rules: ANY,
    halves: false,
    orders: false,
    faults: 1,
    follows: true,
};
/// Also checks which work is ordered before which. This has many more states.
const ORDERS: Layout = Layout { orders: true, ..CONTENTS };

const VIEW: Kind = Kind::Host { copies: true };
const LOOK: Kind = Kind::Host { copies: false };
const ADDRESS: Kind = Kind::InPlace { transfers: false };
const DESCRIPTOR: Kind = Kind::InPlace { transfers: true };

use Kind::{Direct, Import, Managed, Mapped, Plain, Sibling, Staged};

/// The ways in which up to four devices share memory.
fn layouts() -> Vec<Layout> {
    // What follows a failure with four devices takes long: the ignored test below explores it.
    let four = Layout { follows: false, ..CONTENTS };
    vec![
        Layout { kinds: &[Plain, Import], on_host: true, ..ORDERS },
        Layout { kinds: &[Mapped, VIEW], ..ORDERS },
        Layout { kinds: &[Plain, Staged], ..ORDERS },
        Layout { kinds: &[Managed, LOOK], ..ORDERS },
        Layout { kinds: &[Mapped, Import], faults: 0, ..ORDERS },
        Layout { kinds: &[Plain, Staged, LOOK], faults: 0, ..ORDERS },
        Layout { kinds: &[Mapped, Direct, VIEW], faults: 0, ..ORDERS },
        Layout { kinds: &[Mapped, ADDRESS, VIEW], faults: 0, ..ORDERS },
        Layout { kinds: &[Mapped, Sibling, VIEW], faults: 0, ..ORDERS },
        Layout { kinds: &[Mapped, Import], faults: 2, ..CONTENTS },
        Layout { kinds: &[Plain, Staged, LOOK], faults: 2, ..CONTENTS },
        Layout { kinds: &[Mapped, VIEW], halves: true, ..CONTENTS },
        Layout { kinds: &[Managed, LOOK, Staged], halves: true, ..CONTENTS },
        Layout { kinds: &[Managed, LOOK], halves: true, rules: FORBID, ..CONTENTS },
        Layout { kinds: &[Mapped, Import, LOOK], rules: KEPT, ..CONTENTS },
        Layout { kinds: &[Mapped, Import, LOOK], rules: FORBID, ..CONTENTS },
        Layout { kinds: &[Mapped, ADDRESS, VIEW], ..CONTENTS },
        Layout { kinds: &[Mapped, Sibling, Import, VIEW], rules: FOREIGN, ..four },
        Layout { kinds: &[Plain, Staged, Staged, LOOK], ..CONTENTS },
        Layout { kinds: &[Plain, Import, Import, Staged], on_host: true, ..four },
        Layout { kinds: &[Mapped, Import, Direct, VIEW], ..four },
        Layout { kinds: &[Mapped, DESCRIPTOR, Import, LOOK], ..four },
        Layout { kinds: &[Mapped, DESCRIPTOR, Staged, VIEW], ..four },
    ]
}

/// The number of states, requests and failures that were visited.
#[derive(Debug, Default)]
struct Visited {
    states: usize,
    requests: usize,
    failures: usize,
}

/// Visits every reachable state. Stops at the first violation, and returns the requests that led to it.
fn explore(layout: &Layout, spoil: Option<Spoil>) -> Result<Visited, String> {
    let first = World::new(layout).normalised(layout);
    let mut known = HashSet::from([first.clone()]);
    // Each state with what led to it: the index of the state before, and what happened there.
    let mut open = vec![(first, None)];
    let mut visited = Visited::default();
    while let Some((world, _)) = open.get(visited.states).cloned() {
        for request in requests(layout, &world) {
            let mut faults_left = vec![Vec::new()];
            while let Some(faults) = faults_left.pop() {
                let mut simulation = Simulation::new(world.clone(), layout, &faults);
                simulation.spoil = spoil;
                let done = simulation.request(request);
                let happened = Happened { before: visited.states, request, faults: faults.clone() };
                if let Err(Error::Wrong(what)) = done {
                    return Err(tell(layout, &open, happened, &what));
                }
                match faults.is_empty() {
                    true => visited.requests += 1,
                    false => visited.failures += 1,
                }
                faults_left.extend(next_faults(layout, &faults, &simulation.halves));
                let after = simulation.world.normalised(layout);
                if !faults.is_empty() && !layout.follows {
                    let wrong = first_wrong(layout, &after, spoil);
                    wrong.map_err(|what| tell(layout, &open, happened, &what))?;
                } else if !known.contains(&after) {
                    known.insert(after.clone());
                    open.push((after, Some(happened)));
                }
            }
        }
        visited.states += 1;
    }
    Ok(visited)
}

/// Makes every request once, and returns the first violation.
fn first_wrong(layout: &Layout, world: &World, spoil: Option<Spoil>) -> Result<(), String> {
    for request in requests(layout, world) {
        let mut simulation = Simulation::new(world.clone(), layout, &[]);
        simulation.spoil = spoil;
        if let Err(Error::Wrong(what)) = simulation.request(request) {
            return Err(format!("{what} after {request:?}, after"));
        }
    }
    Ok(())
}

/// What led from one state to another.
#[derive(Clone, Debug)]
struct Happened {
    before: usize,
    request: Request,
    faults: Vec<FaultAt>,
}

/// All requests that can be made in a state.
fn requests(layout: &Layout, world: &World) -> Vec<Request> {
    let mut all: Vec<Request> = (0..world.held.len()).map(Request::Drop).collect();
    let spans: &[Span] = match layout.halves {
        true => &[Span { start: 0, end: 2 }, Span { start: 0, end: 1 }, Span { start: 1, end: 2 }],
        false => &[Span { start: 0, end: 2 }],
    };
    for alias in 0..layout.kinds.len() {
        for write in [false, true] {
            all.push(Request::ReleaseTo { alias, write });
            if world.held.is_empty() {
                let entries = spans.iter().map(|&span| GuardEntry { span, alias, write });
                all.extend(entries.map(Request::Take));
            }
        }
        if world.held.is_empty() {
            all.extend([false, true].map(|finished| Request::Overwrite { alias, finished }));
        }
    }
    all
}

/// Extends a list of failures by one: of each step after the last that failed.
fn next_faults(layout: &Layout, faults: &[FaultAt], halves: &[bool]) -> Vec<Vec<FaultAt>> {
    let from = faults.last().map_or(0, |(at, _)| at + 1);
    let mut all = Vec::new();
    if faults.len() >= layout.faults {
        return all;
    }
    for (at, half) in halves.iter().enumerate().skip(from) {
        let kinds: &[Fault] =
            if *half { &[Fault::Refused, Fault::HalfWay] } else { &[Fault::Refused] };
        all.extend(kinds.iter().map(|&fault| [faults, &[(at, fault)]].concat()));
    }
    all
}

/// Describes the shortest path to a violation.
fn tell(layout: &Layout, open: &[(World, Option<Happened>)], last: Happened, what: &str) -> String {
    let mut way = vec![last];
    while let Some(before) = open[way[way.len() - 1].before].1.clone() {
        way.push(before);
    }
    let mut text = format!("{what}, on {:?} ({:?}):\n", layout.kinds, layout.rules);
    for Happened { before, request, faults } in way.iter().rev() {
        let _ = writeln!(text, "  {}", open[*before].0.brief());
        let _ = writeln!(text, "{request:?}, failing {faults:?}");
    }
    text
}

/// The least that the checks must visit: a broken model that reaches few states would find no violation.
const LEAST: Visited = Visited { states: 12_000, requests: 120_000, failures: 110_000 };

/// Prints to stderr directly, because the test harness captures the output of passing tests.
fn report(what: &str) {
    let _ = writeln!(std::io::stderr(), "hand-over: {what}");
}

#[test]
fn every_state_is_true_and_every_reader_sees_the_newest() {
    let mut all = Visited::default();
    for layout in layouts() {
        let visited = explore(&layout, None).unwrap_or_else(|wrong| panic!("{wrong}"));
        all.states += visited.states;
        all.requests += visited.requests;
        all.failures += visited.failures;
    }
    let Visited { states, requests, failures } = all;
    report(&format!("{states} states, {requests} requests, {failures} failure points"));
    assert!(states >= LEAST.states && requests >= LEAST.requests && failures >= LEAST.failures);
}

/// Explores four devices with any number of failures.
#[test]
#[ignore = "minutes in an optimised build, and many more in others"]
fn four_devices_with_failures_without_end() {
    let all: [&'static [Kind]; 4] = [
        &[Mapped, DESCRIPTOR, Import, LOOK],
        &[Mapped, ADDRESS, Staged, VIEW],
        &[Mapped, Import, Direct, VIEW],
        &[Plain, Import, Import, Staged],
    ];
    for kinds in all {
        let on_host = kinds[0] == Plain;
        let layout = Layout { kinds, on_host, ..CONTENTS };
        let visited = explore(&layout, None).unwrap_or_else(|wrong| panic!("{wrong}"));
        report(&format!("{kinds:?}: {visited:?}"));
    }
}

/// The checks detect steps that are wrong.
#[test]
fn steps_that_are_spoilt_are_noticed() {
    let spoilt: [(&str, Spoil); 4] = [
        ("a missing release", |steps| {
            let releases = |step: &Step| matches!(step, Step::Change { to, .. } if *to != Acquired);
            steps.iter().filter(|step| !releases(step)).copied().collect()
        }),
        ("a change before its order", |steps| {
            let mut all: Vec<Step> = steps.iter().copied().collect();
            let changes = |step: &Step| matches!(step, Step::Change { .. });
            for at in 1..all.len() {
                if changes(&all[at]) {
                    all.swap(at - 1, at);
                }
            }
            all.into_iter().collect()
        }),
        ("a missing order", |steps| {
            let orders = |step: &Step| matches!(step, Step::Order(order) if order.reported);
            steps.iter().filter(|step| !orders(step)).copied().collect()
        }),
        ("an order that forgets the reads", |steps| {
            let hasty = |step: &Step| match *step {
                Step::Order(order) => Step::Order(OrderAfter { write: false, ..order }),
                step => step,
            };
            steps.iter().map(hasty).collect()
        }),
    ];
    for (what, spoil) in spoilt {
        let noticed =
            [&[Plain, Import] as &[Kind], &[Mapped, VIEW], &[Mapped, Import]].map(|kinds| {
                let on_host = kinds[0] == Plain;
                explore(&Layout { kinds, on_host, faults: 0, ..ORDERS }, Some(spoil)).is_err()
            });
        assert!(noticed.contains(&true), "{what}");
    }
}

/// All work except launches is on an in-order queue, and launches wait for it.
#[test]
fn out_of_order_queues_only_launch() {
    let layout = Layout { kinds: &[Mapped, Import, LOOK, Staged], ..CONTENTS };
    let (mut plans, mut open) = (0, vec![World::new(&layout).normalised(&layout)]);
    let mut known: HashSet<World> = open.iter().cloned().collect();
    while let Some(world) = open.pop() {
        for request in requests(&layout, &world) {
            if let Request::Take(entry) = request {
                let without = Default::default();
                let acquire = Acquire { entry, keep: true, in_order: false, without };
                let mut steps = Steps::default();
                if transition(&world.buffer, &acquire, &mut steps).is_ok() {
                    check_launches_only(&steps);
                    plans += 1;
                }
            }
            let mut simulation = Simulation::new(world.clone(), &layout, &[]);
            assert!(!matches!(simulation.request(request), Err(Error::Wrong(_))));
            let after = simulation.world.normalised(&layout);
            if known.insert(after.clone()) {
                open.push(after);
            }
        }
    }
    assert!(plans > 500, "{plans} plans");
}

fn check_launches_only(steps: &Steps) {
    let of_taker = |step: &Step| match *step {
        Step::Order(order) => order.on == On::Taker,
        Step::Change { on, .. } | Step::MovePages { on, .. } | Step::Copy { on, .. } => {
            assert_ne!(on, On::Taker, "{step:?}");
            false
        }
        _ => false,
    };
    let all: Vec<&Step> = steps.iter().collect();
    let at: Vec<usize> = (0..all.len()).filter(|&at| of_taker(all[at])).collect();
    let [last] = at[..] else { panic!("{steps:?}") };
    let calls = |step: &&Step| !matches!(step, Step::Look { .. } | Step::Written { .. });
    assert!(!all[last + 1..].iter().any(calls), "{steps:?}");
}
