//! Thousands of hand-overs between all pairs, with every element checked, and the process's resources compared before and
//! after. `ONEBUF_SOAK` sets the number of hand-overs for each ordered pair of real devices.

use onebuf::{Buffer, RouteKind, SyncMethod};
use onebuf_conformance::{
    Machine, Resources, Side, Step, assert_same, kinds, life, machine, note, pairs, shared,
    step_model,
};
use std::time::{Duration, Instant};

const WORDS: usize = (64 << 10) / 4;
/// Hand-overs between two checks. A step is invertible, so an error persists.
const CHECK: u32 = 100;
/// Hand-overs for one buffer.
const LIFE: u32 = 1000;
/// Enough for a pair with a fake device: its delays are artificial, and shuttle tests its schedules.
const FAKE_ROUNDS: u32 = 2000;

fn rounds() -> u32 {
    let wanted = std::env::var("ONEBUF_SOAK").ok();
    wanted.map_or(200, |text| text.parse().expect("ONEBUF_SOAK is a number"))
}

/// A buffer by the best route of the pair, with host waits, which all drivers support.
fn buffer(machine: &Machine, from: &Side, to: &Side) -> Buffer<u32> {
    let mut kinds = kinds(&machine.hub, from, to).into_iter();
    let built = kinds.find_map(|kind| shared(from, to, kind, SyncMethod::HostWait, WORDS));
    built
        .or_else(|| shared(from, to, RouteKind::Staged, SyncMethod::HostWait, WORDS))
        .expect("a route")
}

fn hand_over(machine: &Machine, from: &Side, to: &Side, rounds: u32) {
    let mut seen = vec![0; WORDS];
    for life in (0..rounds).step_by(LIFE as usize) {
        let buffer = buffer(machine, from, to);
        let mut model = vec![0; WORDS];
        for n in life..rounds.min(life + LIFE) {
            let side = if n % 2 == 0 { from } else { to };
            side.step(&buffer, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
            if n % CHECK == CHECK - 1 || n + 1 == rounds {
                buffer.read(&mut seen).unwrap();
                assert_same(&seen, &model, &format!("round {n}, {}", buffer.explain()));
            }
        }
    }
}

#[test]
fn nothing_wears_out() {
    let machine = machine();
    let rounds = rounds();
    let all: Vec<_> = pairs(&machine.sides).collect();
    let warm_up = || {
        for (from, to) in &all {
            hand_over(&machine, from, to, 20);
        }
        machine.sides.iter().for_each(|side| life(&side.device).unwrap());
    };
    warm_up();
    let before = Resources::now();
    let (mut told, mut done) = (Instant::now(), 0);
    for (number, (from, to)) in all.iter().enumerate() {
        let fake = [from, to].iter().any(|side| side.device.info().api.0 == "fake");
        let rounds = if fake { rounds.min(FAKE_ROUNDS) } else { rounds };
        hand_over(&machine, from, to, rounds);
        done += u64::from(rounds);
        if told.elapsed() > Duration::from_secs(5) || number + 1 == all.len() {
            told = Instant::now();
            note(&format!("{} of {} pairs, {done} hand-overs", number + 1, all.len()));
        }
    }
    warm_up();
    let after = Resources::now();
    note(&format!("before: {before}; after: {after}"));
    after.assert_not_above(before);
}
