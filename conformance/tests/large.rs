//! What the chapters `large` and `sync` of the bundle do, at sizes for every day: buffers with odd ends, and hand-overs by every
//! sync method. Each has a control.

use onebuf::{
    HubBuilder, SyncMethod,
    fake::{Delay, FakeConfig, Sharing},
};
use onebuf_conformance::{
    Ending, Machine, Outcome, Report, everything, hand_overs, large, pairs, play,
};
use std::time::Duration;

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
            let skipped =
                matches!(&one.ending, Ending::NotApplicable(why) if why.contains("are joined by"));
            let may_pass = [SyncMethod::SameQueue, SyncMethod::HostWait].contains(&method);
            assert!(skipped || may_pass && one.ending == Ending::Passed, "{one:?}");
            by_host_waits += u32::from(method == SyncMethod::HostWait && !skipped);
        }
        assert!(outcomes.iter().any(|one| one.ending == Ending::Passed), "{outcomes:?}");
    }
    assert!(by_host_waits > 0);
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
