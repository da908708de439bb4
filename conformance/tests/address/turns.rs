//! Both APIs on one memory: every page, both directions, late work, parts, pools, host access in between, and each call
//! failing.

use super::*;
use onebuf::{Access, CopyPolicy, Error, Hint, MemoryKind, Pool, Result, topology::Route};
use onebuf_conformance::{Hardware, gpus, note, opencl_devices, pairs_in_one_space, reported};

plays! {
    both_apis_see_each_others_work: interleaved("amd");
    late_work_is_waited_for: late(
        "amd", "ONEBUF_STUB_DELAY_US" => "300", "ONEBUF_CUDA_STUB_DELAY_US" => "500");
    the_host_comes_between: with_the_host("amd");
    parts_and_pools_are_shared_too: parts_and_pools("amd");
    routes_are_candidates_only: candidates("amd");
    another_chip_has_no_such_routes: on_two_chips("amd", "ONEBUF_STUB_BUS" => "07");
    another_driver_has_no_such_routes: on_two_chips("amd", "ONEBUF_STUB_VERSION" => "3602.0 (PAL,LC)");
    where_memory_lies_is_told: placed("amd");
    a_second_device_in_the_context_makes_it_host_memory: crowded("amd,crowded");
    hips_own_memory_is_the_wrong_allocators: wrong_allocator("amd");
    managed_memory_is_the_hosts_too: managed("amd", "ONEBUF_CUDA_STUB_INTEGRATED" => "1");
    each_call_fails: swept("amd");
    the_drivers_say_that_there_is_one_space: one_space("amd");
    the_drivers_say_that_there_are_two: two_spaces("amd", "ONEBUF_STUB_VERSION" => "3602.0 (PAL,LC)");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn interleaved() {
    let rig = Rig::new();
    for (on, kind) in rig.ways() {
        for n in [1, 1023, 1025, N, (2 << 18) + 1] {
            let buffer = rig.builder(&on, kind, n).copies(CopyPolicy::Forbid).build().unwrap();
            let by: Vec<_> = buffer.plan().routes.iter().map(|hop| hop.kind).collect();
            let text = buffer.explain();
            assert!(by.contains(&kind), "{text}");
            assert!(text.contains("experimental: never run on hardware"), "{text}");
            take_turns(&buffer, &rig);
        }
    }
    assert_eq!(rig.hub.ledger().implied_bytes(), 0, "{}", rig.hub.ledger());
    control(&rig);
    rig.end();
}

/// Whether two APIs work in one address space: the drivers decide, of which onebuf must find each pair.
fn in_one_space_here(found: usize) -> bool {
    let needs: &[Hardware] = if gpus().is_empty() { &[Hardware::Amd] } else { &[] };
    reported("two APIs whose kernels work in one address space", needs, pairs_in_one_space(), found)
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn one_space() {
    assert_eq!(pairs_in_one_space(), 1, "{:?}, {:?}", gpus(), opencl_devices());
    real_devices_share_by_addresses();
    // The control: an onebuf that finds no route has not been skipped.
    assert!(std::panic::catch_unwind(|| in_one_space_here(0)).is_err());
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn two_spaces() {
    assert_eq!(pairs_in_one_space(), 0, "{:?}, {:?}", gpus(), opencl_devices());
}

/// Takes turns on the real devices of this machine.
#[test]
fn real_devices_share_by_addresses() {
    let hub = onebuf::builder().verdicts(Default::default()).build().unwrap();
    let in_one_space = |route: &&Route| route.needs.contains("one address space");
    let routes: Vec<_> = hub.topology().routes().iter().filter(in_one_space).collect();
    if !in_one_space_here(routes.len()) {
        return;
    }
    for route in routes {
        let [from, to] = [route.from, route.to].map(|end| hub.topology().node(end).id.clone());
        note(&format!("{from} -> {to} {}", route.kind));
        let is_cl = from.starts_with("opencl");
        let side = |id: &str| Side::open(&hub.device(id).unwrap()).unwrap();
        let (cl, hip) = if is_cl { (side(&from), side(&to)) } else { (side(&to), side(&from)) };
        let rig = Rig { probe: Probe::new(), hub: hub.clone(), cl, hip };
        let on = hub.device(&from).unwrap();
        for n in [1, 1023, N, (2 << 18) + 1] {
            let buffer = rig.builder(&on, route.kind, n).copies(CopyPolicy::Forbid).build();
            take_turns(&buffer.unwrap_or_else(|e| panic!("{from} -> {to}: {e}")), &rig);
        }
        control(&rig);
    }
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
}

/// The control: separate buffers differ, so the comparisons above can fail.
fn control(Rig { hub, cl, hip, .. }: &Rig) {
    let words = random_words(3, N);
    let own = |side: &Side| {
        hub.buffer::<u32>(N).shared_with([&side.device]).init(words.clone()).build().unwrap()
    };
    let (here, there) = (own(cl), own(hip));
    hip.step(&there, Step::nth(1)).unwrap();
    assert_eq!(here.to_vec().unwrap(), words);
    assert_ne!(there.to_vec().unwrap(), words);
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn late() {
    let rig = Rig::new();
    for (on, kind) in rig.ways() {
        take_turns(&rig.builder(&on, kind, N).build().unwrap(), &rig);
    }
    rig.end();
}

/// The host maps coarse-grained SVM in between. HIP may use it only once it is unmapped, which OpenCL must do.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn with_the_host() {
    let rig = Rig::new();
    for kind in [RouteKind::SvmPointer, RouteKind::DmaBuf] {
        let buffer = rig.builder(&rig.cl.device, kind, N).build().unwrap();
        assert_eq!(buffer.plan().memory_kind, MemoryKind::CoarseSvm);
        let mut model = random_words(4, N);
        buffer.map_mut().unwrap().copy_from_slice(&model);
        for turn in 0..6 {
            let side = if turn % 2 == 0 { &rig.hip } else { &rig.cl };
            side.step(&buffer, Step::nth(turn)).unwrap();
            step_model(&mut model, Step::nth(turn));
            assert_same(&buffer.map().unwrap(), &model, "mapped");
            let mut map = buffer.map_mut().unwrap();
            map[N - 1] = turn;
            model[N - 1] = turn;
        }
        // While the host holds a read map, the memory stays mapped; the map only excludes writers.
        let held = buffer.map().unwrap();
        assert!(matches!(buffer.write_on(&rig.hip.queue), Err(Error::Busy { .. })));
        drop(buffer.read_on(&rig.hip.queue).unwrap());
        drop(held);
        let trace = rig.probe.trace();
        let [maps, unmaps] = ["clEnqueueSVMMap", "clEnqueueSVMUnmap"]
            .map(|call| trace.iter().filter(|name| **name == call).count());
        assert!(maps > 0 && unmaps > 0, "{trace:?}");
        rig.hip.step(&buffer, Step::nth(8)).unwrap();
        step_model(&mut model, Step::nth(8));
        assert_same(&buffer.to_vec().unwrap(), &model, "at the end");
    }
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn parts_and_pools() {
    let rig = Rig::new();
    let Rig { hub, cl, hip, .. } = &rig;
    for (on, kind) in rig.ways() {
        let buffer = rig.builder(&on, kind, N).build().unwrap();
        let mut model = random_words(5, N);
        buffer.write(&model).unwrap();
        let parts = [0..1024, 1024..3072, 3072..N];
        let views = parts.clone().map(|part| buffer.sub_buffer(part, Access::ReadWrite).unwrap());
        for round in 0..4 {
            for (i, (part, sub)) in parts.iter().zip(&views).enumerate() {
                let (side, step) = (
                    if (round + i) % 2 == 0 { cl } else { hip },
                    Step::nth((round * 3 + i) as u32),
                );
                side.step_view(sub.write_on(&side.queue).unwrap(), part.len(), step).unwrap();
                step_model(&mut model[part.clone()], step);
            }
        }
        assert_same(&buffer.to_vec().unwrap(), &model, "parts");
        let pool = Pool::new(hub);
        for life in 0..3 {
            let mut model = random_words(life, N);
            let buffer = pool.get(&rig.builder(&on, kind, N).init(&model[..])).unwrap();
            for (turn, side) in (0..).zip([cl, hip, cl]) {
                side.step(&buffer, Step::nth(turn)).unwrap();
                step_model(&mut model, Step::nth(turn));
            }
            assert_same(&buffer.to_vec().unwrap(), &model, &format!("life {life}"));
        }
        assert_eq!((pool.statistics().made, pool.statistics().hits), (1, 2));
    }
    rig.end();
}

fn by_address(route: &&Route) -> bool {
    [RouteKind::SvmPointer, RouteKind::RawAddress, RouteKind::DmaBuf].contains(&route.kind)
}

/// These routes are guaranteed by no contract, so they are used only if proven or vouched for.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn candidates() {
    let rig = Rig::new();
    let (topology, [a, b]) =
        (rig.hub.topology(), [&rig.cl, &rig.hip].map(|side| side.device.index()));
    let found = |from, to| {
        let routes = topology.between(from, to).iter().filter(by_address);
        routes
            .map(|r| (r.kind, r.memory_kind.unwrap(), r.guaranteed, r.verdict.zero_copy))
            .collect()
    };
    let (there, back): (Vec<_>, Vec<_>) = (found(a, b), found(b, a));
    let hoped = |kind, memory_kind| (kind, memory_kind, false, None);
    assert_eq!(
        there,
        [
            hoped(RouteKind::SvmPointer, MemoryKind::CoarseSvm),
            hoped(RouteKind::RawAddress, MemoryKind::Device),
            hoped(RouteKind::DmaBuf, MemoryKind::CoarseSvm)
        ]
    );
    assert_eq!(back, [hoped(RouteKind::SvmPointer, MemoryKind::Device)]);
    let memory_kinds = &rig.hip.device.info().caps.memory_kinds;
    assert!(!memory_kinds.contains(&MemoryKind::FineSvm), "managed pages would move");
    // HIP's second device is another chip.
    let other = rig.hub.device("hip:1").unwrap().index();
    assert!(
        !topology.between(a, other).iter().any(|r| by_address(&r) && !r.needs.contains("pages"))
    );
    let devices = [&rig.cl.device, &rig.hip.device];
    let unproven = rig.hub.buffer::<u32>(N).shared_with(devices).copies(CopyPolicy::Forbid);
    let why = unproven.build().unwrap_err().to_string();
    assert!(why.contains("unproven: run `onebuf doctor --devices "), "{why}");
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn on_two_chips() {
    let rig = Rig::new();
    let [a, b] = [&rig.cl, &rig.hip].map(|side| side.device.index());
    for (from, to) in [(a, b), (b, a)] {
        let routes = rig.hub.topology().between(from, to).iter().filter(by_address);
        // Only SVM as host pages is left.
        let kinds: Vec<_> = routes.filter(|r| !r.needs.contains("pages")).collect();
        assert!(kinds.is_empty(), "{kinds:?}");
    }
    let refused = rig.builder(&rig.hip.device, RouteKind::SvmPointer, N).build().unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn placed() {
    let rig = Rig::new();
    let (cl, hip) = (&rig.cl.device, &rig.hip.device);
    let says = |buffer: &Buffer<u32>, words: &[&str]| {
        let text = buffer.explain();
        for words in words {
            assert!(text.contains(words), "`{words}` is not in: {text}");
        }
    };
    let svm = rig.builder(cl, RouteKind::SvmPointer, N).build().unwrap();
    says(&svm, &["in the device's own memory: coarse grain, and one device in the context"]);
    says(&svm, &["hip:0 (svm_pointer): another API's memory at its own address"]);
    let experimental = "(experimental: never run on hardware)";
    let place = "reported by its allocator, in the device's own memory";
    says(&svm, &[&format!("{place} {experimental}: for kernels only")]);
    let theirs = rig.builder(hip, RouteKind::SvmPointer, N).build().unwrap();
    says(&theirs, &["for kernels only, with a barrier between them", "device memory"]);
    let raw = rig.builder(cl, RouteKind::RawAddress, N).build().unwrap();
    says(&raw, &["reported by a kernel and confirmed by the runtime, in the device's own"]);
    let alone = |memory_kind| {
        rig.hub.buffer::<u32>(N).shared_with([cl]).memory_kind(memory_kind).build().unwrap()
    };
    says(&alone(MemoryKind::FineSvm), &["in host memory: fine grain"]);
    says(&alone(MemoryKind::MappedDevice), &["; in host memory"]);
    says(&alone(MemoryKind::Device), &["; in the device's own memory"]);
    drop((svm, theirs, raw));
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn crowded() {
    let rig = Rig::new();
    for kind in [RouteKind::SvmPointer, RouteKind::DmaBuf] {
        let why = rig.builder(&rig.cl.device, kind, N).build().unwrap_err();
        assert!(matches!(why, Error::Unsupported { .. }), "{why}");
        assert!(why.to_string().contains("a context of one device"), "{why}");
    }
    let svm = rig.hub.buffer::<u32>(N).shared_with([&rig.cl.device]);
    let svm = svm.memory_kind(MemoryKind::CoarseSvm).build().unwrap();
    let text = svm.explain();
    assert!(text.contains("in host memory: 2 devices in the context"), "{text}");
    // HIP's memory can still be shared.
    take_turns(&rig.builder(&rig.hip.device, RouteKind::SvmPointer, N).build().unwrap(), &rig);
    drop(svm);
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn wrong_allocator() {
    let rig = Rig::new();
    let builder = || rig.builder(&rig.hip.device, RouteKind::HostPointer, N);
    let why = builder().build().unwrap_err().to_string();
    for words in ["wrong allocator", "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)", "ordinary host pages"]
    {
        assert!(why.contains(words), "`{words}` is not in: {why}");
    }
    // Ordinary host pages work on both sides.
    let pages = rig.builder(&rig.hub.host(), RouteKind::HostPointer, N).build().unwrap();
    take_turns(&pages, &rig);
    drop(pages);
    rig.end();
}

/// One address for host and HIP at the same time: used only on request, and only if chip and host share memory.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn managed() {
    let rig = Rig::new();
    let Rig { hub, hip, .. } = &rig;
    assert!(hip.device.info().caps.memory_kinds.contains(&MemoryKind::FineSvm));
    let buffer = hub.buffer::<u32>(N).shared_with([&hub.host(), &hip.device]);
    let buffer = buffer.allocate_on(&hip.device).hint(Hint::Coherent).copies(CopyPolicy::Forbid);
    let buffer = buffer.build().unwrap();
    assert_eq!(buffer.plan().memory_kind, MemoryKind::FineSvm, "{}", buffer.explain());
    assert!(buffer.explain().contains("managed memory"), "{}", buffer.explain());
    let mut model = random_words(2, N);
    buffer.write(&model).unwrap();
    for turn in 0..5 {
        hip.step(&buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
        let mut map = buffer.map_mut().unwrap();
        assert_same(&map, &model, "mapped");
        (map[7], model[7]) = (turn, turn);
    }
    let at = buffer.map().unwrap().as_ptr().addr();
    let seen = buffer.read_on(&hip.queue).unwrap().hip_ptr().unwrap().addr();
    assert_eq!(at, seen, "one address");
    assert_eq!(hub.ledger().implied_bytes(), 0);
    assert!(rig.probe.trace().iter().all(|call| !call.contains("Memcpy")));
    drop(buffer);
    rig.end();
}

/// A buffer, turns of both sides, parts, host access, and the end; up to the first error. Checks everything it reads.
fn life(rig: &Rig, on: &Device, kind: RouteKind) -> Result<()> {
    let (Rig { cl, hip, .. }, mut model) = (rig, random_words(4, N));
    let buffer = rig.builder(on, kind, N).init(model.clone()).build()?;
    for (turn, side) in (0..).zip([cl, hip, cl, cl, hip]) {
        side.step(&buffer, Step::nth(turn))?;
        step_model(&mut model, Step::nth(turn));
    }
    let part = buffer.sub_buffer(1024..2048, Access::ReadWrite)?;
    hip.step_view(part.write_on(&hip.queue)?, 1024, Step::nth(7))?;
    step_model(&mut model[1024..2048], Step::nth(7));
    assert_same(&buffer.to_vec()?, &model, "read");
    hip.step(&buffer, Step::nth(3))?;
    Ok(())
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn swept() {
    let ways = Rig::new().ways().map(|(on, kind)| (on.id().to_owned(), kind));
    for (on, kind) in ways {
        let (mut n, mut past_the_end) = (0, 0);
        // The number of polls in a wait varies, so the sweep ends after several runs without a call left to fail.
        while past_the_end < 2 {
            n += 1;
            let rig = Rig::new();
            let on = rig.hub.device(&on).unwrap();
            rig.probe.fail_nth(n, -5);
            let outcome = life(&rig, &on, kind);
            let failed = rig.probe.failed();
            let what = format!("{kind} on {on}: call {n}, {failed:?}, failed: {outcome:?}");
            assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
            assert!(failed.is_some() || outcome.is_ok(), "{what}");
            rig.probe.reset();
            life(&rig, &on, kind).unwrap_or_else(|e| panic!("{what}; then it does not work: {e}"));
            let (probe, hub) = (rig.probe.clone(), rig.hub.clone());
            drop((on, rig, hub));
            assert_settled(&probe, &what);
            past_the_end += u32::from(failed.is_none());
        }
        note(&format!("{kind}: {n} calls swept"));
        assert!(n > 40, "{n} calls are no life");
    }
}
