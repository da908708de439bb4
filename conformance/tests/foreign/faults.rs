//! Whichever of our driver calls fails, class A's objects keep their reference counts, and still work.

use super::{alone, context, queue};
use onebuf::{Error, Hub, Probe};
use onebuf_conformance::{
    absent, assert_settled,
    class_a::{ClassA, Handed, assert_restored, visit},
    note,
};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// Out of resources, out of host memory, allocation failure, invalid value, invalid queue.
const CODES: [i32; 5] = [-5, -6, -4, -30, -36];

fn hub(probe: &Arc<Probe>) -> Hub {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .probe(probe.clone())
        .verdicts(Default::default());
    builder.timeout(std::time::Duration::from_secs(5)).build().expect("the host")
}

fn sweep(a: &ClassA) {
    let start = Instant::now();
    let handed = Handed::new(a);
    let counts = || handed.reference_counts();
    let before = counts();
    let (mut outcomes, mut previous, mut repeated, mut n) = (BTreeMap::new(), "", 0, 0);
    loop {
        // A wait polls many times in a row; only some of these calls are tried.
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
    // Clover takes too long for as many lives.
    let swept = ["Portable Computing Language", "rusticl"];
    let owners: Vec<_> =
        super::owners().into_iter().filter(|a| swept.contains(&&*a.platform)).collect();
    if owners.is_empty() {
        absent("a platform to sweep", "neither PoCL nor rusticl");
    }
    owners.iter().for_each(sweep);
}

#[test]
fn a_visit_leaves_no_trace() {
    let _alone = alone("visits");
    for a in super::owners() {
        let handed = Handed::new(&a);
        let counts = || handed.reference_counts();
        let before = counts();
        let probe = Probe::new();
        let hub = hub(&probe);
        for round in 0..3 {
            visit(&hub, &handed).unwrap_or_else(|e| panic!("{}: {e}", a.platform));
            // The hub is alive, and holds nothing of class A's.
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
