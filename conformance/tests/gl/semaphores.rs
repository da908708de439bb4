//! OpenGL and another API wait for each other by semaphores: with the stubs and a fake device of the same chip that creates the
//! semaphores, and with real drivers if available.

use super::{N, alone, gl_of, share::on_its_chip};
use onebuf::{
    Device, Error, Hub, HubBuilder, Probe, RouteKind, SyncMethod,
    fake::{FakeConfig, Sharing},
    hal::PhysicalId,
};
use onebuf_conformance::{
    Hardware, Side, Step, assert_same, assert_settled, forged, forged_verdicts, gl_stub, lacking,
    note, random_words, shared, step_model,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const SECONDS: Duration = Duration::from_secs(30);
/// Longer than the OpenGL stub blocks its thread, and much longer than anything else here.
const LATE: (&str, &str) = ("ONEBUF_CUDA_STUB_DELAY_US", "900000");
/// The time of a CUDA kernel, and slightly less.
const DELAY: (&str, &str) = ("ONEBUF_CUDA_STUB_DELAY_US", "20000");
const WORK: Duration = Duration::from_millis(19);

fn over_the_stubs(test: &str, more: &[(&str, &str)]) {
    let Some(library) = gl_stub() else { return };
    let library = [("ONEBUF_EGL_LIB", library.to_str().expect("a plain path"))];
    on_its_chip(&format!("semaphores::{test}"), "CUDA", "", &[&library, more].concat());
}

#[test]
fn both_wait_on_the_device() {
    let _alone = alone();
    over_the_stubs("both_ways", &[DELAY]);
}

#[test]
fn a_driver_without_the_extension_is_waited_for() {
    let _alone = alone();
    over_the_stubs("without", &[("ONEBUF_GL_STUB", "plain")]);
}

/// Each call of the extension fails every time: the thread waits instead, and nothing leaks.
#[test]
fn calls_that_fail_are_replaced_by_waits() {
    let _alone = alone();
    over_the_stubs("failing", &[DELAY]);
}

/// The control: if the signal never comes, the wait ends with a timeout error after its limit.
#[test]
fn a_signal_that_never_comes_is_a_timeout() {
    let _alone = alone();
    over_the_stubs("lost", &[("ONEBUF_GL_STUB", "lost")]);
}

#[test]
fn opengl_gives_up_waiting_and_goes_on_when_the_signal_has_come() {
    let _alone = alone();
    over_the_stubs("late", &[LATE]);
}

fn builder() -> HubBuilder {
    onebuf::builder().without(["opencl", "hip", "vulkan"]).timeout(SECONDS)
}

/// The two devices of a hub with forged verdicts that semaphores join them.
fn with_forged(probe: &Arc<Probe>) -> (Hub, [Device; 2]) {
    let declared = builder().verdicts(Default::default()).build().unwrap();
    let gl = declared.device("gl").unwrap();
    let chip = declared.device("cuda").unwrap().info().physical;
    assert!(gl.info().physical.same_chip(&chip), "{chip:?}");
    let maker = FakeConfig {
        name: "maker".into(),
        physical: PhysicalId { ..gl.info().physical },
        shares_host_pages: Sharing::No,
        exports_semaphores: true,
        ..FakeConfig::default()
    };
    let verdict = forged(None, Some(SyncMethod::Semaphore));
    let verdicts = forged_verdicts(&declared, &verdict, |_| true);
    let builder = builder().fake(maker).probe(probe.clone()).verdicts(verdicts);
    let hub = builder.build().unwrap();
    let devices = ["gl", "cuda"].map(|id| hub.device(id).unwrap());
    (hub, devices)
}

/// Gives each device work, and has the other wait for it; returns the sync methods.
fn wait_for_each_other(hub: &Hub, devices: &[Device; 2]) -> [SyncMethod; 2] {
    let sides = devices.each_ref().map(|device| Side::open(device).unwrap());
    let buffers = devices.each_ref().map(|device| {
        let buffer = hub.buffer::<u32>(N).shared_with([device]).allocate_on(device);
        buffer.build().unwrap()
    });
    let mut used = Vec::new();
    for (from, to) in [(0, 1), (1, 0)] {
        sides[from].step(&buffers[from], Step::nth(1)).unwrap();
        let (sent, start) = (sides[from].queue.fence(), Instant::now());
        used.push(sides[to].queue.wait_for(&sent).unwrap());
        sides[to].queue.finish().unwrap();
        let is_late = from == 1 && std::env::var(DELAY.0).is_ok();
        let least = if is_late { WORK } else { Duration::ZERO };
        assert!(start.elapsed() >= least, "{used:?}: the wait ended before the work");
    }
    [used[0], used[1]]
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn both_ways() {
    let probe = Probe::new();
    let (hub, devices) = with_forged(&probe);
    assert!(devices.iter().all(|device| device.info().caps.imports_semaphores));
    for _ in 0..20 {
        assert_eq!(wait_for_each_other(&hub, &devices), [SyncMethod::Semaphore; 2]);
    }
    let trace = probe.trace();
    assert!(trace.contains(&"glSignalSemaphoreEXT") && trace.contains(&"glWaitSemaphoreEXT"));
    drop((hub, devices));
    assert_settled(&probe, "at the end");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn without() {
    let probe = Probe::new();
    let (hub, devices) = with_forged(&probe);
    assert!(!devices[0].info().caps.imports_semaphores);
    let words = devices[0].info().caps.words();
    assert!(!words.contains(&"import_semaphores"), "{words:?}");
    let used = wait_for_each_other(&hub, &devices);
    assert!(!used.contains(&SyncMethod::Semaphore), "{used:?}");
    assert!(!probe.trace().iter().any(|call| call.contains("SemaphoresEXT")));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn failing() {
    let calls = [
        "fake_semaphore",
        "glGenSemaphoresEXT",
        "glImportSemaphoreFdEXT",
        "glSignalSemaphoreEXT",
        "glWaitSemaphoreEXT",
    ];
    for call in calls {
        let probe = Probe::new();
        let (hub, devices) = with_forged(&probe);
        probe.fail_always(call, 0x0505);
        let used = wait_for_each_other(&hub, &devices);
        assert_eq!(probe.failed(), Some(call), "{used:?}");
        assert!(used.iter().any(|used| *used != SyncMethod::Semaphore), "{call}: {used:?}");
        probe.reset();
        drop((hub, devices));
        assert_settled(&probe, call);
    }
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn lost() {
    let (hub, [gl, cuda]) = with_forged(&Probe::new());
    let [gl, cuda] = [gl, cuda].map(|device| Side::open(&device).unwrap());
    let buffer = hub.buffer::<u32>(N).shared_with([&gl.device]).build().unwrap();
    gl.step(&buffer, Step::nth(1)).unwrap();
    let used = cuda.queue.wait_for(&gl.queue.fence()).unwrap();
    assert_eq!(used, SyncMethod::Semaphore);
    let (fence, start, limit) = (cuda.queue.fence(), Instant::now(), Duration::from_millis(700));
    let error = fence.wait(limit).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("timed out after") && said.contains("work on stub GPU"), "{said}");
    assert!(start.elapsed() < 10 * limit, "{:?}", start.elapsed());
    // OpenGL's work is done; only its signal is missing. The stream waits forever.
    gl.queue.finish().unwrap();
    std::mem::forget((buffer, gl, cuda, fence, hub));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn late() {
    let (hub, [gl, cuda]) = with_forged(&Probe::new());
    let [gl, cuda] = [gl, cuda].map(|device| Side::open(&device).unwrap());
    let buffer = hub.buffer::<u32>(N).shared_with([&cuda.device]).build().unwrap();
    cuda.step(&buffer, Step::nth(1)).unwrap();
    assert_eq!(gl.queue.wait_for(&cuda.queue.fence()), Ok(SyncMethod::Semaphore));
    let fence = gl.queue.fence();
    let error = fence.wait(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    fence.wait(SECONDS).unwrap();
}

/// Whether an API of this device's chip creates semaphores that others import.
fn makes_semaphores(hub: &Hub, device: &Device) -> bool {
    let chip = device.info().physical;
    let makes = |one: &Device| {
        let info = one.info();
        info.caps.exports_semaphores && info.physical.same_chip(&chip)
    };
    hub.devices().iter().any(makes)
}

/// A hub with the real devices. Vulkan, which creates the semaphores, is switched off by the environment for other tests.
fn with_vulkan() -> Hub {
    let builder = onebuf::builder().library("vulkan", "libvulkan.so.1");
    builder.verdicts(Default::default()).timeout(SECONDS).build().unwrap()
}

/// Devices of one chip that share memory by a descriptor take turns, without a wait between the turns.
#[test]
fn real_drivers_wait_on_the_device() {
    let _alone = alone();
    let hub = with_vulkan();
    let Some(gl) = gl_of(&hub) else { return };
    if !makes_semaphores(&hub, &gl) {
        let what = "no API here exports semaphores of OpenGL's chip";
        return lacking(&[Hardware::Nvidia], what);
    }
    let routes = hub.topology().routes().iter();
    let homes = routes.filter(|r| r.to == gl.index() && r.kind == RouteKind::OpaqueFd);
    let homes: Vec<_> = homes.map(|route| route.from).collect();
    let side = Side::open(&gl).unwrap();
    let mut joined = 0;
    for home in hub.devices().into_iter().filter(|device| homes.contains(&device.index())) {
        let home = Side::open(&home).unwrap();
        let buffer = shared(&home, &side, RouteKind::OpaqueFd, SyncMethod::SameQueue, N).unwrap();
        let (info, explained) = (home.device.info(), buffer.explain());
        if !info.caps.imports_semaphores || !gl.info().caps.imports_semaphores {
            let what = format!("{} -> {gl}: one of the two imports no semaphores", home.device);
            lacking(&[Hardware::Nvidia], &what);
            continue;
        }
        assert!(explained.contains("joined by semaphore"), "{explained}");
        for round in 0..4 {
            let mut model = random_words(round, N);
            buffer.write(&model).unwrap();
            let mut used = Vec::new();
            for turn in 0..150 {
                let on = if turn % 2 == 0 { &home } else { &side };
                on.step(&buffer, Step::nth(turn)).unwrap();
                used.push(buffer.fence().unwrap().sync_method());
            }
            (0..150).for_each(|turn| step_model(&mut model, Step::nth(turn)));
            assert_same(&buffer.to_vec().unwrap(), &model, "by semaphores");
            let known = [SyncMethod::SameQueue, SyncMethod::Semaphore];
            assert!(used.iter().all(|used| known.contains(used)), "{used:?}");
            assert!(used.contains(&SyncMethod::Semaphore), "{used:?}");
        }
        note(&format!("{} and {gl}: 600 turns by semaphores", home.device));
        joined += 1;
    }
    if joined == 0 {
        let what = "no chip here joins OpenGL to another API by semaphores";
        lacking(&[Hardware::Nvidia], what);
    }
}

/// OpenGL and every other API of its chip that shares one memory by descriptors take turns; any two of them may follow each
/// other.
#[test]
fn every_api_of_a_real_chip_takes_its_turn() {
    let _alone = alone();
    let hub = with_vulkan();
    let Some(gl) = gl_of(&hub) else { return };
    let (topology, chip) = (hub.topology(), gl.info().physical);
    let sees = |home: &Device, other: &Device| {
        let routes = topology.between(home.index(), other.index());
        home.index() == other.index() || routes.iter().any(|r| r.kind == RouteKind::OpaqueFd)
    };
    let on_chip = |device: &Device| {
        let info = device.info();
        info.physical.same_chip(&chip) && info.caps.imports_semaphores
    };
    let devices: Vec<_> = hub.devices().into_iter().filter(on_chip).collect();
    let home = devices.iter().find(|home| devices.iter().all(|other| sees(home, other)));
    let Some(home) = home.filter(|_| devices.len() > 2 && makes_semaphores(&hub, &gl)) else {
        let what = "no chip here with OpenGL and two other APIs that import semaphores";
        return lacking(&[Hardware::Nvidia], what);
    };
    let sides: Vec<_> = devices.iter().map(|device| Side::open(device).unwrap()).collect();
    let builder = hub.buffer::<u32>(N).shared_with(&devices).allocate_on(home);
    let buffer = builder.route(RouteKind::OpaqueFd).trust_declared(true).build().unwrap();
    let mut model = random_words(3, N);
    buffer.write(&model).unwrap();
    let (mut used, mut at) = (Vec::new(), 0);
    for turn in 0..240 {
        sides[at].step(&buffer, Step::nth(turn)).unwrap();
        used.push(buffer.fence().unwrap().sync_method());
        // Each follows every other one.
        at = (at + 1 + turn as usize / sides.len() % (sides.len() - 1)) % sides.len();
    }
    (0..240).for_each(|turn| step_model(&mut model, Step::nth(turn)));
    assert_same(&buffer.to_vec().unwrap(), &model, "by semaphores, in turns");
    let known = [SyncMethod::SameQueue, SyncMethod::Semaphore];
    assert!(used.iter().all(|used| known.contains(used)), "{used:?}");
    note(&format!("{devices:?}: 240 turns by semaphores, allocated on {home}"));
}
