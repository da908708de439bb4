//! Who waits for whom. Held work shows what waits for it, without a clock. If nothing waits, controls show that a wait
//! would be detected.

use super::{SECONDS, alone, context, hub, owners, queue, wrap, wrapped};
use onebuf::{Buffer, Error, Fence, Hub, prelude::*};
use onebuf_conformance::{
    Side, Step, assert_same, block_on,
    class_a::{ClassA, Own, spin_model},
    is_held, note, random_words, step_model,
};
use onebuf_sys::opencl::{
    ClEvent, ClMem,
    consts::{CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, CL_QUEUE_PROFILING_ENABLE},
};
use std::{thread, time::Duration};

const N: usize = 4096;

/// Class A's event as a fence.
fn fence(hub: &Hub, event: &Own<ClEvent>) -> Fence {
    // SAFETY: class A holds a reference.
    unsafe { hub.wrap_event(event.raw()) }.expect("a live event")
}

/// Enqueues increasing amounts of class A's work until some is still running. `None` if the driver does everything
/// inside the call.
fn caught(a: &ClassA, mem: &Own<ClMem>, model: &mut [u32]) -> Option<Own<ClEvent>> {
    for launches in [1, 4, 16] {
        let mut last = None;
        for _ in 0..launches {
            last = Some(a.spin(&a.queue, mem, N, 10_000, &[]));
            spin_model(model, 10_000);
        }
        a.flush(&a.queue);
        if let Some(event) = last.filter(|event| !a.is_complete(event)) {
            return Some(event);
        }
    }
    note(&format!("skip: work that is caught running: {} ends it in the call", a.platform));
    None
}

#[test]
fn ours_waits_for_the_owners_queue() {
    let _alone = alone("the owner first");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(1, N);
        let mem = a.words(&model);
        // The kernels are built and run once beforehand.
        side.step(&wrapped(&hub, &mem), Step::nth(0)).unwrap();
        step_model(&mut model, Step::nth(0));
        let owners = queue(&hub, &a.queue);
        for n in 1..4 {
            caught(&a, &mem, &mut model);
            let position = owners.fence();
            let buffer = match n {
                1 => wrap(&hub, &mem).after(&position).build().unwrap(),
                2 => {
                    let buffer = wrapped(&hub, &mem);
                    buffer.written_until(&position).unwrap();
                    buffer
                }
                _ => {
                    side.queue.wait_for(&position).unwrap();
                    wrapped(&hub, &mem)
                }
            };
            side.step(&buffer, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
            assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
            assert_eq!(position.is_done(), Ok(true), "{}", a.platform);
        }
    }
}

#[test]
fn a_fence_of_the_owners_work_is_not_early() {
    let _alone = alone("the owner's fences");
    'owners: for a in owners() {
        let hub = hub();
        let mut model = random_words(2, N);
        let mem = a.words(&model);
        let owners = queue(&hub, &a.queue);
        let mut early = 0;
        for round in 0..20 {
            if round >= 5 && early > 0 {
                continue 'owners;
            }
            let Some(event) = caught(&a, &mem, &mut model) else { continue 'owners };
            let (position, of_event) = (owners.fence(), fence(&hub, &event));
            let done = [position.is_done().unwrap(), of_event.is_done().unwrap()];
            // Checked afterwards: work that is incomplete now was incomplete before.
            early += u32::from(!a.is_complete(&event));
            assert!(!done.contains(&true) || a.is_complete(&event), "{}: early", a.platform);
            position.wait(SECONDS).unwrap();
            of_event.wait(SECONDS).unwrap();
            assert!(a.is_complete(&event), "{}", a.platform);
        }
        // A query of a running kernel returns only when it ends, on rusticl.
        let told_late = a.platform.contains("rusticl");
        assert!(told_late, "{}: the work was always over before it could be asked", a.platform);
        println!("skip: early questions on {}: it answers when the work is over", a.platform);
    }
}

#[test]
fn the_owners_queue_waits_for_ours() {
    let _alone = alone("onebuf first");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(3, N);
        let mem = a.words(&model);
        let owners = queue(&hub, &a.queue);
        let buffer = wrapped(&hub, &mem);
        for n in 0..8 {
            for k in 0..10 {
                side.step(&buffer, Step::nth(100 * n + k)).unwrap();
                step_model(&mut model, Step::nth(100 * n + k));
            }
            match n % 3 {
                0 => drop(buffer.hand_to(&owners).unwrap()),
                1 => drop(owners.wait_for(&side.queue.fence()).unwrap()),
                _ => {
                    let events = side.queue.fence().cl_events().unwrap();
                    let list: Vec<_> = events.iter().map(|e| ClEvent(e.raw())).collect();
                    a.step(&a.queue, &mem, N, Step::nth(n + 50), &list);
                    step_model(&mut model, Step::nth(n + 50));
                }
            }
            a.step(&a.queue, &mem, N, Step::nth(n), &[]);
            step_model(&mut model, Step::nth(n));
            assert_same(&a.read(&a.queue, &mem, N), &model, &format!("{} {n}", a.platform));
            buffer.written_until(&owners.fence()).unwrap();
        }
    }
}

/// Whether the driver supports this test: clover maps and copies while its queue still waits for the host.
fn waits_for_the_host(a: &ClassA) -> bool {
    if a.platform == "Clover" {
        note("skip: user events on clover: its queues do not wait for them in transfers");
        return false;
    }
    true
}

/// A hub with a short timeout: if a driver's queues cannot wait, the thread itself waits.
fn impatient() -> Hub {
    let hub = onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
    hub.timeout(Duration::from_secs(2)).build().unwrap()
}

/// Class A's kernel waits for a user event; unless told, we would read too early. Returns whether our queue waited, and
/// not this thread.
fn held_by_the_owner(a: &ClassA, hub: &Hub, tell: impl Fn(&Buffer<u32>, &Own<ClEvent>)) -> bool {
    let before = random_words(4, N);
    let (mem, host_signal) = (a.words(&before), a.user_event());
    let buffer = wrapped(hub, &mem);
    let event = a.step(&a.queue, &mem, N, Step::nth(1), &[host_signal.get()]);
    a.flush(&a.queue);
    let mut model = before.clone();
    step_model(&mut model, Step::nth(1));
    // The control: we were not told of the work, so nothing is waited for, and the old contents are visible.
    assert_same(&buffer.to_vec().unwrap(), &before, &format!("{}: the control", a.platform));
    tell(&buffer, &event);
    let pending = buffer.read_async(.., vec![0; N]);
    // If a driver cannot wait for the host, the call itself waits and times out: nothing was enqueued.
    let mut pending = match pending {
        Ok(pending) => pending,
        Err(Error::Timeout { .. }) => {
            a.complete(&host_signal);
            return false;
        }
        Err(error) => panic!("{}: {error}", a.platform),
    };
    assert_eq!(pending.is_done(), Ok(false), "{}: it did not wait", a.platform);
    a.complete(&host_signal);
    let seen = pending.wait(SECONDS).unwrap();
    assert_same(&seen, &model, &a.platform);
    true
}

/// PoCL's queues wait for the host, so there the wait must be visible.
fn must_be_seen(a: &ClassA, seen: bool) {
    assert!(seen || !a.platform.starts_with("Portable"), "{}: nothing was held up", a.platform);
}

#[test]
fn untold_work_is_not_waited_for_and_told_work_is() {
    let _alone = alone("work that is held up");
    for a in owners().iter().filter(|a| waits_for_the_host(a)) {
        let hub = impatient();
        let by_event = held_by_the_owner(a, &hub, |buffer, event| {
            buffer.written_until(&fence(&hub, event)).unwrap();
        });
        let by_queue = held_by_the_owner(a, &hub, |buffer, _| {
            buffer.written_until(&queue(&hub, &a.queue).fence()).unwrap();
        });
        must_be_seen(a, by_event && by_queue);
    }
}

#[test]
fn readers_of_the_owners_are_waited_for_by_writers_alone() {
    let _alone = alone("the owner reads");
    for a in owners().iter().filter(|a| waits_for_the_host(a)) {
        let hub = impatient();
        let side = Side::open(&context(&hub, a).device()).unwrap();
        let mut model = random_words(5, N);
        let (mem, host_signal) = (a.words(&model), a.user_event());
        let buffer = wrapped(&hub, &mem);
        side.step(&buffer, Step::nth(9)).unwrap();
        step_model(&mut model, Step::nth(9));
        side.queue.finish().unwrap();
        buffer.read_until(&fence(&hub, &host_signal)).unwrap();
        assert_same(&buffer.to_vec().unwrap(), &model, &format!("{}: readers", a.platform));
        let view = buffer.write_on(&side.queue);
        match view {
            Ok(view) => {
                let done = side.step_view(view, N, Step::nth(1)).unwrap();
                step_model(&mut model, Step::nth(1));
                assert!(is_held(&done), "{}: it did not wait for the reader", a.platform);
            }
            Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
        }
        a.complete(&host_signal);
        assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
    }
}

#[test]
fn the_owners_queue_is_held_up_by_ours() {
    let _alone = alone("ours is held up");
    for a in owners().iter().filter(|a| waits_for_the_host(a)) {
        let hub = impatient();
        let side = Side::open(&context(&hub, a).device()).unwrap();
        let (mut model, mut other_model) = (random_words(8, N), random_words(9, N));
        let (mem, other, host_signal) = (a.words(&model), a.words(&other_model), a.user_event());
        let (beside, owners) = (a.queue_with(0).unwrap(), queue(&hub, &a.queue));
        let buffer = wrapped(&hub, &mem);
        let held = side.queue.wait_for(&fence(&hub, &host_signal));
        if held.is_err() {
            must_be_seen(a, false);
            a.complete(&host_signal);
            continue;
        }
        side.step(&buffer, Step::nth(1)).unwrap();
        buffer.hand_to(&owners).unwrap();
        let after = a.step(&a.queue, &mem, N, Step::nth(2), &[]);
        a.flush(&a.queue);
        // The control: a queue that was not told continues.
        a.step(&beside, &other, N, Step::nth(3), &[]);
        step_model(&mut other_model, Step::nth(3));
        assert_same(&a.read(&beside, &other, N), &other_model, &a.platform);
        assert!(!a.is_complete(&after), "{}: it did not wait for us", a.platform);
        a.complete(&host_signal);
        step_model(&mut model, Step::nth(1));
        step_model(&mut model, Step::nth(2));
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
    }
}

/// Our work that does not end keeps the memory alive, and a new wrap of it times out.
#[test]
fn memory_with_work_that_does_not_end_is_kept() {
    let _alone = alone("work without an end");
    for a in owners().iter().filter(|a| waits_for_the_host(a)) {
        let hub = onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
        let hub = hub.timeout(Duration::from_millis(300)).build().unwrap();
        let side = Side::open(&context(&hub, a).device()).unwrap();
        let mut model = random_words(11, N);
        let (mem, host_signal) = (a.words(&model), a.user_event());
        let before = mem.count();
        let buffer = wrapped(&hub, &mem);
        if side.queue.wait_for(&fence(&hub, &host_signal)).is_err() {
            must_be_seen(a, false);
            a.complete(&host_signal);
            continue;
        }
        side.step(&buffer, Step::nth(1)).unwrap();
        side.queue.flush().unwrap();
        drop(buffer);
        assert!(mem.count() > before, "{}: given back under our work", a.platform);
        let again = wrap(&hub, &mem).build();
        assert!(matches!(again, Err(Error::Timeout { .. })), "{}: {again:?}", a.platform);
        a.complete(&host_signal);
        side.queue.finish().unwrap();
        step_model(&mut model, Step::nth(1));
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
    }
}

#[test]
fn fences_of_the_owners_are_futures() {
    let _alone = alone("futures of the owner's work");
    for a in owners() {
        let hub = hub();
        let mut model = random_words(10, N);
        let mem = a.words(&model);
        let owners = queue(&hub, &a.queue);
        for n in 0..3 {
            let event = a.spin(&a.queue, &mem, N, 2_000, &[]);
            spin_model(&mut model, 2_000);
            a.flush(&a.queue);
            let reached = if n == 0 { owners.fence() } else { fence(&hub, &event) };
            block_on(reached).unwrap();
            assert!(a.is_complete(&event), "{}", a.platform);
        }
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        if let Ok(event) = context(&hub, &a).user_event() {
            let reached = event.fence();
            thread::scope(|scope| {
                scope.spawn(|| event.complete());
                block_on(reached).unwrap();
            });
        }
    }
}

#[test]
fn times_of_work_on_an_owners_queue() {
    let _alone = alone("profiles");
    for a in owners() {
        let hub = hub();
        let Ok(timed) = a.queue_with(CL_QUEUE_PROFILING_ENABLE) else { continue };
        let (mem, owners) = (a.words(&[1; N]), queue(&hub, &timed));
        assert!(owners.spec().profiling, "{}", a.platform);
        let side = Side::open(&owners.device()).unwrap();
        let buffer = wrapped(&hub, &mem);
        let view = buffer.write_on(&owners).unwrap();
        let arguments = onebuf::args![view, 0u32, N as u32, 3u32, 1u32];
        let done = owners.launch_fenced(side.kernel(), [N], arguments).unwrap();
        done.wait(SECONDS).unwrap();
        match done.profile() {
            Ok(profile) => {
                assert!(profile.started_ns < profile.ended_ns, "{}: {profile:?}", a.platform)
            }
            Err(Error::Unsupported { .. }) => assert_eq!(a.platform, "rusticl"),
            Err(error) => panic!("{}: {error}", a.platform),
        }
    }
}

#[test]
fn a_user_event_of_ours_holds_the_owner_up() {
    let _alone = alone("our user events");
    for a in owners() {
        let hub = hub();
        let context = context(&hub, &a);
        let event = match context.user_event() {
            Err(Error::Unsupported { .. }) => {
                note(&format!("skip: user events on {}: not supported", a.platform));
                continue;
            }
            other => other.unwrap(),
        };
        let mut model = random_words(6, N);
        let mem = a.words(&model);
        let done = a.step(&a.queue, &mem, N, Step::nth(1), &[ClEvent(event.raw())]);
        a.flush(&a.queue);
        assert!(is_held(&event.fence()), "{}", a.platform);
        assert!(!a.is_complete(&done), "{}", a.platform);
        let reached = event.fence();
        event.complete();
        reached.wait(SECONDS).unwrap();
        step_model(&mut model, Step::nth(1));
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        // If it is dropped instead, waiters get an error and do not wait forever.
        let dropped = context.user_event().unwrap();
        let never = dropped.fence();
        drop(dropped);
        let told = never.wait(SECONDS);
        assert!(told.is_err() && !matches!(told, Err(Error::Timeout { .. })), "{told:?}");
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
    }
}

#[test]
fn events_that_are_given_away_live_on() {
    let _alone = alone("events out");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(7, N);
        let mem = a.words(&model);
        let buffer = wrapped(&hub, &mem);
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        let events = side.queue.fence().cl_events().unwrap();
        let owned = events.into_iter().map(|event| event.into_raw().unwrap());
        // SAFETY: each is a reference that we own.
        let owned: Vec<Own<ClEvent>> = owned.map(|raw| unsafe { Own::new(ClEvent(raw)) }).collect();
        drop((buffer, side, hub));
        let list: Vec<_> = owned.iter().map(Own::get).collect();
        a.step(&a.queue, &mem, N, Step::nth(2), &list);
        step_model(&mut model, Step::nth(2));
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        assert!(owned.iter().all(|event| a.is_complete(event)), "{}", a.platform);
    }
}

#[test]
fn owners_queues_in_no_order() {
    let _alone = alone("out-of-order owners");
    for a in owners() {
        let Ok(disorder) = a.queue_with(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) else {
            note(&format!("skip: out-of-order queues: {} has none", a.platform));
            continue;
        };
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let owners = queue(&hub, &disorder);
        let mut models: Vec<_> = (0..3).map(|n| random_words(n, N)).collect();
        let mems: Vec<_> = models.iter().map(|model| a.words(model)).collect();
        let buffers: Vec<_> = mems.iter().map(|mem| wrapped(&hub, mem)).collect();
        for round in 0..4 {
            for (mem, model) in mems.iter().zip(&mut models) {
                a.spin(&disorder, mem, N, 3_000, &[]);
                spin_model(model, 3_000);
            }
            let all = owners.fence();
            for (buffer, model) in buffers.iter().zip(&mut models) {
                buffer.written_until(&all).unwrap();
                side.step(buffer, Step::nth(round)).unwrap();
                step_model(model, Step::nth(round));
                // Our own launches on the owner's out-of-order queue have only the order that we give them.
                let view = buffer.write_on(&owners).unwrap();
                let arguments = onebuf::args![view, 0u32, N as u32, 3u32, round];
                owners.launch(side.kernel(), [N], arguments).unwrap();
                step_model(model, Step { mul: 3, add: round });
                buffer.hand_to(&owners).unwrap();
            }
            owners.finish().unwrap();
        }
        for (mem, model) in mems.iter().zip(&models) {
            assert_same(&a.read(&a.queue, mem, N), model, &a.platform);
        }
    }
}

/// Only a hand-over orders an out-of-order queue after our work.
#[test]
fn owners_queues_in_no_order_wait_for_ours() {
    let _alone = alone("out-of-order owners that wait");
    for a in owners() {
        let Ok(disorder) = a.queue_with(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) else {
            note(&format!("skip: out-of-order queues: {} has none", a.platform));
            continue;
        };
        let hub = hub();
        let context = context(&hub, &a);
        let Ok(host_signal) = context.user_event() else {
            note(&format!("skip: user events on {}: not supported", a.platform));
            continue;
        };
        let (side, owners) = (Side::open(&context.device()).unwrap(), queue(&hub, &disorder));
        let mut model = random_words(8, N);
        let mem = a.words(&model);
        let buffer = wrapped(&hub, &mem);
        side.queue.wait_for(&host_signal.fence()).unwrap();
        side.step(&buffer, Step::nth(1)).unwrap();
        buffer.hand_to(&owners).unwrap();
        let done = a.step(&disorder, &mem, N, Step::nth(2), &[]);
        a.flush(&disorder);
        assert!(is_held(&fence(&hub, &done)), "{}: the owner did not wait", a.platform);
        host_signal.complete();
        step_model(&mut model, Step::nth(1));
        step_model(&mut model, Step::nth(2));
        owners.finish().unwrap();
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
    }
}

/// Checks the model that the tests above compare with.
#[test]
fn the_model_of_many_rounds_is_that_of_one_many_times() {
    for rounds in [0, 1, 2, 3, 7, 100, 4097] {
        let mut slow = [0, 1, 12345, u32::MAX];
        let mut fast = slow;
        (0..rounds).for_each(|_| spin_model(&mut slow, 1));
        spin_model(&mut fast, rounds);
        assert_eq!(fast, slow, "{rounds}");
    }
    let mut one = [5];
    spin_model(&mut one, 1);
    let draw = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    assert_eq!(one[0], (0..16).fold(5, |x, _| draw(x)), "sixteen draws are a round");
}
