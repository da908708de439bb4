//! Custom memory resources: in the middle of a stack, keeping blocks, and incorrect ones.

use crate::host;
use onebuf::{
    Error, Pool, Result,
    pool::{
        AllocationRequest, Block, FreeLists, Fresh, Leaks, Log, MemoryResource, PoolStatistics,
        SizeClasses,
    },
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

/// Counts what passes through it.
struct Passing<S> {
    below: S,
    taken: Arc<AtomicU64>,
    given: Arc<AtomicU64>,
}

impl<S: MemoryResource> MemoryResource for Passing<S> {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        self.taken.fetch_add(request.capacity() as u64, Ordering::Relaxed);
        self.below.take(request)
    }

    fn give(&self, block: Block) {
        self.given.fetch_add(block.capacity() as u64, Ordering::Relaxed);
        self.below.give(block);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        self.below.trim(keep_bytes)
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        self.below.count(statistics);
    }
}

#[test]
fn a_resource_in_the_middle_sees_what_passes() {
    let hub = host();
    let counts = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let [taken, given] = counts.clone();
    let passing = Passing { below: Fresh::default(), taken, given };
    let pool = Pool::over(&hub, Log(Leaks::new(SizeClasses(FreeLists::new(passing)))));
    let request = hub.buffer::<u8>(5000); // its class is 5120
    for _ in 0..5 {
        pool.get(&request).unwrap().fill(1).unwrap();
    }
    let seen = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(seen(), [5120, 0], "one miss, kept above");
    assert_eq!(pool.statistics().hits, 4);
    drop(pool);
    assert_eq!(seen(), [5120, 5120], "closing frees");
}

/// Keeps one block and returns it for any request: correct for shorter requests, wrong for longer ones.
#[derive(Default)]
struct AnyBlock {
    below: Fresh,
    kept: Mutex<Option<Block>>,
}

impl MemoryResource for AnyBlock {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let kept = self.kept.lock().unwrap().take();
        kept.map_or_else(|| self.below.take(request), Ok)
    }

    fn give(&self, mut block: Block) {
        match block.is_reusable() {
            true => *self.kept.lock().unwrap() = Some(block),
            false => self.below.give(block),
        }
    }

    fn trim(&self, _keep_bytes: u64) -> u64 {
        let kept = self.kept.lock().unwrap().take();
        kept.map_or(0, |block| {
            let bytes = block.capacity() as u64;
            self.below.give(block);
            bytes
        })
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        self.below.count(statistics);
    }
}

#[test]
fn a_block_that_is_too_small_is_refused() {
    let hub = host();
    let pool = Pool::over(&hub, AnyBlock::default());
    drop(pool.get(&hub.buffer::<u8>(4096)).unwrap());
    let short = pool.get(&hub.buffer::<u8>(100)).unwrap();
    assert_eq!(short.to_vec().unwrap(), [0; 100]);
    drop(short);
    assert_eq!(pool.statistics().made, 1);
    let refused = pool.get(&hub.buffer::<u8>(1 << 20)).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    assert!(refused.to_string().contains("4096 bytes for a request of 1048576"), "{refused}");
    let detached = pool.get(&hub.buffer::<u8>(8)).unwrap();
    detached.detach();
    drop(detached);
    drop(pool.get(&hub.buffer::<u8>(8)).unwrap());
    assert_eq!(pool.statistics().made, 3, "a detached block is not reusable");
}

/// Small and large blocks from two bottom layers that use the same numbers.
struct Fork(Fresh, Fresh);

impl Fork {
    fn side(&self, bytes: usize) -> &Fresh {
        if bytes < 1000 { &self.0 } else { &self.1 }
    }
}

impl MemoryResource for Fork {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        self.side(request.capacity()).take(request)
    }

    fn give(&self, block: Block) {
        self.side(block.capacity()).give(block);
    }

    fn trim(&self, _keep_bytes: u64) -> u64 {
        0
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        self.0.count(statistics);
        self.1.count(statistics);
    }
}

#[test]
fn leaks_of_two_bottoms_are_kept_apart() {
    let hub = host();
    let pool = Pool::over(&hub, Leaks::new(Fork(Fresh::default(), Fresh::default())));
    let small = pool.get(&hub.buffer::<u8>(100)).unwrap();
    let large = pool.get(&hub.buffer::<u8>(2000)).unwrap();
    assert_eq!(pool.statistics().outstanding.len(), 2);
    drop(large);
    assert_eq!(pool.statistics().outstanding.iter().map(|out| out.bytes).sum::<usize>(), 100);
    drop(small);
    assert!(pool.statistics().outstanding.is_empty());
}
