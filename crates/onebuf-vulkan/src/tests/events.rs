//! Events, host signals, and queues that wait for each other.

use super::*;
use crate::semaphore::Semaphore;

#[test]
fn a_host_signal_holds_work_until_it_is_opened() {
    each(|rig| {
        let (queue, other, kernel) = (rig.queue(), rig.queue(), rig.step());
        let (memory, free) = (
            rig.memory(MemoryKind::MappedDevice, &[0; 4096]),
            rig.memory(MemoryKind::Device, &[0; 4096]),
        );
        let host_signal = queue.host_signal().unwrap();
        step(&*queue, &*kernel, &*memory, 1024, 3).unwrap();
        let event = queue.mark().unwrap();
        // Another queue continues, however few native queues there are.
        step(&*other, &*kernel, &*free, 1024, 3).unwrap();
        other.mark().unwrap().wait(SECONDS).unwrap();
        assert!(!event.poll().unwrap() && !event.is_over());
        let late = event.wait(Duration::from_millis(5));
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        host_signal.open(Ok(()));
        event.wait(SECONDS).unwrap();
        let mut model = vec![0; 1024];
        step_model(&mut model, 3);
        assert_eq!(words(&look(&*queue, &*memory)), model);
    });
}

/// A write after a host signal reads the caller's bytes when the host signal opens, not when it is requested.
#[test]
fn a_write_behind_a_host_signal_takes_what_is_there_then() {
    each(|rig| {
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, &[0; 4096]));
        let mut bytes = vec![1u8; 4096];
        let at = bytes.as_mut_ptr();
        let host_signal = queue.host_signal().unwrap();
        // SAFETY: kept until the wait is over, and not written after the host signal is opened.
        let event = unsafe { queue.write(&*memory, 0, at, 4096) }.unwrap();
        // SAFETY: the host signal is not open, so the bytes are not read yet.
        unsafe { at.write_bytes(2, 4096) };
        host_signal.open(Ok(()));
        event.wait(SECONDS).unwrap();
        assert_eq!(look(&*queue, &*memory), [2; 4096]);
    });
}

#[test]
fn a_failed_host_signal_is_told_and_the_queue_goes_on() {
    each(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Device, &[0; 64]);
        drop(queue.host_signal().unwrap());
        queue.fill(&*memory, 0, 64, &[1]).unwrap();
        let failed = queue.mark().unwrap();
        assert!(failed.wait(SECONDS).is_err() && failed.is_over());
        queue.fill(&*memory, 0, 64, &[2]).unwrap();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        assert_eq!(look(&*queue, &*memory), [2; 64]);
    });
}

/// A chain of queues, the first after a host signal: no work is lost, none runs early.
#[test]
fn queues_wait_for_each_other() {
    each(|rig| {
        let (kernel, memory) = (rig.step(), rig.memory(MemoryKind::Device, &numbers(8192)));
        let queues: Vec<_> = (0..12).map(|_| rig.queue()).collect();
        let host_signal = queues[0].host_signal().unwrap();
        let mut model = words(&numbers(8192));
        let mut before: Option<Arc<dyn hal::Event>> = None;
        for (n, queue) in (0..).zip(&queues) {
            if let Some(before) = before.take() {
                queue.wait_for(&[before]).unwrap();
            }
            for round in 0..40 {
                step(&**queue, &*kernel, &*memory, 2048, 2 * (n * 40 + round) + 1).unwrap();
                step_model(&mut model, 2 * (n * 40 + round) + 1);
            }
            before = Some(queue.mark().unwrap());
        }
        let last = before.unwrap();
        assert!(!last.poll().unwrap());
        host_signal.open(Ok(()));
        last.wait(SECONDS).unwrap();
        assert_eq!(words(&look(&**queues.last().unwrap(), &*memory)), model);
    });
}

/// Bytes that one queue reads have arrived when another writes them, although the host never waited.
#[test]
fn a_write_waits_for_the_read_that_it_is_of() {
    each(|rig| {
        let (first, second, kernel) = (rig.queue(), rig.queue(), rig.step());
        let (from, to) = (
            rig.memory(MemoryKind::Device, &numbers(4096)),
            rig.memory(MemoryKind::Device, &[0; 4096]),
        );
        let mut bytes = vec![0u8; 4096];
        step(&*first, &*kernel, &*from, 1024, 3).unwrap();
        let mut model = words(&numbers(4096));
        step_model(&mut model, 3);
        // SAFETY: kept until the last wait is over, and not used otherwise.
        unsafe {
            let read = first.read(&*from, 0, bytes.as_mut_ptr(), 4096).unwrap();
            second.wait_for(&[read]).unwrap();
            second.write(&*to, 0, bytes.as_ptr(), 4096).unwrap().wait(SECONDS).unwrap();
        }
        assert_eq!(words(&look(&*second, &*to)), model);
    });
}

#[test]
fn everything_can_go_before_its_work_is_done() {
    each(|rig| {
        let (queue, other, kernel) = (rig.queue(), rig.queue(), rig.step());
        let memory = rig.memory(MemoryKind::Device, &numbers(1 << 20));
        let host_signal = queue.host_signal().unwrap();
        step(&*queue, &*kernel, &*memory, 1 << 18, 3).unwrap();
        other.wait_for(&[queue.mark().unwrap()]).unwrap();
        step(&*other, &*kernel, &*memory, 1 << 18, 3).unwrap();
        let last = other.mark().unwrap();
        drop((kernel, memory, queue, other));
        host_signal.open(Ok(()));
        last.wait(SECONDS).unwrap();
    });
}

#[test]
fn a_profile_has_times_where_it_was_asked_for() {
    each(|rig| {
        let spec = QueueSpec::default().profiled();
        let (queue, kernel) = match rig.device.queue(spec) {
            Ok(queue) => (queue, rig.step()),
            Err(why) => return println!("skip: {why}"),
        };
        let memory = rig.memory(MemoryKind::Device, &[0; 1 << 20]);
        let (n, mul) = ((1u32 << 18).to_le_bytes(), 3u32.to_le_bytes());
        let args =
            [Arg::Memory(&*memory, Access::ReadWrite, 1 << 20), Arg::Bytes(&n), Arg::Bytes(&mul)];
        let mut before = 0;
        for _ in 0..3 {
            // SAFETY: as many words as there are.
            let event = unsafe { queue.launch(&*kernel, &line(1 << 18), &args, &[], true) };
            let event = event.unwrap().unwrap();
            event.wait(SECONDS).unwrap();
            let profile = event.profile().unwrap();
            assert!(profile.ended_ns >= profile.started_ns, "{profile:?}");
            assert!(profile.started_ns >= before, "{profile:?}");
            before = profile.ended_ns;
        }
        assert!(before > 0);
        let unasked = rig.queue().mark().unwrap().profile();
        assert!(matches!(unasked, Err(Error::Unsupported { .. })), "{unasked:?}");
    });
}

/// Each thread has its own queue, however few native queues there are; each has its own memory, and all read a common one.
#[test]
fn threads_have_queues_of_their_own() {
    each(|rig| {
        let (kernel, common) = (rig.step(), rig.memory(MemoryKind::Device, &numbers(4096)));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (kernel, common) = (&kernel, &common);
                scope.spawn(move || {
                    let (queue, memory) =
                        (rig.queue(), rig.memory(MemoryKind::MappedDevice, &[0; 4096]));
                    let mut model = words(&numbers(4096));
                    queue.copy(&**common, 0, &*memory, 0, 4096).unwrap();
                    for round in 0..50 {
                        let mul = 2 * (thread * 50 + round) + 1;
                        step(&*queue, &**kernel, &*memory, 1024, mul).unwrap();
                        step_model(&mut model, mul);
                        if round % 10 == thread {
                            assert_eq!(words(&look(&*queue, &*memory)), model);
                        }
                    }
                    assert_eq!(words(&look(&*queue, &*memory)), model);
                });
            }
        });
    });
}

/// Two queues work alternately, joined by two semaphores that are reused.
#[test]
fn semaphores_join_two_queues() {
    each(|rig| {
        let (kernel, memory) = (rig.step(), rig.memory(MemoryKind::Device, &numbers(8192)));
        let queues = [rig.queue(), rig.queue()];
        let context = rig.device.context().unwrap();
        let semaphores = [0, 1].map(|_| Semaphore::plain(context.clone()).unwrap());
        let mut model = words(&numbers(8192));
        for n in 0..60 {
            let (now, next) = (&queues[n % 2], &queues[(n + 1) % 2]);
            for round in 0..3 {
                step(&**now, &*kernel, &*memory, 2048, 2 * round + 1).unwrap();
                step_model(&mut model, 2 * round + 1);
            }
            // A semaphore is signalled again only after the other queue's wait for it.
            now.signal(&semaphores[n % 2]).unwrap();
            next.wait_signal(&semaphores[n % 2]).unwrap();
        }
        assert_eq!(words(&look(&*queues[0], &*memory)), model);
        queues.iter().for_each(|queue| queue.mark().unwrap().wait(SECONDS).unwrap());
    });
}

/// A signal of held-back work is refused, and no work is lost.
#[test]
fn work_that_is_held_back_does_not_signal() {
    each(|rig| {
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, &[0; 64]));
        let semaphore = Semaphore::plain(rig.device.context().unwrap()).unwrap();
        let host_signal = queue.host_signal().unwrap();
        queue.fill(&*memory, 0, 64, &[3]).unwrap();
        let refused = queue.signal(&semaphore).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        host_signal.open(Ok(()));
        queue.signal(&semaphore).unwrap();
        queue.wait_signal(&semaphore).unwrap();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        assert_eq!(look(&*queue, &*memory), [3; 64]);
        let foreign = queue.signal(&Other).unwrap_err();
        assert!(matches!(foreign, Error::ForeignContext { .. }), "{foreign}");
    });
}

#[derive(Debug)]
struct Other;

impl hal::Semaphore for Other {
    fn domain(&self) -> Domain {
        Domain(999)
    }
}

/// Queues that come and go, each after the last: the driver may still touch a semaphore when the work that waited for it is done.
#[test]
fn queues_take_over_the_timelines_of_earlier_ones() {
    each(|rig| {
        let (kernel, memory) = (rig.step(), rig.memory(MemoryKind::Device, &numbers(4096)));
        let mut model = words(&numbers(4096));
        let semaphores = || rig.probe.live().get("semaphore").copied().unwrap_or(0);
        let before = semaphores();
        for round in 0..100 {
            let (queue, other) = (rig.queue(), rig.queue());
            // Held back, so that the other one has something to wait for.
            let host_signal = queue.host_signal().unwrap();
            step(&*queue, &*kernel, &*memory, 1024, 2 * round + 1).unwrap();
            other.wait_for(&[queue.mark().unwrap()]).unwrap();
            step(&*other, &*kernel, &*memory, 1024, 2 * round + 3).unwrap();
            host_signal.open(Ok(()));
            step_model(&mut model, 2 * round + 1);
            step_model(&mut model, 2 * round + 3);
            other.mark().unwrap().wait(SECONDS).unwrap();
        }
        assert!(semaphores() <= before + 2, "{} semaphores", semaphores());
        assert_eq!(words(&look(&*rig.queue(), &*memory)), model);
    });
}
