//! What the chapters `large` and `sync` of the bundle do, at sizes for every day: buffers with odd ends, and hand-overs by every
//! sync method. Each has a control.

use onebuf::{
    HubBuilder, Probe, SyncMethod,
    fake::{Delay, FakeConfig, Sharing},
    observe::{Event, Observer, Timed, What},
};
use onebuf_conformance::{
    Ending, Machine, Outcome, Report, everything, forged, forged_verdicts, hand_overs,
    hand_overs_by, is_shared, large, pairs, play,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Bytes: whole pages, a page and a word more, a word less.
const SIZES: [u64; 3] = [8 << 20, (8 << 20) + 4100, (8 << 20) - 4];

fn hub(configs: &[FakeConfig]) -> HubBuilder {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    configs.iter().cloned().fold(builder, HubBuilder::fake)
}

#[test]
fn every_element_of_every_size_on_every_device() {
    let machine = Machine::open(everything());
    for side in &machine.sides {
        let outcomes = large(side, &SIZES);
        assert!(outcomes.iter().any(|one| one.ending == Ending::Passed), "{outcomes:?}");
        Report { outcomes }.assert_passed();
    }
}

/// Work-items of a launch are limited by the number of groups: 2000 of them have fewer work-items than the buffers have elements.
#[test]
fn a_device_with_few_groups_steps_in_several_launches() {
    for api in ["CUDA", "HIP"] {
        play("few_groups", api, "", &[("ONEBUF_CUDA_STUB_GROUPS", "2000")]);
    }
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn few_groups() {
    let builder = onebuf::builder().only(["cuda", "hip"]).verdicts(Default::default());
    let machine = Machine::open(builder);
    let side = machine.sides.iter().find(|side| side.device.id() != "host").unwrap();
    // Of this one the second half needs more groups than the first, because its number of work-items has few divisors.
    let uneven = (2 * 64 * 2063 + 1) * 4;
    let outcomes = [large(side, &SIZES), large(side, &[uneven])].concat();
    assert!(outcomes.iter().all(|one| one.ending == Ending::Passed), "{outcomes:?}");
    let buffer = machine.hub.buffer::<u32>(SIZES[0] as usize / 4).shared_with([&side.device]);
    let refused = side.step(&buffer.build().unwrap(), onebuf_conformance::Step::nth(1));
    assert!(refused.unwrap_err().to_string().contains("more groups than the limit"));
}

/// The control: a device whose reads fail is noticed, and a size that no machine has room for is a skip with a reason.
#[test]
fn what_does_not_fit_is_skipped_and_what_fails_is_told() {
    let probe = onebuf::Probe::new();
    let machine =
        Machine::open(hub(&[FakeConfig { probe: Some(probe.clone()), ..Default::default() }]));
    let side = machine.side("fake:0");
    let huge = large(side, &[1 << 60]);
    assert!(
        matches!(&huge[0].ending, Ending::NotApplicable(why) if why.contains("bytes")),
        "{huge:?}"
    );
    probe.fail_always("fake_read", -7);
    let failed = large(side, &SIZES[..1]);
    assert!(
        matches!(&failed[0].ending, Ending::Failed(why) if why.contains("fake_read")),
        "{failed:?}"
    );
}

/// Without verdicts two devices are joined by host waits, or have nothing to wait for. Every other method is a skip that says so.
#[test]
fn every_pair_is_handed_over_and_unproven_methods_are_skipped() {
    // Work that takes a moment: what has ended already needs no wait.
    let late =
        FakeConfig { delay: Delay::Fixed(Duration::from_micros(300)), ..FakeConfig::default() };
    let machine = Machine::open(hub(&[
        FakeConfig { shares_host_pages: Sharing::Alias, unified: true, ..late.clone() },
        late,
    ]));
    let mut by_host_waits = 0;
    for (from, to) in pairs(&machine.sides) {
        let outcomes = hand_overs(&machine, [from, to], 150);
        assert_eq!(outcomes.len(), SyncMethod::ALL.len());
        for (one, method) in outcomes.iter().zip(SyncMethod::ALL) {
            let says =
                |part| matches!(&one.ending, Ending::NotApplicable(why) if why.contains(part));
            // How much work has ended in time depends on the load of this machine.
            let joins = one.ending == Ending::Passed || says("hand-overs were by");
            let may_join = [SyncMethod::SameQueue, SyncMethod::HostWait].contains(&method);
            assert!(says("are joined by") || may_join && joins, "{one:?}");
            assert_eq!(joins, one.detail.ends_with(" hand-overs"), "{one:?}");
            by_host_waits += u32::from(method == SyncMethod::HostWait && joins);
        }
        assert!(outcomes.iter().any(|one| one.ending == Ending::Passed), "{outcomes:?}");
    }
    assert!(by_host_waits > 0);
}

/// Makes a driver refuse host signals once callbacks have opened a number of them.
struct Breaks {
    probe: Arc<Probe>,
    left: AtomicU32,
}

impl Observer for Breaks {
    fn event(&self, event: Event, _: Option<Timed>) {
        let waited = event.what == What::Wait && event.sync_method == Some(SyncMethod::Callback);
        if waited && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.probe.fail_always("fake_host_signal", -5);
        }
    }
}

/// Hands over by callbacks between two devices whose driver opens `most` host signals. The verdicts are forged.
fn by_callbacks(most: u32) -> Outcome {
    let probe = Probe::new();
    let one = FakeConfig {
        shares_host_pages: Sharing::Alias,
        unified: true,
        delay: Delay::Fixed(Duration::from_micros(300)),
        probe: Some(probe.clone()),
        ..FakeConfig::default()
    };
    let pair = [one.clone(), one];
    let verdict = forged(Some(true), Some(SyncMethod::Callback));
    let verdicts = forged_verdicts(&hub(&pair).build().unwrap(), &verdict, is_shared);
    let breaks = Arc::new(Breaks { probe, left: AtomicU32::new(most) });
    let machine = Machine::open(hub(&pair).verdicts(verdicts).observer(breaks));
    let pair = [machine.side("fake:0"), machine.side("fake:1")];
    hand_overs_by(&machine, pair, SyncMethod::Callback, 100)
}

/// The control: a method that soon stops to work, so that the others are host waits, has not passed, although no element is
/// wrong. The same devices pass while the method works.
#[test]
fn a_method_that_joins_few_turns_has_not_passed() {
    let whole = by_callbacks(u32::MAX);
    assert_eq!(whole.ending, Ending::Passed, "{whole:?}");
    let few = by_callbacks(40);
    assert!(
        matches!(&few.ending, Ending::Failed(why) if why.contains("took its place")),
        "{few:?}"
    );
}

/// The control: a driver whose launches fail in the middle is a failure that names the hand-over.
#[test]
fn a_failing_hand_over_is_named() {
    let probe = onebuf::Probe::new();
    let machine =
        Machine::open(hub(&[FakeConfig { probe: Some(probe.clone()), ..Default::default() }]));
    let pair = [machine.side("host"), machine.side("fake:0")];
    probe.fail_always("fake_launch", -5);
    let outcomes = hand_overs(&machine, pair, 20);
    let failed =
        |one: &&Outcome| matches!(&one.ending, Ending::Failed(why) if why.contains("hand-over"));
    assert_eq!(outcomes.iter().filter(failed).count(), SyncMethod::ALL.len(), "{outcomes:?}");
}
