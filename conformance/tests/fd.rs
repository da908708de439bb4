//! One chip, two APIs: OpenCL imports memory of CUDA or HIP by a descriptor, with both stubs. OpenCL's stub ends the process
//! at a use without acquire, and in most modes has a cache, so that a missing hand-over shows in the data.

#[path = "fd/semaphores.rs"]
mod semaphores;

use onebuf::{
    Access, Buffer, CopyPolicy, Error, Hint, Hub, HubBuilder, MemoryKind, Pool, Probe, Result,
    RouteKind, SyncMethod,
    doctor::{Doctor, Verdicts},
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Hardware, Side, Step, Watchdog, assert_same, forged, forged_verdicts, gpus, helper, is_shared,
    measured, note, opencl_devices, pairs_by_descriptor, play, random_words, reported, selftest,
    step_model, stub,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

const N: usize = 5000;
const ANOTHER_CHIP: &str = "deadbeef000000000000000000000000";

macro_rules! plays {
    ($($(#[$why:meta])* $test:ident: $inner:ident($part:expr $(, $name:expr => $value:expr)*);)*) => {$(
        $(#[$why])*
        #[test]
        fn $test() {
            let inner = stringify!($inner);
            let api = if inner.ends_with("_hip") { "HIP" } else { "CUDA" };
            play(inner, api, $part, &[$(($name, $value)),*]);
        }
    )*};
}

plays! {
    both_apis_see_each_others_work: shared_by("imports,cached");
    both_apis_see_each_others_work_without_a_cache: shared_by("imports");
    both_apis_see_each_others_work_by_a_dma_buf: shared_by_hip("dma_buf,cached");
    hints_and_hosts_get_host_memory: hinted("imports,cached");
    parts_and_pools_are_shared_too: parts_and_pools("imports,cached");
    another_chip_has_no_such_route: on_two_chips("imports,cached", "ONEBUF_STUB_UUID" => ANOTHER_CHIP);
    a_refused_import_is_staged_or_forbidden: refused("imports,refuses");
    an_export_that_fails_is_staged_or_forbidden:
        not_exported("imports", "ONEBUF_CUDA_STUB_FAIL" => "cuMemExportToShareableHandle:801");
    each_call_fails: swept("imports,cached");
    /// From OpenCL by a wait value, back by a callback.
    late_work_is_waited_for_by_the_best_sync_method: by_the_best_sync_method(
        "imports,cached", "ONEBUF_STUB_DELAY_US" => "3000", "ONEBUF_CUDA_STUB_DELAY_US" => "3000");
    /// Work of both sides is late: a missing fence is a race.
    late_work_is_waited_for: shared_by(
        "imports,cached", "ONEBUF_STUB_DELAY_US" => "300", "ONEBUF_CUDA_STUB_DELAY_US" => "500");
    /// The sender of the wait value dies before it writes.
    a_dead_sender_is_told: dead_sender(
        "imports,lost", "ONEBUF_STUB_DELAY_US" => "300000");
    the_drivers_say_what_is_exported: exported("imports");
    the_drivers_say_what_hip_exports: exported_by_hip("dma_buf");
    the_drivers_say_that_nothing_imports: exported_nowhere("good");
    the_drivers_say_that_it_is_another_chip:
        exported_nowhere("imports", "ONEBUF_STUB_UUID" => ANOTHER_CHIP);
    the_doctor_proves_what_works: proven("imports");
    the_doctor_finds_copies_out: copying("imports,cached");
    the_doctor_refutes_what_does_not_work: refuted("imports,separate");
}

/// What these tests rely on: the stub shares what it imports, and ends the process at misuse.
#[test]
fn the_stub_misbehaves_as_it_promises() {
    let (Some(library), Some(program)) = (stub(), selftest()) else { return };
    let _watchdog = Watchdog::new("the stub's own test", Duration::from_secs(120));
    let ran = Command::new(program).arg(library).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.ends_with("stub selftest: ok\n"), "{said}");
}

fn hub() -> Hub {
    onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30))
        .build()
        .unwrap()
}

/// A hub with the same devices and a forged verdict that every route that is not staged is free of copies.
fn with_forged(hub: &Hub) -> Hub {
    with_forged_sync(hub, None, onebuf::builder().without(["vulkan", "gl"]))
}

/// As `with_forged`, with forged verdicts for one sync method.
fn with_forged_sync(hub: &Hub, sync: Option<SyncMethod>, builder: HubBuilder) -> Hub {
    let verdicts = forged_verdicts(hub, &forged(Some(true), sync), is_shared);
    builder.verdicts(verdicts).build().unwrap()
}

/// OpenCL's side of the chip, and the other API's.
fn sides(hub: &Hub) -> (Side, Side) {
    let api = hub.device("cuda:0").or_else(|_| hub.device("hip:0")).unwrap();
    (Side::open(&hub.device("opencl:0").unwrap()).unwrap(), Side::open(&api).unwrap())
}

/// Counts this process's descriptors of the stub's memory.
fn open() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("memfd:onebuf-stub")).count()
}

#[track_caller]
fn assert_settled(probe: &Probe, what: &str) {
    let start = Instant::now();
    while (open() > 0 || !probe.live().is_empty()) && start.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((open(), probe.live()), (0, Default::default()), "{what}: {:?}", probe.trace());
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn shared_by() {
    interleaved(RouteKind::OpaqueFd);
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn shared_by_hip() {
    interleaved(RouteKind::DmaBuf);
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn dead_sender() {
    let hub = hub();
    let (cl, api) = sides(&hub);
    let builder = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let builder = builder.memory_kind(MemoryKind::Exportable).allocate_on(&api.device);
    let buffer = builder.sync(SyncMethod::WaitValue).trust_declared(true).build().unwrap();
    // The stub's device dies after three kernels.
    let outcome = (0..4).try_for_each(|n| {
        cl.step(&buffer, Step::nth(n))?;
        api.step(&buffer, Step::nth(n))
    });
    // The error must not be a timeout, which would take half a minute.
    let error = outcome.and_then(|()| api.queue.finish()).unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn by_the_best_sync_method() {
    let hub = hub();
    let (cl, api) = sides(&hub);
    // No experiment has proven wait values here, nor the callbacks in the other direction.
    let builder = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let buffer = builder.trust_declared(true).build().unwrap();
    assert!(buffer.explain().contains("joined by wait_value"), "{}", buffer.explain());
    let mut model = random_words(6, N);
    buffer.write(&model).unwrap();
    let mut sync_methods = Vec::new();
    for turn in 0..8 {
        let side = if turn % 2 == 0 { &cl } else { &api };
        side.step(&buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
        sync_methods.push(buffer.fence().unwrap().sync_method());
    }
    assert_same(&buffer.to_vec().unwrap(), &model, "by the best sync method");
    // The first turn follows the write, which has completed.
    let [to_cl, to_api] = [2, 1].map(|first| sync_methods.iter().skip(first).step_by(2).copied());
    assert!(
        to_api.clone().any(|sync_method| sync_method == SyncMethod::WaitValue),
        "{sync_methods:?}"
    );
    assert!(
        to_cl.clone().any(|sync_method| sync_method == SyncMethod::Callback),
        "{sync_methods:?}"
    );
    assert!(
        to_api.chain(to_cl).all(|sync_method| sync_method != SyncMethod::HostWait),
        "{sync_methods:?}"
    );
}

/// Every page, from both sides, in turns that read what the other wrote; with sizes that end inside a page and around the
/// stub's large pages.
fn interleaved(kind: RouteKind) {
    let probe = Probe::new();
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    let hub = builder.probe(probe.clone()).build().unwrap();
    let (cl, api) = sides(&hub);
    for n in [1, 1023, 1025, N, (2 << 18) - 1, (2 << 18) + 1, 777_777] {
        let builder = hub.buffer::<u32>(n).shared_with([&cl.device, &api.device]);
        let buffer = builder.copies(CopyPolicy::Forbid).build().unwrap();
        let plan = buffer.plan();
        assert_eq!(
            (plan.allocate_on, plan.memory_kind),
            (api.device.index(), MemoryKind::Exportable)
        );
        let by: Vec<_> = plan.routes.iter().map(|hop| (hop.to, hop.kind)).collect();
        assert!(by.contains(&(cl.device.index(), kind)), "{}", buffer.explain());
        take_turns(&buffer, &cl, &api);
        let map = buffer.map();
        assert!(matches!(map, Err(Error::CopyForbidden { .. })), "the host does not see it");
    }
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
    explained(&hub, &cl, &api, kind);
    control(&hub, &cl, &api);
    drop((cl, api, hub));
    assert_settled(&probe, "at the end");
}

/// Both take turns, and both and the host check the contents.
fn take_turns(buffer: &Buffer<u32>, cl: &Side, api: &Side) {
    let n = buffer.len();
    let (mut model, what) = (random_words(n as u64, n), format!("{n} words"));
    buffer.write(&model).unwrap();
    for (turn, side) in (0..).zip([cl, api, cl, cl, api, api, cl]) {
        side.step(buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
    }
    assert_same(&api.look(buffer).unwrap(), &model, &what);
    assert_same(&cl.look(buffer).unwrap(), &model, &what);
    api.step(buffer, Step::nth(9)).unwrap();
    step_model(&mut model, Step::nth(9));
    assert_same(&cl.look(buffer).unwrap(), &model, &what);
    assert_same(&buffer.to_vec().unwrap(), &model, &what);
}

/// Whether a chip has an API that exports memory and one that imports it: the drivers decide, of which onebuf must find each pair.
fn by_descriptor_here(found: usize) -> bool {
    let what = "chip with an API that exports memory and one that imports it";
    // NVIDIA's OpenCL and CUDA are such a pair.
    reported(what, &[Hardware::Nvidia], pairs_by_descriptor(), found)
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn exported() {
    assert_eq!(pairs_by_descriptor(), 1, "{:?}, {:?}", gpus(), opencl_devices());
    real_chips_share_by_descriptors();
    // The control: an onebuf that finds no route has not been skipped.
    assert!(std::panic::catch_unwind(|| by_descriptor_here(0)).is_err());
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn exported_by_hip() {
    exported();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn exported_nowhere() {
    assert_eq!(pairs_by_descriptor(), 0, "{:?}, {:?}", gpus(), opencl_devices());
}

/// Takes turns on the real devices of this machine.
#[test]
fn real_chips_share_by_descriptors() {
    let hub = hub();
    let by_fd = |r: &&Route| [RouteKind::OpaqueFd, RouteKind::DmaBuf].contains(&r.kind);
    let routes: Vec<_> = hub.topology().routes().iter().filter(by_fd).collect();
    if !by_descriptor_here(routes.len()) {
        return;
    }
    for route in routes {
        let [from, to] =
            [route.from, route.to].map(|device| hub.topology().node(device).id.clone());
        note(&format!("{from} -> {to} {}", route.kind));
        let [from, to] = [from, to].map(|id| Side::open(&hub.device(&id).unwrap()).unwrap());
        for n in [1, N, (2 << 18) + 1, 16 << 20] {
            let builder = hub.buffer::<u32>(n).shared_with([&from.device, &to.device]);
            let builder = builder.allocate_on(&from.device).route(route.kind);
            take_turns(&builder.copies(CopyPolicy::Forbid).build().unwrap(), &to, &from);
        }
    }
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
}

fn explained(hub: &Hub, cl: &Side, api: &Side, kind: RouteKind) {
    let buffer = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]).build().unwrap();
    let text = buffer.explain();
    let id = api.device.id();
    for words in [
        format!("allocated on {id} as exportable"),
        format!("opencl:0: {kind}, no copies"),
        "by contract: an imported descriptor is the same memory".to_owned(),
        "shared by descriptors".to_owned(),
    ] {
        assert!(text.contains(&words), "`{words}` is not in: {text}");
    }
}

/// The control: separate buffers differ and copies are counted, so the tests above can fail.
fn control(hub: &Hub, cl: &Side, api: &Side) {
    let words = random_words(3, N);
    let own = |side: &Side| {
        hub.buffer::<u32>(N).shared_with([&side.device]).init(words.clone()).build().unwrap()
    };
    let (here, there) = (own(cl), own(api));
    api.step(&there, Step::nth(1)).unwrap();
    assert_eq!(here.to_vec().unwrap(), words);
    assert_ne!(there.to_vec().unwrap(), words);
    let staged = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let staged = staged.route(RouteKind::Staged).init(words).build().unwrap();
    api.step(&staged, Step::nth(1)).unwrap();
    cl.step(&staged, Step::nth(2)).unwrap();
    assert!(hub.ledger().implied_bytes() >= 4 * N as u64, "{}", hub.ledger());
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn hinted() {
    let hub = with_forged(&hub());
    let (cl, api) = sides(&hub);
    let builder = || hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    for hint in [Hint::CpuPreferred, Hint::Coherent] {
        let buffer = builder().hint(hint).copies(CopyPolicy::Forbid).build().unwrap();
        assert_ne!(
            buffer.plan().memory_kind,
            MemoryKind::Exportable,
            "{hint}: {}",
            buffer.explain()
        );
        drop(buffer.map().unwrap());
    }
    let buffer = builder().hint(Hint::GpuPreferred).build().unwrap();
    assert_eq!(buffer.plan().memory_kind, MemoryKind::Exportable, "{}", buffer.explain());
    let alone = hub.buffer::<u32>(N).shared_with([&api.device]).build().unwrap();
    assert_eq!(alone.plan().memory_kind, MemoryKind::Device, "no other device imports it");
    // On request, it also works for one device.
    let alone = hub.buffer::<u32>(N).shared_with([&api.device]).memory_kind(MemoryKind::Exportable);
    let (alone, mut model) = (alone.build().unwrap(), random_words(2, N));
    alone.write(&model).unwrap();
    api.step(&alone, Step::nth(2)).unwrap();
    step_model(&mut model, Step::nth(2));
    assert_same(&alone.to_vec().unwrap(), &model, "alone");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn parts_and_pools() {
    let hub = hub();
    let (cl, api) = sides(&hub);
    let builder = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let builder = builder.copies(CopyPolicy::Forbid);
    let buffer = builder.clone().build().unwrap();
    let mut model = random_words(5, N);
    buffer.write(&model).unwrap();
    let parts = [0..1024, 1024..3072, 3072..N];
    let views = parts.clone().map(|part| buffer.sub_buffer(part, Access::ReadWrite).unwrap());
    for round in 0..4 {
        for (i, (part, sub)) in parts.iter().zip(&views).enumerate() {
            let (side, step) =
                (if (round + i) % 2 == 0 { &cl } else { &api }, Step::nth((round * 3 + i) as u32));
            side.step_view(sub.write_on(&side.queue).unwrap(), part.len(), step).unwrap();
            step_model(&mut model[part.clone()], step);
        }
    }
    assert_same(&cl.look(&buffer).unwrap(), &model, "parts");
    assert_same(&buffer.to_vec().unwrap(), &model, "parts");
    let pool = Pool::new(&hub);
    for life in 0..5 {
        let mut model = random_words(life, N);
        let buffer = pool.get(&builder.clone().init(&model[..])).unwrap();
        for (turn, side) in (0..).zip([&cl, &api, &cl]) {
            side.step(&buffer, Step::nth(turn)).unwrap();
            step_model(&mut model, Step::nth(turn));
        }
        assert_same(&buffer.to_vec().unwrap(), &model, &format!("life {life}"));
    }
    assert_eq!((pool.statistics().made, pool.statistics().hits), (1, 4), "imported once");
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
}

/// Without the route there is a staged copy, counted and correct; under `Forbid` an error that names the route.
fn staged_instead(hub: &Hub, cl: &Side, api: &Side) -> String {
    let builder = || hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let buffer = builder().build().unwrap();
    let mut model = random_words(8, N);
    buffer.write(&model).unwrap();
    let before = hub.ledger().implied_bytes();
    for (turn, side) in (0..).zip([cl, api, cl]) {
        side.step(&buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
    }
    assert_same(&api.look(&buffer).unwrap(), &model, "staged");
    assert_same(&buffer.to_vec().unwrap(), &model, "staged");
    let copied = hub.ledger().implied_bytes() - before;
    assert!(copied >= 2 * 4 * N as u64, "{copied} bytes: {}", buffer.explain());
    let forbidden = builder().copies(CopyPolicy::Forbid).build();
    let Err(error @ Error::CopyForbidden { .. }) = forbidden else { panic!("{forbidden:?}") };
    let forced = builder().route(RouteKind::OpaqueFd).build();
    assert!(forced.is_err(), "the route that was asked for, or none: {forced:?}");
    error.to_string()
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn on_two_chips() {
    let hub = hub();
    let (cl, api) = sides(&hub);
    let [a, b] = [&cl, &api].map(|side| side.device.index());
    let by_fd = |r: &Route| r.kind == RouteKind::OpaqueFd && [r.from, r.to].contains(&a);
    assert!(!hub.topology().routes().iter().any(by_fd));
    // The control: CUDA's device can export; only the chip differs.
    assert!(api.device.info().caps.memory_kinds.contains(&MemoryKind::Exportable));
    let why = staged_instead(&hub, &cl, &api);
    assert!(why.contains("unproven: run `onebuf doctor --devices "), "{why}");
    let forced = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let forced = forced.allocate_on(&api.device).route(RouteKind::OpaqueFd).build().unwrap_err();
    assert!(matches!(forced, Error::Unsupported { .. }), "{forced}");
    assert!(hub.topology().between(b, a).iter().any(|r| r.kind == RouteKind::Staged));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn refused() {
    failing("clCreateBufferWithProperties");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn not_exported() {
    failing("cuMemExportToShareableHandle");
}

/// The plan uses the descriptor, but building the buffer fails.
fn failing(call: &str) {
    let hub = hub();
    let (cl, api) = sides(&hub);
    let builder = || hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let planned = builder().copies(CopyPolicy::Forbid).plan().unwrap();
    assert_eq!(planned.memory_kind, MemoryKind::Exportable);
    let why = staged_instead(&hub, &cl, &api);
    for words in ["cuda:0 -> opencl:0", "opaque_fd failed", call, "a staged copy"] {
        assert!(why.contains(words), "`{words}` is not in: {why}");
    }
    let text = builder().build().unwrap().explain();
    assert!(text.contains("staged") && text.contains(call), "{text}");
}

/// A buffer, turns of both sides, parts, and the end; up to the first error. Checks everything it reads.
fn life(hub: &Hub, cl: &Side, api: &Side) -> Result<()> {
    let builder = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let mut model = random_words(4, N);
    let buffer = builder.init(model.clone()).build()?;
    for (turn, side) in (0..).zip([cl, api, cl, api]) {
        side.step(&buffer, Step::nth(turn))?;
        step_model(&mut model, Step::nth(turn));
    }
    let part = buffer.sub_buffer(1024..2048, Access::ReadWrite)?;
    cl.step_view(part.write_on(&cl.queue)?, 1024, Step::nth(7))?;
    step_model(&mut model[1024..2048], Step::nth(7));
    assert_same(&buffer.to_vec()?, &model, "read");
    assert_same(&cl.look(&buffer)?, &model, "looked at");
    Ok(())
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn swept() {
    let (mut n, mut past_the_end) = (0, 0);
    // The number of polls in a wait varies, so the sweep ends after several runs without a call left to fail.
    while past_the_end < 3 {
        n += 1;
        let failed = one_life(&format!("call {n}"), |probe| probe.fail_nth(n, -5));
        past_the_end += u32::from(failed.0.is_none());
    }
    note(&format!("{n} calls swept"));
    assert!(n > 60, "{n} calls are no life");
    // Each call that the route needs fails every time: staged copies replace the route.
    for call in [
        "cuMemExportToShareableHandle",
        "clCreateBufferWithProperties",
        "clEnqueueAcquireExternalMemObjectsKHR",
        "clEnqueueReleaseExternalMemObjectsKHR",
    ] {
        let (failed, outcome) = one_life(call, |probe| probe.fail_always(call, -5));
        assert_eq!(failed, Some(call));
        outcome.unwrap_or_else(|e| panic!("{call}: {e}"));
    }
}

/// Runs the scenario with a fault, then without; nothing is left of either.
fn one_life(what: &str, fail: impl FnOnce(&Probe)) -> (Option<&'static str>, Result<()>) {
    let probe = Probe::new();
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .probe(probe.clone());
    let hub = builder.timeout(Duration::from_secs(30)).build().unwrap();
    let (cl, api) = sides(&hub);
    fail(&probe);
    let outcome = life(&hub, &cl, &api);
    let failed = probe.failed();
    let what = format!("{what}, {failed:?}, failed: {outcome:?}");
    assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
    assert!(failed.is_some() || outcome.is_ok(), "{what}");
    probe.reset();
    life(&hub, &cl, &api).unwrap_or_else(|e| panic!("{what}; then it does not work: {e}"));
    drop((cl, api, hub));
    assert_settled(&probe, &what);
    (failed, outcome)
}

/// The doctor's verdict on the descriptor's route, and a hub with that verdict.
fn examined() -> (Route, Hub) {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let hub = onebuf::builder().without(["vulkan", "gl"]).cache(cache.path()).build().unwrap();
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(90));
    let wanted = |route: &Route| route.kind == RouteKind::OpaqueFd && route.from != route.to;
    let report = doctor.run_where(&hub, wanted, &mut |_| ()).unwrap();
    let [route] = &report.routes[..] else { panic!("one pair is one chip: {report:?}") };
    let hub = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Verdicts::load(cache.path()).unwrap())
        .build()
        .unwrap();
    (route.clone(), hub)
}

fn forbid(hub: &Hub) -> Result<Buffer<u32>> {
    let [cl, api] = ["opencl:0", "cuda:0"].map(|id| hub.device(id).unwrap());
    hub.buffer::<u32>(N).shared_with([&cl, &api]).copies(CopyPolicy::Forbid).build()
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn proven() {
    let (route, hub) = measured(examined, |(route, _)| route.verdict.zero_copy == Some(true));
    assert_eq!(route.verdict.state, VerdictState::Proven, "{route:?}");
    assert!(
        route.verdict.sync.is_some_and(|sync_method| sync_method >= SyncMethod::WaitValue),
        "{route:?}"
    );
    assert_eq!(route.verdict.zero_copy, Some(true), "{route:?}");
    let text = forbid(&hub).unwrap().explain();
    assert!(text.contains("opaque_fd, no copies") && text.contains("proven"), "{text}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn copying() {
    let (route, hub) = examined();
    let found = (route.verdict.state, route.verdict.zero_copy);
    assert_eq!(found, (VerdictState::Proven, Some(false)), "{route:?}");
    let error = forbid(&hub).unwrap_err();
    assert!(matches!(error, Error::CopyForbidden { .. }), "{error}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn refuted() {
    let (route, hub) = examined();
    assert_eq!(route.verdict.state, VerdictState::Refuted, "{route:?}");
    let error = forbid(&hub).unwrap_err();
    assert!(matches!(error, Error::CopyForbidden { .. }), "{error}");
}
