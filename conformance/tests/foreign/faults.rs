//! Whichever of our driver calls fails, class A's objects have the references that they had, and still work.

use super::{SECONDS, alone, context, queue, wrap};
use onebuf::{Access, Error, Hub, Probe, Result};
use onebuf_conformance::{
    Side, Step, absent, assert_same,
    class_a::{ClassA, Own, assert_restored},
    note, random_words, step_model,
};
use onebuf_sys::opencl::{ClEvent, ClMem};
use std::{collections::BTreeMap, sync::Arc, thread, time::Instant};

/// Out of resources, out of host memory, allocation failure, invalid value, invalid queue.
const CODES: [i32; 5] = [-5, -6, -4, -30, -36];
const N: usize = 2048;

fn hub(probe: &Arc<Probe>) -> Hub {
    let builder = Hub::builder().probe(probe.clone()).verdicts(Default::default());
    builder.timeout(std::time::Duration::from_secs(5)).build().expect("the host")
}

/// What class A hands over.
struct Handed<'t> {
    a: &'t ClassA,
    mem: &'t Own<ClMem>,
    part: &'t Own<ClMem>,
    event: &'t Own<ClEvent>,
}

/// Everything once: a wrap of each kind, work of both, events in and out, a share, and all given back.
fn visit(hub: &Hub, handed: &Handed<'_>) -> Result<()> {
    let Handed { a, mem, part, event } = handed;
    // SAFETY: class A has references to all, and does nothing but what is said here.
    let (owners, done, foreign) = unsafe {
        let foreign = hub.foreign_context(a.context.raw())?;
        (hub.wrap_queue(a.queue.raw())?, hub.wrap_event(event.raw())?, foreign)
    };
    let side = Side::open(&foreign.device())?;
    let model = a.read(&a.queue, mem, N);
    let buffer = wrap(hub, mem).len(N).after(&done).build()?;
    side.step(&buffer, Step::nth(1))?;
    let mut stepped = model.clone();
    step_model(&mut stepped, Step::nth(1));
    assert_same(&buffer.to_vec()?, &stepped, "after a step");
    {
        let window = wrap(hub, part).build()?;
        side.step(&window, Step::nth(2))?;
        step_model(&mut stepped[..1024], Step::nth(2));
        assert_same(&window.map()?, &stepped[..1024], "the part");
        let region = buffer.sub_buffer(1024.., Access::ReadWrite)?;
        drop(region.write_on(&side.queue)?);
    }
    buffer.hand_to(&owners)?;
    let events = side.queue.fence().cl_events()?;
    drop(events.into_iter().map(|event| event.raw()).collect::<Vec<_>>());
    a.step(&a.queue, mem, N, Step::nth(3), &[]);
    step_model(&mut stepped, Step::nth(3));
    buffer.written_until(&owners.fence())?;
    buffer.read_until(&done)?;
    let mut map = buffer.map_mut()?;
    assert_same(&map, &stepped, "after class A's step");
    map[0] = 1;
    map.unmap()?;
    stepped[0] = 1;
    drop(buffer);
    let host = hub.host();
    let shared = wrap(hub, mem).shared_with([&host]).build()?;
    let there = Side::open(&host)?;
    there.step(&shared, Step::nth(4))?;
    step_model(&mut stepped, Step::nth(4));
    side.step(&shared, Step::nth(5))?;
    step_model(&mut stepped, Step::nth(5));
    assert_same(&shared.to_vec()?, &stepped, "shared");
    if let Ok(gate) = foreign.user_event() {
        gate.complete();
    }
    hub.queue_for(&shared)?.finish()
}

/// Nothing of ours is left; a driver's thread may be late.
#[track_caller]
fn assert_settled(probe: &Probe, what: &str) {
    let start = Instant::now();
    while !probe.live().is_empty() && start.elapsed() < SECONDS / 3 {
        thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(probe.live().is_empty(), "{what}: {:?} left, {:?}", probe.live(), probe.trace());
}

fn sweep(a: &ClassA) {
    let start = Instant::now();
    let mem = a.words(&random_words(1, N));
    let part = a.sub_buffer(&mem, 1, 0, 4096);
    let event = a.step(&a.queue, &mem, N, Step::nth(9), &[]);
    let handed = Handed { a, mem: &mem, part: &part, event: &event };
    let counts = || a.reference_counts(&[&mem, &part], &[&event]);
    let before = counts();
    let (mut outcomes, mut previous, mut repeated, mut n) = (BTreeMap::new(), "", 0, 0);
    loop {
        // A wait asks many times in a row: of those, some.
        n += if repeated > 2 { 5 } else { 1 };
        let (probe, code) = (Probe::new(), CODES[n as usize % CODES.len()]);
        let hub = hub(&probe);
        probe.fail_nth(n, code);
        let outcome = visit(&hub, &handed);
        let failed = probe.failed();
        let what = format!("{}: call {n}, {failed:?}, failed with {code}: {outcome:?}", a.platform);
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        if let Some(call) = failed {
            *outcomes.entry((call, outcome.is_ok())).or_insert(0) += 1;
            let same = std::mem::replace(&mut previous, call) == call;
            repeated = if same { repeated + 1 } else { 0 };
            if repeated == 0 {
                visit(&hub, &handed).unwrap_or_else(|e| panic!("{what}; then it fails: {e}"));
            }
        }
        drop(hub);
        assert_settled(&probe, &what);
        assert_restored(&before, counts, &what);
        if failed.is_none() {
            outcome.unwrap_or_else(|e| panic!("{}: nothing failed, yet {e}", a.platform));
            break;
        }
    }
    let swept: u32 = outcomes.values().sum();
    note(&format!("{}: {swept} of {n} calls swept in {:?}", a.platform, start.elapsed()));
    assert!(swept >= 60, "{}: {swept} calls are no visit", a.platform);
}

#[test]
fn every_call_of_a_visit_fails_in_turn() {
    let _alone = alone("the sweep over foreign objects");
    match ClassA::of("Portable Computing Language") {
        Some(a) => sweep(&a),
        None => absent("PoCL", "not found"),
    }
}

#[test]
fn a_visit_leaves_no_trace() {
    let _alone = alone("visits");
    for a in super::owners() {
        let mem = a.words(&random_words(2, N));
        let part = a.sub_buffer(&mem, 1, 0, 4096);
        let event = a.step(&a.queue, &mem, N, Step::nth(9), &[]);
        let counts = || a.reference_counts(&[&mem, &part], &[&event]);
        let before = counts();
        let handed = Handed { a: &a, mem: &mem, part: &part, event: &event };
        let probe = Probe::new();
        let hub = hub(&probe);
        for round in 0..3 {
            visit(&hub, &handed).unwrap_or_else(|e| panic!("{}: {e}", a.platform));
            // The hub lives on, and has nothing of class A's.
            assert_restored(&before, counts, &format!("{} {round}", a.platform));
        }
        let held = (context(&hub, &a), queue(&hub, &a.queue));
        assert_ne!(counts(), before, "{}: the control", a.platform);
        drop(held);
        drop(hub);
        assert_settled(&probe, &a.platform);
        assert_restored(&before, counts, &a.platform);
    }
}
