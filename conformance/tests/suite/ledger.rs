//! The account of the bytes: nothing on proven routes, and to the byte on the others.

use onebuf::{
    Buffer, Cause, CopyPolicy, Error, HubBuilder, MemoryKind, RouteKind, SyncMethod,
    doctor::Verdicts,
    topology::{State, Verdict},
};
use onebuf_conformance::{
    Machine, Side, Step, assert_same, fakes, machine, pairs, shared, step_model,
};

const N: usize = 10_000;
const BYTES: u64 = N as u64 * 4;

/// Four turns of two devices, checked.
fn turns(from: &Side, to: &Side, buffer: &Buffer<u32>) {
    let mut model = vec![0; N];
    for (round, side) in (0..).zip([from, to, from, to]) {
        side.step(buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
    }
    assert_same(&to.look(buffer).unwrap(), &model, &buffer.explain());
}

#[test]
fn a_staged_route_is_counted_to_the_byte() {
    let machine = machine();
    for (from, to) in pairs(&machine.sides) {
        let buffer = shared(from, to, RouteKind::Staged, SyncMethod::HostWait, N).unwrap();
        // What arrived at each of the two, and everything.
        let implied = || {
            let arrived = |at: &Side| {
                let all = machine.hub.ledger().entries().into_iter();
                let there = all.filter(|e| e.cause == Cause::Implied && e.to == at.device.id());
                there.fold((0, 0), |sum, e| (sum.0 + e.bytes, sum.1 + e.operations))
            };
            [arrived(to), arrived(from), (machine.hub.ledger().implied_bytes(), 0)]
        };
        let before = implied();
        turns(from, to, &buffer);
        let after = implied();
        let grown = |i: usize| (after[i].0 - before[i].0, after[i].1 - before[i].1);
        let what = format!("{} -> {}", from.device, to.device);
        // from, to, from, to: twice there, once back, and the look of `to` is at home.
        assert_eq!(grown(0), (2 * BYTES, 2), "{what} there");
        assert_eq!(grown(1), (BYTES, 1), "{what} back");
        assert_eq!(grown(2).0, 3 * BYTES, "{what} in all");
        // Once both have it, readers cost nothing.
        let before = machine.hub.ledger().implied_bytes();
        for _ in 0..3 {
            from.look(&buffer).unwrap();
            to.look(&buffer).unwrap();
        }
        assert_eq!(machine.hub.ledger().implied_bytes() - before, BYTES, "{what} read by both");
    }
}

#[test]
fn asked_bytes_are_counted_to_the_byte() {
    let machine = machine();
    for side in &machine.sides {
        let buffer = machine.hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let before = machine.hub.ledger().asked_bytes();
        buffer.write(&[1; N]).unwrap();
        buffer.fill_range(..10, 3).unwrap();
        buffer.read_range(5..8, &mut [0; 3]).unwrap();
        buffer.copy_from(100, &buffer, ..50).unwrap();
        drop(buffer.read_async(..7, vec![0; 7]).unwrap());
        let asked = (N + 10 + 3 + 50 + 7) as u64 * 4;
        assert_eq!(machine.hub.ledger().asked_bytes() - before, asked, "{}", side.device);
    }
}

/// A hub of the same devices with one verdict for every route that is not staged.
fn judged(machine: &Machine, builder: HubBuilder, verdict: &Verdict) -> Machine {
    judged_where(machine, builder, verdict, |kind| kind != RouteKind::Staged)
}

/// A hub of the same devices with one verdict for the routes of some kinds.
pub fn judged_where(
    machine: &Machine,
    builder: HubBuilder,
    verdict: &Verdict,
    which: impl Fn(RouteKind) -> bool,
) -> Machine {
    let topology = machine.hub.topology();
    let mut verdicts = Verdicts::default();
    for route in topology.routes().iter().filter(|route| which(route.kind)) {
        let ends = [route.from, route.to].map(|device| topology.node(device));
        verdicts.insert(ends[0], ends[1], route.kind, verdict.clone());
    }
    Machine::open(builder.verdicts(verdicts))
}

fn proven(zero_copy: bool) -> Verdict {
    let sync = Some(SyncMethod::HostWait);
    Verdict { state: State::Proven, zero_copy: Some(zero_copy), sync, ..Verdict::default() }
}

/// The drivers here for which `zero_copy` is the truth: those that the doctor proves so (PoCL), and a
/// fake one that uses the host's pages.
#[test]
fn a_proven_route_implies_nothing() {
    let base = machine();
    let fold = |builder: HubBuilder| fakes().into_iter().fold(builder, HubBuilder::fake);
    let machine = judged(&base, fold(onebuf::builder().without(["vulkan", "gl"])), &proven(true));
    let honest = |s: &&Side| {
        let info = s.device.info();
        info.platform == "Portable Computing Language" || info.name == "sharing pages"
    };
    let host = machine.side("host");
    let mut tried = 0;
    for side in machine.sides.iter().filter(honest) {
        for (from, to) in [(host, side), (side, host)] {
            let mapped = from.device.info().caps.memory_kinds.contains(&MemoryKind::MappedDevice);
            let aliases = side.device.info().api.0 == "opencl" || !mapped;
            if !aliases {
                continue; // the fake device's own memory is apart from the host's
            }
            let builder = machine.hub.buffer::<u32>(N).shared_with([&from.device, &to.device]);
            let builder = builder.allocate_on(&from.device).copies(CopyPolicy::Forbid);
            let buffer = builder.build().unwrap();
            let before = machine.hub.ledger().implied_bytes();
            turns(from, to, &buffer);
            let what = buffer.explain();
            assert_eq!(machine.hub.ledger().implied_bytes(), before, "{what}");
            assert!(what.contains("no copies"), "{what}");
            // The pages are one: the host sees them at one address for ever.
            let at = || buffer.map().unwrap().as_ptr();
            let first = at();
            side.step(&buffer, Step::nth(5)).unwrap();
            assert_eq!(first, at(), "{what}");
            tried += 1;
        }
    }
    assert!(tried > 0);
}

#[test]
fn a_proven_route_that_copies_is_counted_and_forbidden() {
    let base = machine();
    let with_fake =
        onebuf::builder().without(["vulkan", "gl"]).fake(fakes()[0].clone()).without(["opencl"]);
    let plain = Machine::open(with_fake.verdicts(Verdicts::default()));
    drop(base);
    let with_fake =
        onebuf::builder().without(["vulkan", "gl"]).fake(fakes()[0].clone()).without(["opencl"]);
    let machine = judged(&plain, with_fake, &proven(false));
    let (host, fake) = (machine.side("host"), machine.side("fake:0"));
    let builder = machine.hub.buffer::<u32>(N).shared_with([&host.device, &fake.device]);
    let refused = builder.clone().copies(CopyPolicy::Forbid).build().unwrap_err();
    assert!(matches!(refused, Error::CopyForbidden { .. }), "{refused}");
    let buffer = builder.route(RouteKind::HostPointer).allocate_on(&host.device).build().unwrap();
    let before = machine.hub.ledger().implied_bytes();
    turns(host, fake, &buffer);
    // The shadow is taken away before the host's first write; then host to fake, back, and there again.
    assert_eq!(
        machine.hub.ledger().implied_bytes() - before,
        4 * BYTES,
        "{}",
        machine.hub.ledger()
    );
}
