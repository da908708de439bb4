//! Programs, launches, events, threads.

use super::*;
use onebuf_hal::RawHandle;

#[test]
fn a_build_error_shows_the_source() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let wrong = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() { frobnicate(); }";
    let Err(Error::Build { log, .. }) = device.build(&source("wrong", wrong)) else {
        panic!("it builds")
    };
    assert!(log.contains("shader `wrong`") && log.contains("frobnicate"), "{log}");
    assert!(log.contains("   3 | void main() { frobnicate(); }"), "{log}");
    let mut twice = source("step", STEP);
    twice.shaders.push(Shader { name: "step".into(), text: wrong.into() });
    assert!(refusal(device.build(&twice)).contains("two shaders"));
    let said = refusal(device.build(&Source::default()));
    assert!(said.contains("with_glsl") && said.contains("nothing"), "{said}");
    let program = device.build(&source("step", STEP)).unwrap();
    let said = refusal(program.kernel("stop", 3));
    assert!(said.contains("`stop`") && said.contains("has step"), "{said}");
}

#[test]
fn wrong_bindings_are_named() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let program = device.build(&source("step", STEP)).unwrap();
    // The block of values has binding 1, and there is no argument 1.
    let said = refusal(program.kernel("step", 1));
    assert!(said.contains("binding 1") && said.contains("1 arguments"), "{said}");
    let queue = device.queue(QueueSpec::default()).unwrap();
    let kernel = program.kernel("step", 3).unwrap();
    let memory = device.allocate(&spec(MemoryKind::Device, 4096), None).unwrap();
    let (whole, word) = (Arg::Memory(&*memory, Access::ReadWrite, 4096), Arg::Bytes(&[1; 4]));
    let launch = |args: &[Arg<'_>], grid: Grid| {
        // SAFETY: all are refused before the launch.
        refusal(unsafe { queue.launch(&*kernel, &grid, args, &[], false) })
    };
    for (args, says) in [
        (vec![whole, word], "takes 3 arguments, 2 given"),
        (vec![word, whole, word], "argument 0 is no buffer"),
        (vec![whole, whole, word], "binding 2"),
        (vec![whole, Arg::Bytes(&[0; 16]), word], "32 bytes"),
        (vec![whole, word, Arg::Local(64)], "shared"),
    ] {
        let said = launch(&args, line(32));
        assert!(said.contains(says), "`{says}` is not in {said}");
    }
    let args = [whole, word, word];
    for (grid, says) in [
        (line(33), "do not divide"),
        (Grid { local: Some([64, 1, 1]), ..line(64) }, "omit the group size"),
        (Grid { offset: [1, 0, 0], ..line(64) }, "offset"),
        (line(32 * (1 << 31)), "the device takes"),
    ] {
        let said = launch(&args, grid);
        assert!(said.contains(says), "`{says}` is not in {said}");
    }
    let reads = AllocSpec { access: Access::Read, ..spec(MemoryKind::Device, 4096) };
    let reads = device.allocate(&reads, None).unwrap();
    let said = launch(&[Arg::Memory(&*reads, Access::Write, 4096), word, word], line(32));
    assert!(said.contains("made for read"), "{said}");
}

#[test]
fn values_arrive_as_the_block_has_them() {
    const TEXT: &str = "#version 450
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer Data { float x[]; };
layout(std140, binding = 1) uniform Values { float a; vec2 b; vec3 c; float d; vec4 e; };
void main() {
    x[0] = a; x[1] = b.x; x[2] = b.y; x[3] = c.x; x[4] = c.y; x[5] = c.z; x[6] = d;
    x[7] = e.x; x[8] = e.w;
}";
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queue = device.queue(QueueSpec::default()).unwrap();
    let kernel = device.build(&source("all", TEXT)).unwrap().kernel("all", 6).unwrap();
    let memory = device.allocate(&spec(MemoryKind::Device, 36), None).unwrap();
    let floats: Vec<u8> = (1..=11u8).flat_map(|n| f32::from(n).to_ne_bytes()).collect();
    let args = [
        Arg::Memory(&*memory, Access::Write, 36),
        Arg::Bytes(&floats[..4]),
        Arg::Bytes(&floats[4..12]),
        Arg::Bytes(&floats[12..24]),
        Arg::Bytes(&floats[24..28]),
        Arg::Bytes(&floats[28..]),
    ];
    // SAFETY: nine numbers are written.
    unsafe { queue.launch(&*kernel, &line(1), &args, &[], false) }.unwrap();
    let seen: Vec<f32> =
        words_of(&contents(&*queue, &*memory).unwrap()).into_iter().map(f32::from_bits).collect();
    assert_eq!(seen, [1., 2., 3., 4., 5., 6., 7., 8., 11.]);
}

#[test]
fn launches_follow_each_other_on_all_queues() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queues = [0; 3].map(|_| device.queue(QueueSpec::default()).unwrap());
    let kernel = device.build(&source("step", STEP)).unwrap().kernel("step", 3).unwrap();
    let memory = device.allocate(&spec(MemoryKind::Device, 64 * PAGE), None).unwrap();
    queues[0].fill(&*memory, 0, 64 * PAGE, &[0]).unwrap();
    let mut model = vec![0; 16 * PAGE];
    for round in 0..60 {
        step(&*queues[round % 3], &*kernel, &*memory, 3 + round as u32).unwrap();
        step_model(&mut model, 3 + round as u32);
    }
    assert_eq!(words_of(&contents(&*queues[1], &*memory).unwrap()), model);
    let event = queues[2].mark().unwrap();
    queues[0].wait_for(std::slice::from_ref(&event)).unwrap();
    event.wait(SECONDS).unwrap();
    assert!(event.is_over() && event.poll() == Ok(true));
    assert!(refusal(queues[0].host_signal()).contains("host signal"));
    let refused = event.on_complete(Box::new(|_| ()));
    assert!(refused.is_err_and(|(why, _)| why.to_string().contains("callback")));
    assert_eq!(memory.raw(), memory.raw());
    assert!(matches!(memory.raw(), RawHandle::Object(name) if name > 0));
}

#[test]
fn a_profiled_launch_has_its_times() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queue = device.queue(QueueSpec::default().profiled()).unwrap();
    let kernel = device.build(&source("step", STEP)).unwrap().kernel("step", 3).unwrap();
    let memory = device.allocate(&spec(MemoryKind::Device, 64 * PAGE), None).unwrap();
    let event = step(&*queue, &*kernel, &*memory, 3).unwrap();
    event.wait(SECONDS).unwrap();
    let profile = event.profile().unwrap();
    assert!(profile.started_ns <= profile.ended_ns, "{profile:?}");
    let plain = queue.mark().unwrap();
    plain.wait(SECONDS).unwrap();
    assert!(refusal(plain.profile()).contains("profiling"));
}

#[test]
fn any_thread_may_use_the_device_and_be_the_last() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(device) = device(Some(probe.clone())) else { return };
    let kernel = device.build(&source("step", STEP)).unwrap().kernel("step", 3).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let (device, kernel) = (&device, &kernel);
            scope.spawn(move || {
                let queue = device.queue(QueueSpec::default()).unwrap();
                let memory = device.allocate(&spec(MemoryKind::MappedDevice, PAGE), None).unwrap();
                queue.fill(&*memory, 0, PAGE, &thread.to_ne_bytes()).unwrap();
                let mut model = vec![thread; PAGE / 4];
                for round in 0..50 {
                    step(&*queue, &**kernel, &*memory, round * 2 + 1).unwrap();
                    step_model(&mut model, round * 2 + 1);
                }
                assert_eq!(words_of(&contents(&*queue, &*memory).unwrap()), model);
            });
        }
    });
    println!("8 threads of 50 launches in {:?}", start.elapsed());
    drop(device);
    let last = std::thread::spawn(move || drop(kernel));
    last.join().unwrap();
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
fn things_of_other_contexts_are_refused() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let mut number = 100;
    let mut next = || {
        number += 1;
        Domain(number)
    };
    let other = discover(None, None, &mut next, &|_, _| None).unwrap().devices.remove(0);
    let queue = device.queue(QueueSpec::default()).unwrap();
    let memory = other.allocate(&spec(MemoryKind::Device, 64), None).unwrap();
    let said = refusal(queue.fill(&*memory, 0, 64, &[0]));
    assert!(said.contains("foreign context"), "{said}");
    let event = other.queue(QueueSpec::default()).unwrap().mark().unwrap();
    assert!(refusal(queue.wait_for(&[event])).contains("foreign context"));
    let kernel = other.build(&source("step", STEP)).unwrap().kernel("step", 3).unwrap();
    let mine = device.allocate(&spec(MemoryKind::Device, 64), None).unwrap();
    assert!(refusal(step(&*queue, &*kernel, &*mine, 1)).contains("foreign context"));
}

#[test]
fn a_name_that_is_no_library_is_a_value() {
    let mut next = || Domain(1);
    let missing = discover(Some("/nonexistent.so"), None, &mut next, &|_, _| None).unwrap_err();
    assert!(!missing.loaded && missing.hint.contains("libegl1"), "{missing}");
    let missing = discover(Some("none"), None, &mut next, &|_, _| None).unwrap_err();
    assert!(missing.reason.contains("switched off"), "{missing}");
}
