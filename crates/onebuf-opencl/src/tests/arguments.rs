//! Arguments: an unchanged argument is not set again, a changed one always is.

use super::*;

/// How often a call occurs since the last reset.
fn calls(rig: &Rig, name: &str) -> usize {
    rig.probe.trace().iter().filter(|call| **call == name).count()
}

/// The number of arguments set since the last reset.
fn sets(rig: &Rig) -> usize {
    calls(rig, "clSetKernelArg") + calls(rig, "clSetKernelArgSVMPointer")
}

#[test]
fn an_argument_that_has_not_changed_is_not_set_again() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        for memory_kind in rig.memory_kinds() {
            let (a, b) =
                (rig.memory(memory_kind, 256).unwrap(), rig.memory(memory_kind, 256).unwrap());
            queue.fill(&*a, 0, 256, &[0]).unwrap();
            queue.fill(&*b, 0, 256, &[0]).unwrap();
            // Which memory, which value, and how many arguments differ from the launch before.
            for (memory, value, changed) in
                [(&a, 1u32, 2), (&a, 1, 0), (&a, 2, 1), (&b, 2, 1), (&a, 2, 1), (&b, 5, 2)]
            {
                rig.probe.reset();
                let value = value.to_ne_bytes();
                let args =
                    [Arg::Memory(&**memory, Access::ReadWrite, usize::MAX), Arg::Bytes(&value)];
                // SAFETY: 64 words.
                unsafe { launch(&*queue, &*add, &line(64, None), &args) }.unwrap();
                assert_eq!(sets(rig), changed, "{memory_kind}: {:?}", rig.probe.trace());
            }
            assert_eq!(words(&get(&*queue, &*a, 0, 256)), [6; 64], "{memory_kind}");
            assert_eq!(words(&get(&*queue, &*b, 0, 256)), [7; 64], "{memory_kind}");
        }
    });
}

/// Drivers reuse the handles of released objects, so a memory must not be identified by its handle.
#[test]
fn a_new_memory_at_an_old_address_is_set() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        for memory_kind in rig.memory_kinds() {
            let mut handles = Vec::new();
            for _ in 0..20 {
                let memory = rig.memory(memory_kind, 4096).unwrap();
                queue.fill(&*memory, 0, 4096, &[0]).unwrap();
                rig.probe.reset();
                let args = [
                    Arg::Memory(&*memory, Access::ReadWrite, usize::MAX),
                    Arg::Bytes(&[3, 0, 0, 0]),
                ];
                // SAFETY: 1024 words.
                unsafe { launch(&*queue, &*add, &line(1024, None), &args) }.unwrap();
                assert!(sets(rig) > 0, "{memory_kind}");
                assert_eq!(words(&get(&*queue, &*memory, 0, 4096)), [3; 1024], "{memory_kind}");
                handles.push(format!("{:?}", memory.raw()));
            }
            let all = handles.len();
            handles.sort();
            handles.dedup();
            println!("  {memory_kind}: {} handles of {all} memories", handles.len());
        }
    });
}

#[test]
fn an_argument_that_was_refused_is_set_again() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        let memory = rig.memory(MemoryKind::Device, 256).unwrap();
        queue.fill(&*memory, 0, 256, &[0]).unwrap();
        let data = Arg::Memory(&*memory, Access::ReadWrite, usize::MAX);
        // SAFETY: 64 words.
        let add_to = |n: u32| unsafe {
            launch(&*queue, &*add, &line(64, None), &[data, Arg::Bytes(&n.to_ne_bytes())])
        };
        add_to(1).unwrap();
        // This launch sets only the value.
        rig.probe.fail_nth(1, -6);
        add_to(2).unwrap_err();
        assert_eq!(rig.probe.failed(), Some("clSetKernelArg"));
        rig.probe.reset();
        add_to(1).unwrap();
        assert_eq!(sets(rig), 1, "nobody knows what a refused set has left");
        assert_eq!(words(&get(&*queue, &*memory, 0, 256)), [2; 64]);
    });
}

/// Each form of arguments has separate `cl_kernel`s; a launch finds the right one whatever the last form was.
#[test]
fn memory_and_shared_virtual_memory_take_turns() {
    each(|rig| {
        let is_svm = |memory_kind: &MemoryKind| {
            matches!(memory_kind, MemoryKind::FineSvm | MemoryKind::CoarseSvm)
        };
        let Some(svm) = rig.memory_kinds().into_iter().find(is_svm) else { return };
        let queue = rig.queue();
        let text = "kernel void both(uint add, global uint *x, global uint *y) {
            x[get_global_id(0)] += add;
            y[get_global_id(0)] += 2 * add;
        }";
        let both = rig.program(text).unwrap().kernel("both", 3).unwrap();
        let memories = [MemoryKind::Device, MemoryKind::Device, svm, svm].map(|memory_kind| {
            let memory = rig.memory(memory_kind, 256).unwrap();
            queue.fill(&*memory, 0, 256, &[0]).unwrap();
            memory
        });
        let mut sums = [0; 4];
        for round in 1..=3u32 {
            for (x, y) in [(0, 1), (2, 3), (0, 2), (3, 1), (3, 2), (1, 0)] {
                let add = round.to_ne_bytes();
                let memory = |at: usize| Arg::Memory(&*memories[at], Access::ReadWrite, usize::MAX);
                let args = [Arg::Bytes(&add), memory(x), memory(y)];
                // SAFETY: 64 words each.
                let start = || unsafe { launch(&*queue, &*both, &line(64, None), &args) }.unwrap();
                start();
                rig.probe.reset();
                start();
                assert_eq!(sets(rig), 0, "{:?}", rig.probe.trace());
                (sums[x], sums[y]) = (sums[x] + 2 * round, sums[y] + 4 * round);
            }
        }
        for (memory, sum) in memories.iter().zip(sums) {
            assert_eq!(words(&get(&*queue, &**memory, 0, 256)), [sum; 64]);
        }
    });
}

#[test]
fn remembering_keeps_no_memory() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        let memory = rig.memory(MemoryKind::Device, 256).unwrap();
        let args = [Arg::Memory(&*memory, Access::ReadWrite, usize::MAX), Arg::Bytes(&[0; 4])];
        // SAFETY: 64 words.
        unsafe { launch(&*queue, &*add, &line(64, None), &args) }.unwrap();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        drop(memory);
        let start = Instant::now();
        while rig.probe.live().contains_key("mem") && start.elapsed() < SECONDS {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!rig.probe.live().contains_key("mem"), "{:?}", rig.probe.live());
    });
}

#[test]
fn a_long_value_is_set_each_time() {
    each(|rig| {
        let queue = rig.queue();
        let text = "kernel void first(global uint *to, uint16 from) { to[0] = from.s0 + from.sf; }";
        let first = rig.program(text).unwrap().kernel("first", 2).unwrap();
        let memory = rig.memory(MemoryKind::Device, 4).unwrap();
        for n in 1..4u32 {
            let value = bytes_of(&[n; 16]);
            let args = [Arg::Memory(&*memory, Access::ReadWrite, usize::MAX), Arg::Bytes(&value)];
            // SAFETY: one word.
            unsafe { launch(&*queue, &*first, &line(1, None), &args) }.unwrap();
            assert_eq!(words(&get(&*queue, &*memory, 0, 4)), [2 * n]);
        }
    });
}

const THREADS: u32 = 4;

#[test]
fn one_kernel_is_launched_by_many_threads() {
    each(|rig| {
        // Oclgrind, which cannot call back, is one simulator for all queues and aborts on two threads.
        if !rig.device.info().caps.callbacks {
            return println!("skip: one thread only on {}", rig.name());
        }
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        thread::scope(|scope| {
            for n in 1..=THREADS {
                let add = &add;
                scope.spawn(move || adds_by_itself(rig, &**add, n));
            }
        });
        let kernels = rig.probe.live()["kernel"];
        println!("  {kernels} cl_kernels for {THREADS} threads");
        assert!((1..=i64::from(THREADS)).contains(&kernels), "{kernels}");
    });
}

/// Adds to two memories alternately, with another value each time.
fn adds_by_itself(rig: &Rig, add: &dyn hal::Kernel, n: u32) {
    let queue = rig.queue();
    let memories = [(); 2].map(|()| rig.memory(MemoryKind::Device, 256).unwrap());
    memories.iter().for_each(|memory| queue.fill(&**memory, 0, 256, &[0]).unwrap());
    for round in 0..100 {
        let value = (n * 1000 + round).to_ne_bytes();
        let memory = &memories[round as usize % 2];
        let args = [Arg::Memory(&**memory, Access::ReadWrite, usize::MAX), Arg::Bytes(&value)];
        // SAFETY: 64 words.
        unsafe { launch(&*queue, add, &line(64, None), &args) }.unwrap();
    }
    for (odd, memory) in (0..).zip(&memories) {
        let sum: u32 = (0..100).filter(|round| round % 2 == odd).map(|r| n * 1000 + r).sum();
        assert_eq!(words(&get(&*queue, &**memory, 0, 256)), [sum; 64], "thread {n}");
    }
}
