//! The `semaphore` sync method with both stubs. A fake device of the same chip plays Vulkan: it creates the semaphores and does
//! not use them. The stubs end the process at a signal before the previous one's wait has run, and at a wait without a signal.

use super::{N, assert_settled, sides, with_forged_sync};
use onebuf::{
    Access, Buffer, Error, Hub, HubBuilder, MemoryKind, Probe, Result, SyncMethod,
    fake::{FakeConfig, Sharing},
    hal::PhysicalId,
};
use onebuf_conformance::{Side, Step, assert_same, note, play, random_words, step_model};
use std::{sync::Arc, thread, time::Duration};

const PART: &str = "imports,cached,semaphores";
const LATE: [(&str, &str); 2] =
    [("ONEBUF_STUB_DELAY_US", "300"), ("ONEBUF_CUDA_STUB_DELAY_US", "500")];

/// The calls of a CUDA kernel after an OpenCL kernel: the same, in the same order, as written by hand.
const TO_CUDA: &[&str] = &[
    "clEnqueueReleaseExternalMemObjectsKHR",
    "clEnqueueSignalSemaphoresKHR",
    "clFlush",
    "cuCtxPushCurrent_v2",
    "cuWaitExternalSemaphoresAsync",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuLaunchKernel",
    "cuCtxPopCurrent_v2",
];

/// The calls if the buffer was released to CUDA after its kernel, and the OpenCL queue was waited for since.
const TO_CUDA_RELEASED: &[&str] = &["cuCtxPushCurrent_v2", "cuLaunchKernel", "cuCtxPopCurrent_v2"];

/// The calls in the other direction; only kernel arguments that changed are set.
const TO_OPENCL: &[&str] = &[
    "cuCtxPushCurrent_v2",
    "cuSignalExternalSemaphoresAsync",
    "cuCtxPopCurrent_v2",
    "clEnqueueWaitSemaphoresKHR",
    "clEnqueueAcquireExternalMemObjectsKHR",
    "clEnqueueNDRangeKernel",
];

/// The sides take turns, and every frame is released after its kernel: one signal covers all frames.
#[test]
fn a_batch_is_one_hand_over() {
    play("semaphores::batch", "CUDA", PART, &LATE);
}

/// Without an experiment the thread waits. With a verdict for semaphores, buffers and `wait_for` use them.
#[test]
fn semaphores_need_an_experiment() {
    play("semaphores::proven_or_not", "CUDA", PART, &LATE);
}

#[test]
fn both_apis_wait_on_the_device() {
    play("semaphores::both_ways", "CUDA", PART, &LATE);
}

#[test]
fn many_hand_overs_share_few_semaphores() {
    play("semaphores::again_and_again", "CUDA", "imports,semaphores", &[]);
}

/// OpenCL's commands are delayed here.
#[test]
fn threads_share_them_too() {
    play(
        "semaphores::from_threads",
        "CUDA",
        "imports,semaphores",
        &[("ONEBUF_STUB_DELAY_US", "20")],
    );
}

#[test]
fn a_semaphore_whose_calls_fail_meets_nobody_again() {
    let late = [("ONEBUF_STUB_DELAY_US", "5"), ("ONEBUF_CUDA_STUB_DELAY_US", "5")];
    play("semaphores::swept", "CUDA", PART, &late);
}

/// The dead device never sends its signal.
#[test]
fn a_dead_sender_is_told() {
    let late = [("ONEBUF_STUB_DELAY_US", "50000")];
    play("semaphores::dead_sender", "CUDA", "imports,lost,semaphores", &late);
}

/// HIP reports semaphores but has none on Linux: the stub ends the process at the attempt.
#[test]
fn hip_is_never_asked() {
    play("semaphores::without", "HIP", "dma_buf,semaphores", &LATE);
}

#[test]
fn a_driver_that_has_none_is_never_asked() {
    play("semaphores::without", "CUDA", "imports", &LATE);
}

/// The driver calls of a round trip, one by one.
#[test]
fn a_hand_over_makes_no_call_too_many() {
    play("semaphores::call_by_call", "CUDA", PART, &LATE);
}

/// A fake device of the stubs' chip, which creates the semaphores.
fn maker() -> FakeConfig {
    let uuid = std::array::from_fn(|i| 16 * i as u8 + 1);
    FakeConfig {
        name: "maker".into(),
        physical: PhysicalId { uuid: Some(uuid), pci: None },
        shares_host_pages: Sharing::No,
        exports_semaphores: true,
        ..FakeConfig::default()
    }
}

fn builder(probe: &Arc<Probe>) -> HubBuilder {
    let builder = onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
    builder.fake(maker()).probe(probe.clone()).timeout(Duration::from_secs(30))
}

fn shared(hub: &Hub, cl: &Side, api: &Side) -> Result<Buffer<u32>> {
    // No experiment has proven the stubs' semaphores: the test vouches for them.
    hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]).trust_declared(true).build()
}

/// Both sides take turns; returns the sync method of each turn.
fn turns(buffer: &Buffer<u32>, cl: &Side, api: &Side, count: u32) -> Result<Vec<SyncMethod>> {
    let mut model = random_words(6, N);
    buffer.write(&model)?;
    let mut sync_methods = Vec::new();
    for turn in 0..count {
        let side = if turn % 2 == 0 { cl } else { api };
        side.step(buffer, Step::nth(turn))?;
        sync_methods.push(buffer.fence().unwrap().sync_method());
    }
    // After all turns: in between, the devices could finish and leave nothing to wait for.
    (0..count).for_each(|turn| step_model(&mut model, Step::nth(turn)));
    assert_same(&buffer.to_vec()?, &model, "by semaphores");
    Ok(sync_methods)
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn both_ways() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    let buffer = shared(&hub, &cl, &api).unwrap();
    assert!(buffer.explain().contains("joined by semaphore"), "{}", buffer.explain());
    let sync_methods = turns(&buffer, &cl, &api, 20).unwrap();
    // The first turn follows the write, and a turn that finds the work done needs no semaphore.
    let known = [SyncMethod::SameQueue, SyncMethod::Semaphore];
    assert!(sync_methods.iter().all(|sync_method| known.contains(sync_method)), "{sync_methods:?}");
    for way in [1, 2] {
        let by = sync_methods
            .iter()
            .skip(way)
            .step_by(2)
            .filter(|sync_method| **sync_method == SyncMethod::Semaphore)
            .count();
        assert!(by > 5, "{sync_methods:?}");
    }
    drop((buffer, cl, api, hub));
    assert_settled(&probe, "at the end");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn proven_or_not() {
    let probe = Probe::new();
    let unproven = builder(&probe).build().unwrap();
    let proven = with_forged_sync(&unproven, Some(SyncMethod::Semaphore), builder(&probe));
    for (hub, method) in [(unproven, SyncMethod::HostWait), (proven, SyncMethod::Semaphore)] {
        let (cl, api) = sides(&hub);
        let buffer = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]).build().unwrap();
        let explained = buffer.explain();
        assert!(explained.contains(&format!("joined by {method}")), "{explained}");
        let used = turns(&buffer, &cl, &api, 20).unwrap();
        assert!(used.contains(&method), "{used:?}");
        assert!(used.iter().all(|used| [SyncMethod::SameQueue, method].contains(used)), "{used:?}");
        cl.step(&buffer, Step::nth(1)).unwrap();
        let waited = api.queue.wait_for(&buffer.fence().unwrap()).unwrap();
        assert!([SyncMethod::SameQueue, method].contains(&waited), "{waited}");
    }
    assert_settled(&probe, "at the end");
}

/// No waits between the turns, so that many semaphores are in flight; the stubs check that none is mixed up.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn again_and_again() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    let buffer = shared(&hub, &cl, &api).unwrap();
    for _ in 0..10 {
        turns(&buffer, &cl, &api, 200).unwrap();
        // A driver may report the work of earlier turns late; then a hand-over needs a semaphore more.
        for side in [&cl, &api] {
            side.queue.finish().unwrap();
        }
    }
    // Each semaphore counts three times: the maker's, and one import at each end.
    let made = probe.live().get("semaphore").copied().unwrap_or(0) / 3;
    assert!((1..=2 * 200).contains(&made), "{made} semaphores for 2000 hand-overs");
    drop((buffer, cl, api, hub));
    assert_settled(&probe, "at the end");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn call_by_call() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    let buffer = shared(&hub, &cl, &api).unwrap();
    let mut model = random_words(7, N);
    buffer.write(&model).unwrap();
    let mut asked = |side: &Side| {
        probe.reset();
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        probe.trace()
    };
    // The first rounds create the semaphores, which are then reused.
    for round in 0..6 {
        for turn in 0..8 {
            let calls = [asked(&cl), asked(&api)];
            // Right after a wait there is nothing to wait for, and old events are released.
            if round > 2 && turn > 1 {
                assert_eq!(calls, [TO_OPENCL, TO_CUDA], "{round}, {turn}");
            }
        }
        cl.queue.finish().and(api.queue.finish()).unwrap();
    }
    asked(&cl);
    buffer.release_to(&api.device, Access::ReadWrite).and_then(|()| cl.queue.finish()).unwrap();
    assert_eq!(asked(&api), TO_CUDA_RELEASED);
    assert_same(&buffer.to_vec().unwrap(), &model, "call by call");
    drop((buffer, cl, api, hub));
    assert_settled(&probe, "at the end");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn batch() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    let frames = [0; 4].map(|_| shared(&hub, &cl, &api).unwrap());
    let mut models: Vec<_> = (0..4).map(|seed| random_words(seed, N)).collect();
    frames.iter().zip(&models).for_each(|(frame, model)| frame.write(model).unwrap());
    let mut calls = Vec::new();
    for turn in 0..6 {
        frames.iter().for_each(|frame| cl.step(frame, Step::nth(turn)).unwrap());
        // The control: frames that are not released are handed over one by one.
        let released = frames.iter().filter(|_| turn != 4);
        released.for_each(|frame| frame.release_to(&api.device, Access::ReadWrite).unwrap());
        probe.reset();
        frames.iter().for_each(|frame| api.step(frame, Step::nth(turn + 1)).unwrap());
        calls.push(probe.trace().iter().filter(|call| call.contains("WaitExternal")).count());
        models.iter_mut().for_each(|model| {
            [turn, turn + 1].map(Step::nth).into_iter().for_each(|step| step_model(model, step));
        });
    }
    assert_eq!(calls, [1, 1, 1, 1, 4, 1]);
    for (frame, model) in frames.iter().zip(&models) {
        assert_same(&frame.to_vec().unwrap(), model, "in batches");
    }
    drop((frames, cl, api, hub));
    assert_settled(&probe, "at the end");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn from_threads() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let (cl, api) = sides(&hub);
                let buffer = shared(&hub, &cl, &api).unwrap();
                let sync_methods = [0; 3].map(|_| turns(&buffer, &cl, &api, 120).unwrap()).concat();
                let known = [SyncMethod::SameQueue, SyncMethod::Semaphore];
                assert!(
                    sync_methods.iter().all(|sync_method| known.contains(sync_method)),
                    "{sync_methods:?}"
                );
                assert!(sync_methods.contains(&SyncMethod::Semaphore), "{sync_methods:?}");
            });
        }
    });
    drop(hub);
    assert_settled(&probe, "at the end");
}

/// One call fails, or all calls of one name: a lower sync method is used, or an error is returned. Later work is correct, and
/// nothing leaks.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn swept() {
    let calls = [
        "fake_semaphore",
        "cuImportExternalSemaphore",
        "clCreateSemaphoreWithPropertiesKHR",
        "cuSignalExternalSemaphoresAsync",
        "cuWaitExternalSemaphoresAsync",
        "clEnqueueSignalSemaphoresKHR",
        "clEnqueueWaitSemaphoresKHR",
    ];
    for call in calls {
        let probe = Probe::new();
        let hub = builder(&probe).build().unwrap();
        let (cl, api) = sides(&hub);
        probe.fail_always(call, 1);
        let sync_methods = turns(&shared(&hub, &cl, &api).unwrap(), &cl, &api, 12).unwrap();
        assert_eq!(probe.failed(), Some(call), "{sync_methods:?}");
        assert!(
            sync_methods.iter().any(|sync_method| *sync_method > SyncMethod::Semaphore),
            "{call}: {sync_methods:?}"
        );
        probe.reset();
        turns(&shared(&hub, &cl, &api).unwrap(), &cl, &api, 40).unwrap();
        drop((cl, api, hub));
        assert_settled(&probe, call);
    }
    let mut n = 1;
    while one_life(n) {
        n += 7;
    }
    note(&format!("{n} calls swept"));
    assert!(n > 60, "{n} calls are no life");
}

/// Runs the scenario with the n-th call failing, then again; returns whether there was a call left to fail.
fn one_life(n: u64) -> bool {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    probe.fail_nth(n, -5);
    let outcome = shared(&hub, &cl, &api).and_then(|buffer| {
        cl.step(&buffer, Step::nth(n as u32))?;
        buffer.release_to(&api.device, Access::Read)?;
        turns(&buffer, &cl, &api, 8)
    });
    let failed = probe.failed();
    let what = format!("call {n}, {failed:?}: {outcome:?}");
    assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
    probe.reset();
    turns(&shared(&hub, &cl, &api).unwrap(), &cl, &api, 8)
        .unwrap_or_else(|e| panic!("{what}; {e}"));
    drop((cl, api, hub));
    assert_settled(&probe, &what);
    failed.is_some()
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn dead_sender() {
    let hub = builder(&Probe::new()).build().unwrap();
    let (cl, api) = sides(&hub);
    let builder = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let builder = builder.trust_declared(true);
    let buffer =
        builder.memory_kind(MemoryKind::Exportable).allocate_on(&api.device).build().unwrap();
    assert!(buffer.explain().contains("joined by semaphore"), "{}", buffer.explain());
    // The stub's device dies after three kernels.
    let outcome = (0..4).try_for_each(|n| {
        cl.step(&buffer, Step::nth(n))?;
        api.step(&buffer, Step::nth(n))
    });
    // The error must not be a timeout, which would take half a minute.
    let error = outcome.and_then(|()| api.queue.finish()).unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
    // The stream waits forever, and dropping the hub would wait for it for some time.
    std::mem::forget((buffer, cl, api, hub));
}

/// A verdict for semaphores is not used on drivers without semaphores.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn without() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let forged = with_forged_sync(&hub, Some(SyncMethod::Semaphore), builder(&probe));
    for hub in [hub, forged] {
        let (cl, api) = sides(&hub);
        let buffer = shared(&hub, &cl, &api).unwrap();
        assert!(!buffer.explain().contains("semaphore"), "{}", buffer.explain());
        let sync_methods = turns(&buffer, &cl, &api, 8).unwrap();
        assert!(!sync_methods.contains(&SyncMethod::Semaphore), "{sync_methods:?}");
        assert!(!probe.live().contains_key("semaphore"), "{:?}", probe.live());
    }
}
