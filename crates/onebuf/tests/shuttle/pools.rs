//! Pools: limits, waiting callers, and drops in any order.

use super::*;
use onebuf::{Pool, Probe};

/// The size of one buffer, which is a size class.
const BYTES: usize = 64;

/// Runs a scenario with one fake device under both schedulers.
fn pooled(scenario: fn(Hub, Side)) {
    let run = move || {
        let hub = onebuf::builder()
            .without(["opencl", "vulkan", "gl"])
            .verdicts(Verdicts::default())
            .timeout(SOON);
        let hub = hub.fake(FakeConfig::default()).build().unwrap();
        let side = Side::new(&hub.device("fake:0").unwrap());
        scenario(hub, side);
    };
    explore(run);
}

fn explore(run: impl Fn() + Send + Sync + Clone + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(RandomScheduler::new(ROUNDS), config.clone()).run(run.clone());
    Runner::new(PctScheduler::new(DEPTH, ROUNDS), config).run(run);
}

/// Three threads, two of them on one queue, pass one buffer around.
#[test]
fn one_buffer_for_those_who_wait() {
    pooled(|hub, side| {
        let pool = Arc::new(Pool::with_limit(&hub, BYTES as u64));
        let builder = || hub.buffer::<u32>(N).shared_with([&side.device]);
        drop(pool.get_cleared(&builder()).unwrap());
        let threads = [side.clone(), side.beside(), side.clone()].map(|side| {
            let (pool, hub) = (pool.clone(), hub.clone());
            thread::spawn(move || {
                let builder = hub.buffer::<u32>(N).shared_with([&side.device]);
                for _ in 0..2 {
                    side.add(&pool.get_within(&builder, SOON).unwrap()).unwrap();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let buffer = pool.get(&builder()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [6; N]);
        assert_eq!(pool.statistics().made, 1);
    });
}

/// A `get` that does not wait frees idle buffers and keeps its own: waiting callers must be notified of the room.
#[test]
fn a_get_that_makes_room_is_heard() {
    pooled(|hub, side| {
        let pool = Arc::new(Pool::with_limit(&hub, 2 * BYTES as u64));
        drop(pool.get(&hub.buffer::<u32>(2 * N + 8).shared_with([&side.device])).unwrap());
        let waits = {
            let (pool, hub, side) = (pool.clone(), hub.clone(), side.clone());
            thread::spawn(move || {
                let builder = hub.buffer::<u32>(N).shared_with([&side.device]);
                drop(pool.get_within(&builder, SOON).unwrap());
            })
        };
        let kept = pool.get(&hub.buffer::<u32>(N).shared_with([&side.device]));
        waits.join().unwrap();
        drop(kept);
        assert_eq!(pool.statistics().live_bytes, 0);
    });
}

#[test]
fn trims_while_others_get() {
    pooled(|hub, side| {
        let pool = Arc::new(Pool::with_limit(&hub, 2 * BYTES as u64));
        let trims = pool.clone();
        let trimmer = thread::spawn(move || (0..3).for_each(|_| _ = trims.trim(0)));
        let threads = [side.clone(), side.beside()].map(|side| {
            let (pool, hub) = (pool.clone(), hub.clone());
            thread::spawn(move || {
                let builder = hub.buffer::<u32>(N).shared_with([&side.device]);
                for _ in 0..2 {
                    let buffer = pool.get_within(&builder.clone().init(vec![4; N]), SOON).unwrap();
                    side.set(&buffer, 4, 5).unwrap();
                    assert_eq!(buffer.to_vec().unwrap(), [5; N]);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        trimmer.join().unwrap();
        let found = pool.statistics();
        assert_eq!((found.live_buffers, found.hits + found.misses), (0, 4));
        assert_eq!(found.made - found.freed, found.idle_buffers);
    });
}

/// The pool is dropped while another thread uses buffers. Whatever the order, all memory is freed.
#[test]
fn a_pool_dropped_before_its_buffers() {
    explore(|| {
        let probe = Probe::new();
        let fake = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
        let hub = onebuf::builder()
            .without(["opencl", "vulkan", "gl"])
            .verdicts(Verdicts::default())
            .timeout(SOON);
        let hub = hub.fake(fake).build().unwrap();
        let device = hub.device("fake:0").unwrap();
        let pool = Pool::new(&hub);
        let builder = hub.buffer::<u32>(N).shared_with([&device]);
        let (first, second) = (pool.get(&builder).unwrap(), pool.get(&builder).unwrap());
        drop(builder);
        drop((device, hub));
        let third = thread::spawn(move || drop(second));
        together(move || drop(pool), move || drop(first));
        third.join().unwrap();
        assert!(probe.live().is_empty(), "{:?}", probe.live());
    });
}
