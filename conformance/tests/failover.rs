//! A route fails while the program runs: the next route replaces it behind the same handle, the data is kept, and the
//! failure is reported. Under `Forbid` it is an error, and the data is kept too.

use onebuf::{
    Buffer, CopyPolicy, Device, Error, Hub, MemoryKind, Probe, Result, RouteKind, bridge,
    doctor::Verdicts,
    fake::{Delay, FakeConfig, Sharing},
};
use onebuf_conformance::{
    Side, Step, Watchdog, absent, assert_same, assert_settled, note, random_words, step_model,
};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const N: usize = 3 * 1024 + 7;
const CODES: [i32; 4] = [-5, -6, -4, -36];
const LIMIT: Duration = Duration::from_secs(240);

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fake(name: &str) -> FakeConfig {
    let delay = Delay::Random { seed: 5, max: Duration::from_micros(50) };
    FakeConfig { name: name.into(), delay, ..FakeConfig::default() }
}

/// A hub whose driver calls pass the probe: two fake devices, or the real ones and a fake.
fn hub(probe: &Arc<Probe>, real: bool) -> Hub {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Verdicts::default())
        .timeout(Duration::from_secs(10));
    let builder = builder.probe(probe.clone());
    let builder = if real { builder } else { builder.without(["opencl"]).fake(fake("one")) };
    builder.fake(fake("two")).build().expect("the host")
}

/// The devices that share the buffer; the first is the home.
fn devices(hub: &Hub, real: bool) -> Option<[Device; 2]> {
    let first = if real { hub.device("Portable Computing Language") } else { hub.device("fake:0") };
    let second = hub.device(if real { "fake:0" } else { "fake:1" }).expect("a fake");
    first.ok().map(|first| [first, second])
}

/// A way to share: the home's memory kind, and whether the host is the home.
#[derive(Clone, Copy, Debug)]
struct Way {
    memory_kind: MemoryKind,
    on_host: bool,
}

const PAGES: Way = Way { memory_kind: MemoryKind::HostPages, on_host: true };

/// PoCL has fine-grained SVM, the fakes coarse-grained.
fn ways(real: bool) -> [Way; 3] {
    let svm = if real { MemoryKind::FineSvm } else { MemoryKind::CoarseSvm };
    let device = |memory_kind| Way { memory_kind, on_host: false };
    [PAGES, device(MemoryKind::MappedDevice), device(svm)]
}

/// The calls that change access states.
const CHANGES: [&str; 5] = [
    "clEnqueueMapBuffer",
    "clEnqueueUnmapMemObject",
    "clEnqueueSVMMap",
    "clEnqueueSVMUnmap",
    "fake_reside",
];

fn build(hub: &Hub, devices: &[Device; 2], way: Way, policy: CopyPolicy) -> Result<Buffer<u32>> {
    let home = if way.on_host { hub.host() } else { devices[0].clone() };
    let builder =
        hub.buffer::<u32>(N).shared_with(devices).allocate_on(&home).memory_kind(way.memory_kind);
    builder.trust_declared(true).copies(policy).build()
}

/// Every side takes turns. `model` holds the contents after the last turn that succeeded.
fn turns(sides: &[Side; 2], buffer: &Buffer<u32>, model: &mut [u32]) -> Result<()> {
    for round in 0..2 {
        for (at, side) in (2 * round..).zip(sides) {
            side.step(buffer, Step::nth(at))?;
            step_model(model, Step::nth(at));
            let seen = buffer.map()?;
            assert_same(&seen, model, "the host's view");
            drop(seen);
            let mut map = buffer.map_mut()?;
            map[at as usize] ^= 0xffff;
            model[at as usize] ^= 0xffff;
            map.unmap()?;
        }
    }
    assert_same(&buffer.to_vec()?, model, "in the end");
    Ok(())
}

/// Which calls fail.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Nth(u64),
    Always(&'static str),
}

/// Numbers of the calls to fail, until several in a row did not occur; the number of polls in a wait varies. Beyond the
/// first 50 only every third call is tried, because most are polls; all of them with `ONEBUF_SOAK`.
fn faults() -> impl Iterator<Item = Number> {
    let (misses, all) = (Rc::new(Cell::new(0)), std::env::var_os("ONEBUF_SOAK").is_some());
    let numbers = (1u64..).filter(move |n| all || *n <= 50 || n.is_multiple_of(3));
    numbers.map_while(move |at| (misses.get() < 4).then(|| Number { at, misses: misses.clone() }))
}

struct Number {
    at: u64,
    misses: Rc<Cell<u32>>,
}

impl Number {
    fn get(&self) -> u64 {
        self.at
    }

    fn missed(&self) {
        self.misses.set(self.misses.get() + 1);
    }
}

/// The result of one fault: the call that failed, and whether the turns continued.
struct Outcome {
    call: &'static str,
    coped: bool,
    implied: u64,
}

/// Uses one buffer with one fault; `None` if there was no call left to fail.
fn attempt(real: bool, way: Way, policy: CopyPolicy, fault: Fault) -> Option<Outcome> {
    let what = format!("{way:?}, {policy}, {fault:?}");
    let probe = Probe::new();
    let hub = hub(&probe, real);
    let devices = devices(&hub, real)?;
    let sides = devices.clone().map(|device| Side::open(&device).unwrap());
    let buffer = build(&hub, &devices, way, policy).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut model = random_words(1, N);
    buffer.write(&model).unwrap();
    let implied = hub.ledger().implied_bytes();
    match fault {
        Fault::Nth(n) => probe.fail_nth(n, CODES[n as usize % CODES.len()]),
        Fault::Always(call) => probe.fail_always(call, -5),
    }
    let outcome = turns(&sides, &buffer, &mut model);
    let failed = probe.failed();
    probe.reset();
    let implied = hub.ledger().implied_bytes() - implied;
    let Some(call) = failed else {
        outcome.unwrap_or_else(|e| panic!("{what}: nothing failed, yet {e}"));
        return None;
    };
    let what = format!("{what}: {call} failed, {outcome:?}");
    assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
    let coped = outcome.is_ok();
    if !coped {
        recover(&buffer, &model, &what);
        let mut model = random_words(2, N);
        buffer.write(&model).unwrap_or_else(|e| panic!("{what}; then {e}"));
        turns(&sides, &buffer, &mut model).unwrap_or_else(|e| panic!("{what}; then {e}"));
    }
    told(&buffer, policy, &what);
    drop((buffer, sides, devices, hub));
    assert_settled(&probe, &what);
    Some(Outcome { call, coped, implied })
}

/// After an error the contents are those of the last successful turn, or of a turn that failed after its work was done.
/// A pending error is reported first, once.
fn recover(buffer: &Buffer<u32>, model: &[u32], what: &str) {
    let now = buffer.to_vec().or_else(|_| buffer.to_vec());
    let now = now.unwrap_or_else(|e| panic!("{what}; then nothing can be read: {e}"));
    let differs = now.iter().zip(model).filter(|(a, b)| a != b).count();
    let one_word = differs <= 1;
    let stepped = (0..4).any(|n| {
        let mut next = model.to_vec();
        step_model(&mut next, Step::nth(n));
        now == next
    });
    assert!(one_word || stepped, "{what}: {differs} of {} words are not intact", model.len());
}

/// `explain` names a failed route; under `Forbid` there is none.
fn told(buffer: &Buffer<u32>, policy: CopyPolicy, what: &str) {
    let fallen = buffer.explain().contains("staged copies instead");
    assert!(!(fallen && policy == CopyPolicy::Forbid), "{what}: {}", buffer.explain());
}

fn sweep(real: bool, name: &str) {
    let (mut coped, mut not) = (BTreeSet::new(), BTreeMap::<&str, u32>::new());
    for way in ways(real) {
        for policy in [CopyPolicy::Allow, CopyPolicy::Forbid] {
            let mut calls = BTreeSet::new();
            for n in faults() {
                let Some(outcome) = attempt(real, way, policy, Fault::Nth(n.get())) else {
                    n.missed();
                    continue;
                };
                let must_cope = policy == CopyPolicy::Allow && CHANGES.contains(&outcome.call);
                assert!(
                    outcome.coped || !must_cope,
                    "{way:?}: {} was not coped with",
                    outcome.call
                );
                calls.insert(outcome.call);
                match outcome.coped {
                    true => drop(coped.insert(outcome.call)),
                    false => *not.entry(outcome.call).or_default() += 1,
                }
            }
            assert!(calls.len() > 3, "{name} {way:?}: only {calls:?} failed");
            for call in calls {
                attempt(real, way, policy, Fault::Always(call));
            }
        }
    }
    note(&format!("{name}: coped with {coped:?}, told of {not:?}"));
}

#[test]
fn fake_devices_whose_calls_fail_between_turns() {
    let _watchdog = Watchdog::new("fail-over between fakes", LIMIT);
    sweep(false, "fakes");
}

#[test]
fn pocl_whose_calls_fail_between_turns() {
    let _watchdog = Watchdog::new("fail-over with PoCL", LIMIT);
    let _alone = alone();
    match devices(&hub(&Probe::new(), true), true) {
        Some(_) => sweep(true, "PoCL"),
        None => absent("PoCL", "not found"),
    }
}

/// With copies allowed, a failed change of the access state, once or permanent, is never an error.
fn always_goes_on(real: bool) {
    for way in ways(real) {
        for call in CHANGES {
            if let Some(outcome) = attempt(real, way, CopyPolicy::Allow, Fault::Always(call)) {
                assert!(outcome.coped, "{way:?}: {call} was not coped with");
                assert!(outcome.implied > 0, "{way:?}: {call}: nothing was counted");
            }
        }
    }
}

#[test]
fn maps_that_fail_for_good_become_staged_copies() {
    let _watchdog = Watchdog::new("maps that fail", LIMIT);
    always_goes_on(false);
    let _alone = alone();
    match devices(&hub(&Probe::new(), true), true) {
        Some(_) => always_goes_on(true),
        None => absent("PoCL", "not found"),
    }
}

/// Two fakes on host pages, of which one cannot import.
fn import_fails(policy: CopyPolicy) -> (Hub, Arc<Probe>, Result<Buffer<u32>>) {
    let probe = Probe::new();
    let hub = hub(&probe, false);
    let devices = devices(&hub, false).unwrap();
    probe.fail_always("fake_import", -5);
    let built = build(&hub, &devices, PAGES, policy);
    probe.reset();
    (hub, probe, built)
}

#[test]
fn an_import_that_fails_becomes_a_staged_copy_when_building() {
    let (hub, _, built) = import_fails(CopyPolicy::Allow);
    let buffer = built.unwrap();
    let text = buffer.explain();
    assert!(text.contains("host_pointer failed") && text.contains("fake_import"), "{text}");
    let sides = devices(&hub, false).unwrap().map(|device| Side::open(&device).unwrap());
    let mut model = random_words(3, N);
    buffer.write(&model).unwrap();
    turns(&sides, &buffer, &mut model).unwrap();
    assert!(hub.ledger().implied_bytes() > 0);
    let (_, _, refused) = import_fails(CopyPolicy::Forbid);
    let refused = refused.unwrap_err();
    assert!(matches!(&refused, Error::CopyForbidden { why, .. } if why.contains("fake_import")));
}

#[test]
fn an_allocation_that_fails_is_made_elsewhere_or_otherwise() {
    let probe = Probe::new();
    let hub = hub(&probe, false);
    let device = hub.device("fake:0").unwrap();
    let builder = || hub.buffer::<u32>(N).shared_with([&device]);
    probe.fail_nth(1, -4);
    let buffer = builder().build().unwrap();
    assert_eq!(probe.failed(), Some("fake_allocate"));
    assert!(buffer.explain().contains("fake_allocate"), "{}", buffer.explain());
    buffer.write(&random_words(1, N)).unwrap();
    assert_same(&buffer.to_vec().unwrap(), &random_words(1, N), "elsewhere");
    // An explicit request is not replaced.
    probe.fail_always("fake_allocate", -4);
    let ordered = builder().allocate_on(&device).memory_kind(MemoryKind::Device).build();
    assert!(
        matches!(ordered, Err(Error::Driver { .. } | Error::OutOfMemory { .. })),
        "{ordered:?}"
    );
}

#[test]
fn a_route_that_was_ordered_is_not_replaced() {
    let probe = Probe::new();
    let hub = hub(&probe, false);
    let [first, second] = devices(&hub, false).unwrap();
    let builder = hub.buffer::<u32>(N).shared_with([&first, &second]).allocate_on(&first);
    let buffer = builder.route(RouteKind::HostPointer).trust_declared(true).build().unwrap();
    let side = Side::open(&second).unwrap();
    buffer.fill(1).unwrap();
    probe.fail_always("fake_reside", -5);
    assert!(matches!(side.step(&buffer, Step::nth(1)), Err(Error::Driver { .. })));
    probe.reset();
    assert_eq!(buffer.to_vec().unwrap(), [1; N]);
    side.step(&buffer, Step::nth(1)).unwrap();
}

/// Fails each call of a bridge copy, once and permanently: the bytes arrive, or the source is unchanged.
fn bridge_sweep(make: impl Fn(&Hub) -> Option<[Buffer<u32>; 2]>, real: bool, name: &str) {
    let mut swept = BTreeSet::new();
    let source = random_words(1, N);
    let mut attempt = |fault: Fault| -> Option<&'static str> {
        let probe = Probe::new();
        let hub = hub(&probe, real);
        let [from, to] = make(&hub)?;
        from.write(&source).unwrap();
        to.fill(7).unwrap();
        match fault {
            Fault::Nth(n) => probe.fail_nth(n, CODES[n as usize % CODES.len()]),
            Fault::Always(call) => probe.fail_always(call, -5),
        }
        let now = bridge::copy(&from, 5..N, &to, 1);
        let later = bridge::copy_async(&from, 5..N, &to, 1).and_then(|(_, f)| f.wait_default());
        let failed = probe.failed();
        probe.reset();
        let call = failed?;
        swept.insert(call);
        let what = format!("{name}, {fault:?}: {call} failed, {now:?}, {later:?}");
        let both = now.is_ok() || later.is_ok();
        assert!(!matches!(fault, Fault::Nth(_)) || both, "{what}: one fault, two errors");
        assert_same(&from.to_vec().or_else(|_| from.to_vec()).unwrap(), &source, &what);
        // A pending error is reported first.
        let seen = to.to_vec().or_else(|_| to.to_vec()).unwrap();
        let mut model = vec![7; N];
        assert_eq!(seen[0], 7, "{what}");
        model[1..N - 4].copy_from_slice(&source[5..]);
        if now.is_ok() || later.is_ok() {
            assert_same(&seen, &model, &what);
        }
        bridge::copy(&from, 5..N, &to, 1).unwrap_or_else(|e| panic!("{what}; then {e}"));
        assert_same(&to.to_vec().unwrap(), &model, &what);
        drop((from, to, hub));
        assert_settled(&probe, &what);
        Some(call)
    };
    let mut calls = BTreeSet::new();
    for n in faults() {
        match attempt(Fault::Nth(n.get())) {
            Some(call) => drop(calls.insert(call)),
            None => n.missed(),
        }
    }
    for call in &calls {
        attempt(Fault::Always(call));
    }
    assert!(calls.len() > 2, "{name}: only {calls:?}");
    note(&format!("{name}: {swept:?} swept"));
}

fn on(hub: &Hub, device: &Device, memory_kind: MemoryKind) -> Buffer<u32> {
    let builder = hub.buffer::<u32>(N).shared_with([device]).allocate_on(device);
    builder.memory_kind(memory_kind).build().unwrap()
}

#[test]
fn bridges_whose_calls_fail() {
    let _watchdog = Watchdog::new("bridges whose calls fail", LIMIT);
    let _alone = alone();
    for real in [false, true] {
        if devices(&hub(&Probe::new(), real), real).is_none() {
            absent("PoCL", "not found");
            continue;
        }
        for memory_kind in [MemoryKind::Device, MemoryKind::MappedDevice] {
            let apart =
                |hub: &Hub| devices(hub, real).map(|two| two.map(|d| on(hub, &d, memory_kind)));
            bridge_sweep(apart, real, "two devices");
            let together = |hub: &Hub| {
                devices(hub, real)
                    .map(|[one, _]| [on(hub, &one, memory_kind), on(hub, &one, memory_kind)])
            };
            bridge_sweep(together, real, "one device");
            let host = |hub: &Hub| {
                let pages = on(hub, &hub.host(), MemoryKind::HostPages);
                devices(hub, real).map(|[one, _]| [pages, on(hub, &one, memory_kind)])
            };
            bridge_sweep(host, real, "host pages");
        }
    }
}

/// A pool does not reuse a buffer that has failed over.
#[test]
fn a_pool_forgets_what_failed() {
    let probe = Probe::new();
    let hub = hub(&probe, false);
    let devices = devices(&hub, false).unwrap();
    let builder = hub.buffer::<u32>(N).shared_with(&devices).allocate_on(&devices[0]);
    let builder = builder.memory_kind(MemoryKind::MappedDevice).trust_declared(true);
    let pool = onebuf::Pool::new(&hub);
    let side = Side::open(&devices[1]).unwrap();
    let first = pool.get(&builder).unwrap();
    probe.fail_always("fake_reside", -5);
    side.step(&first, Step::nth(1)).unwrap();
    probe.reset();
    assert!(first.explain().contains("staged copies instead"), "{}", first.explain());
    drop(first);
    let second = pool.get(&builder).unwrap();
    assert!(!second.explain().contains("staged copies instead"), "{}", second.explain());
}

/// A device that refuses host pages shares nothing, so nothing fails over.
#[test]
fn what_was_never_a_route_is_no_failure() {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Verdicts::default());
    let apart = FakeConfig { shares_host_pages: Sharing::No, ..fake("apart") };
    let hub = builder.fake(apart).build().unwrap();
    let device = hub.device("fake:0").unwrap();
    let buffer = hub.buffer::<u32>(N).shared_with([&device]).build().unwrap();
    assert!(!buffer.explain().contains("failed"), "{}", buffer.explain());
}
