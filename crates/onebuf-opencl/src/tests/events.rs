//! Events and host signals: polls, waits with a timeout, callbacks, reported failures.

use super::*;
use std::sync::mpsc;

const SHORT: Duration = Duration::from_millis(60);

#[test]
fn a_host_signal_holds_work_until_it_is_opened() {
    each_with_host_signals(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Device, 64).unwrap();
        put(&*queue, &*memory, 0, &[1; 64]);
        let host_signal = queue.host_signal().unwrap();
        let data = [2u8; 64];
        // SAFETY: `data` outlives the wait below.
        let event = unsafe { queue.write(&*memory, 0, data.as_ptr(), 64) }.unwrap();
        assert!(!event.poll().unwrap());
        let start = Instant::now();
        let waited = event.wait(SHORT);
        assert!(matches!(waited, Err(Error::Timeout { after_ms: 60, .. })), "{waited:?}");
        assert!((SHORT..SHORT * 8).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert!(matches!(event.wait(Duration::ZERO), Err(Error::Timeout { .. })));
        host_signal.open(Ok(()));
        event.wait(SECONDS).unwrap();
        assert!(event.poll().unwrap());
        assert_eq!(get(&*queue, &*memory, 0, 64), [2; 64]);
    });
}

#[test]
fn a_wait_is_woken_by_another_thread() {
    each_with_host_signals(|rig| {
        let queue = rig.queue();
        let host_signal = queue.host_signal().unwrap();
        let event = queue.mark().unwrap();
        let opener = thread::spawn(move || {
            thread::sleep(SHORT);
            host_signal.open(Ok(()));
        });
        event.wait(SECONDS).unwrap();
        opener.join().unwrap();
        event.wait(Duration::MAX).unwrap();
    });
}

#[test]
fn a_dropped_host_signal_fails_the_work_behind_it() {
    each_with_host_signals(|rig| {
        for dropped in [true, false] {
            let queue = rig.queue();
            let host_signal = queue.host_signal().unwrap();
            // Commands without events, here and on a queue that waits for this one.
            let memory = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
            queue.fill(&*memory, 0, 4096, &[1]).unwrap();
            queue.reside(&*memory, hal::AccessState::Released).unwrap();
            let other = rig.queue();
            other.wait_for(&[queue.mark().unwrap()]).unwrap();
            let elsewhere = rig.memory(MemoryKind::Device, 4096).unwrap();
            other.fill(&*elsewhere, 0, 4096, &[1]).unwrap();
            other.flush().unwrap();
            let event = queue.mark().unwrap();
            let (tell, told) = mpsc::channel();
            event.on_complete(Box::new(move |end| tell.send(end).unwrap())).ok().unwrap();
            match dropped {
                true => drop(host_signal),
                false => host_signal.open(Err(Error::invalid("no"))),
            }
            let waited = event.wait(SECONDS);
            println!("  after a failed host signal: {waited:?}");
            assert!(matches!(waited, Err(Error::Driver { .. })), "{waited:?}");
            assert!(event.poll().is_err());
            assert!(told.recv_timeout(SECONDS).unwrap().is_err());
        }
    });
}

/// A watcher ignores failed host signals; other events still report them. A failure by the driver itself reaches a watcher, too.
#[test]
fn a_watcher_takes_no_news_of_host_signals() {
    each_with_host_signals(|rig| {
        let queue = rig.queue();
        drop(queue.host_signal().unwrap());
        let watched = queue.watch().unwrap().wait(SECONDS);
        assert!(!matches!(watched, Err(Error::Timeout { .. })), "{watched:?}");
        assert!(queue.has_host_signals());
        assert!(queue.mark().unwrap().wait(SECONDS).is_err(), "{watched:?}");
    });
}

#[test]
fn callbacks_come_once_before_or_after() {
    each_with_host_signals(|rig| {
        let queue = rig.queue();
        let host_signal = queue.host_signal().unwrap();
        let event = queue.mark().unwrap();
        let (tell, told) = mpsc::channel();
        let early = tell.clone();
        event.on_complete(Box::new(move |end| early.send(("early", end)).unwrap())).ok().unwrap();
        assert!(told.recv_timeout(SHORT).is_err(), "called before the event");
        host_signal.open(Ok(()));
        assert_eq!(told.recv_timeout(SECONDS).unwrap(), ("early", Ok(())));
        event.wait(SECONDS).unwrap();
        event.on_complete(Box::new(move |end| tell.send(("late", end)).unwrap())).ok().unwrap();
        assert_eq!(told.recv_timeout(SECONDS).unwrap(), ("late", Ok(())));
        assert!(told.recv_timeout(SHORT).is_err(), "called twice");
    });
}

#[test]
fn a_panic_in_a_callback_stays_there() {
    each_with_host_signals(|rig| {
        let queue = rig.queue();
        let event = queue.mark().unwrap();
        let (tell, told) = mpsc::channel::<()>();
        let callback = move |_| {
            let _tell = tell;
            std::panic::resume_unwind(Box::new("on purpose"));
        };
        event.on_complete(Box::new(callback)).ok().unwrap();
        assert_eq!(told.recv_timeout(SECONDS), Err(mpsc::RecvTimeoutError::Disconnected));
        event.wait(SECONDS).unwrap();
    });
}

/// The sync method `callback`: an event of one queue opens a host signal of another, also across drivers.
#[test]
fn a_callback_opens_a_host_signal_of_another_queue() {
    let _alone = alone();
    let mut rigs = rigs();
    rigs.retain(|rig| rig.device.info().caps.host_signals);
    for a in &rigs {
        for b in &rigs {
            println!("{} -> {}", a.name(), b.name());
            let (qa, qb) = (a.queue(), b.queue());
            let (first, second) = (qa.host_signal().unwrap(), qb.host_signal().unwrap());
            let (ea, eb) = (qa.mark().unwrap(), qb.mark().unwrap());
            qb.flush().unwrap();
            ea.on_complete(Box::new(move |end| second.open(end))).ok().unwrap();
            assert!(!eb.poll().unwrap());
            first.open(Ok(()));
            eb.wait(SECONDS).unwrap();
        }
    }
}

#[test]
fn a_queue_waits_for_another() {
    each_with_host_signals(|rig| {
        let (first, second) = (rig.queue(), rig.queue());
        let memory = rig.memory(MemoryKind::Device, 64).unwrap();
        put(&*first, &*memory, 0, &[0; 64]);
        let host_signal = first.host_signal().unwrap();
        first.fill(&*memory, 0, 64, &[7]).unwrap();
        let (filled, other) = (first.mark().unwrap(), first.mark().unwrap());
        second.wait_for(&[]).unwrap();
        second.wait_for(&[filled, other]).unwrap();
        let mut back = [0u8; 64];
        // SAFETY: `back` outlives the wait.
        let read = unsafe { second.read(&*memory, 0, back.as_mut_ptr(), 64) }.unwrap();
        assert!(matches!(read.wait(SHORT), Err(Error::Timeout { .. })));
        host_signal.open(Ok(()));
        read.wait(SECONDS).unwrap();
        assert_eq!(back, [7; 64]);
    });
}

#[test]
fn everything_can_go_before_its_work_is_done() {
    each_with_host_signals(|rig| {
        let queue = rig.queue();
        let host_signal = queue.host_signal().unwrap();
        let (tell, told) = mpsc::channel();
        for memory_kind in rig.memory_kinds() {
            let memory = rig.memory(memory_kind, 1 << 16).unwrap();
            queue.fill(&*memory, 0, 1 << 16, &[1]).unwrap();
        }
        let event = queue.mark().unwrap();
        event.on_complete(Box::new(move |end| tell.send(end).unwrap())).ok().unwrap();
        drop((event, queue));
        host_signal.open(Ok(()));
        assert_eq!(told.recv_timeout(SECONDS).unwrap(), Ok(()));
    });
}
