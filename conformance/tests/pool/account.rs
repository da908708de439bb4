//! Pool statistics, to the byte.

use crate::host;
use onebuf::{
    MemoryKind, Pool,
    pool::{FreeLists, Fresh, Leaks, Limit, PoolStatistics, SizeClasses},
};
use std::collections::BTreeMap;

const N: usize = 1024;
const BYTES: u64 = 4096;

#[test]
fn a_scripted_sequence() {
    let hub = host();
    let pool = Pool::with_limit(&hub, 1 << 20);
    let request = hub.buffer::<u32>(N);
    pool.prepare(&request, 3).unwrap(); // three made
    let first = pool.get(&request).unwrap();
    let second = pool.get(&request).unwrap(); // two used again
    let large = pool.get(&hub.buffer::<u32>(4 * N)).unwrap(); // one more made
    first.detach();
    drop(first);
    drop(large);
    let found = pool.statistics();
    let mut wanted = PoolStatistics::default();
    (wanted.hits, wanted.misses, wanted.made, wanted.lost) = (2, 4, 4, 1);
    (wanted.live_buffers, wanted.live_bytes) = (1, BYTES);
    (wanted.peak_live_bytes, wanted.peak_held_bytes) = (6 * BYTES, 6 * BYTES);
    // The detached buffer, and the third prepared one: when the large one was requested, 6 and a sixteenth were allowed.
    wanted.freed = 2;
    (wanted.idle_buffers, wanted.idle_bytes) = (1, 4 * BYTES);
    wanted.idle_by_memory_kind = BTreeMap::from([(MemoryKind::HostPages, 4 * BYTES)]);
    wanted.limit_bytes = Some(1 << 20);
    assert_eq!(found, wanted);
    assert_eq!(found.fragmentation(), 0.0);

    drop(second);
    assert_eq!(pool.trim(4 * BYTES), 4 * BYTES, "what was idle longest goes first");
    let after = pool.statistics();
    assert_eq!((after.idle_bytes, after.live_buffers, after.freed), (BYTES, 0, 3));
    assert_eq!(pool.trim(0), BYTES);
    assert_eq!((pool.statistics().idle_buffers, pool.statistics().freed), (0, 4));
    assert_eq!(pool.trim(0), 0);
}

/// A failed request leaves no trace: neither bytes in use, nor a peak that would let the pool grow.
#[test]
fn failed_wishes_are_not_counted() {
    let hub = host();
    let pool = Pool::with_limit(&hub, 4 * BYTES);
    let idle = pool.get(&hub.buffer::<u32>(N)).unwrap();
    drop(idle);
    pool.get(&hub.buffer::<u32>(1 << 20)).unwrap_err();
    let found = pool.statistics();
    assert_eq!((found.misses, found.live_buffers, found.live_bytes), (1, 0, 0));
    assert_eq!((found.peak_live_bytes, found.peak_held_bytes), (BYTES, BYTES));
    // The limit is available again.
    let all: Vec<_> = (0..4).map(|_| pool.get(&hub.buffer::<u32>(N)).unwrap()).collect();
    assert_eq!(pool.statistics().live_bytes, 4 * BYTES);
    drop(all);
}

/// Layers that round up below layers that count: what is counted is what was allocated.
#[test]
fn stacks_in_another_order() {
    let hub = host();
    let request = hub.buffer::<u8>(1000); // its class is 1024
    let lists = Pool::over(&hub, FreeLists::new(SizeClasses(Fresh::default())));
    let limit = Pool::over(&hub, Limit::new(SizeClasses(Fresh::default()), 3000));
    drop(lists.get(&request).unwrap());
    drop(lists.get(&request).unwrap());
    let found = lists.statistics();
    assert_eq!((found.live_bytes, found.idle_bytes, found.hits), (0, 1024, 1));
    for _ in 0..10 {
        let two = [limit.get(&request).unwrap(), limit.get(&request).unwrap()];
        // A third one of 1000 bytes would fit; one of 1024 does not.
        limit.get(&request).unwrap_err();
        drop(two);
    }
}

#[test]
fn what_is_out_is_named_by_its_place() {
    let hub = host();
    let pool = Pool::over(&hub, Leaks::new(SizeClasses(FreeLists::new(Fresh::default()))));
    let (kept, line) = (pool.get(&hub.buffer::<u32>(N - 1)).unwrap(), line!());
    let gone = pool.get_cleared(&hub.buffer::<u32>(N)).unwrap();
    assert_eq!(pool.statistics().outstanding.len(), 2);
    drop(gone);
    let statistics = pool.statistics();
    let [out] = statistics.outstanding[..] else { panic!("{statistics:?}") };
    assert_eq!((out.bytes, out.place.line()), (4 * (N - 1), line));
    assert!(out.place.file().ends_with("account.rs"), "{out}");
    let place = format!("account.rs:{line}");
    assert!(statistics.leak_report().contains(&place), "{}", statistics.leak_report());
    assert!(statistics.leak_report().starts_with("1 buffers of 4096 bytes"));
    drop(kept);
    assert!(pool.statistics().outstanding.is_empty());
}
