//! Tests which chunks copies get, and that none is reused while a driver may use it.

use super::*;
use onebuf_hal::fake::{FakeConfig, Sharing};
use onebuf_sys::Probe;

const CHUNK: usize = 64 << 10;
const KEPT: usize = 4;

/// Calls the test with a fake device that has its own memory, and a queue whose work may be held back; then no chunk may be left.
fn with(test: impl FnOnce(&StagingPool, &ChunkSpec<'_>, &Probe, &dyn Queue)) {
    let probe = Probe::new();
    let fake = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
    let builder = crate::builder().only(["host"]).verdicts(Default::default());
    let hub = builder.fake(fake).build().unwrap();
    let queues = [0; 2].map(|_| hub.device("fake:0").unwrap().queue().unwrap());
    let [one, other] = queues.each_ref().map(|queue| queue.queue_state.hal.clone());
    let device = hub.hal(queues[0].queue_state.device);
    let spec = ChunkSpec { device, queue: &*one, pins: true, chunk_bytes: CHUNK, kept: KEPT };
    test(&StagingPool::default(), &spec, &probe, &*other);
    drop((one, other, queues, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

fn memories(probe: &Probe) -> i64 {
    probe.live().get("mem").copied().unwrap_or(0)
}

fn address(chunk: &mut StagingChunk) -> *const u8 {
    chunk.bytes_mut().as_ptr()
}

#[test]
fn copies_share_what_is_kept_and_each_gets_two() {
    with(|pool, spec, probe, _| {
        let ring = || (0..KEPT).map_while(|has| pool.chunk(spec, CHUNK, has)).collect::<Vec<_>>();
        let (first, second, third) = (ring(), ring(), ring());
        assert_eq!([first.len(), second.len(), third.len()], [KEPT, FEWEST, FEWEST]);
        for chunk in first.into_iter().chain(second).chain(third) {
            pool.keep(chunk, KEPT);
        }
        assert_eq!(memories(probe), KEPT as i64, "the others were freed");
        let again = ring();
        assert_eq!((again.len(), memories(probe)), (KEPT, KEPT as i64), "the same chunks");
        again.into_iter().for_each(|chunk| pool.keep(chunk, KEPT));
        // A small chunk is another one.
        pool.keep(pool.chunk(spec, 1, 0).unwrap(), KEPT);
        assert_eq!(memories(probe), KEPT as i64 + 1);
        pool.clear();
        assert_eq!(memories(probe), 0);
    });
}

#[test]
fn a_chunk_in_flight_is_not_reused_before_its_event_is_complete() {
    with(|pool, spec, _, queue| {
        let signal = queue.host_signal().unwrap();
        let event = queue.mark().unwrap();
        let mut chunk = pool.chunk(spec, CHUNK, 0).unwrap();
        let in_flight = address(&mut chunk);
        pool.keep_after(chunk, event.clone(), KEPT);
        let mut other = pool.chunk(spec, CHUNK, 0).unwrap();
        assert_ne!(address(&mut other), in_flight);
        signal.open(Ok(()));
        event.wait(Duration::from_secs(10)).unwrap();
        let mut again = pool.chunk(spec, CHUNK, 0).unwrap();
        assert_eq!(address(&mut again), in_flight);
        [other, again].into_iter().for_each(|chunk| pool.keep(chunk, KEPT));
    });
}

#[test]
fn emptying_the_pool_waits_for_a_chunk_in_flight() {
    with(|pool, spec, probe, queue| {
        let signal = queue.host_signal().unwrap();
        let event = queue.mark().unwrap();
        pool.keep_after(pool.chunk(spec, CHUNK, 0).unwrap(), event, KEPT);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(memories(probe), 1, "freed in flight");
                signal.open(Ok(()));
            });
            pool.clear();
        });
        assert_eq!(memories(probe), 0);
    });
}

#[test]
fn without_pinned_memory_a_copy_uses_ordinary_memory_which_is_not_kept() {
    with(|pool, spec, probe, _| {
        probe.fail_nth(1, -4);
        pool.keep(pool.chunk(spec, CHUNK, 0).unwrap(), KEPT);
        assert_eq!(memories(probe), 0);
        pool.keep(pool.chunk(spec, CHUNK, 0).unwrap(), KEPT);
        assert_eq!(memories(probe), 1);
    });
}

/// Another device imports a chunk once, keeps it with the chunk, and one that refuses is not asked again.
#[test]
fn a_chunk_is_shared_with_devices_that_pin_it() {
    let probe = Probe::new();
    let fake = |shares_host_pages| FakeConfig {
        probe: Some(probe.clone()),
        shares_host_pages,
        ..FakeConfig::default()
    };
    let builder = crate::builder().only(["host"]).verdicts(Default::default());
    let builder = [Sharing::Shadow, Sharing::Shadow, Sharing::No]
        .into_iter()
        .fold(builder, |builder, sharing| builder.fake(fake(sharing)));
    let hub = builder.build().unwrap();
    let queues = [0, 1, 2].map(|n| hub.device(&format!("fake:{n}")).unwrap().queue().unwrap());
    let device = |n: usize| hub.hal(queues[n].queue_state.device);
    let hal = |n: usize| queues[n].queue_state.hal.clone();
    let (pool, queue) = (StagingPool::default(), hal(0));
    let spec =
        ChunkSpec { device: device(0), queue: &*queue, pins: true, chunk_bytes: CHUNK, kept: KEPT };
    let mut chunk = pool.chunk(&spec, CHUNK, 0).unwrap();
    let own = memories(&probe);
    assert!(!chunk.share(device(2), &*hal(2)), "a device that imports nothing");
    assert_eq!(memories(&probe), own);
    for _ in 0..3 {
        assert!(chunk.share(device(1), &*hal(1)));
    }
    let shared = memories(&probe);
    pool.keep(chunk, KEPT);
    // The same chunk, which the other device has imported already.
    let mut chunk = pool.chunk(&spec, CHUNK, 0).unwrap();
    assert!(chunk.share(device(1), &*hal(1)));
    assert_eq!(memories(&probe), shared);
    pool.keep(chunk, KEPT);
    pool.clear();
    drop((pool, queue, queues, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}
