//! Two GPUs of one API, with the stub of CUDA and HIP: kernels use the other GPU's memory, and copies are made between
//! GPUs without peer access. The stub ends the process if memory of another device is used without access.

use onebuf::{
    Buffer, CopyPolicy, Error, HostAccess, Hub, MemoryKind, Probe, Result, RouteKind, SyncMethod,
    doctor::Doctor,
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Gpu, Hardware, Side, Step, assert_same, gpus, helper, note, pages_apart, play, random_words,
    reported, step_model,
};
use std::{fs, os::unix::fs::PermissionsExt, thread, time::Duration};

/// More than one chunk of a staged copy, and a partial last page.
const N: usize = (5 << 20) / 4 + 300;
/// For scenarios that run many times.
const FEW: usize = 5000;
const APART: (&str, &str) = ("ONEBUF_CUDA_STUB_PEERS", "0");
const LATE: (&str, &str) = ("ONEBUF_CUDA_STUB_DELAY_US", "500");

/// Runs a test with both APIs.
fn both(test: &str, environment: &[(&str, &str)]) {
    for api in ["CUDA", "HIP"] {
        play(test, api, "", environment);
    }
}

#[test]
fn kernels_use_the_other_gpus_memory() {
    both("in_place", &[]);
    both("in_place", &[LATE]);
}

#[test]
fn gpus_that_are_apart_copy_without_the_host() {
    both("copied", &[APART]);
    both("copied", &[APART, LATE]);
}

#[test]
fn access_that_is_refused_is_staged_or_forbidden() {
    play("refused", "CUDA", "", &[("ONEBUF_CUDA_STUB_FAIL", "cuCtxEnablePeerAccess:217")]);
    play("refused", "HIP", "", &[("ONEBUF_CUDA_STUB_FAIL", "hipDeviceEnablePeerAccess:217")]);
}

#[test]
fn each_call_fails() {
    both("swept", &[]);
}

#[test]
fn the_doctor_proves_it() {
    play("proven", "CUDA", "", &[]);
}

fn builder(probe: &std::sync::Arc<Probe>) -> onebuf::HubBuilder {
    let builder = onebuf::builder().without(["opencl"]).verdicts(Default::default());
    builder.timeout(Duration::from_secs(30)).probe(probe.clone())
}

fn sides(hub: &Hub) -> [Side; 2] {
    let api = if hub.device("cuda:0").is_ok() { "cuda" } else { "hip" };
    [0, 1].map(|n| Side::open(&hub.device(&format!("{api}:{n}")).unwrap()).unwrap())
}

/// A buffer on the first device, for both.
fn request<'h>(hub: &'h Hub, sides: &[Side; 2]) -> onebuf::BufferBuilder<'h, u32> {
    builder_of(hub, sides, N)
}

fn builder_of<'h>(hub: &'h Hub, [a, b]: &[Side; 2], n: usize) -> onebuf::BufferBuilder<'h, u32> {
    hub.buffer::<u32>(n).shared_with([&a.device, &b.device]).allocate_on(&a.device)
}

/// The sides take turns without waiting.
fn take_turns(buffer: &Buffer<u32>, sides: &[Side; 2], rounds: u32) -> Result<Vec<u32>> {
    let mut model = random_words(5, buffer.len());
    buffer.write(&model)?;
    for n in 0..rounds {
        sides[n as usize % 2].step(buffer, Step::nth(n))?;
        step_model(&mut model, Step::nth(n));
    }
    Ok(model)
}

fn check_turns(buffer: &Buffer<u32>, sides: &[Side; 2], what: &str) {
    let model = take_turns(buffer, sides, 7).unwrap();
    for side in sides {
        assert_same(&side.look(buffer).unwrap(), &model, &format!("{what}, {}", side.device));
    }
}

fn calls(probe: &Probe, part: &str) -> usize {
    probe.trace().iter().filter(|call| call.contains(part)).count()
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn in_place() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let sides = sides(&hub);
    for memory_kind in [MemoryKind::Device, MemoryKind::Exportable] {
        probe.reset();
        let request = request(&hub, &sides)
            .memory_kind(memory_kind)
            .route(RouteKind::Peer)
            .trust_declared(true);
        let request = request.copies(CopyPolicy::Forbid).host_access(HostAccess::ReadWrite);
        let (one, other) = (request.clone().build().unwrap(), request.build().unwrap());
        assert!(one.explain().contains("peer"), "{}", one.explain());
        let enabled = calls(&probe, "EnablePeerAccess");
        let set = calls(&probe, "MemSetAccess");
        let want = if memory_kind == MemoryKind::Device { (2, 0) } else { (0, 4) };
        assert_eq!((enabled, set), want, "{memory_kind}: {:?}", probe.trace());
        for buffer in [&one, &other] {
            check_turns(buffer, &sides, &format!("{memory_kind}"));
            assert!(buffer.fence().unwrap().sync_method() <= SyncMethod::Event);
        }
        assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
        assert_eq!(calls(&probe, "MemcpyPeer"), 0);
        // The control: separate buffers differ on every page.
        let apart = one.to_vec().unwrap();
        sides[0].step(&other, Step::nth(99)).unwrap();
        let pages = pages_apart(&other.to_vec().unwrap(), &apart).len();
        assert_eq!(pages, (N * 4).div_ceil(4096), "{memory_kind}");
    }
    drop((sides, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn copied() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let sides = sides(&hub);
    let ids = [0, 1].map(|n: usize| sides[n].device.id().to_owned());
    let kinds = |r: &&Route| r.kind == RouteKind::Peer;
    assert_eq!(hub.topology().routes().iter().filter(kinds).count(), 0);
    let request = request(&hub, &sides).memory_kind(MemoryKind::Device);
    let error = request.clone().copies(CopyPolicy::Forbid).build().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::CopyForbidden { .. }), "{text}");
    assert!(ids.iter().all(|id| text.contains(id)) && text.contains("no peer access"), "{text}");
    let in_place = request.clone().route(RouteKind::Peer).trust_declared(true).build().unwrap_err();
    assert!(matches!(in_place, Error::Unsupported { .. }), "{in_place}");

    let buffer = request.build().unwrap();
    buffer.write(&random_words(5, N)).unwrap();
    let cuda = ids[0].starts_with("cuda");
    let name = |names: [&'static str; 2]| if cuda { names[0] } else { names[1] };
    // The copy uses only this call, and its failure is reported.
    let by_peer = name(["cuMemcpyPeerAsync", "hipMemcpyPeerAsync"]);
    sides[0].step(&buffer, Step::nth(0)).unwrap();
    probe.fail_always(by_peer, 1);
    let error = sides[1].step(&buffer, Step::nth(1)).unwrap_err();
    assert!(error.to_string().contains(by_peer), "{error}");
    probe.reset();
    probe.fail_always(name(["cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"]), 1);
    sides[1].step(&buffer, Step::nth(1)).unwrap();
    probe.reset();
    let before = hub.ledger().implied_bytes();
    // A runtime that exports the call without implementing it: the copy goes through the host.
    probe.fail_always(by_peer, 801);
    sides[0].step(&buffer, Step::nth(2)).unwrap();
    probe.reset();
    assert_eq!(hub.ledger().implied_bytes(), 2 * before, "{}", hub.ledger());
    let bytes = (N * 4) as u64;
    assert_eq!(before, bytes, "{}", hub.ledger());
    check_turns(&buffer, &sides, "copied");
    // A requested copy takes the same route, and is counted as requested.
    let apart = sides.each_ref().map(|side| {
        let own = hub.buffer::<u32>(N).shared_with([&side.device]);
        own.memory_kind(MemoryKind::Device).build().unwrap()
    });
    apart[0].write(&random_words(8, N)).unwrap();
    let before = hub.ledger().implied_bytes();
    let went = onebuf::bridge::copy(&apart[0], .., &apart[1], 0).unwrap();
    assert_eq!((went.way, went.chunks), (RouteKind::Peer, 0), "{went}");
    assert_same(&apart[1].to_vec().unwrap(), &random_words(8, N), "asked for");
    assert_eq!(hub.ledger().implied_bytes(), before);
    drop((buffer, apart, sides, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn refused() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let sides = sides(&hub);
    let request = request(&hub, &sides).memory_kind(MemoryKind::Device).trust_declared(true);
    let error = request.clone().copies(CopyPolicy::Forbid).build().unwrap_err();
    assert!(matches!(error, Error::CopyForbidden { .. }), "{error}");
    assert!(error.to_string().contains("EnablePeerAccess"), "{error}");
    let ordered = request.clone().route(RouteKind::Peer).build().unwrap_err();
    assert!(matches!(ordered, Error::Driver { code: 217, .. }), "{ordered}");
    let kept_away = request.clone().host_access(HostAccess::None).build().unwrap_err();
    assert!(matches!(kept_away, Error::Driver { code: 217, .. }), "{kept_away}");
    let staged = request.build().unwrap();
    assert!(staged.explain().contains("staged copies instead"), "{}", staged.explain());
    check_turns(&staged, &sides, "staged");
}

/// A buffer for each memory kind and route. The host may have no access, because the route does not need it.
fn life(hub: &Hub, sides: &[Side; 2]) -> Result<()> {
    for (memory_kind, kind) in [
        (MemoryKind::Device, RouteKind::Peer),
        (MemoryKind::Exportable, RouteKind::Peer),
        (MemoryKind::Device, RouteKind::Staged),
    ] {
        let request =
            builder_of(hub, sides, FEW).memory_kind(memory_kind).route(kind).trust_declared(true);
        let buffer = request.build()?;
        let model = take_turns(&buffer, sides, 3)?;
        let seen = buffer.to_vec()?;
        assert_same(&seen, &model, &format!("{memory_kind} {kind}"));
    }
    let request =
        builder_of(hub, sides, FEW).memory_kind(MemoryKind::Device).route(RouteKind::Peer);
    let request = request.trust_declared(true).host_access(HostAccess::None);
    let hidden = request.build()?;
    sides[1].step(&hidden, Step::nth(1))?;
    assert!(matches!(hidden.to_vec(), Err(Error::InvalidArgument(_) | Error::Unsupported { .. })));
    Ok(())
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn swept() {
    let (mut n, mut past_the_end) = (0, 0);
    // The number of polls in a wait varies, so the sweep ends after several runs without a call left to fail.
    while past_the_end < 3 {
        n += if n < 40 { 1 } else { 3 };
        let probe = Probe::new();
        let hub = builder(&probe).build().unwrap();
        let sides = sides(&hub);
        probe.fail_nth(n, 1);
        let outcome = life(&hub, &sides);
        let failed = probe.failed();
        let what = format!("call {n}, {failed:?}, failed: {outcome:?}");
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        assert!(failed.is_some() || outcome.is_ok(), "{what}");
        past_the_end += u32::from(failed.is_none());
        probe.reset();
        life(&hub, &sides).unwrap_or_else(|e| panic!("{what}; then it does not work: {e}"));
        drop((sides, hub));
        for _ in 0..5000 {
            if probe.live().is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert!(probe.live().is_empty(), "{what}: {:?}", probe.live());
    }
    note(&format!("{n} calls swept"));
    assert!(n > 60, "{n} calls are no life");
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn proven() {
    // The doctor decides by time, and a busy machine may delay events: one of three runs must choose them.
    let by_event = |route: &Route| route.verdict.sync == Some(SyncMethod::Event);
    let mut routes = (0..3).map(|_| judged());
    assert!(routes.any(|route| by_event(&route)), "never by an event");
}

/// The doctor's result for the route between two GPUs.
fn judged() -> Route {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let hub = onebuf::builder().without(["opencl"]).cache(cache.path()).build().unwrap();
    let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path());
    let wanted = |route: &Route| route.kind == RouteKind::Peer && route.from < route.to;
    let report = doctor.run_where(&hub, wanted, &mut |_| ()).unwrap();
    let [route] = &report.routes[..] else { panic!("{report:?}") };
    assert_eq!(route.verdict.state, VerdictState::Proven, "{route:?}");
    route.clone()
}

fn peers(gpus: &[Gpu]) -> usize {
    gpus.iter().map(|gpu| gpu.peers).sum()
}

/// The drivers' own answer decides whether the test below runs: with access between the GPUs it does.
#[test]
fn the_drivers_say_whether_there_are_peers() {
    both("has_peers", &[]);
    both("has_no_peers", &[APART]);
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn has_peers() {
    assert_eq!(gpus().iter().map(|gpu| gpu.peers).collect::<Vec<_>>(), [1, 1]);
    let record = real_gpus_that_take_turns();
    assert_eq!(record, 4, "each way, in both memory kinds");
    // The control: an onebuf that finds no route has not been skipped.
    let missed = || reported("peers", &[], peers(&gpus()), 0);
    assert!(std::panic::catch_unwind(missed).is_err());
}

#[test]
#[ignore = "started by a test above, with the stub in its part"]
fn has_no_peers() {
    assert_eq!(gpus().iter().map(|gpu| gpu.peers).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn real_gpus_see_each_others_work() {
    real_gpus_that_take_turns();
}

/// On a machine with two GPUs: every pair, both memory kinds, every page. Returns how many took turns.
fn real_gpus_that_take_turns() -> usize {
    let hub = onebuf::builder().without(["opencl"]).verdicts(Default::default()).build().unwrap();
    let is_peer = |route: &&Route| route.kind == RouteKind::Peer;
    let routes: Vec<_> = hub.topology().routes().iter().filter(is_peer).collect();
    let gpus = gpus();
    let needs: &[Hardware] = if gpus.len() < 2 { &[Hardware::TwoNvidia] } else { &[] };
    if !reported("two GPUs that reach each other's memory", needs, peers(&gpus), routes.len()) {
        return 0;
    }
    let mut tried = 0;
    for route in routes {
        let device = |ix: onebuf::topology::DeviceIx| hub.device(&hub.topology().node(ix).id);
        let sides = [route.from, route.to].map(|ix| Side::open(&device(ix).unwrap()).unwrap());
        for memory_kind in [MemoryKind::Device, MemoryKind::Exportable] {
            if !sides[0].device.info().caps.memory_kinds.contains(&memory_kind) {
                continue;
            }
            let request = request(&hub, &sides).memory_kind(memory_kind).route(RouteKind::Peer);
            let buffer = request.trust_declared(true).build().unwrap();
            check_turns(&buffer, &sides, &format!("{memory_kind}"));
            note(&format!("{} <-> {}: {memory_kind}, {N} words", sides[0].device, sides[1].device));
            tried += 1;
        }
    }
    tried
}
