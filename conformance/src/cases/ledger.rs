//! The ledger: nothing implied on proven routes, and exact numbers of bytes on the others.

use crate::{
    Machine, Side, Step, Trial, assert_same, fake_machine, fakes, forged, forged_verdicts,
    is_shared, kernels, shared, step_model,
};
use onebuf::{
    Access, Buffer, Cause, CopyPolicy, Error, HubBuilder, Kernel, MemoryKind, RouteKind, Signature,
    SyncMethod, args,
};

const N: usize = 10_000;
const BYTES: u64 = N as u64 * 4;

/// Two devices take four turns, and the result is checked.
fn turns(from: &Side, to: &Side, buffer: &Buffer<u32>) {
    let mut model = vec![0; N];
    for (round, side) in (0..).zip([from, to, from, to]) {
        side.step(buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
    }
    assert_same(&to.look(buffer).unwrap(), &model, &buffer.explain());
}

pub fn a_staged_route_is_counted_to_the_byte(t: &Trial<'_>) {
    let machine = t.machine;
    t.each_pair(|from, to, what| {
        let buffer = shared(from, to, RouteKind::Staged, SyncMethod::HostWait, N).unwrap();
        // The bytes and operations that arrived at each of the two, and the total bytes.
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
        // from, to, from, to: two copies there, one back; `look` on `to` needs none.
        assert_eq!(grown(0), (2 * BYTES, 2), "{what} there");
        assert_eq!(grown(1), (BYTES, 1), "{what} back");
        assert_eq!(grown(2).0, 3 * BYTES, "{what} in all");
        // Once both have the contents, readers cost nothing.
        let before = machine.hub.ledger().implied_bytes();
        for _ in 0..3 {
            from.look(&buffer).unwrap();
            to.look(&buffer).unwrap();
        }
        assert_eq!(machine.hub.ledger().implied_bytes() - before, BYTES, "{what} read by both");
    });
}

/// `kernel void put(global uint *to, uint with)`: writes every element.
fn put(side: &Side, access: Access) -> Kernel {
    let put =
        kernels("kernel void put(global uint *to, uint with) { to[get_global_id(0)] = with; }");
    let put = put.with_native("put", |args| {
        let with = args.value::<u32>(1)?;
        args.slice_mut::<u32>(0)?.fill(with);
        Ok(())
    });
    let signature = Signature::new().each::<u32>(access).value::<u32>();
    // SAFETY: work-item i writes element i.
    unsafe { side.device.program(&put).unwrap().kernel("put", signature).unwrap() }
}

pub fn what_is_overwritten_is_not_copied(t: &Trial<'_>) {
    let implied = || t.machine.hub.ledger().implied_bytes();
    t.each_pair(|from, to, what| {
        let buffer = shared(from, to, RouteKind::Staged, SyncMethod::HostWait, N).unwrap();
        let (put, adds) = (put(to, Access::Write), put(to, Access::ReadWrite));
        let launch = |view, with: u32| to.queue.launch(&put, [N], args![view, with]).unwrap();
        // The control: a view to write brings what `from` has written.
        from.step(&buffer, Step::nth(1)).unwrap();
        let before = implied();
        launch(buffer.write_on(&to.queue).unwrap(), 1);
        assert_eq!(implied() - before, BYTES, "{what}: the control");
        // One that overwrites does not, and the result goes back as ever.
        from.step(&buffer, Step::nth(2)).unwrap();
        let before = implied();
        launch(buffer.overwrite_on(&to.queue).unwrap(), 7);
        assert_eq!(implied() - before, 0, "{what}: overwritten");
        assert_same(&from.look(&buffer).unwrap(), &[7; N], what);
        assert_eq!(implied() - before, BYTES, "{what}: back");
        // Twice in a row, then read by both.
        launch(buffer.overwrite_on(&to.queue).unwrap(), 8);
        launch(buffer.overwrite_on(&to.queue).unwrap(), 9);
        assert_same(&to.look(&buffer).unwrap(), &[9; N], what);
        assert_same(&buffer.to_vec().unwrap(), &[9; N], what);
        // A kernel that would read what is discarded is refused, and so are other users meanwhile.
        let view = buffer.overwrite_on(&to.queue).unwrap();
        assert!(matches!(buffer.read_on(&from.queue), Err(Error::Busy { .. })), "{what}");
        let refused = to.queue.launch(&adds, [N], args![view, 1u32]);
        let Err(Error::InvalidArgument(why)) = refused else { panic!("{what}: {refused:?}") };
        assert!(why.contains("a write view where a read_write view of u32"), "{what}: {why}");
        // The buffer stays usable.
        launch(buffer.overwrite_on(&to.queue).unwrap(), 10);
        from.step(&buffer, Step::nth(3)).unwrap();
        let mut model = vec![10; N];
        step_model(&mut model, Step::nth(3));
        assert_same(&to.look(&buffer).unwrap(), &model, what);
    });
}

pub fn what_is_discarded_is_not_copied(t: &Trial<'_>) {
    let implied = || t.machine.hub.ledger().implied_bytes();
    t.each_pair(|from, to, what| {
        let buffer = shared(from, to, RouteKind::Staged, SyncMethod::HostWait, N).unwrap();
        let put = put(to, Access::ReadWrite);
        from.step(&buffer, Step::nth(1)).unwrap();
        let before = implied();
        // Not while it is in use.
        let view = buffer.read_on(&from.queue).unwrap();
        assert!(matches!(buffer.discard(), Err(Error::Busy { .. })), "{what}");
        drop(view);
        // Neither a reader nor a writer brings the contents.
        buffer.discard().unwrap();
        drop(buffer.read_on(&to.queue).unwrap());
        buffer.discard().unwrap();
        drop(buffer.write_on(&to.queue).unwrap());
        assert_eq!(implied() - before, 0, "{what}: discarded");
        // What is written then goes to the other, also by a queue that had the buffer on a lease before.
        to.queue.launch(&put, [N], args![buffer.write_on(&to.queue).unwrap(), 7u32]).unwrap();
        assert_same(&from.look(&buffer).unwrap(), &[7; N], what);
        assert_eq!(implied() - before, BYTES, "{what}: back");
        for with in 8..12u32 {
            buffer.discard().unwrap();
            to.queue.launch(&put, [N], args![buffer.write_on(&to.queue).unwrap(), with]).unwrap();
            assert_same(&from.look(&buffer).unwrap(), &vec![with; N], what);
        }
        assert_eq!(implied() - before, 5 * BYTES, "{what}: one copy each, back");
    });
}

pub fn asked_bytes_are_counted_to_the_byte(t: &Trial<'_>) {
    let machine = t.machine;
    t.each_device(|side| {
        let buffer = machine.hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let before = machine.hub.ledger().asked_bytes();
        buffer.write(&[1; N]).unwrap();
        buffer.fill_range(..10, 3).unwrap();
        buffer.read_range(5..8, &mut [0; 3]).unwrap();
        buffer.copy_from(100, &buffer, ..50).unwrap();
        drop(buffer.read_async(..7, vec![0; 7]).unwrap());
        let asked = (N + 10 + 3 + 50 + 7) as u64 * 4;
        assert_eq!(machine.hub.ledger().asked_bytes() - before, asked, "{}", side.device);
    });
}

/// Opens a hub with the same devices and one forged verdict for every route that is not staged.
fn with_forged(machine: &Machine, builder: HubBuilder, zero_copy: bool) -> Machine {
    let verdict = forged(Some(zero_copy), Some(SyncMethod::HostWait));
    Machine::open(builder.verdicts(forged_verdicts(&machine.hub, &verdict, is_shared)))
}

/// Whether `zero_copy` is true for the device: the doctor proves it for PoCL, and devices without a driver declare that
/// their memory is the host's, as one of the fake devices does.
fn shares_pages(side: &Side) -> bool {
    let info = side.device.info();
    match info.api.0 {
        "host" | "cuda" | "hip" | "gl" | "vulkan" => false,
        "opencl" => info.platform == "Portable Computing Language",
        _ => info.caps.unified_memory && info.caps.imports_host_pages,
    }
}

/// Whether the host accesses this device's allocations in place. A fake device's own memory is separate.
fn allocates_for_the_host(side: &Side) -> bool {
    let kinds = &side.device.info().caps.memory_kinds;
    side.device.info().api.0 == "opencl"
        || kinds.contains(&MemoryKind::HostPages)
        || kinds.contains(&MemoryKind::FineSvm)
}

pub fn a_proven_route_implies_nothing(t: &Trial<'_>) {
    let machine = with_forged(t.machine, t.builder(), true);
    let host = machine.side("host");
    let mut tried = 0;
    for side in machine.sides.iter().filter(|side| shares_pages(side)) {
        for (from, to) in [(host, side), (side, host)] {
            if !allocates_for_the_host(from) {
                continue;
            }
            t.on(&[from, to], "", || turns_without_copies(&machine, from, to, side));
            tried += 1;
        }
    }
    assert!(tried > 0 || !t.counts());
}

/// Two devices that share pages take turns; `side` is the one that is not the host.
fn turns_without_copies(machine: &Machine, from: &Side, to: &Side, side: &Side) {
    let builder = machine.hub.buffer::<u32>(N).shared_with([&from.device, &to.device]);
    let builder = builder.allocate_on(&from.device).copies(CopyPolicy::Forbid);
    let buffer = builder.build().unwrap();
    let before = machine.hub.ledger().implied_bytes();
    turns(from, to, &buffer);
    let what = buffer.explain();
    assert_eq!(machine.hub.ledger().implied_bytes(), before, "{what}");
    assert!(what.contains("no copies"), "{what}");
    // What it says of the memory afterwards does not take that back.
    let (_, remarks) = what.split_once("for kernels:").expect("remarks follow the plan");
    assert!(!remarks.contains("copies") && !remarks.contains("unless"), "{what}");
    // There is one set of pages: the host's address does not change.
    let at = || buffer.map().unwrap().as_ptr();
    let first = at();
    side.step(&buffer, Step::nth(5)).unwrap();
    assert_eq!(first, at(), "{what}");
}

pub fn a_proven_route_that_copies_is_counted_and_forbidden(t: &Trial<'_>) {
    if !t.has_api("fake") {
        return;
    }
    let config = fakes()[0].clone();
    let plain = fake_machine(config.clone());
    let machine = with_forged(&plain, onebuf::builder().only(["host"]).fake(config), false);
    let (host, fake) = (machine.side("host"), machine.side("fake:0"));
    t.on(&[host, fake], "", || {
        let builder = machine.hub.buffer::<u32>(N).shared_with([&host.device, &fake.device]);
        let refused = builder.clone().copies(CopyPolicy::Forbid).build().unwrap_err();
        assert!(matches!(refused, Error::CopyForbidden { .. }), "{refused}");
        let builder = builder.route(RouteKind::HostPointer).allocate_on(&host.device);
        let buffer = builder.build().unwrap();
        let before = machine.hub.ledger().implied_bytes();
        turns(host, fake, &buffer);
        let implied = machine.hub.ledger().implied_bytes() - before;
        // The shadow is copied back before the host's first write; then host to fake, back, and there again.
        assert_eq!(implied, 4 * BYTES, "{}", machine.hub.ledger());
    });
}
