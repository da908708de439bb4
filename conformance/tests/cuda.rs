//! CUDA and HIP through the public API, with the stub library: buffers, hand-overs to other devices, the ledger, the doctor's
//! verdicts, failures.

#[path = "cuda/application.rs"]
mod application;
#[path = "cuda/created.rs"]
mod created;
#[path = "cuda/foreign.rs"]
mod foreign;
#[path = "cuda/ipc.rs"]
mod ipc;
#[path = "cuda/managed.rs"]
mod managed;
#[path = "cuda/reflect.rs"]
mod reflect;
#[path = "cuda/rest.rs"]
mod rest;

use onebuf::{
    Access, Buffer, CopyPolicy, Device, Error, Hub, HubBuilder, MemoryKind, Probe, Result,
    RouteKind, Signature, Source, SyncMethod, args,
    doctor::{Doctor, Verdicts},
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Hardware, Machine, Side, Step, Watchdog, assert_same, assert_settled, compute_gpus, cuda_stub,
    fresh, helper, kinds, lacking, life, measured, note, one_api, pairs, random_words, second_life,
    share_selftest, shared, step_model,
};
use onebuf_sys::{
    Flavor,
    cuda_like::CudaLike,
    hsa::{Hsa, HsaStatus, PointerType},
};
use std::{
    ffi::c_void,
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    process::Command,
    thread,
    time::{Duration, Instant},
};

const N: usize = 5000;

/// A hub with the stub's two devices as devices of one API, and no other drivers.
fn stubbed(api: &str) -> Option<HubBuilder> {
    let library = cuda_stub()?.to_string_lossy().into_owned();
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).timeout(Duration::from_secs(30));
    Some(match api {
        "cuda" => builder.library("cuda", &library).library("nvrtc", library).without(["hip"]),
        _ => builder.library("hip", &library).library("hiprtc", library).without(["cuda"]),
    })
}

/// Runs a test with both APIs.
fn each(test: impl Fn(&str, HubBuilder)) {
    let _alone = one_api();
    let _watchdog = Watchdog::new("the stub of CUDA and HIP", Duration::from_secs(240));
    for api in ["cuda", "hip"] {
        let Some(builder) = stubbed(api) else { return };
        test(api, builder);
    }
}

#[test]
fn devices_have_numbers_and_what_is_missing_has_reasons() {
    each(|api, builder| {
        let hub = builder.verdicts(Default::default()).build().unwrap();
        let ids: Vec<_> = hub.devices().iter().map(|d| d.id().to_owned()).collect();
        assert_eq!(ids, ["host".to_owned(), format!("{api}:0"), format!("{api}:1")]);
        let other = if api == "cuda" { "hip" } else { "cuda" };
        let missing: Vec<_> = hub.unavailable().iter().map(|u| u.api).collect();
        assert_eq!(missing, ["opencl", other, "vulkan", "gl"]);
        let error = hub.device(other).unwrap_err().to_string();
        let line = error.lines().nth(1).unwrap_or_default();
        let first = format!("  {other}: switched off by the program");
        assert!(line.starts_with(&first), "the requested API comes first: {error}");
    });
}

/// The stub's own test: the call sequences that share memory, and misuse that must be refused or end the process.
#[test]
fn the_stub_shares_as_it_promises() {
    let (Some(library), Some(program)) = (cuda_stub(), share_selftest()) else { return };
    let _watchdog = Watchdog::new("the stub's own test", Duration::from_secs(120));
    let ran = Command::new(program).arg(library).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said == "fine\n", "{said}");
}

/// The symbol table of ROCr, with HIP's memory; the installed library has no GPU to export from.
#[test]
fn rocr_describes_and_exports_what_hip_allocated() {
    let _alone = one_api();
    let Some(library) = cuda_stub() else { return };
    let (library, probe) = (library.to_str(), Probe::new());
    let hip = CudaLike::load(Flavor::Hip, library, None).unwrap();
    let hsa = Hsa::load(library, Some(probe.clone())).unwrap();
    assert!(hsa.has_dmabuf());
    // SAFETY: the memory is this test's own and freed at the end; each descriptor is closed once.
    unsafe {
        hip.init(0).unwrap();
        hip.set_device(1).unwrap();
        let at = hip.alloc(3 * 4096).unwrap();
        let inside = (at.0 + 4096) as *const c_void;
        let early = hsa.pointer_info(inside).unwrap_err();
        assert_eq!(early.status, HsaStatus::ERROR_NOT_INITIALIZED);
        hsa.init().unwrap();
        let info = hsa.pointer_info(inside).unwrap();
        assert_eq!((info.kind, info.agent_base, info.bytes), (PointerType::HSA, at.0, 3 * 4096));
        let here = hsa.pointer_info((&raw const info).cast()).unwrap();
        assert_eq!(here.kind, PointerType::UNKNOWN);

        let (fd, offset) = hsa.export_dmabuf(inside, 2 * 4096).unwrap();
        assert!(offset > 4096, "{offset}");
        let file = fs::File::open(format!("/proc/self/fd/{fd}")).unwrap();
        let mut bytes = [0; 2 * 4096];
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!(bytes, [0xA5; 2 * 4096], "what the stub fills new memory with");
        hsa.close_dmabuf(fd).unwrap();
        assert!(hsa.close_dmabuf(fd).is_err(), "it is closed");
        let refused = hsa.export_dmabuf(inside, 3 * 4096).unwrap_err();
        assert_eq!(refused.status, HsaStatus::ERROR_INVALID_ALLOCATION, "more than there is");
        probe.fail_nth(1, HsaStatus::ERROR_OUT_OF_RESOURCES.0);
        assert!(hsa.export_dmabuf(inside, 4096).is_err());
        assert_eq!(probe.failed(), Some("hsa_amd_portable_export_dmabuf"));

        hsa.shut_down().unwrap();
        hip.free(at).unwrap();
    }
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

/// Every pair of the host and two devices takes turns by every declared route.
#[test]
fn pairs_see_each_others_work() {
    each(|api, builder| {
        let machine = Machine::open(builder.verdicts(Default::default()));
        let ids = ["host".to_owned(), format!("{api}:0"), format!("{api}:1")];
        for (from, to) in ids.iter().flat_map(|a| ids.iter().map(move |b| (a, b))) {
            let (from, to) = (machine.side(from), machine.side(to));
            for kind in kinds(&machine.hub, from, to) {
                if kind != RouteKind::Same {
                    take_turns(from, to, kind);
                }
            }
        }
    });
}

fn take_turns(from: &Side, to: &Side, kind: RouteKind) {
    let Some(buffer) = shared(from, to, kind, SyncMethod::SameQueue, N) else {
        let (from, to) = (&from.device, &to.device);
        return note(&format!("{from} -> {to} {kind}: not aligned for both this time"));
    };
    let mut model = random_words(7, N);
    buffer.write(&model).unwrap();
    for n in 0..6 {
        let side = if n % 2 == 0 { from } else { to };
        side.step(&buffer, Step::nth(n)).unwrap();
        step_model(&mut model, Step::nth(n));
    }
    assert_eq!(to.look(&buffer).unwrap(), model, "{kind}");
    assert_eq!(buffer.to_vec().unwrap(), model, "{kind}");
}

#[test]
fn a_view_gives_the_apis_own_pointer() {
    each(|api, builder| {
        let hub = builder.verdicts(Default::default()).build().unwrap();
        let device = hub.device(api).unwrap();
        let buffer = hub.buffer::<u32>(64).shared_with([&device]).build().unwrap();
        assert_eq!(
            buffer.plan().memory_kind,
            MemoryKind::Device,
            "a GPU's buffer lies in its own memory"
        );
        let queue = device.queue().unwrap();
        let view = buffer.read_on(&queue).unwrap();
        let address = view.address().unwrap().as_ptr() as u64;
        assert!(queue.raw() != 0 && address > 1 << 62);
        let (cuda, hip) = (view.cuda_ptr(), view.hip_ptr().map(|at| at as u64));
        let (own, other) = if api == "cuda" { (cuda, hip) } else { (hip, cuda) };
        assert_eq!(own.unwrap(), address);
        let error = other.unwrap_err().to_string();
        assert!(error.contains(&format!("of a view on {api}")), "{error}");
        assert!(view.cl_mem().is_err());
    });
}

#[test]
fn large_reads_and_writes_go_through_pinned_chunks() {
    each(|api, builder| {
        let probe = Probe::new();
        let hub = builder.verdicts(Default::default()).probe(probe.clone()).build().unwrap();
        let device = hub.device(api).unwrap();
        let len = 5 << 20;
        let words = random_words(3, len);
        let buffer = hub.buffer::<u32>(len).shared_with([&device]).build().unwrap();
        buffer.write(&words).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), words);
        assert!(probe.live().get("host").is_some_and(|pinned| *pinned > 0), "{:?}", probe.live());
        assert_eq!(hub.ledger().implied_bytes(), 0);
        drop((buffer, device, hub));
        assert!(probe.live().is_empty(), "{:?}", probe.live());
    });
}

#[test]
fn the_doctor_proves_host_pages_and_then_nothing_is_copied() {
    each(|api, builder| {
        let cache = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .unwrap();
        let hub = builder.cache(cache.path()).build().unwrap();
        let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path()).fresh(true);
        let (host, device) = (hub.host().index(), hub.device(api).unwrap().index());
        let wanted = |route: &Route| {
            let ends = [route.from, route.to];
            ends.contains(&host) && ends.contains(&device) && route.kind == RouteKind::HostPointer
        };
        let report = measured(
            || doctor.run_where(&hub, wanted, &mut |_| ()).unwrap(),
            |report| report.routes.iter().any(|route| route.verdict.zero_copy == Some(true)),
        );
        assert_eq!(report.routes.len(), 2, "{report:?}");
        for route in &report.routes {
            assert_eq!(route.verdict.state, VerdictState::Proven, "{api}: {route:?}");
        }
        let Some(builder) = stubbed(api) else { return };
        let hub = builder.verdicts(Verdicts::load(cache.path()).unwrap()).build().unwrap();
        let (host, side) = (hub.host(), Side::open(&hub.device(api).unwrap()).unwrap());
        let buffer = hub.buffer::<u32>(N).shared_with([&host, &side.device]);
        let buffer = buffer.copies(CopyPolicy::Forbid).build().unwrap();
        let mut model = random_words(1, N);
        buffer.write(&model).unwrap();
        side.step(&buffer, Step::nth(3)).unwrap();
        step_model(&mut model, Step::nth(3));
        assert_eq!(*buffer.map().unwrap(), model[..]);
        assert_eq!(hub.ledger().implied_bytes(), 0);
    });
}

#[test]
fn compiled_programs_are_kept_for_the_next_process() {
    each(|api, builder| {
        let cache = tempfile::tempdir().unwrap();
        fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let source = Source::cuda_c("add").with_hip_c("add");
        let origin = |builder: HubBuilder| {
            let hub = builder.verdicts(Default::default()).cache(cache.path()).build().unwrap();
            let device = hub.device(api).unwrap();
            let program = device.program(&source).unwrap();
            let signature = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
            // SAFETY: the stub's kernel touches as many words as there are work-items.
            let add = unsafe { program.kernel("add", signature) }.unwrap();
            let buffer = hub.buffer::<u32>(256).shared_with([&device]).build().unwrap();
            let queue = device.queue().unwrap();
            queue.launch(&add, [256], args![buffer.write_on(&queue).unwrap(), 3u32]).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [3; 256]);
            program.origin()
        };
        assert_eq!(origin(builder), onebuf::Origin::Built);
        assert_eq!(origin(stubbed(api).unwrap()), onebuf::Origin::Disk);
    });
}

/// Runs both scenarios of the suite; then again with each call failing in turn.
#[test]
fn lives_whose_calls_fail() {
    each(|api, builder| {
        let hub = builder.verdicts(Default::default()).build().unwrap();
        let device = hub.device(api).unwrap();
        life(&device).unwrap();
        second_life(&device, &fresh(&device).unwrap()).unwrap();
        drop((device, hub));
        sweep(api, |device, _| life(device));
        sweep(api, second_life);
    });
}

fn sweep(api: &str, live: impl Fn(&Device, &Buffer<u32>) -> Result<()>) {
    let builder = || stubbed(api).expect("it was there before").verdicts(Default::default());
    sweep_of(builder, api, live);
}

/// As `sweep`, with hubs from another builder.
fn sweep_of(
    builder: impl Fn() -> HubBuilder,
    api: &str,
    live: impl Fn(&Device, &Buffer<u32>) -> Result<()>,
) {
    let (mut swept, mut n) = (0, 1);
    loop {
        let probe = Probe::new();
        let hub = builder().probe(probe.clone()).build().unwrap();
        let device = hub.device(api).unwrap();
        let buffer = fresh(&device).unwrap();
        // Invalid value, out of memory, invalid handle, not supported: none of these ends a context.
        probe.fail_nth(n, [1, 2, 400, 801][n as usize % 4]);
        let outcome = live(&device, &buffer);
        let Some(call) = probe.failed() else {
            outcome.unwrap_or_else(|e| panic!("nothing failed, yet {e}"));
            break;
        };
        swept += 1;
        let what = format!("{api}: call {n}, {call}, failed: {outcome:?}");
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        if swept % 10 == 0 {
            // The next use of a buffer reports failed work, once.
            live(&device, &buffer)
                .or_else(|_| live(&device, &buffer))
                .unwrap_or_else(|e| panic!("{what}; then it does not work: {e}"));
        }
        drop((buffer, device, hub));
        assert_settled(&probe, &what);
        n += 1;
    }
    note(&format!("{api}: {swept} of {n} calls swept"));
    assert!(swept >= 60, "{swept} calls are no life");
}

/// Every pair with a real CUDA or HIP device, and any other device of this machine.
#[test]
fn real_devices_see_each_others_work() {
    let _alone = one_api();
    let hub =
        onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default()).build().unwrap();
    if compute_gpus(&hub).is_empty() {
        return;
    }
    drop(hub);
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    let machine = Machine::open(builder);
    let is_like = |side: &Side| ["cuda", "hip"].contains(&side.device.info().api.0);
    for (from, to) in pairs(&machine.sides).filter(|(a, b)| is_like(a) || is_like(b)) {
        for kind in kinds(&machine.hub, from, to) {
            note(&format!("{} -> {} {kind}", from.device, to.device));
            take_turns(from, to, kind);
        }
    }
    for device in compute_gpus(&machine.hub) {
        life(&device).unwrap();
        second_life(&device, &fresh(&device).unwrap()).unwrap();
    }
}

/// Thousands of hand-overs between a CUDA or HIP GPU and OpenCL on the same chip, by every sync method, with every element
/// checked. `ONEBUF_SOAK` sets the number for each sync method and sharing direction. Vulkan creates the semaphores and takes
/// turns with both. With `ONEBUF_CALLS` set, prints the time of the drivers' calls for each sync method.
#[test]
fn every_sync_method_holds_between_real_devices() {
    let _alone = one_api();
    // Vulkan is switched off by the environment for the other tests.
    let builder = onebuf::builder()
        .without(["gl"])
        .library("vulkan", "libvulkan.so.1")
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    let probe = std::env::var_os("ONEBUF_CALLS").map(|_| Probe::new());
    let builder = probe.iter().fold(builder, |builder, probe| builder.probe(probe.clone()));
    let hub = builder.build().unwrap();
    let apis = ["cuda", "hip", "opencl", "vulkan"];
    let devices = hub.devices().into_iter().filter(|device| apis.contains(&device.info().api.0));
    let sides: Vec<_> = devices.map(|device| Side::open(&device).unwrap()).collect();
    let chip = |side: &Side| side.device.info().physical;
    let api = |side: &Side| side.device.info().api.0;
    let like = |side: &Side| ["cuda", "hip"].contains(&api(side));
    let shaders = |side: &Side| api(side) == "vulkan";
    let joined = |(a, b): &(&Side, &Side)| {
        let apart = (like(a) || shaders(a)) && api(b) == "opencl";
        let both = like(a) && shaders(b) || shaders(a) && like(b);
        (apart || both) && (chip(a).same_chip(&chip(b)) || is_built_on(a, b))
    };
    let rounds = std::env::var("ONEBUF_SOAK").map_or(200, |n| n.parse().expect("a number"));
    let mut joins = 0;
    for (from, to) in pairs(&sides).filter(joined) {
        for kind in kinds(&hub, from, to).into_iter().filter(|k| *k != RouteKind::Staged) {
            if is_built_on(from, to) {
                let ran = from_threads(from, to, kind, SyncMethod::Event, rounds, probe.as_deref());
                joins += u32::from(ran);
            }
            for sync_method in [
                SyncMethod::Semaphore,
                SyncMethod::WaitValue,
                SyncMethod::Callback,
                SyncMethod::HostWait,
            ] {
                if (shaders(from) || shaders(to))
                    && [SyncMethod::WaitValue, SyncMethod::Callback].contains(&sync_method)
                {
                    continue;
                }
                if sync_method == SyncMethod::Semaphore && !has_semaphores(from, to, kind) {
                    // They join devices that share memory by a descriptor, which HIP does without semaphores.
                    if kind == RouteKind::OpaqueFd {
                        let what =
                            format!("{} -> {} {kind}: no semaphores", from.device, to.device);
                        lacking(&[Hardware::Nvidia], &what);
                    }
                    continue;
                }
                probe.iter().for_each(|probe| probe.time_calls());
                let ran = from_threads(from, to, kind, sync_method, rounds, probe.as_deref());
                joins += u32::from(ran);
                probe.iter().for_each(|probe| tell_times(probe, rounds));
            }
        }
    }
    match joins {
        0 => lacking(
            &[Hardware::Nvidia, Hardware::Amd],
            "no chip that both OpenCL and CUDA or HIP see, or nothing to wait for on it",
        ),
        _ => note(&format!("{joins} sync methods held, of all pairs and routes together")),
    }
}

/// Whether the first runtime is built on the second, so that they share events.
fn is_built_on(one: &Side, other: &Side) -> bool {
    one.device.info().caps.built_on.as_deref() == Some(other.device.id())
}

/// Whether the plan joins the two by semaphores on this route.
fn has_semaphores(from: &Side, to: &Side, kind: RouteKind) -> bool {
    let builder = from.device.hub().buffer::<u32>(N).shared_with([&from.device, &to.device]);
    let plan = builder.allocate_on(&from.device).route(kind).trust_declared(true).plan();
    plan.is_ok_and(|plan| plan.routes.iter().any(|hop| hop.sync == SyncMethod::Semaphore))
}

/// The hardware under both, if it is one vendor's.
fn own_hardware(from: &Side, to: &Side) -> &'static [Hardware] {
    let is = |side: &Side, platforms: &[&str]| platforms.contains(&&*side.device.info().platform);
    let both = |platforms: &[&str]| is(from, platforms) && is(to, platforms);
    match () {
        () if both(&["NVIDIA CUDA", "NVIDIA"]) => &[Hardware::Nvidia],
        () if both(&["AMD HIP", "AMD Accelerated Parallel Processing"]) => &[Hardware::Amd],
        () => &[],
    }
}

/// Splits the rounds between threads with separate queues, because some sync methods are late by milliseconds, all at once.
/// Returns whether every thread used the sync method.
fn from_threads(
    from: &Side,
    to: &Side,
    kind: RouteKind,
    sync_method: SyncMethod,
    rounds: u32,
    probe: Option<&Probe>,
) -> bool {
    const THREADS: u32 = 8;
    if rounds < 10_000 {
        return hand_over_often(from, to, kind, sync_method, rounds, probe);
    }
    thread::scope(|scope| {
        let each = || {
            let own = |side: &Side| Side::open(&side.device).unwrap();
            hand_over_often(&own(from), &own(to), kind, sync_method, rounds / THREADS, probe)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(each)).collect();
        threads.into_iter().all(|thread| thread.join().unwrap())
    })
}

/// Prints the driver calls with the largest share of a hand-over, in microseconds each, measured from one call to the next.
fn tell_times(probe: &Probe, rounds: u32) {
    for (call, count, time) in probe.times().into_iter().take(14) {
        let (us, often) = (time.as_secs_f64() * 1e6, count as f64 / f64::from(rounds));
        let (each, all) = (us / count as f64, us / f64::from(rounds));
        note(&format!(
            "    {all:8.2} us of a hand-over from {call} to the next call, {often:.2} of {each:.2} us"
        ));
    }
}

/// Returns whether the sync method or a lower one was used; prints a skip if not.
fn hand_over_often(
    from: &Side,
    to: &Side,
    kind: RouteKind,
    sync_method: SyncMethod,
    rounds: u32,
    probe: Option<&Probe>,
) -> bool {
    const WORDS: usize = 16 << 10;
    let what = format!("{} -> {} {kind}, {sync_method} or lower", from.device, to.device);
    let Some(buffer) = shared(from, to, kind, sync_method, WORDS) else {
        // Of a GPU's own drivers every address is; a driver for the CPU aligns its maps now and then.
        lacking(own_hardware(from, to), &format!("{what}: the driver's addresses are not aligned"));
        return false;
    };
    let mut model = random_words(3, WORDS);
    buffer.write(&model).unwrap();
    let (start, mut host) = (Instant::now(), Duration::ZERO);
    let mut sync_methods = std::collections::BTreeMap::<_, u32>::new();
    for n in 0..rounds {
        let (side, step) = (if n % 2 == 0 { from } else { to }, Step::nth(n));
        let begun = Instant::now();
        side.step(&buffer, step).unwrap_or_else(|e| panic!("{what}, round {n}: {e}"));
        host += begun.elapsed();
        probe.iter().for_each(|probe| probe.pause());
        *sync_methods.entry(buffer.fence().unwrap().sync_method()).or_default() += 1;
        // The model is updated only sometimes: on a slow host, doing it each round would leave no work to wait for.
        if n % 20 == 19 || n + 1 == rounds {
            (n / 20 * 20..=n).for_each(|n| step_model(&mut model, Step::nth(n)));
        }
        if n % 100 == 99 || n + 1 == rounds {
            assert_same(&buffer.to_vec().unwrap(), &model, &format!("{what}, round {n}"));
        }
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(rounds.max(1));
    let (us, host_us) = (each(start.elapsed()), each(host));
    note(&format!(
        "{what}: {rounds} hand-overs, {us:.0} us each, {host_us:.1} us of them the host's call, {sync_methods:?}"
    ));
    assert!(
        sync_methods.keys().all(|used| *used >= sync_method || *used <= SyncMethod::Event),
        "{what}: {sync_methods:?}"
    );
    assert!(
        sync_method != SyncMethod::Event || sync_methods.keys().all(|used| *used <= sync_method),
        "{what}: {sync_methods:?}"
    );
    if sync_methods.keys().all(|used| *used == SyncMethod::SameQueue) {
        let over = format!("{what}: all work was over before it was handed over");
        lacking(own_hardware(from, to), &over);
        return false;
    }
    if sync_method == SyncMethod::Semaphore {
        // Two threads may share one of onebuf's service queues, where an event is enough.
        let alone = |used: &SyncMethod| *used <= SyncMethod::Event;
        assert!(
            sync_methods.contains_key(&sync_method) && sync_methods.keys().all(alone),
            "{what}: {sync_methods:?}"
        );
    }
    true
}
