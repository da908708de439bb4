//! Vulkan through the public API: it takes turns with every other device of the machine, the doctor judges it, the
//! validation layers check it, and wrong input is refused.

#[path = "vulkan/foreign.rs"]
mod foreign;
#[path = "vulkan/shared.rs"]
mod shared_queue;

use onebuf::{
    Access, Buffer, CopyPolicy, Error, FdKind, Grid, Hub, HubBuilder, MemoryKind, Probe, Result,
    RouteKind, Signature, Source, SyncMethod, args,
    doctor::{Doctor, Verdicts},
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Machine, Side, Step, Watchdog, absent, assert_same, forged_zero_copy, helper, kinds, note,
    pages_apart, random_words, shared, step_model,
};
use onebuf_sys::vulkan::{Vulkan, vk};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const N: usize = 5 * 1024 + 77;
/// By its name, whatever the environment says, because other suites run without Vulkan.
const LOADER: &str = "libvulkan.so.1";
/// The variable with the validation layers' settings, in the process that they check.
const SETTINGS: &str = "VK_LAYER_SETTINGS_PATH";

/// One test at a time, because Mesa's drivers are not all thread-safe at start-up.
fn alone() -> (MutexGuard<'static, ()>, Watchdog) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, Watchdog::new("Vulkan", Duration::from_secs(240)))
}

/// A hub with Vulkan, OpenCL, OpenGL and the host.
fn builder() -> HubBuilder {
    let builder = onebuf::builder().library("vulkan", LOADER).without(["cuda", "hip"]);
    builder.verdicts(Verdicts::default()).timeout(Duration::from_secs(30))
}

/// Every device with a side; `None`, after a printed skip, without Vulkan.
fn machine(builder: HubBuilder) -> Option<Machine> {
    let machine = Machine::open(builder);
    if machine.hub.device("vulkan").is_ok() {
        return Some(machine);
    }
    let missing = machine.hub.unavailable().iter().find(|u| u.api == "vulkan");
    absent("Vulkan", missing.map_or("no device", |missing| &missing.reason));
    None
}

/// Both take turns on every page, and each sees the other's completed work.
fn take_turns(from: &Side, to: &Side, buffer: &Buffer<u32>) {
    let what = format!("{} -> {}: {}", from.device, to.device, buffer.explain());
    let mut model = random_words(11, N);
    buffer.write(&model).unwrap();
    for (round, side) in (0..).zip([to, from, to, from, from, to]) {
        let before = model.clone();
        side.step(buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        let other = if std::ptr::eq(side, to) { from } else { to };
        let seen = other.look(buffer).unwrap();
        assert_same(&seen, &model, &what);
        // The control: each step changes every page, so a page that was not handed over differs.
        assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096), "{what}");
    }
}

/// Host pages and mapped memory, in both directions, with every other device: one allocation, nothing implied.
#[test]
fn every_pair_shares_every_page_without_a_copy() {
    let _alone = alone();
    let Some(base) = machine(builder()) else { return };
    let verdicts = forged_zero_copy(&base.hub);
    drop(base);
    let Some(machine) = machine(builder().verdicts(verdicts)) else { return };
    let vulkan = machine.side("vulkan");
    let mut tried = Vec::new();
    for side in machine.sides.iter().filter(|side| side.device.index() != vulkan.device.index()) {
        for (from, to) in [(vulkan, side), (side, vulkan)] {
            for kind in kinds(&machine.hub, from, to) {
                if kind == RouteKind::Staged {
                    continue;
                }
                let before = machine.hub.ledger().implied_bytes();
                let Some(buffer) = shared(from, to, kind, SyncMethod::HostWait, N) else {
                    note(&format!(
                        "{} -> {} {kind}: not aligned this time",
                        from.device, to.device
                    ));
                    continue;
                };
                take_turns(from, to, &buffer);
                let implied = machine.hub.ledger().implied_bytes() - before;
                assert_eq!(implied, 0, "{}", buffer.explain());
                tried.push(format!("{} -> {} {kind}", from.device.id(), to.device.id()));
            }
        }
    }
    note(&format!("shared without a copy: {}", tried.join(", ")));
    for route in ["host -> vulkan:0 host_pointer", "vulkan:0 -> host host_pointer"] {
        assert!(tried.iter().any(|t| t == route), "{route} is missing from {tried:?}");
    }
}

/// The control of the ledger: staged copies are counted.
#[test]
fn a_staged_pair_is_right_and_counted() {
    let _alone = alone();
    let Some(machine) = machine(builder()) else { return };
    let (host, vulkan) = (machine.side("host"), machine.side("vulkan"));
    for (from, to) in [(host, vulkan), (vulkan, host)] {
        let buffer = shared(from, to, RouteKind::Staged, SyncMethod::HostWait, N).unwrap();
        let before = machine.hub.ledger().implied_bytes();
        take_turns(from, to, &buffer);
        assert!(machine.hub.ledger().implied_bytes() - before >= 5 * 4 * N as u64);
    }
}

/// Three and more devices on one buffer, in one process.
#[test]
fn everybody_works_on_one_buffer() {
    let _alone = alone();
    let Some(base) = machine(builder()) else { return };
    let verdicts = forged_zero_copy(&base.hub);
    drop(base);
    let Some(machine) = machine(builder().verdicts(verdicts)) else { return };
    let devices: Vec<_> = machine.sides.iter().map(|side| &side.device).collect();
    let buffer = machine.hub.buffer::<u32>(N).shared_with(devices).copies(CopyPolicy::Forbid);
    let buffer = buffer.build().unwrap();
    let mut model = random_words(3, N);
    buffer.write(&model).unwrap();
    for (round, side) in (0..).zip(machine.sides.iter().cycle()).take(4 * machine.sides.len()) {
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
    }
    assert_same(&buffer.map().unwrap(), &model, &buffer.explain());
    assert_eq!(machine.hub.ledger().implied_bytes(), 0, "{}", buffer.explain());
    note(&format!("{} devices on one buffer: {}", machine.sides.len(), buffer.explain()));
}

/// A completion callback of another API completes a Vulkan host signal.
#[test]
fn a_callback_opens_a_host_signal() {
    let _alone = alone();
    let Some(machine) = machine(builder()) else { return };
    let Ok(pocl) = machine.hub.device("Portable Computing Language") else {
        return absent("PoCL", "not found");
    };
    let (pocl, vulkan) = (&machine.sides[pocl.index().get()], machine.side("vulkan"));
    let Some(buffer) = shared(pocl, vulkan, RouteKind::HostPointer, SyncMethod::SameQueue, N)
    else {
        return note("PoCL's memory is not aligned this time");
    };
    let mut model = random_words(5, N);
    buffer.write(&model).unwrap();
    for round in 0..50 {
        let side = if round % 2 == 0 { pocl } else { vulkan };
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
    }
    assert_same(&buffer.to_vec().unwrap(), &model, &buffer.explain());
}

#[test]
fn the_doctor_proves_the_routes() {
    let _alone = alone();
    let Some(machine) = machine(builder()) else { return };
    let Machine { hub, sides } = machine;
    drop(sides);
    let vulkan = hub.device("vulkan").unwrap().index();
    let pocl = hub.device("Portable Computing Language").map(|device| device.index());
    let others = [Some(hub.host().index()), pocl.ok()];
    let wanted = |route: &Route| {
        let between = |a, b| others.contains(&Some(a)) && b == vulkan;
        let ours = between(route.from, route.to) || between(route.to, route.from);
        ours && route.kind == RouteKind::HostPointer
    };
    let cache = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir()
        .expect("a folder");
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(60));
    let report = doctor.reach(64 << 20).run_where(&hub, wanted, &mut |_| ()).unwrap();
    assert!(report.routes.len() >= 2, "{:?}", report.routes);
    for route in &report.routes {
        let verdict = &route.verdict;
        note(&format!("{route:?}"));
        assert_eq!(verdict.state, VerdictState::Proven, "{}", verdict.why);
    }
}

const GAIN: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { float x[]; };
layout(std140, binding = 1) uniform Values { float by; };
void main() { x[gl_GlobalInvocationID.x] *= by; }
";

fn gain(hub: &Hub, source: &Source) -> Result<Vec<f32>> {
    let device = hub.device("vulkan")?;
    let signature = Signature::new().each::<f32>(Access::ReadWrite).value::<f32>();
    // SAFETY: work-item i touches x[i].
    let kernel = unsafe { device.program(source)?.kernel("gain", signature)? };
    let queue = device.queue()?;
    let buffer = hub.buffer::<f32>(256).shared_with([&device]).build()?;
    buffer.write(&[3.0; 256])?;
    let view = buffer.write_on(&queue)?;
    assert!(view.vk_buffer()?.0 != 0, "a handle");
    assert!(view.cl_mem().is_err() && view.cuda_ptr().is_err(), "of other APIs");
    queue.launch(&kernel, Grid::from([256]), args![view, 2.0f32])?;
    buffer.to_vec()
}

#[test]
fn wrong_input_is_told_so() {
    let _alone = alone();
    let gone = onebuf::builder().library("vulkan", "/nowhere/libvulkan.so").without(["opencl"]);
    let gone = gone.without(["cuda", "hip", "gl"]).build().unwrap();
    let missing = gone.unavailable().iter().find(|u| u.api == "vulkan").unwrap();
    assert_eq!(
        (missing.loaded, &missing.tried[..]),
        (false, &["/nowhere/libvulkan.so".to_owned()][..])
    );
    let said = gone.device("vulkan").unwrap_err().to_string();
    assert!(said.contains("libvulkan1"), "{said}");

    let Some(Machine { hub, sides }) = machine(builder().without(["opencl", "gl"])) else {
        return;
    };
    drop(sides);
    assert_eq!(gain(&hub, &Source::glsl("gain", GAIN)).unwrap(), [6.0; 256]);
    let wrong = gain(&hub, &Source::glsl("gain", GAIN.replace("*= by", "*= buy"))).unwrap_err();
    assert!(matches!(wrong, Error::Build { .. }), "{wrong}");
    assert!(wrong.to_string().contains("buy") && wrong.to_string().contains("glsl:5"), "{wrong}");
    let garbage = [0x03, 0x02, 0x23, 0x07, 0, 3, 1, 0].repeat(40);
    let garbage = gain(&hub, &Source::spirv(garbage)).unwrap_err();
    assert!(garbage.to_string().contains("SPIR-V"), "{garbage}");
    let other = gain(&hub, &Source::opencl_c("kernel void gain() {}")).unwrap_err();
    assert!(other.to_string().contains("GLSL"), "{other}");

    let device = hub.device("vulkan").unwrap();
    let plain = hub.buffer::<u32>(64).shared_with([&device]).memory_kind(MemoryKind::Device);
    let refused = plain.allocate_on(&device).build().unwrap().export(FdKind::OpaqueFd).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let most = device.info().caps.max_alloc_bytes as usize;
    let large = hub.buffer::<u8>(most + 1).shared_with([&device]).allocate_on(&device);
    assert!(large.copies(CopyPolicy::Forbid).build().is_err());
}

/// A small program returns an error or the right numbers with each call failing; nothing leaks.
#[test]
fn each_call_of_a_program_fails_once() {
    let _alone = alone();
    if machine(builder().without(["opencl", "gl"])).is_none() {
        return;
    }
    let (mut past_the_end, mut seen) = (0, std::collections::BTreeSet::new());
    for n in 1.. {
        let probe = Probe::new();
        probe.fail_nth(n, vk::Result::ERROR_OUT_OF_HOST_MEMORY.as_raw());
        let hub = builder()
            .without(["opencl", "gl"])
            .timeout(Duration::from_secs(5))
            .probe(probe.clone());
        let hub = hub.program_cache(onebuf::ProgramCache::Memory).build().unwrap();
        let result = gain(&hub, &Source::glsl("gain", GAIN));
        match probe.failed() {
            Some(call) => drop(seen.insert(call)),
            None => past_the_end += 1,
        }
        if let Ok(numbers) = result {
            assert_eq!(numbers, [6.0; 256], "{:?}", probe.failed());
        }
        drop(hub);
        assert!(probe.live().is_empty(), "{:?} after {:?}", probe.live(), probe.failed());
        if past_the_end == 3 {
            break;
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
}

/// The tests again in a process with validation layers: they report nothing, but do report the error of the control.
#[test]
fn the_validation_layers_are_silent() {
    let folder = tempfile::tempdir().unwrap();
    let (log, settings) = (folder.path().join("log"), folder.path().join("vk_layer_settings.txt"));
    let lines = format!(
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n\
         khronos_validation.report_flags = error,warn\n\
         khronos_validation.log_filename = {}\n",
        log.display()
    );
    fs::write(&settings, lines).unwrap();
    let watched = |test: &str| {
        let ran = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
            .env(SETTINGS, &settings)
            .output()
            .unwrap();
        let told = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(ran.status.success(), "{test}: {}", told.join("\n"));
        assert!(told[0].contains(" 1 passed"), "{test} did not run: {}", told.join("\n"));
        let said = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        said
    };
    let control = watched("a_wrong_call_for_the_layers");
    if !control.contains("VkBufferCreateInfo") {
        return absent("Vulkan's validation layers", "a wrong call went by unseen");
    }
    for test in [
        "everybody_works_on_one_buffer",
        "a_staged_pair_is_right_and_counted",
        "a_callback_opens_a_host_signal",
        "exported_memory_is_imported_again",
        "wrong_input_is_told_so",
        "foreign::foreign_buffers_are_used_in_place",
        "foreign::foreign_memory_is_shared_by_its_descriptor",
        "foreign::foreign_devices_come_and_go",
        "shared_queue::owner_and_onebuf_take_turns",
        "shared_queue::exported_memory_changes_its_owner",
        "shared_queue::semaphores_of_the_owner_are_waited_for",
    ] {
        let said = watched(test);
        assert!(said.is_empty(), "{test}: {said}");
    }
}

/// A buffer of zero bytes, which the specification forbids.
#[test]
#[ignore = "for the process that the layers watch"]
fn a_wrong_call_for_the_layers() {
    let Ok(vulkan) = Vulkan::load(Some(LOADER), None) else { return };
    let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
    let device = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
    // SAFETY: complete descriptions except the wrong one, which is refused or does nothing.
    unsafe {
        let Ok(instance) = vulkan.create_instance(&info) else { return };
        let Some(first) = instance.physical_devices().unwrap().first().copied() else { return };
        let device = instance.create_device(first, &device).unwrap();
        let info = vk::BufferCreateInfo::default().usage(vk::BufferUsageFlags::TRANSFER_SRC);
        if let Ok(buffer) = device.create_buffer(&info) {
            device.destroy_buffer(buffer);
        }
        device.destroy();
        instance.destroy();
    }
}

/// Exported memory is imported again as a second buffer over the same bytes.
#[test]
fn exported_memory_is_imported_again() {
    let _alone = alone();
    let Some(machine) = machine(builder().without(["opencl", "gl"])) else { return };
    let side = machine.side("vulkan");
    if !side.device.info().caps.memory_kinds.contains(&MemoryKind::Exportable) {
        return absent("exportable memory", "the driver has none");
    }
    let buffer = machine.hub.buffer::<u32>(N).shared_with([&side.device]);
    let buffer =
        buffer.allocate_on(&side.device).memory_kind(MemoryKind::Exportable).build().unwrap();
    let mut model = random_words(9, N);
    buffer.write(&model).unwrap();
    side.step(&buffer, Step::nth(1)).unwrap();
    step_model(&mut model, Step::nth(1));
    side.queue.finish().unwrap();
    let out = buffer.export(FdKind::OpaqueFd).unwrap();
    // SAFETY: the same driver exported it here, and no other process has it.
    let alias = unsafe { machine.hub.import::<u32>(&out.fd, out.kind, out.allocation_bytes) };
    let alias = alias.range(out.offset, out.bytes).build(&side.device).unwrap();
    // The two buffers are not synchronised: each finishes before the other's turn.
    for (round, now) in (2..).zip([&alias, &buffer, &alias]) {
        let other = if std::ptr::eq(now, &alias) { &buffer } else { &alias };
        assert_same(&side.look(other).unwrap(), &model, "before the step");
        side.step(now, Step::nth(round)).unwrap();
        side.queue.finish().unwrap();
        step_model(&mut model, Step::nth(round));
        assert_same(&side.look(other).unwrap(), &model, "one memory by two descriptors");
    }
}
