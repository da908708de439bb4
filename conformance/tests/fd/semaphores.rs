//! The `semaphore` rung over both stubs, with a fake device of the same chip in Vulkan's part: it makes the semaphores, and
//! uses none. The stubs die of a signal before the last one's wait has run, and of a wait without a signal.

use super::{N, assert_settled, judged_by, sides};
use onebuf::{
    Buffer, Error, Hub, HubBuilder, Probe, Result, Rung, Strategy,
    fake::{FakeConfig, Sharing},
    hal::PhysicalId,
};
use onebuf_conformance::{Side, Step, assert_same, note, play, random_words, step_model};
use std::{sync::Arc, thread, time::Duration};

const PART: &str = "imports,cached,semaphores";
const LATE: [(&str, &str); 2] =
    [("ONEBUF_STUB_DELAY_US", "300"), ("ONEBUF_CUDA_STUB_DELAY_US", "500")];

#[test]
fn both_apis_wait_on_the_device() {
    play("semaphores::both_ways", "CUDA", PART, &LATE);
}

#[test]
fn many_hand_overs_share_few_semaphores() {
    play("semaphores::again_and_again", "CUDA", "imports,semaphores", &[]);
}

/// Of which some are late.
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
    play("semaphores::swept", "CUDA", PART, &[]);
}

/// Its signal never comes.
#[test]
fn a_dead_sender_is_told() {
    let late = [("ONEBUF_STUB_DELAY_US", "50000")];
    play("semaphores::dead_sender", "CUDA", "imports,lost,semaphores", &late);
}

/// HIP says that it has semaphores, and has none on Linux: the stub dies of the attempt.
#[test]
fn hip_is_never_asked() {
    play("semaphores::without", "HIP", "dma_buf,semaphores", &LATE);
}

#[test]
fn a_driver_that_has_none_is_never_asked() {
    play("semaphores::without", "CUDA", "imports", &LATE);
}

/// The chip of both stubs, as the one that makes semaphores.
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
    let builder = Hub::builder().without_graphics().verdicts(Default::default());
    builder.fake(maker()).probe(probe.clone()).timeout(Duration::from_secs(30))
}

fn shared(hub: &Hub, cl: &Side, api: &Side) -> Result<Buffer<u32>> {
    hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]).build()
}

/// Turns of both; by which rung each of them waited.
fn turns(buffer: &Buffer<u32>, cl: &Side, api: &Side, count: u32) -> Result<Vec<Rung>> {
    let mut model = random_words(6, N);
    buffer.write(&model)?;
    let mut rungs = Vec::new();
    for turn in 0..count {
        let side = if turn % 2 == 0 { cl } else { api };
        side.step(buffer, Step::nth(turn))?;
        step_model(&mut model, Step::nth(turn));
        rungs.push(buffer.fence().unwrap().rung());
    }
    assert_same(&buffer.to_vec()?, &model, "by semaphores");
    Ok(rungs)
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn both_ways() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    let buffer = shared(&hub, &cl, &api).unwrap();
    assert!(buffer.explain().contains("joined by semaphore"), "{}", buffer.explain());
    let rungs = turns(&buffer, &cl, &api, 20).unwrap();
    // The first follows the write, and whoever finds the work done needs no semaphore.
    let known = [Rung::SameQueue, Rung::Semaphore];
    assert!(rungs.iter().all(|rung| known.contains(rung)), "{rungs:?}");
    for way in [1, 2] {
        let by = rungs.iter().skip(way).step_by(2).filter(|rung| **rung == Rung::Semaphore).count();
        assert!(by > 5, "{rungs:?}");
    }
    drop((buffer, cl, api, hub));
    assert_settled(&probe, "at the end");
}

/// Nothing waits between the turns, so that many are under way; the stubs check that none is taken for another.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn again_and_again() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    let buffer = shared(&hub, &cl, &api).unwrap();
    for _ in 0..10 {
        turns(&buffer, &cl, &api, 200).unwrap();
    }
    // Each is one of the maker's, and one of each end's.
    let made = probe.live().get("semaphore").copied().unwrap_or(0) / 3;
    assert!((1..=2 * 200).contains(&made), "{made} semaphores for 2000 hand-overs");
    drop((buffer, cl, api, hub));
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
                let rungs = [0; 3].map(|_| turns(&buffer, &cl, &api, 120).unwrap()).concat();
                let known = [Rung::SameQueue, Rung::Semaphore];
                assert!(rungs.iter().all(|rung| known.contains(rung)), "{rungs:?}");
                assert!(rungs.contains(&Rung::Semaphore), "{rungs:?}");
            });
        }
    });
    drop(hub);
    assert_settled(&probe, "at the end");
}

/// One call fails, or all of one name: a lower rung does it, or an error tells; what follows is right, and nothing is left.
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
        let rungs = turns(&shared(&hub, &cl, &api).unwrap(), &cl, &api, 12).unwrap();
        assert_eq!(probe.failed(), Some(call), "{rungs:?}");
        assert!(rungs.iter().any(|rung| *rung > Rung::Semaphore), "{call}: {rungs:?}");
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

/// A life whose n-th call fails, and another; whether any was left to fail.
fn one_life(n: u64) -> bool {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let (cl, api) = sides(&hub);
    probe.fail_nth(n, -5);
    let outcome = shared(&hub, &cl, &api).and_then(|buffer| turns(&buffer, &cl, &api, 8));
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
    let wish = hub.buffer::<u32>(N).shared_with([&cl.device, &api.device]);
    let buffer = wish.strategy(Strategy::Exportable).allocate_on(&api.device).build().unwrap();
    assert!(buffer.explain().contains("joined by semaphore"), "{}", buffer.explain());
    // The stub's device dies after three kernels.
    let outcome = (0..4).try_for_each(|n| {
        cl.step(&buffer, Step::nth(n))?;
        api.step(&buffer, Step::nth(n))
    });
    // Not by a timeout, which would be half a minute.
    let error = outcome.and_then(|()| api.queue.finish()).unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
    // The stream waits for ever, and the end of a hub for that, for some time.
    std::mem::forget((buffer, cl, api, hub));
}

/// A verdict that was made where semaphores were is no promise where there are none.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn without() {
    let probe = Probe::new();
    let hub = builder(&probe).build().unwrap();
    let judged = judged_by(&hub, Some(Rung::Semaphore), builder(&probe));
    for hub in [hub, judged] {
        let (cl, api) = sides(&hub);
        let buffer = shared(&hub, &cl, &api).unwrap();
        assert!(!buffer.explain().contains("semaphore"), "{}", buffer.explain());
        let rungs = turns(&buffer, &cl, &api, 8).unwrap();
        assert!(!rungs.contains(&Rung::Semaphore), "{rungs:?}");
        assert!(!probe.live().contains_key("semaphore"), "{:?}", probe.live());
    }
}
