//! Host signals, wait-value words and callbacks: in order, out of order, failed, and in a dead context.

use super::*;
use std::sync::mpsc::{Receiver, channel};

const BYTES: usize = 4096;

/// Turns an event's callback into a channel.
fn outcome(event: &dyn hal::Event) -> Receiver<Result<()>> {
    let (tell, told) = channel();
    let asked = event.on_complete(Box::new(move |outcome| tell.send(outcome).unwrap()));
    asked.map_err(|(why, _)| why).unwrap();
    told
}

#[test]
fn work_waits_at_a_host_signal() {
    each(|rig| {
        let (queue, other) = (rig.queue(), rig.queue());
        let memory = rig.memory(MemoryKind::Device, BYTES).unwrap();
        other.fill(&*memory, 0, BYTES, &[1]).unwrap();
        other.mark().unwrap().wait(SECONDS).unwrap();
        let before = queue.mark().unwrap();
        let host_signal = queue.host_signal().unwrap();
        queue.fill(&*memory, 0, BYTES, &[2]).unwrap();
        let behind = queue.mark().unwrap();
        before.wait(SECONDS).unwrap();
        assert!(!behind.poll().unwrap(), "it is shut");
        assert_eq!(get(&*other, &*memory, 0, BYTES), [1; BYTES]);
        host_signal.open(Ok(()));
        behind.wait(SECONDS).unwrap();
        assert_eq!(get(&*other, &*memory, 0, BYTES), [2; BYTES]);
    });
}

#[test]
fn host_signals_open_in_any_order() {
    each(|rig| {
        let queues = [rig.queue(), rig.queue(), rig.queue()];
        let host_signals = queues.each_ref().map(|queue| queue.host_signal().unwrap());
        let ends = queues.each_ref().map(|queue| queue.mark().unwrap());
        for (host_signal, end) in host_signals.into_iter().zip(&ends).rev() {
            assert!(!end.poll().unwrap());
            host_signal.open(Ok(()));
            end.wait(SECONDS).unwrap();
        }
    });
}

#[test]
fn what_waited_for_a_failure_says_so() {
    each(|rig| {
        for dropped in [false, true] {
            let (queue, other) = (rig.queue(), rig.queue());
            let before = queue.mark().unwrap();
            let host_signal = queue.host_signal().unwrap();
            let behind = queue.mark().unwrap();
            other.wait_for(std::slice::from_ref(&behind)).unwrap();
            let further = other.mark().unwrap();
            let told = outcome(&*behind);
            match dropped {
                true => drop(host_signal),
                false => host_signal.open(Err(Error::invalid("no"))),
            }
            before.wait(SECONDS).unwrap();
            for event in [&behind, &further] {
                let failed = event.wait(SECONDS).unwrap_err();
                assert!(
                    failed.to_string().contains("the work it waited for has failed"),
                    "{failed}"
                );
                assert!(event.is_over(), "over, well or not");
            }
            assert!(told.recv_timeout(SECONDS).unwrap().is_err());
            // The failure has been reported, so the queue continues.
            queue.mark().unwrap().wait(SECONDS).unwrap();
        }
    });
}

/// Users behind the host signal still get its failure.
#[test]
fn a_watcher_takes_no_news_of_host_signals() {
    each(|rig| {
        let queue = rig.queue();
        drop(queue.host_signal().unwrap());
        queue.watch().unwrap().wait(SECONDS).unwrap();
        assert!(queue.has_host_signals());
        queue.mark().unwrap().wait(SECONDS).unwrap_err();
        queue.mark().unwrap().wait(SECONDS).unwrap();
    });
}

#[test]
fn words_serve_again() {
    each(|rig| {
        let queue = rig.queue();
        for _ in 0..3 {
            for _ in 0..1100 {
                queue.host_signal().unwrap().open(Ok(()));
            }
            queue.mark().unwrap().wait(SECONDS).unwrap();
        }
        let pages = rig.probe.live().get("host").copied().unwrap_or(0);
        assert!((1..=2).contains(&pages), "{pages} pages for 1100 host signals at a time");
    });
}

#[test]
fn little_memory_is_not_read_before_its_turn() {
    each(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Device, BYTES).unwrap();
        let (host_signal, mut bytes) = (queue.host_signal().unwrap(), vec![1u8; BYTES]);
        let at = bytes.as_mut_ptr() as usize;
        // Another API writes here while the host signal is unsignalled.
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: no other code uses it before the host signal is signalled.
            unsafe { (at as *mut u8).write_bytes(7, BYTES) };
            host_signal.open(Ok(()));
        });
        // SAFETY: `bytes` outlives the wait, and nothing writes it after the host signal.
        let written = unsafe { queue.write(&*memory, 0, at as *const u8, BYTES) }.unwrap();
        written.wait(SECONDS).unwrap();
        opener.join().unwrap();
        assert_eq!(get(&*queue, &*memory, 0, BYTES), [7; BYTES]);
        assert_eq!(bytes, [7; BYTES]);
    });
}

#[test]
fn callbacks_come_when_their_events_are_reached() {
    each(|rig| {
        let (queue, other) = (rig.queue(), rig.queue());
        let host_signal = queue.host_signal().unwrap();
        let late = outcome(&*queue.mark().unwrap());
        // A pending callback does not delay another one.
        let soon = outcome(&*other.mark().unwrap());
        soon.recv_timeout(SECONDS).unwrap().unwrap();
        assert!(late.try_recv().is_err(), "its event was not reached");
        // Work after the event does not delay its callback, nor does work of other queues.
        let second = queue.host_signal().unwrap();
        host_signal.open(Ok(()));
        late.recv_timeout(SECONDS).unwrap().unwrap();
        second.open(Ok(()));
        let reached = queue.mark().unwrap();
        reached.wait(SECONDS).unwrap();
        outcome(&*reached).recv_timeout(SECONDS).unwrap().unwrap();
    });
}

#[test]
fn a_callback_may_open_the_next_host_signal() {
    each(|rig| {
        let (queue, other) = (rig.queue(), rig.queue());
        for _ in 0..200 {
            let event = queue.mark().unwrap();
            let host_signal = other.host_signal().unwrap();
            let sent = event.on_complete(Box::new(move |outcome| host_signal.open(outcome)));
            sent.map_err(|(why, _)| why).unwrap();
            let event = other.mark().unwrap();
            let host_signal = queue.host_signal().unwrap();
            let sent = event.on_complete(Box::new(move |outcome| host_signal.open(outcome)));
            sent.map_err(|(why, _)| why).unwrap();
        }
        queue.mark().unwrap().wait(SECONDS).unwrap();
    });
}

#[test]
fn a_queue_waits_for_a_number() {
    each(|rig| {
        let (queue, other) = (rig.queue(), rig.queue());
        let memory = rig.memory(MemoryKind::Exportable, 64).unwrap();
        other.fill(&*memory, 0, 64, &[0]).unwrap();
        other.mark().unwrap().wait(SECONDS).unwrap();
        queue.wait_value(&*memory, 8, 3).unwrap();
        let behind = queue.mark().unwrap();
        for (offset, value) in [(0, 9u32), (8, 1), (8, 2)] {
            other.fill(&*memory, offset, 4, &value.to_ne_bytes()).unwrap();
            other.mark().unwrap().wait(SECONDS).unwrap();
            assert!(!behind.poll().unwrap(), "{value} at {offset}");
        }
        other.fill(&*memory, 8, 4, &4u32.to_ne_bytes()).unwrap();
        behind.wait(SECONDS).unwrap();
        let outside = queue.wait_value(&*memory, 62, 1).unwrap_err();
        assert!(matches!(outside, Error::InvalidArgument { .. }), "{outside}");
    });
}

#[test]
fn callbacks_of_a_dead_context_come_with_its_error() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(rig) = found(Flavor::Cuda, &probe) else { return };
    let queue = rig.queue();
    nap(&rig, &*queue, 300);
    let told = outcome(&*queue.mark().unwrap());
    let boom = rig.kernel("boom", 0).unwrap();
    // SAFETY: the stub's kernel only reports a failure.
    unsafe { rig.queue().launch(&*boom, &line(1), &[], &[], false) }.unwrap();
    let lost = told.recv_timeout(SECONDS).unwrap().unwrap_err();
    assert!(matches!(lost, Error::DeviceLost { .. }), "{lost}");
    // In the stub the work continues, and must end before its stream does.
    std::thread::sleep(Duration::from_millis(400));
}
