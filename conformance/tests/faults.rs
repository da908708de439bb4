//! Whichever driver call fails: no leak, no hang, no panic, no wrong data, and the hub still works.

use onebuf::{
    Buffer, Device, Error, Hub, Probe, Result,
    fake::{Delay, FakeConfig},
};
use onebuf_conformance::{Watchdog, absent, assert_settled, fakes, fresh, life, note, second_life};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Out of resources, out of host memory, allocation failure, invalid value, invalid queue.
const CODES: [i32; 5] = [-5, -6, -4, -30, -36];
const LIMIT: Duration = Duration::from_secs(240);

/// One test with real drivers at a time, because they are not thread-safe at start-up.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hub(probe: &Arc<Probe>, fakes: &[FakeConfig]) -> Hub {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .probe(probe.clone())
        .verdicts(Default::default());
    let builder = if fakes.is_empty() { builder } else { builder.without(["opencl"]) };
    let builder = builder.without(["cuda", "hip"]).timeout(Duration::from_secs(5));
    fakes.iter().cloned().fold(builder, |b, fake| b.fake(fake)).build().expect("the host")
}

/// Runs the scenarios. Each gets the objects that were created before the first call that may fail.
fn sweep(name: &str, fakes: &[FakeConfig], pick: impl Fn(&Hub) -> Result<Device>) {
    sweep_over(name, fakes, &pick, |_| None, |device, _| life(device));
    let name = format!("{name}, a second life");
    let make = |device: &Device| Some(fresh(device).expect("no call fails yet"));
    let live = |device: &Device, made: &Option<Buffer<u32>>| {
        made.as_ref().map_or(Ok(()), |buffer| second_life(device, buffer))
    };
    sweep_over(&name, fakes, &pick, make, live);
}

/// Makes each call of a scenario fail in turn, each in a new hub.
fn sweep_over(
    name: &str,
    fakes: &[FakeConfig],
    pick: &impl Fn(&Hub) -> Result<Device>,
    make: impl Fn(&Device) -> Option<Buffer<u32>>,
    life: impl Fn(&Device, &Option<Buffer<u32>>) -> Result<()>,
) {
    let start = Instant::now();
    let mut outcomes: BTreeMap<(&str, bool), u32> = BTreeMap::new();
    let mut slowest = (Duration::ZERO, "");
    let mut previous = "";
    let mut n = 0;
    let mut repeated = 0;
    loop {
        // A wait polls many times in a row; only some of these calls are tried.
        n += if repeated > 2 { 5 } else { 1 };
        let probe = Probe::new();
        let hub = hub(&probe, fakes);
        let device = pick(&hub).expect("discovery was not disturbed");
        let code = CODES[n as usize % CODES.len()];
        let made = make(&device);
        probe.fail_nth(n, code);
        let began = Instant::now();
        let outcome = life(&device, &made);
        let Some(call) = probe.failed() else {
            outcome.unwrap_or_else(|e| panic!("{name}: nothing failed, yet {e}"));
            let swept: u32 = outcomes.values().sum();
            let took = start.elapsed();
            note(&format!("{name}: {swept} of {n} calls swept in {took:?}, slowest {slowest:?}"));
            let coped = outcomes.keys().filter(|(_, coped)| *coped).map(|(call, _)| *call);
            note(&format!("{name}: coped with {}", coped.collect::<Vec<_>>().join(", ")));
            assert!(swept >= 100, "{name}: {swept} calls are no life");
            break;
        };
        let what = format!("{name}: call {n}, {call}, failed with {code}: {outcome:?}");
        slowest = slowest.max((began.elapsed(), call));
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        *outcomes.entry((call, outcome.is_ok())).or_default() += 1;
        repeated = if std::mem::replace(&mut previous, call) == call { repeated + 1 } else { 0 };
        if repeated == 0 {
            live_again(|| life(&device, &made), made.is_some(), &what);
        }
        drop((made, device, hub));
        assert_settled(&probe, &what);
    }
}

/// Runs the scenario again on the same hub. The next use of a buffer reports failed work, once.
fn live_again(life: impl Fn() -> Result<()>, has_buffer: bool, what: &str) {
    if let Err(first) = life() {
        assert!(has_buffer, "{what}; then the hub does not work: {first}");
        life().unwrap_or_else(|e| panic!("{what}; then {first}; then it does not work: {e}"));
    }
}

#[test]
fn a_fake_device_whose_calls_fail() {
    let _watchdog = Watchdog::new("the sweep over fake devices", LIMIT);
    for mut fake in fakes() {
        let name = fake.name.clone();
        fake.delay = Delay::Random { seed: 3, max: Duration::from_micros(50) };
        sweep(&name, &[fake], |hub| hub.device("fake:0"));
    }
}

#[test]
fn pocl_whose_calls_fail() {
    let _watchdog = Watchdog::new("the sweep over PoCL", LIMIT);
    let _alone = alone();
    let pick = |hub: &Hub| hub.device("Portable Computing Language");
    match pick(&hub(&Probe::new(), &[])) {
        Ok(_) => sweep("PoCL", &[], pick),
        Err(_) => absent("PoCL", "not found"),
    }
}

#[test]
fn discovery_whose_calls_fail() {
    let _watchdog = Watchdog::new("the sweep over discovery", LIMIT);
    let _alone = alone();
    let all = hub(&Probe::new(), &[]).devices().len();
    let mut swept = 0;
    for n in 1.. {
        let probe = Probe::new();
        probe.fail_nth(n, CODES[n as usize % CODES.len()]);
        let hub = hub(&probe, &[]);
        let Some(call) = probe.failed() else { break };
        swept = n;
        // Devices that cannot be queried are omitted and named; the others are available.
        let lost = all - hub.devices().len();
        let told = hub.notes().len() + hub.unavailable().len();
        assert!(lost == 0 || told > 0, "call {n}, {call}: {lost} devices lost without a word");
        life(&hub.host()).unwrap_or_else(|e| panic!("call {n}, {call}: {e}"));
        drop(hub);
        assert_settled(&probe, call);
    }
    note(&format!("discovery: {swept} calls swept"));
}
