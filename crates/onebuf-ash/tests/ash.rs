//! A program that uses ash, on lavapipe: its device, queue, buffers and semaphores in onebuf, and back.

mod program;

use ash::vk;
use onebuf::{
    Buffer, CopyPolicy, Error, Hub, MemoryKind, Probe, RouteKind, SyncMethod, doctor::Verdicts,
    hal::DeviceKind,
};
use onebuf_ash::{Ash, AshBuffer, AshDevice, AshHubExt, AshMemory, AshQueues, AshViewExt};
use onebuf_conformance::{
    Side, Step, Watchdog, absent, assert_same, assert_settled, forged_zero_copy, lacking,
    pages_apart, random_words, step_model,
};
use program::{LOADER, Made, Program, USAGE};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const N: usize = 5 * 1024 + 77;
const MOMENT: Duration = Duration::from_millis(60);

/// One test at a time, because Mesa's drivers are not all thread-safe at start-up.
fn alone() -> (MutexGuard<'static, ()>, Watchdog) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, Watchdog::new("ash", Duration::from_secs(120)))
}

fn hub(probe: &Arc<Probe>) -> Hub {
    let builder = || onebuf::builder().library("vulkan", LOADER).only(["vulkan", "opencl"]);
    let base = builder().verdicts(Verdicts::default()).build().unwrap();
    let builder = builder().verdicts(forged_zero_copy(&base)).probe(probe.clone());
    builder.timeout(Duration::from_secs(30)).build().unwrap()
}

fn told(program: &Program) -> AshDevice<'_> {
    AshDevice {
        instance: &program.instance,
        physical: program.physical,
        device: &program.device,
        family: program.family,
        extensions: &program.extensions,
    }
}

fn register(hub: &Hub, program: &Program) -> Ash {
    // SAFETY: the program keeps its objects until the end of the test, and holds the lock when it uses the queue.
    unsafe { hub.ash(&told(program), AshQueues::Shared(program.queue.clone())) }.unwrap()
}

fn describe(made: &Made, mapped: bool) -> AshBuffer {
    let memory = AshMemory {
        memory: made.memory,
        offset: 0,
        bytes: made.bytes,
        memory_type: made.memory_type,
        mapped: mapped.then_some(made.mapped),
        exportable: false,
    };
    AshBuffer { memory: Some(memory), ..AshBuffer::new(made.buffer, N * 4, USAGE) }
}

fn wrap(ash: &Ash, buffer: &AshBuffer) -> onebuf::Result<Buffer<u32>> {
    // SAFETY: the program keeps it until the end of the test, and orders its work by the queue.
    unsafe { ash.wrap::<u32>(buffer) }?.build()
}

/// The program's own submissions, kernels of onebuf in its device and the host take turns on the program's bytes.
#[test]
fn buffers_and_the_queue_are_shared() {
    let _alone = alone();
    let Some(program) = Program::new() else { return absent("Vulkan", "no device") };
    let probe = Probe::new();
    let hub = hub(&probe);
    let ash = register(&hub, &program);
    assert_eq!(ash.device().id(), "vulkan:0@1");
    let (side, owners) = (Side::open(&ash.device()).unwrap(), ash.queue().unwrap());
    let made = program.buffer(N * 4);
    for (mapped, memory_kind) in [(true, MemoryKind::MappedDevice), (false, MemoryKind::Device)] {
        let told = AshBuffer {
            memory: describe(&made, mapped).memory.filter(|_| mapped),
            ..describe(&made, mapped)
        };
        let buffer = wrap(&ash, &told).unwrap();
        assert_eq!(buffer.plan().memory_kind, memory_kind);
        let mut before = vec![0; N];
        for round in 1..6 {
            let view = buffer.write_on(&owners).unwrap();
            assert_eq!(view.ash_buffer().unwrap(), (made.buffer, 0));
            program.fill(made.buffer, round, &[]);
            drop(view);
            let mut model = vec![round; N];
            side.step(&buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            assert_same(&side.look(&buffer).unwrap(), &model, "by the device");
            let seen = buffer.to_vec().unwrap();
            assert_same(&seen, &model, "by the host");
            // The control: each round changes every page.
            assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096));
            before = seen;
        }
        let sync = buffer.hand_to(&owners).unwrap();
        assert!(sync <= SyncMethod::Event, "on the device: {sync}");
        drop(buffer);
        assert_same(&made.words(N), &before, "what the program finds");
    }
    drop((side, owners, ash, hub));
    assert_settled(&probe, "onebuf");
    program.end(vec![made]);
}

/// One buffer of onebuf for the program's device and an OpenCL platform, without a copy.
#[test]
fn another_api_works_in_place() {
    let _alone = alone();
    let Some(program) = Program::new() else { return absent("Vulkan", "no device") };
    let probe = Probe::new();
    let hub = hub(&probe);
    let cl = hub.device("Portable Computing Language").map(|device| Side::open(&device).unwrap());
    let Ok(cl) = cl else { return absent("PoCL", "not found") };
    let ash = register(&hub, &program);
    if ash.device().info().kind != DeviceKind::Cpu {
        return lacking(&[], "a GPU uses no memory of PoCL in place");
    }
    let vulkan = Side::open(&ash.device()).unwrap();
    let owners = ash.queue().unwrap();
    let shared = hub.buffer::<u32>(N).shared_with([&cl.device, &vulkan.device]);
    let buffer = shared.copies(CopyPolicy::Forbid).build().unwrap();
    let mut model = random_words(1, N);
    buffer.write(&model).unwrap();
    for round in 0..4 {
        cl.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        assert_same(&vulkan.look(&buffer).unwrap(), &model, "OpenCL, then Vulkan");
        let view = buffer.write_on(&owners).unwrap();
        let (raw, offset) = view.ash_buffer().unwrap();
        program.fill_range(raw, offset, (N * 4) as u64, round + 9);
        drop(view);
        model.fill(round + 9);
        assert_same(&cl.look(&buffer).unwrap(), &model, "the program, then OpenCL");
    }
    // The control: a staged route copies, and counts it.
    let implied = || hub.ledger().implied_bytes();
    let before = implied();
    assert_eq!(before, 0, "{}", hub.ledger());
    let staged = hub.buffer::<u32>(N).shared_with([&cl.device, &vulkan.device]);
    let staged = staged.route(RouteKind::Staged).build().unwrap();
    staged.write(&model).unwrap();
    cl.step(&staged, Step::nth(1)).unwrap();
    vulkan.step(&staged, Step::nth(2)).unwrap();
    assert!(implied() >= (N * 4) as u64);
    drop((staged, buffer, cl, vulkan, owners, ash, hub));
    assert_settled(&probe, "onebuf");
    program.end(Vec::new());
}

/// Points of timelines, in both directions. Work that must wait is held up by the host.
#[test]
fn timeline_semaphores_go_in_and_out() {
    let _alone = alone();
    let Some(program) = Program::new() else { return absent("Vulkan", "no device") };
    let probe = Probe::new();
    let hub = hub(&probe);
    let ash = register(&hub, &program);
    let side = Side::open(&ash.device()).unwrap();
    let (made, timeline) = (program.buffer(N * 4), program.timeline());
    made.set(&vec![3; N]);
    let buffer = wrap(&ash, &describe(&made, true)).unwrap();
    // SAFETY: alive until the end of the test; the host signals it.
    let theirs = unsafe { ash.fence(timeline, 1) }.unwrap();
    buffer.written_until(&theirs).unwrap();
    side.step(&buffer, Step::nth(1)).unwrap();
    let ours = side.queue.fence();
    assert!(matches!(ours.wait(MOMENT), Err(Error::Timeout { .. })), "it waits for the program");
    let points = ash.points(&ours).unwrap();
    assert_eq!(points.len(), 1, "{points:?}");
    program.signal(timeline, 1);
    let waits: Vec<_> = points.iter().map(|point| (point.semaphore(), point.value())).collect();
    program.fill(made.buffer, 21, &waits);
    buffer.written_until(&ash.queue().unwrap().fence()).unwrap();
    assert_eq!(*buffer.map().unwrap(), [21; N]);
    assert!(ours.is_done().unwrap() && ash.points(&ours).unwrap().is_empty());
    drop((points, ours, theirs, buffer, side, ash, hub));
    assert_settled(&probe, "onebuf");
    program.end_timeline(timeline);
    program.end(vec![made]);
}

#[test]
fn wrong_objects_are_told() {
    let _alone = alone();
    let Some(program) = Program::new() else { return absent("Vulkan", "no device") };
    let probe = Probe::new();
    let hub = hub(&probe);
    let told = told(&program);
    let wrong = [
        (
            AshDevice { physical: vk::PhysicalDevice::null(), ..told },
            "does not have this VkPhysicalDevice",
        ),
        (AshDevice { extensions: &[c"VK_KHR_no_such_thing"], ..told }, "VK_KHR_no_such_thing"),
        (AshDevice { family: 99, ..told }, "queue family 99"),
    ];
    for (told, words) in wrong {
        // SAFETY: live handles, except for what is refused.
        let error = unsafe { hub.ash(&told, AshQueues::Own(&[0])) }.unwrap_err().to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    // SAFETY: live handles; there is no such queue, which is refused.
    let queue = unsafe { hub.ash(&told, AshQueues::Own(&[99])) }.unwrap_err().to_string();
    assert!(queue.contains("queue 99"), "{queue}");
    // SAFETY: live handles; the program does not use the queue meanwhile.
    let own = unsafe { hub.ash(&told, AshQueues::Own(&[0])) }.unwrap();
    assert!(matches!(own.queue(), Err(Error::Unsupported { .. })), "it is not shared");
    drop(own);
    let (ash, made) = (register(&hub, &program), program.buffer(N * 4));
    let good = describe(&made, true);
    let transfer = vk::BufferUsageFlags::TRANSFER_SRC;
    let cases = [
        (AshBuffer { usage: transfer, ..good }, "TRANSFER_DST | STORAGE_BUFFER"),
        (AshBuffer { buffer: vk::Buffer::null(), memory: None, ..good }, "null, and no memory"),
        (AshBuffer { bytes: N * 4 + (1 << 20), ..good }, "of a VkBuffer of"),
        (AshBuffer { bytes: N * 4 - 1, ..good }, "whole number of u32 elements"),
        (AshBuffer { offset: 4, bytes: 8, ..good }, "wants multiples"),
    ];
    for (told, words) in cases {
        let error = wrap(&ash, &told).unwrap_err().to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    // SAFETY: null is refused.
    assert!(unsafe { ash.fence(vk::Semaphore::null(), 1) }.is_err());
    // A view on a queue of another API has no buffer of ash's.
    let buffer = wrap(&ash, &good).unwrap();
    let host = hub.buffer::<u32>(4).build().unwrap();
    let queue = hub.host().queue().unwrap();
    assert!(host.read_on(&queue).unwrap().ash_buffer().is_err());
    buffer.write(&random_words(1, N)).unwrap();
    drop((buffer, host, queue, ash, hub));
    assert_settled(&probe, "onebuf");
    program.end(vec![made]);
}
