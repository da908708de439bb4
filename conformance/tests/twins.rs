//! The physical twins of forged verdicts: the doctor examines drivers, and what tests check with a verdict of their own is checked
//! with the doctor's. `docs/testing.md` lists which is whose.

use onebuf::{
    Buffer, CopyPolicy, Device, Error, Grid, Hub, HubBuilder, Pool, RouteKind, SyncMethod, args,
    doctor::{Doctor, Verdicts},
    hal::DeviceKind,
    pipeline::{Filled, Pipeline, Work},
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Ending, GROUP, Hardware, Machine, Side, Step, Watchdog, absent, assert_same, hand_overs_by,
    helper, measured, missing, note, play, random_words, step_model,
};
use std::{fs, os::unix::fs::PermissionsExt, sync::Mutex, time::Duration};

const N: usize = 5 * 1024 + 77;

/// Routes between drivers for the CPU, which use one memory in place.
const FREE: [(&str, &str, RouteKind); 8] = [
    ("host", POCL, RouteKind::HostPointer),
    (POCL, "host", RouteKind::HostPointer),
    (POCL, "rusticl", RouteKind::SvmPointer),
    ("rusticl", "host", RouteKind::HostPointer),
    ("rusticl", POCL, RouteKind::HostPointer),
    ("host", "vulkan", RouteKind::HostPointer),
    ("host", "gl", RouteKind::HostPointer),
    ("vulkan", "gl", RouteKind::OpaqueFd),
];
const POCL: &str = "Portable Computing Language";
const ALL: [&str; 5] = ["host", POCL, "rusticl", "vulkan", "gl"];

/// Vulkan by its loader's name, because the environment switches it off for other tests.
fn builder() -> HubBuilder {
    let builder = onebuf::builder().without(["cuda", "hip"]).library("vulkan", "libvulkan.so.1");
    builder.timeout(Duration::from_secs(30))
}

/// The driver for the CPU with that API or platform.
fn on_the_cpu(hub: &Hub, name: &str) -> Option<Device> {
    let fits = |device: &Device| {
        let info = device.info();
        info.kind == DeviceKind::Cpu && (info.api.0 == name || info.platform == name)
    };
    hub.devices().into_iter().find(fits)
}

/// The routes between devices of these names that are here.
fn free_routes(hub: &Hub, names: &[&str]) -> Vec<(Device, Device, RouteKind)> {
    let find = |name| {
        let found = on_the_cpu(hub, name);
        let is_gpu_machine = Hardware::Nvidia.is_here() || Hardware::Amd.is_here();
        if found.is_none() && !is_gpu_machine {
            missing(name, "no driver for the CPU");
        }
        found
    };
    let rows = FREE.into_iter().filter(|row| [row.0, row.1].iter().all(|n| names.contains(n)));
    rows.filter_map(|(from, to, kind)| Some((find(from)?, find(to)?, kind))).collect()
}

/// The doctor's answers on the wanted routes of a hub, and the verdicts for the next hub. Routes whose answer does not fit are
/// examined again: see `measured`.
fn examined(
    builder: impl Fn() -> HubBuilder,
    wanted: impl Fn(&Hub, &Route) -> bool,
    fits: impl Fn(&Route) -> bool,
) -> (Vec<Route>, Verdicts) {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path());
    let doctor = doctor.silence(Duration::from_secs(60)).reach(1 << 20).fresh(true);
    let mut found: Vec<Route> = Vec::new();
    let is = |a: &Route, b: &Route| (a.from, a.to, a.kind) == (b.from, b.to, b.kind);
    let examine = || {
        let hub = builder().cache(cache.path()).build().unwrap();
        let is_left = |route: &Route| {
            wanted(&hub, route) && !found.iter().any(|known| is(known, route) && fits(known))
        };
        let new = doctor.run_where(&hub, is_left, &mut |_| ()).unwrap().routes;
        found.retain(|known| !new.iter().any(|route| is(known, route)));
        found.extend(new);
        found.clone()
    };
    let routes = measured(examine, |routes| routes.iter().all(&fits));
    (routes, Verdicts::load(cache.path()).unwrap())
}

/// The doctor's answers on the routes of `FREE` between these devices, and the verdicts for the next hub.
fn examined_between(names: &[&str], fits: impl Fn(&Route) -> bool) -> (Vec<Route>, Verdicts) {
    let wanted = |hub: &Hub, route: &Route| {
        let is = |(from, to, kind): &(Device, Device, RouteKind)| {
            (from.index(), to.index(), *kind) == (route.from, route.to, route.kind)
        };
        free_routes(hub, names).iter().any(is)
    };
    examined(builder, wanted, fits)
}

/// Both take turns; each checks every element, and the host does at the end.
fn take_turns(buffer: &Buffer<u32>, sides: [&Side; 2]) {
    let what = buffer.explain();
    let mut model = random_words(11, N);
    buffer.write(&model).unwrap();
    for n in 0..6 {
        sides[n as usize % 2].step(buffer, Step::nth(n)).unwrap();
        step_model(&mut model, Step::nth(n));
        assert_same(&sides[(n as usize + 1) % 2].look(buffer).unwrap(), &model, &what);
    }
    assert_same(&buffer.to_vec().unwrap(), &model, &what);
}

/// `forged_zero_copy`: what the doctor found free of copies implies none, by itself and from a pool, and is planned under
/// `Forbid`.
#[test]
fn proven_routes_of_real_drivers_imply_nothing() {
    let _watchdog = Watchdog::new("twins", Duration::from_secs(280));
    let is_free = |route: &Route| route.verdict.zero_copy == Some(true);
    let (routes, verdicts) = examined_between(&ALL, is_free);
    if routes.is_empty() {
        return absent("twins of forged verdicts", "no driver for the CPU");
    }
    for route in &routes {
        let verdict = &route.verdict;
        let found = (verdict.state, verdict.zero_copy);
        assert_eq!(found, (VerdictState::Proven, Some(true)), "{route:?}");
    }
    let machine = Machine::open_some(builder().verdicts(verdicts).build().unwrap(), |device| {
        device.info().kind == DeviceKind::Cpu && device.info().platform != "Clover"
    });
    let (hub, rows) = (&machine.hub, free_routes(&machine.hub, &ALL));
    assert_eq!(rows.len(), routes.len());
    for (from, to, kind) in &rows {
        let sides = [machine.side(from.id()), machine.side(to.id())];
        let request = hub.buffer::<u32>(N).shared_with([from, to]).allocate_on(from);
        let free = request.clone().route(*kind).copies(CopyPolicy::Forbid);
        let buffer = free.clone().build().unwrap();
        assert!(buffer.explain().contains("(proven: "), "{}", buffer.explain());
        take_turns(&buffer, sides);
        let pool = Pool::new(hub);
        (0..3).for_each(|_| take_turns(&pool.get(&free).unwrap(), sides));
        assert_eq!(hub.ledger().implied_bytes(), 0, "{}", buffer.explain());
        note(&format!("{from} -> {to} {kind}: proven, and nothing implied"));
    }
    // The control: staged copies are counted.
    let (from, to, _) = &rows[0];
    let staged = hub.buffer::<u32>(N).shared_with([from, to]).route(RouteKind::Staged);
    let staged = staged.build().unwrap();
    take_turns(&staged, [machine.side(from.id()), machine.side(to.id())]);
    assert!(hub.ledger().implied_bytes() >= 5 * 4 * N as u64, "{}", hub.ledger());
}

/// `forged(…, Callback)`: the queue of one driver waits for another driver's work without blocking a thread, by the doctor's
/// verdict.
#[test]
fn a_proven_callback_joins_two_real_drivers() {
    let _watchdog = Watchdog::new("callbacks", Duration::from_secs(280));
    let by_callback = |route: &Route| route.verdict.sync == Some(SyncMethod::Callback);
    let (routes, verdicts) = examined_between(&[POCL, "rusticl"], by_callback);
    let Some(route) = routes.iter().find(|route| by_callback(route)) else {
        assert!(routes.is_empty(), "PoCL and rusticl are joined by a callback: {routes:?}");
        return absent("a callback that joins two drivers", "PoCL and rusticl are not both here");
    };
    let hub = builder().verdicts(verdicts).build().unwrap();
    let ends = [route.from, route.to].map(|end| hub.topology().node(end).id.clone());
    let machine = Machine::open_some(hub, |device| ends.iter().any(|id| id == device.id()));
    let sides = [machine.side(&ends[0]), machine.side(&ends[1])];
    let outcome = hand_overs_by(&machine, sides, SyncMethod::Callback, 100);
    note(&outcome.to_string());
    assert!(!matches!(outcome.ending, Ending::Failed(_)), "{outcome}");
    let own = machine.hub.buffer::<u32>(1 << 20).shared_with([&sides[0].device]).build().unwrap();
    let used: Vec<_> = (0..40)
        .map(|n| {
            sides[0].step(&own, Step::nth(n)).unwrap();
            sides[1].queue.wait_for(&sides[0].queue.fence()).unwrap()
        })
        .collect();
    assert!(used.contains(&SyncMethod::Callback), "{used:?}");
}

/// The size of batches after a run on two APIs of one chip whose hand-over the doctor has timed.
#[test]
fn the_doctors_times_make_batches_of_several_frames() {
    // OpenCL's commands are late, and a hand-over needs some that a frame by itself does not.
    play("batched", "CUDA", "imports", &[("ONEBUF_STUB_DELAY_US", "3000")]);
}

/// The frames of a pipeline of OpenCL and CUDA by these verdicts; returns the size of its batches, and the reason.
fn batches(verdicts: Verdicts, frames: u64) -> (usize, String) {
    let hub = onebuf::builder().verdicts(verdicts).timeout(Duration::from_secs(30));
    let hub = hub.build().unwrap();
    let sides = ["opencl:0", "cuda:0"].map(|id| Side::open(&hub.device(id).unwrap()).unwrap());
    let devices = sides.each_ref().map(|side| side.device.clone());
    let slot = |_| hub.buffer::<u32>(N).shared_with(&devices).build();
    let stage = |at: usize| {
        let (side, Step { mul, add }) = (&sides[at], Step::nth(at as u32));
        move |work: Work<'_, Buffer<u32>>| {
            let arguments = args![work.slot.write_on(work.queue)?, 0u32, N as u32, mul, add];
            let grid = Grid::from([N.next_multiple_of(GROUP)]).local([GROUP]);
            work.queue.launch(side.kernel(), grid, arguments)
        }
    };
    let source = |slot: &Buffer<u32>, frame| {
        if frame == frames {
            return Ok(Filled::End);
        }
        slot.write(&random_words(frame, N))?;
        Ok(Filled::Frame)
    };
    let seen = Mutex::new(0);
    let sink = |slot: &Buffer<u32>, frame| {
        let mut model = random_words(frame, N);
        (0..2).for_each(|n| step_model(&mut model, Step::nth(n)));
        assert_same(&slot.to_vec()?, &model, &format!("frame {frame}"));
        *seen.lock().unwrap() += 1;
        Ok::<(), Error>(())
    };
    let builder = Pipeline::builder(16, slot).stage("opencl", &devices[0], stage(0)).no_graft();
    let builder = builder.stage("cuda", &devices[1], stage(1));
    let mut pipeline = builder.source(source).sink(sink).build().unwrap();
    assert_eq!(pipeline.batch(), 1, "not known yet");
    pipeline.run().unwrap();
    let found = (pipeline.batch(), pipeline.explain());
    drop(pipeline);
    assert_eq!(*seen.lock().unwrap(), frames);
    found
}

#[test]
#[ignore = "started by the test above, with the stubs in their parts"]
fn batched() {
    let found = measured(
        || {
            let builder = || onebuf::builder().without(["vulkan", "gl"]);
            let by_fd = |_: &Hub, route: &Route| {
                route.kind == RouteKind::OpaqueFd && route.from != route.to
            };
            let is_free = |route: &Route| route.verdict.zero_copy == Some(true);
            let (routes, verdicts) = examined(builder, by_fd, is_free);
            assert!(routes.len() == 1 && routes.iter().all(is_free), "{routes:?}");
            batches(verdicts, 40)
        },
        |(batch, _)| *batch > 1,
    );
    let (batch, why) = found;
    note(&why);
    assert!(batch > 1 && why.contains(&format!("batches of {batch}: a change of API")), "{why}");
    // The control: without the doctor's times nothing is batched.
    assert_eq!(batches(Verdicts::default(), 10).0, 1);
}
