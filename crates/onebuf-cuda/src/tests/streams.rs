//! Queues and events: order, timeouts, profiling, objects kept while work runs, threads.

use super::*;
use onebuf_hal::QueueOrder;
use onebuf_sys::cuda_like::{CuStream, DevicePtr};
use std::time::Instant;

#[test]
fn an_event_is_reached_when_its_work_is_done() {
    each(|rig| {
        let queue = rig.queue();
        let (hold, _) = Hold::new(rig, &*queue, false);
        let event = queue.mark().unwrap();
        assert!(!event.poll().unwrap() && !event.is_over());
        let late = event.wait(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(late, Error::Timeout { .. }), "{late}");
        hold.let_go();
        event.wait(SECONDS).unwrap();
        assert!(event.poll().unwrap() && event.is_over() && event.raw() != 0);
    });
}

#[test]
fn one_queue_waits_for_another() {
    each(|rig| {
        let (first, second) = (rig.queue(), rig.queue());
        let memory = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
        first.fill(&*memory, 0, 4096, &[0]).unwrap();
        nap(rig, &*first, 20);
        first.fill(&*memory, 0, 4096, &[7]).unwrap();
        second.wait_for(&[first.mark().unwrap()]).unwrap();
        assert_eq!(get(&*second, &*memory, 0, 4096), [7; 4096]);
        // A queue of another device can wait too, but not one of another library.
        let there = rig.other.queue(QueueSpec::default()).unwrap();
        nap(rig, &*first, 20);
        first.fill(&*memory, 0, 4096, &[8]).unwrap();
        there.wait_for(&[first.mark().unwrap()]).unwrap();
        there.mark().unwrap().wait(SECONDS).unwrap();
        assert_eq!(get(&*second, &*memory, 0, 4096), [8; 4096]);
        let stranger = found(rig.flavor, &Probe::new()).unwrap().queue();
        let strange = stranger.wait_for(&[first.mark().unwrap()]).unwrap_err();
        assert!(matches!(strange, Error::ForeignContext { .. }), "{strange}");
    });
}

#[test]
fn a_stream_is_in_order() {
    each(|rig| {
        let spec = QueueSpec { order: QueueOrder::OutOfOrder, profiling: false };
        let refused = rig.device.queue(spec).unwrap_err();
        assert!(refused.to_string().contains("several in-order queues"), "{refused}");
    });
}

#[test]
fn a_profiled_queue_knows_when_its_work_ran() {
    each(|rig| {
        let queue = rig.device.queue(QueueSpec::default().profiled()).unwrap();
        let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
        let nap = rig.kernel("nap", 1).unwrap();
        let ms = 5u32.to_ne_bytes();
        // SAFETY: the kernel accesses no memory.
        let ran = unsafe { queue.launch(&*nap, &line(1), &[Arg::Bytes(&ms)], &[], true) };
        let ran = ran.unwrap().unwrap();
        let (hold, held) = Hold::new(rig, &*queue, true);
        assert!(matches!(held.unwrap().profile(), Err(Error::Busy { .. })));
        hold.let_go();
        let bytes = numbers(64);
        // SAFETY: `bytes` outlives the wait.
        let wrote = unsafe { queue.write(&*memory, 0, bytes.as_ptr(), 64) }.unwrap();
        wrote.wait(SECONDS).unwrap();
        let (ran, wrote) = (ran.profile().unwrap(), wrote.profile().unwrap());
        assert!(ran.run() >= Duration::from_millis(5), "{ran:?}");
        assert!(wrote.started_ns >= ran.started_ns + 5_000_000, "{ran:?} {wrote:?}");
        let mark = queue.mark().unwrap();
        mark.wait(SECONDS).unwrap();
        assert_eq!(mark.profile().unwrap().run(), Duration::ZERO);
        let plain = rig.queue().mark().unwrap();
        assert!(matches!(plain.profile(), Err(Error::Unsupported { .. })));
    });
}

#[test]
fn nothing_is_freed_under_work() {
    each(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
        let range = pages(4096);
        let registered =
            rig.device.import(&Export::Host(range.clone()), Access::ReadWrite).unwrap();
        let owner = Arc::downgrade(&range.owner);
        drop(range);
        let add = rig.kernel("add", 2).unwrap();
        let (hold, _) = Hold::new(rig, &*queue, false);
        for memory in [&memory, &registered] {
            let args = [Arg::Memory(&**memory, Access::ReadWrite, 4096), Arg::Bytes(&[1, 0, 0, 0])];
            // SAFETY: 1024 words.
            unsafe { queue.launch(&*add, &line(1024), &args, &[], false) }.unwrap();
        }
        // The stub ends the process if memory or a module is freed before the work is done.
        drop((memory, registered, add, queue));
        let live = rig.probe.live();
        assert_eq!((live["mem"], live["registration"], live["program"]), (1, 1, 2), "{live:?}");
        assert!(owner.upgrade().is_some(), "pages that the GPU writes");
        hold.let_go();
        let start = Instant::now();
        let freed = ["mem", "registration", "program", "event"];
        let left = || freed.iter().any(|kind| rig.probe.live().contains_key(kind));
        while (owner.upgrade().is_some() || left()) && start.elapsed() < SECONDS {
            // Any call frees what can be freed.
            drop(rig.queue());
        }
        let live = rig.probe.live();
        assert!(!live.contains_key("mem") && !live.contains_key("registration"), "{live:?}");
        assert!(!live.contains_key("program") && !live.contains_key("event"), "{live:?}");
        assert!(owner.upgrade().is_none());
    });
}

/// After a wait the memory is its owner's again, without another call.
#[test]
fn a_wait_frees_what_was_dropped_under_work() {
    each(|rig| {
        for soon in [true, false] {
            let (queue, range) = (rig.queue(), pages(4096));
            let memory =
                rig.device.import(&Export::Host(range.clone()), Access::ReadWrite).unwrap();
            let owner = Arc::downgrade(&range.owner);
            drop(range);
            let (hold, _) = Hold::new(rig, &*queue, false);
            queue.fill(&*memory, 0, 4096, &[1]).unwrap();
            drop(memory);
            assert!(owner.upgrade().is_some(), "the control: pages that the GPU writes");
            hold.let_go();
            if !(soon && queue.drains_soon()) {
                queue.mark().unwrap().wait(SECONDS).unwrap();
            }
            assert!(owner.upgrade().is_none(), "drains soon: {soon}");
            drop(hold);
        }
    });
}

#[test]
fn a_failed_kernel_loses_the_device() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(rig) = found(Flavor::Cuda, &probe) else { return };
    let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, 64).unwrap());
    let boom = rig.kernel("boom", 0).unwrap();
    // SAFETY: the stub's kernel only reports a failure.
    unsafe { queue.launch(&*boom, &line(1), &[], &[], false) }.unwrap();
    // The kernel may have failed already.
    let event = queue.mark();
    let lost = event.clone().and_then(|event| event.wait(SECONDS)).unwrap_err();
    assert!(matches!(&lost, Error::DeviceLost { .. }), "{lost}");
    assert!(lost.to_string().contains("STUB_ILLEGAL_ADDRESS (700)"), "{lost}");
    assert!(event.as_ref().map_or(true, |event| event.is_over()), "nobody waits for it for ever");
    let again = queue.fill(&*memory, 0, 64, &[0]).unwrap_err();
    assert!(matches!(again, Error::DeviceLost { .. }), "{again}");
    // The stub still frees returned objects, and lets the next context work again.
    drop((rig, queue, memory, boom, event));
    let Some(rig) = found(Flavor::Cuda, &Probe::new()) else { return };
    let queue = rig.queue();
    queue.mark().unwrap().wait(SECONDS).unwrap();
}

#[test]
fn what_was_current_is_current_again() {
    each(|rig| {
        let table = onebuf_sys::cuda_like::CudaLike::load(rig.flavor, stub(), None).unwrap();
        let before = (rig.flavor == Flavor::Hip).then(|| {
            // SAFETY: no preconditions; device 1 is not the device in use.
            unsafe {
                table.set_device(1).unwrap();
                table.current_device().unwrap()
            }
        });
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
        put(&*queue, &*memory, 0, &numbers(4096));
        drop((queue, memory));
        if let Some(before) = before {
            // SAFETY: as above.
            unsafe {
                assert_eq!(table.current_device(), Ok(before));
                table.set_device(0).unwrap();
            }
        } else {
            let mut popped = onebuf_sys::cuda_like::CuContext::NULL;
            // SAFETY: a valid pointer for a context.
            let popped = unsafe { table.pop_current(&raw mut popped) };
            assert!(popped.is_err(), "every push has its pop");
        }
    });
}

/// An application that uses CUDA itself has the context current: then nothing is pushed, and nothing popped.
#[test]
fn a_context_that_is_current_stays_so() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(rig) = found(Flavor::Cuda, &probe) else { return };
    let queue = rig.queue();
    let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
    let pushes = || {
        probe.reset();
        put(&*queue, &*memory, 0, &numbers(4096));
        probe.trace().iter().filter(|call| call.starts_with("cuCtxPushCurrent")).count()
    };
    assert!(pushes() > 0, "no context is current");
    let table = onebuf_sys::cuda_like::CudaLike::load(Flavor::Cuda, stub(), None).unwrap();
    // SAFETY: the rig's device is the first; its primary context is pushed and popped on this thread, and released once.
    unsafe {
        let context = table.retain_primary(0).unwrap();
        table.push_current(context).unwrap();
        assert!(table.is_current(context));
        assert_eq!(pushes(), 0, "it is current");
        let mut popped = onebuf_sys::cuda_like::CuContext::NULL;
        table.pop_current(&raw mut popped).unwrap();
        assert!(popped == context && !table.is_current(context), "it is the one that was pushed");
        table.release_primary(0).unwrap();
    }
    assert!(pushes() > 0, "no context is current again");
}

#[test]
fn any_thread_may_call() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.kernel("add", 2).unwrap();
        let memories: Vec<_> = (0..4)
            .map(|_| {
                rig.device.allocate(&spec(MemoryKind::Device, 4096), Some(&[0; 4096])).unwrap()
            })
            .collect();
        thread::scope(|scope| {
            for memory in &memories {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let args = [
                            Arg::Memory(&**memory, Access::ReadWrite, 4096),
                            Arg::Bytes(&[1, 0, 0, 0]),
                        ];
                        // SAFETY: 1024 words.
                        unsafe { queue.launch(&*add, &line(1024), &args, &[], false) }.unwrap();
                    }
                    queue.mark().unwrap().wait(SECONDS).unwrap();
                });
            }
        });
        for memory in &memories {
            assert_eq!(words(&get(&*queue, &**memory, 0, 4096)), [50; 1024]);
        }
    });
}

/// A library that has the address and the stream enqueues work; onebuf knows only that it passed them on.
#[test]
fn memory_that_was_given_away_waits_for_the_queue() {
    each(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Exportable, 4096).unwrap();
        let hal::RawHandle::Address(at) = memory.raw() else { panic!("an address") };
        let table = onebuf_sys::cuda_like::CudaLike::load(rig.flavor, stub(), None).unwrap();
        let (hold, _) = Hold::new(rig, &*queue, false);
        queue.note_use(&*memory).unwrap();
        let enqueue = &mut |stream: usize| {
            let (at, stream) = (DevicePtr(at as u64), CuStream(stream as *mut _));
            // SAFETY: the memory is freed after the queue's work.
            unsafe { table.fill_u8_async(at, 7, 4096, stream) }.unwrap();
            Ok(())
        };
        queue.call_native(&[], enqueue).unwrap();
        // The stub ends the process if memory in use is freed.
        drop(memory);
        hold.let_go();
        queue.mark().unwrap().wait(SECONDS).unwrap();
    });
}

/// The drivers' frees wait for the whole device, so none may run while a stream waits for a host signal of this thread.
#[test]
fn nothing_is_freed_while_a_stream_waits_for_the_host() {
    each(|rig| {
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, 4096).unwrap());
        let host_signal = queue.host_signal().unwrap();
        let live = rig.probe.live().get("mem").copied();
        drop(memory);
        assert_eq!(rig.probe.live().get("mem").copied(), live, "it was freed under a host signal");
        host_signal.open(Ok(()));
        queue.mark().unwrap().wait(SECONDS).unwrap();
        drop(rig.memory(MemoryKind::Device, 64).unwrap());
        assert!(rig.probe.live().get("mem").copied() < live, "it is freed when somebody passes by");
    });
}

/// Nor may an allocation free what it found not aligned.
#[test]
fn an_aligned_allocation_frees_nothing_while_a_stream_waits_for_the_host() {
    each(|rig| {
        let queue = rig.queue();
        let host_signal = queue.host_signal().unwrap();
        let wish = AllocSpec { align: 16 << 20, ..spec(MemoryKind::Device, 4096) };
        let memories = [(); 3].map(|()| rig.device.allocate(&wish, None).unwrap());
        assert!(rig.probe.live()["mem"] > 3, "it was freed under a host signal");
        host_signal.open(Ok(()));
        queue.mark().unwrap().wait(SECONDS).unwrap();
        drop(rig.memory(MemoryKind::Device, 64).unwrap());
        assert_eq!(rig.probe.live()["mem"], 3);
        drop(memories);
    });
}

/// A thread that waits for a short kernel needs no event. Work that is running, or behind a host signal, does.
#[test]
fn an_idle_queue_needs_no_event() {
    each(|rig| {
        let queue = rig.queue();
        assert!(queue.drains_soon(), "new");
        let (hold, _) = Hold::new(rig, &*queue, false);
        assert!(!queue.drains_soon(), "busy");
        hold.let_go();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        rig.probe.reset();
        assert!(queue.drains_soon(), "idle again");
        assert!(!rig.probe.trace().iter().any(|call| call.contains("Event")), "an event");
        drop(queue.host_signal().unwrap());
        assert!(!queue.drains_soon(), "only an event reports a failed host signal");
        queue.mark().unwrap().wait(SECONDS).unwrap_err();
    });
}
