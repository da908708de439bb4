//! Launches: offsets, group sizes, local memory, events before and after, times, out-of-order queues.

use super::*;

const PROGRAM: &str = "
kernel void put(global uint *to, uint n) {
    to[get_global_id(0)] = n + get_global_id(0) - get_global_offset(0);
}
kernel __attribute__((reqd_work_group_size(8, 2, 1))) void groups(global uint *to) {
    size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
    to[i] = get_local_size(0) * 100 + get_local_size(1);
}
kernel void both(global uint *to, local uint *given) {
    local uint own[256];
    size_t i = get_local_id(0);
    own[i] = given[i] = i;
    barrier(CLK_LOCAL_MEM_FENCE);
    to[get_global_id(0)] = own[i] + given[i];
}
";

fn kernel(rig: &Rig, name: &str, parameters: usize) -> Arc<dyn hal::Kernel> {
    rig.program(PROGRAM).unwrap().kernel(name, parameters).unwrap()
}

#[test]
fn work_items_start_at_the_offset() {
    each(|rig| {
        let (queue, put) = (rig.queue(), kernel(rig, "put", 2));
        let memory = rig.memory(MemoryKind::Device, 400).unwrap();
        queue.fill(&*memory, 0, 400, &[0]).unwrap();
        let args =
            [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(&7u32.to_ne_bytes())];
        let grid = Grid { offset: [40, 0, 0], ..line(20, None) };
        // SAFETY: words 40 to 59 of 100.
        unsafe { launch(&*queue, &*put, &grid, &args) }.unwrap();
        let back = words(&get(&*queue, &*memory, 0, 400));
        let there = |i: u32| if (40..60).contains(&i) { 7 + i - 40 } else { 0 };
        assert_eq!(back, (0..100).map(there).collect::<Vec<_>>());
        let far = Grid { offset: [usize::MAX, 0, 0], ..line(20, None) };
        // SAFETY: refused.
        let why = invalid(unsafe { launch(&*queue, &*put, &far, &args) });
        assert!(why.contains("is too far"), "{why}");
    });
}

#[test]
fn a_required_group_size_is_used_and_kept() {
    each(|rig| {
        let (queue, groups) = (rig.queue(), kernel(rig, "groups", 1));
        let memory = rig.memory(MemoryKind::Device, 16 * 4 * 4).unwrap();
        queue.fill(&*memory, 0, 16 * 4 * 4, &[0]).unwrap();
        let args = [Arg::Memory(&*memory, Access::Write, usize::MAX)];
        let grid = |local| Grid { dims: 2, global: [16, 4, 1], local, offset: [0; 3] };
        // SAFETY: 64 words, or refused.
        let run = |grid: &Grid| unsafe { launch(&*queue, &*groups, grid, &args) };
        for local in [None, Some([8, 2, 1])] {
            run(&grid(local)).unwrap();
            assert_eq!(words(&get(&*queue, &*memory, 0, 256)), [802; 64]);
            queue.fill(&*memory, 0, 256, &[0]).unwrap();
        }
        let compiled = "it was compiled for groups of [8, 2, 1] only";
        assert!(invalid(run(&grid(Some([4, 4, 1])))).contains(compiled));
        let one = Grid { dims: 1, ..grid(None) };
        assert!(invalid(run(&one)).contains(compiled), "the second dimension is missing");
        assert_eq!(words(&get(&*queue, &*memory, 0, 256)), [0; 64], "nothing ran");
    });
}

/// A kernel's limit may be below the device's, and rusticl reports less than it runs.
#[test]
fn groups_as_large_as_the_device_says_run() {
    each(|rig| {
        let (queue, put) = (rig.queue(), kernel(rig, "put", 2));
        let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
        let args = [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(&[0; 4])];
        // SAFETY: 1024 words.
        unsafe { launch(&*queue, &*put, &line(1024, Some(256)), &args) }.unwrap();
        let expected: Vec<u32> = (0..1024).collect();
        assert_eq!(words(&get(&*queue, &*memory, 0, 4096)), expected);
    });
}

#[test]
fn uneven_groups_are_refused_before_2_0() {
    each(|rig| {
        let (queue, put) = (rig.queue(), kernel(rig, "put", 2));
        let memory = rig.memory(MemoryKind::Device, 400).unwrap();
        let args = [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(&[0; 4])];
        // SAFETY: 100 words.
        let run = unsafe { launch(&*queue, &*put, &line(100, Some(64)), &args) };
        println!("  100 in groups of 64: {run:?}");
        if rig.device.info().version.starts_with("OpenCL 1.") {
            assert!(invalid(run).contains("before OpenCL 2.0 groups must divide"));
        }
    });
}

#[test]
fn local_memory_of_kernel_and_arguments_is_added() {
    each(|rig| {
        let (queue, both) = (rig.queue(), kernel(rig, "both", 2));
        let memory = rig.memory(MemoryKind::Device, 1024).unwrap();
        let args = |bytes| [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Local(bytes)];
        // SAFETY: groups of 16 with 16 words each, or refused.
        let run = |bytes| unsafe { launch(&*queue, &*both, &line(256, Some(16)), &args(bytes)) };
        run(64).unwrap();
        let expected: Vec<u32> = (0..256).map(|i| i % 16 * 2).collect();
        assert_eq!(words(&get(&*queue, &*memory, 0, 1024)), expected);
        let all = rig.device.info().caps.local_memory_bytes as usize;
        let why = run(all);
        println!("  all local memory beside the kernel's own: {why:?}");
        // Only if the driver reports the kernel's own local memory.
        if let Err(Error::InvalidArgument(why)) = why {
            assert!(why.contains("of local memory"), "{why}");
        }
        assert!(invalid(run(all + 1)).contains("of local memory"));
    });
}

#[test]
fn a_launch_has_an_event_and_waits_for_others() {
    each_with_host_signals(|rig| {
        let (first, second, put) = (rig.queue(), rig.queue(), kernel(rig, "put", 2));
        let memory = rig.memory(MemoryKind::Device, 256).unwrap();
        first.fill(&*memory, 0, 256, &[0]).unwrap();
        first.mark().unwrap().wait(SECONDS).unwrap();
        let value = |n: u32| n.to_ne_bytes();
        let (one, two) = (value(1), value(2));
        let args = |n| [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(n)];
        let host_signal = first.host_signal().unwrap();
        let grid = line(64, None);
        // SAFETY: 64 words each.
        let launched = unsafe {
            let first = first.launch(&*put, &grid, &args(&one), &[], true).unwrap().unwrap();
            let after = [first.clone()];
            let second = second.launch(&*put, &grid, &args(&two), &after, true).unwrap().unwrap();
            [first, second]
        };
        second.flush().unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(
            launched.iter().all(|event| !event.poll().unwrap()),
            "before the host signal opened"
        );
        host_signal.open(Ok(()));
        launched.iter().for_each(|event| event.wait(SECONDS).unwrap());
        let back = words(&get(&*second, &*memory, 0, 256));
        assert_eq!(back, (2..66).collect::<Vec<_>>(), "the second came last");
    });
}

#[test]
fn a_launch_behind_a_failed_host_signal_says_so() {
    each_with_host_signals(|rig| {
        let (first, second, put) = (rig.queue(), rig.queue(), kernel(rig, "put", 2));
        let memory = rig.memory(MemoryKind::Device, 256).unwrap();
        let args = [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(&[0; 4])];
        let host_signal = first.host_signal().unwrap();
        let behind = [first.mark().unwrap()];
        let grid = line(64, None);
        // SAFETY: 64 words.
        let launched = unsafe { second.launch(&*put, &grid, &args, &behind, true) };
        let launched = launched.unwrap().unwrap();
        second.flush().unwrap();
        drop(host_signal);
        let waited = launched.wait(SECONDS);
        assert!(matches!(waited, Err(Error::Driver { .. })), "{waited:?}");
        // SAFETY: refused.
        let again = unsafe { second.launch(&*put, &grid, &args, &behind, true) };
        assert!(matches!(again, Err(Error::Driver { .. })), "{again:?}");
    });
}

#[test]
fn events_of_another_device_are_refused() {
    let _alone = alone();
    let rigs = rigs();
    let [a, b, ..] = &rigs[..] else { return println!("skip: fewer than two devices") };
    let (queue, put) = (a.queue(), kernel(a, "put", 2));
    let memory = a.memory(MemoryKind::Device, 256).unwrap();
    let args = [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(&[0; 4])];
    let foreign = [b.queue().mark().unwrap()];
    // SAFETY: refused.
    let launched = unsafe { queue.launch(&*put, &line(64, None), &args, &foreign, false) };
    assert!(matches!(launched, Err(Error::ForeignContext { .. })), "{launched:?}");
}

#[test]
fn times_are_in_order_where_they_were_asked_for() {
    each(|rig| {
        let put = kernel(rig, "put", 2);
        let memory = rig.memory(MemoryKind::Device, 256).unwrap();
        let args = [Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Bytes(&[0; 4])];
        for profiling in [true, false] {
            let spec = QueueSpec { profiling, ..QueueSpec::default() };
            let queue = rig.device.queue(spec).unwrap();
            // SAFETY: 64 words.
            let event = unsafe { queue.launch(&*put, &line(64, None), &args, &[], true) };
            let event = event.unwrap().unwrap();
            event.wait(SECONDS).unwrap();
            match (profiling, event.profile()) {
                (true, Ok(times)) => {
                    println!("  {times:?}");
                    assert!(times.queued_ns <= times.submitted_ns, "{times:?}");
                    assert!(times.submitted_ns <= times.started_ns, "{times:?}");
                    assert!(times.started_ns <= times.ended_ns && times.ended_ns > 0, "{times:?}");
                }
                (true, Err(Error::Unsupported { what, needs })) => {
                    println!("  {what} needs {needs}");
                    assert_eq!(rig.device.info().platform, "rusticl");
                }
                (false, Err(Error::Unsupported { needs, .. })) => {
                    assert_eq!(needs, "a queue opened with profiling");
                }
                (_, other) => panic!("{profiling}: {other:?}"),
            }
        }
    });
}

#[test]
fn times_of_unfinished_work_are_not_known() {
    each_with_host_signals(|rig| {
        let spec = QueueSpec { profiling: true, ..QueueSpec::default() };
        let queue = rig.device.queue(spec).unwrap();
        let host_signal = queue.host_signal().unwrap();
        let event = queue.mark().unwrap();
        assert!(matches!(event.profile(), Err(Error::Busy { .. })));
        host_signal.open(Ok(()));
        event.wait(SECONDS).unwrap();
    });
}

/// Each launch waits for the previous one by its event alone; transfers are always in order.
#[test]
fn an_out_of_order_queue_keeps_to_events() {
    each(|rig| {
        if !rig.device.info().caps.out_of_order {
            return println!("skip: no out-of-order queue on {}", rig.name());
        }
        let spec = QueueSpec { order: QueueOrder::OutOfOrder, ..QueueSpec::default() };
        let queue = rig.device.queue(spec).unwrap();
        let add = rig.program(super::PROGRAM).unwrap().kernel("add", 2).unwrap();
        let memory = rig.memory(MemoryKind::Device, 1 << 16).unwrap();
        put(&*queue, &*memory, 0, &[0; 1 << 16]);
        for round in 1..20u32 {
            let mut last: Vec<Arc<dyn hal::Event>> = Vec::new();
            rig.probe.reset();
            for _ in 0..10 {
                let args = [
                    Arg::Memory(&*memory, Access::ReadWrite, usize::MAX),
                    Arg::Bytes(&[1, 0, 0, 0]),
                ];
                // SAFETY: 16384 words.
                let event =
                    unsafe { queue.launch(&*add, &line(1 << 14, None), &args, &last, true) };
                last = vec![event.unwrap().unwrap()];
            }
            let calls = rig.probe.trace();
            assert!(!calls.iter().any(|call| call.contains("Barrier")), "{calls:?}");
            let back = words(&get(&*queue, &*memory, 0, 1 << 16));
            assert!(back.iter().all(|word| *word == round * 10), "round {round}");
        }
    });
}

/// By the specification a launch keeps the arguments it was enqueued with; clover reads them when it runs.
#[test]
fn a_launch_that_waits_keeps_its_arguments() {
    each(|rig| {
        if rig.device.info().platform == "Oclgrind" {
            return; // its flush would wait for the user event
        }
        let queue = rig.device.queue(QueueSpec::default()).unwrap();
        let own = queue.as_any().downcast_ref::<super::super::queue::Queue>().unwrap();
        let add = rig.program(super::PROGRAM).unwrap().kernel("add", 2).unwrap();
        let memory = rig.memory(MemoryKind::Device, 4).unwrap();
        queue.fill(&*memory, 0, 4, &[0; 4]).unwrap();
        let cl = &own.raw.driver().cl;
        // SAFETY: a live context.
        let user = unsafe { cl.create_user_event(own.raw.context.raw) }.unwrap();
        let host_signal: Arc<dyn hal::Event> =
            Arc::new(own.raw.event("clCreateUserEvent", user).unwrap());
        thread::scope(|scope| {
            // On another thread: the launch itself waits if the driver reads arguments late.
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                // SAFETY: a user event that is completed once.
                unsafe { cl.set_user_event_status(user, 0) }.unwrap();
            });
            let waits = std::slice::from_ref(&host_signal);
            for (value, after) in [(1_u32, waits), (100, &[]), (10_000, &[])] {
                let value = value.to_ne_bytes();
                let args = [Arg::Memory(&*memory, Access::ReadWrite, 4), Arg::Bytes(&value)];
                // SAFETY: one work-item, one element.
                unsafe { queue.launch(&*add, &line(1, None), &args, after, false) }.unwrap();
            }
        });
        let mut sum = [0; 4];
        // SAFETY: four bytes, and the read is waited for.
        let read = unsafe { queue.read(&*memory, 0, sum.as_mut_ptr(), 4) }.unwrap();
        read.wait(SECONDS).unwrap();
        assert_eq!(u32::from_ne_bytes(sum), 10_101, "{}", rig.name());
    });
}
