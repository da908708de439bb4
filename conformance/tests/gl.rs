//! OpenGL through the public API, on any available driver: llvmpipe without a GPU.
//!
//! One test at a time: drivers in one process share LLVM and llvmpipe, which are not all thread-safe at start-up.

#[path = "gl/foreign.rs"]
mod foreign;
#[path = "gl/semaphores.rs"]
mod semaphores;
#[path = "gl/share.rs"]
mod share;
#[path = "gl/share_opencl.rs"]
mod share_opencl;

use onebuf::{
    Access, Buffer, CopyPolicy, Device, Error, Exported, FdKind, Hub, HubBuilder, MemoryKind,
    Probe, Result, RouteKind, Signature, Source, SyncMethod, args,
    doctor::Doctor,
    hal::DeviceKind,
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Hardware, Machine, Side, Step, Watchdog, absent, assert_same, assert_settled, helper, kinds,
    lacking, life, note, pages_apart, random_words, require_devices, shared, step_model, strict,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Words: some pages, and a bit.
const N: usize = 7 * 1024 + 13;

/// Waits until no other test runs, and sets a time limit.
fn alone() -> (MutexGuard<'static, ()>, Watchdog) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, Watchdog::new("OpenGL", Duration::from_secs(240)))
}

fn builder() -> HubBuilder {
    let builder = onebuf::builder().without(["cuda", "hip", "vulkan"]);
    builder.timeout(Duration::from_secs(30))
}

/// The first OpenGL device; `None`, after a printed skip, if there is none.
fn gl_of(hub: &Hub) -> Option<Device> {
    let found = hub.device("gl");
    found.inspect_err(|why| absent("OpenGL", &why.to_string())).ok()
}

/// A hub with the host and OpenGL alone.
fn small(probe: Option<&Arc<Probe>>) -> Option<(Hub, Device)> {
    let builder = builder().without(["opencl"]).verdicts(Default::default());
    let builder = match probe {
        Some(probe) => builder.probe(probe.clone()),
        None => builder,
    };
    let hub = builder.build().expect("the host");
    let gl = gl_of(&hub)?;
    Some((hub, gl))
}

/// A GPU's own OpenGL and Vulkan: a machine with a GPU must not pass with Mesa's drivers for the CPU.
#[test]
fn a_gpu_has_its_graphics_drivers() {
    let _alone = alone();
    let builder = onebuf::builder().only(["gl", "vulkan"]).library("vulkan", "libvulkan.so.1");
    require_devices(&builder.verdicts(Default::default()).build().expect("the host"));
}

#[test]
fn a_device_says_what_it_is() {
    let _alone = alone();
    let Some((_, gl)) = small(None) else { return };
    let info = gl.info();
    note(&format!(
        "{gl}: {}, {}, {}, {:?}",
        info.name,
        info.version,
        info.driver,
        info.caps.words()
    ));
    assert_eq!((gl.id(), info.api.0), ("gl:0", "gl"));
    assert!(!info.driver.is_empty() && !info.library.is_empty() && info.memory_bytes > 1 << 20);
    assert_eq!(info.caps.memory_kinds, [MemoryKind::MappedDevice, MemoryKind::Device]);
    assert!(info.caps.max_group_size >= 1024 && info.caps.max_alloc_bytes >= 1 << 24);
    assert!(!info.caps.host_signals && !info.caps.callbacks);
}

/// OpenGL with every other device, in both directions, by every declared route.
#[test]
fn every_page_is_seen_from_both_sides() {
    let _alone = alone();
    let machine = Machine::open(builder().verdicts(Default::default()));
    let Some(gl) = gl_of(&machine.hub) else { return };
    let gl = machine.side(gl.id());
    let mut routes = 0;
    for other in machine.sides.iter().filter(|side| side.device.index() != gl.device.index()) {
        for (from, to) in [(gl, other), (other, gl)] {
            for kind in kinds(&machine.hub, from, to) {
                routes += usize::from(take_turns(from, to, kind));
            }
        }
    }
    note(&format!("{routes} routes to and from OpenGL"));
    assert!(routes >= 4, "{routes} routes, where the host alone has four");
}

/// Both sides take turns; returns whether the memory was aligned for both.
fn take_turns(from: &Side, to: &Side, kind: RouteKind) -> bool {
    let what = format!("{} -> {} {kind}", from.device, to.device);
    let Some(buffer) = shared(from, to, kind, SyncMethod::HostWait, N) else {
        note(&format!("{what}: not aligned for both"));
        return false;
    };
    let mut model = random_words(7, N);
    buffer.write(&model).unwrap();
    for n in 0..6 {
        let (side, other) = if n % 2 == 0 { (from, to) } else { (to, from) };
        side.step(&buffer, Step::nth(n)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let before = model.clone();
        step_model(&mut model, Step::nth(n));
        assert_same(&other.look(&buffer).unwrap(), &model, &what);
        // The control: if the step had not arrived, every page would differ.
        assert_eq!(pages_apart(&before, &model).len(), N.div_ceil(1024), "{what}");
    }
    assert_same(&buffer.map().unwrap(), &model, &what);
    buffer.map_mut().unwrap()[N - 1] = 3;
    model[N - 1] = 3;
    assert_same(&to.look(&buffer).unwrap(), &model, &what);
    assert_same(&from.look(&buffer).unwrap(), &model, &what);
    true
}

/// Proven routes are used without a copy, by host, PoCL and OpenGL at once; staged copies are counted. Routes of
/// other platforms are proven in other suites, and each takes a while.
#[test]
fn what_is_proven_is_used_without_a_copy() {
    let _alone = alone();
    let cache =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap();
    let hub = builder().cache(cache.path()).build().unwrap();
    let Some(gl) = gl_of(&hub) else { return };
    let (host, gl) = (hub.host().index(), gl.index());
    let pocl = hub.device("Portable Computing Language").map(|device| device.index()).ok();
    let wanted = |route: &Route| {
        let ends = (route.from, route.to);
        let known =
            [(host, gl), (gl, host)].contains(&ends) || Some(ends) == pocl.map(|to| (host, to));
        known && route.kind == RouteKind::HostPointer
    };
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(60));
    let report = doctor.run_where(&hub, wanted, &mut |_| ()).unwrap();
    for route in &report.routes {
        let id = |ix| &hub.topology().node(ix).id;
        let (from, to, verdict) = (id(route.from), id(route.to), &route.verdict);
        note(&format!(
            "{from} -> {to}: {:?}, {:?}, {}",
            verdict.state, verdict.zero_copy, verdict.why
        ));
        if route.from == gl || route.to == gl {
            assert_eq!(verdict.state, VerdictState::Proven, "{from} -> {to}: {}", verdict.why);
        }
    }
    drop(hub);

    let machine = Machine::open(builder().cache(cache.path()));
    let proven = |side: &&Side| {
        let routes = machine.hub.topology().between(host, side.device.index());
        let free = |route: &Route| route.verdict.zero_copy == Some(true);
        side.device.index() == host || routes.iter().any(free)
    };
    let sides: Vec<&Side> = machine.sides.iter().filter(proven).collect();
    let here = sides.iter().any(|side| side.device.index() == gl);
    assert!(here || !strict(), "a hand-over to OpenGL costs nothing: {sides:?}");
    let devices = || sides.iter().map(|side| &side.device);
    let shared = |policy| machine.hub.buffer::<u32>(N).shared_with(devices()).copies(policy);
    let buffer = shared(CopyPolicy::Forbid).build().unwrap();
    note(&buffer.explain());
    turns(&sides, &buffer);
    assert_eq!(machine.hub.ledger().implied_bytes(), 0, "{}", machine.hub.ledger());
    // The control: the same turns with staged copies are counted.
    let staged =
        shared(CopyPolicy::Allow).allocate_on(&machine.hub.host()).route(RouteKind::Staged);
    turns(&sides, &staged.build().unwrap());
    assert!(machine.hub.ledger().implied_bytes() > 0, "{}", machine.hub.ledger());
}

fn turns(sides: &[&Side], buffer: &Buffer<u32>) {
    let mut model = random_words(9, N);
    buffer.write(&model).unwrap();
    for n in 0..3 * sides.len() {
        let step = Step::nth(n as u32);
        sides[n % sides.len()].step(buffer, step).unwrap();
        step_model(&mut model, step);
    }
    for side in sides {
        assert_same(&side.look(buffer).unwrap(), &model, side.device.id());
    }
}

#[test]
fn a_whole_life_leaves_nothing() {
    let _alone = alone();
    let probe = Probe::new();
    let Some((hub, gl)) = small(Some(&probe)) else { return };
    life(&gl).unwrap();
    assert!(!probe.live().is_empty(), "something is there while it lives");
    drop((hub, gl));
    assert_settled(&probe, "a life");
}

/// One buffer that host and OpenGL share, from creation to drop.
fn scenario(hub: &Hub, gl: &Device, policy: CopyPolicy) -> Result<()> {
    let side = Side::open(gl)?;
    let builder = hub.buffer::<u32>(N).shared_with([gl, &hub.host()]).copies(policy);
    let buffer = builder.trust_declared(true).build()?;
    let mut model = random_words(3, N);
    buffer.write(&model)?;
    side.step(&buffer, Step::nth(1))?;
    step_model(&mut model, Step::nth(1));
    buffer.map_mut()?[5] = 6;
    model[5] = 6;
    side.step(&buffer, Step::nth(2))?;
    step_model(&mut model, Step::nth(2));
    assert_same(&buffer.to_vec()?, &model, "a scenario that succeeds");
    side.queue.finish()
}

/// Whichever call fails: an error, or a counted fallback; no wrong data, and no leak.
#[test]
fn each_call_fails_once() {
    let _alone = alone();
    let (mut swept, mut coped) = (0, 0);
    for n in 1.. {
        let probe = Probe::new();
        let Some((hub, gl)) = small(Some(&probe)) else { return };
        let policy = [CopyPolicy::Allow, CopyPolicy::Forbid][n as usize % 2];
        probe.fail_nth(n, [0x0505, 0x0502][n as usize / 2 % 2]);
        let outcome = scenario(&hub, &gl, policy);
        let Some(call) = probe.failed() else {
            outcome.unwrap();
            break;
        };
        let what = format!("call {n}, {call}: {outcome:?}");
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        let implied = hub.ledger().implied_bytes();
        assert!(policy == CopyPolicy::Allow || implied == 0, "{what}: {implied} bytes");
        (swept, coped) = (n, coped + usize::from(outcome.is_ok()));
        scenario(&hub, &gl, policy).unwrap_or_else(|e| panic!("{what}; then {e}"));
        drop((hub, gl));
        assert_settled(&probe, &what);
    }
    note(&format!("{swept} calls failed, {coped} of them without an error"));
    assert!(swept > 50 && coped > 0, "{swept} calls, {coped} coped with");
}

/// If a buffer cannot be built as planned, the copy policy decides.
#[test]
fn what_cannot_be_made_falls_back_as_the_policy_says() {
    let _alone = alone();
    let probe = Probe::new();
    let Some((hub, gl)) = small(Some(&probe)) else { return };
    let side = Side::open(&gl).unwrap();
    let host = hub.host();
    let build = |on: &Device, policy| {
        let builder = hub.buffer::<u32>(N).shared_with([&gl, &host]).allocate_on(on);
        builder.copies(policy).trust_declared(true).build()
    };
    let mapped = build(&gl, CopyPolicy::Forbid).unwrap();
    assert_eq!(mapped.plan().memory_kind, MemoryKind::MappedDevice);
    // A map that fails, and host pages that are not accepted.
    let pins = gl.info().caps.imports_host_pages;
    let calls = [("glMapBufferRange", &gl, true), ("glBufferData", &host, pins)];
    for (call, on, _) in calls.into_iter().filter(|(.., called)| *called) {
        probe.fail_always(call, 0x0505);
        let refused = build(on, CopyPolicy::Forbid);
        assert!(probe.failed() == Some(call) && refused.is_err(), "{call}: {refused:?}");
        let built = build(on, CopyPolicy::Allow).unwrap_or_else(|e| panic!("{call}: {e}"));
        probe.reset();
        let mut model = random_words(4, N);
        let before = hub.ledger().implied_bytes();
        built.write(&model).unwrap();
        side.step(&built, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        assert_same(&built.map().unwrap(), &model, call);
        assert!(hub.ledger().implied_bytes() > before, "{call}: a copy that is counted");
    }
    probe.fail_always("glBufferStorage", 0x0505);
    let refused = build(&gl, CopyPolicy::Allow);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    probe.reset();
    drop((mapped, side, hub, gl, host));
    assert_settled(&probe, "a life");
}

#[test]
fn buffers_work_from_any_thread() {
    const ROUNDS: u32 = 40;
    let _alone = alone();
    let Some((hub, gl)) = small(None) else { return };
    let side = Side::open(&gl).unwrap();
    let common = hub.buffer::<u32>(N).shared_with([&gl]).build().unwrap();
    common.fill(0).unwrap();
    thread::scope(|scope| {
        for number in 0..8u32 {
            let (hub, gl, common, kernel) = (&hub, &gl, &common, side.kernel());
            scope.spawn(move || {
                let queue = gl.queue().unwrap();
                let own = hub.buffer::<u32>(1000).shared_with([gl, &hub.host()]).build().unwrap();
                let mut model = vec![number; 1000];
                own.write(&model).unwrap();
                for round in 0..ROUNDS {
                    let step = Step::nth(round * 8 + number);
                    let view = own.write_on(&queue).unwrap();
                    let arguments = args![view, 0u32, 1000u32, step.mul, step.add];
                    queue.launch(kernel, [1024], arguments).unwrap();
                    step_model(&mut model, step);
                    assert_eq!(own.map().unwrap()[999], model[999]);
                    // All threads read what none of them writes.
                    drop(common.read_on(&queue).unwrap());
                }
                assert_same(&own.to_vec().unwrap(), &model, "a thread's own");
            });
        }
    });
    assert!(common.to_vec().unwrap().iter().all(|word| *word == 0));
    // The last reference may be dropped on any thread.
    thread::spawn(move || drop((common, side, gl, hub))).join().unwrap();
}

#[test]
fn names_are_of_their_own_api() {
    let _alone = alone();
    let Some((hub, gl)) = small(None) else { return };
    let buffer = hub.buffer::<u32>(64).shared_with([&gl, &hub.host()]).build().unwrap();
    let (queue, host) = (gl.queue().unwrap(), hub.host().queue().unwrap());
    let view = buffer.read_on(&queue).unwrap();
    assert!(view.gl_name().unwrap() > 0);
    assert!(view.cl_mem().is_err() && view.cuda_ptr().is_err());
    drop(view);
    let said = buffer.read_on(&host).unwrap().gl_name().unwrap_err().to_string();
    assert!(said.contains("view on host"), "{said}");
}

#[test]
fn wrong_input_is_named() {
    let _alone = alone();
    let hub =
        builder().without(["opencl"]).library("gl", "/nonexistent/libEGL.so").build().unwrap();
    let said = hub.device("gl").unwrap_err().to_string();
    assert!(said.contains("/nonexistent/libEGL.so") && said.contains("libegl1"), "{said}");
    let hub = builder().without(["opencl", "gl"]).build().unwrap();
    let said = hub.device("gl").unwrap_err().to_string();
    assert!(said.contains("switched off by the program"), "{said}");

    let Some((hub, gl)) = small(None) else { return };
    let wrong = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() { x = 1; }";
    let Err(Error::Build { log, .. }) = gl.program(&Source::glsl("wrong", wrong)) else {
        panic!("it builds")
    };
    assert!(log.contains("wrong") && log.contains("   3 | void main()"), "{log}");
    let said = gl.program(&Source::opencl_c("kernel void f() {}")).unwrap_err().to_string();
    assert!(said.contains("with_glsl"), "{said}");

    let far = "#version 450\nlayout(local_size_x = 1) in;
        layout(std430, binding = 3) buffer Data { uint x[]; };
        void main() { x[0] = 1; }";
    let program = gl.program(&Source::glsl("far", far)).unwrap();
    // SAFETY: the kernel is never launched.
    let said = unsafe { program.kernel("far", Signature::new().buffer::<u32>(Access::Write)) };
    let said = said.unwrap_err().to_string();
    assert!(said.contains("binding 3") && said.contains("argument's number"), "{said}");

    let most = gl.info().caps.max_alloc_bytes as usize;
    let large = hub.buffer::<u8>(most + 1).shared_with([&gl]).build();
    assert!(matches!(large, Err(Error::OutOfMemory { limit: Some(_), .. })), "{large:?}");
    let side = Side::open(&gl).unwrap();
    let buffer = hub.buffer::<u32>(64).shared_with([&gl]).build().unwrap();
    let arguments = args![buffer.write_on(&side.queue).unwrap(), 0u32, 64u32, 1u32, 0u32];
    let said = side.queue.launch(side.kernel(), [65], arguments).unwrap_err().to_string();
    assert!(said.contains("65 work-items") && said.contains("do not divide"), "{said}");
}

/// OpenGL uses Vulkan's memory by its descriptor if the UUIDs show one chip.
#[test]
fn memory_of_vulkan_is_used_in_place() {
    let _alone = alone();
    let builder =
        onebuf::builder().library("vulkan", "libvulkan.so.1").without(["opencl", "cuda", "hip"]);
    let builder = builder.timeout(Duration::from_secs(30)).verdicts(Default::default());
    let hub = builder.build().expect("the host");
    let (Some(gl), vulkan) = (gl_of(&hub), hub.device("vulkan")) else { return };
    let vulkan = match vulkan {
        Ok(vulkan) => vulkan,
        Err(why) => return absent("Vulkan", &why.to_string()),
    };
    let (from, to) = (Side::open(&vulkan).unwrap(), Side::open(&gl).unwrap());
    let declared = kinds(&hub, &from, &to);
    if !vulkan.info().physical.same_chip(&gl.info().physical) {
        let what = format!("{vulkan} and {gl} are not known to be one chip: {declared:?}");
        // Mesa's drivers for the CPU, which `./dev` installs, are one chip, as a GPU's drivers are.
        return match [&vulkan, &gl].map(|device| device.info().kind) {
            [DeviceKind::Cpu, DeviceKind::Cpu] => absent("memory of Vulkan in OpenGL", &what),
            _ => lacking(&[Hardware::Nvidia, Hardware::RenderNode], &what),
        };
    }
    assert!(declared.contains(&RouteKind::OpaqueFd), "{declared:?}");
    let buffer =
        shared(&from, &to, RouteKind::OpaqueFd, SyncMethod::HostWait, N).expect("no alignment");
    turns(&[&from, &to], &buffer);
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
    note(&buffer.explain());

    // llvmpipe reports an allocation that the buffer fills completely as out of memory.
    if gl.info().name.contains("llvmpipe") {
        let Exported { fd, kind, allocation_bytes, .. } = buffer.export(FdKind::OpaqueFd).unwrap();
        // SAFETY: lavapipe exported it here, for llvmpipe, and no other process has it.
        let tight = unsafe { hub.import::<u32>(fd, kind, allocation_bytes) }.build(&gl);
        let said = tight.unwrap_err().to_string();
        assert!(said.contains("out of memory") && said.contains("4096 bytes more"), "{said}");
    }
}
