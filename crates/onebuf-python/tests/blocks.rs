//! The blocks of PyTorch's allocator, without a driver: against a model of who has which bytes.

#[path = "../src/torch/blocks.rs"]
#[expect(dead_code, reason = "the module uses the rest")]
mod blocks;

use blocks::{Blocks, Key, UNIT, segment_bytes};
use std::collections::BTreeMap;

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % below
    }
}

/// A machine whose segments lie at ever new addresses.
#[derive(Default)]
struct Machine {
    blocks: Blocks<usize>,
    next: usize,
    made: usize,
}

impl Machine {
    fn allocate(&mut self, key: Key, bytes: usize) -> usize {
        if let Some(at) = self.blocks.take(key, bytes) {
            return at;
        }
        let size = segment_bytes(bytes).expect("a size that is possible");
        let at = self.next + (4 << 20);
        self.next = at + size;
        self.made += 1;
        self.blocks.add(key, at, size, self.made);
        self.blocks.take(key, bytes).expect("the new segment has room")
    }

    fn drain_idle(&mut self) -> Vec<(Key, usize)> {
        let idle = self.blocks.idle();
        let gone: Vec<_> = idle.iter().filter_map(|(at, _)| self.blocks.remove(*at)).collect();
        assert!(gone.iter().map(|(key, _)| key).eq(idle.iter().map(|(_, key)| key)));
        gone
    }
}

#[test]
fn blocks_of_random_sizes_never_overlap_and_all_come_back() {
    let (mut machine, mut random) = (Machine::default(), Random(1));
    let mut live: BTreeMap<usize, (usize, Key)> = BTreeMap::new();
    for step in 0..60_000 {
        let full = live.len() > 300;
        if !live.is_empty() && (full || random.next(2) == 0) {
            let at = *live.keys().nth(random.next(live.len())).expect("one of them");
            live.remove(&at);
            if random.next(8) == 0 {
                assert!(machine.blocks.hold(at) && !machine.blocks.give(at));
                assert!(machine.blocks.release(at) && !machine.blocks.release(at));
            } else {
                assert!(machine.blocks.give(at));
            }
            assert!(!machine.blocks.give(at), "freed twice at step {step}");
        } else {
            let (key, bits) = ((0, random.next(3)), 1 + random.next(23));
            let bytes = 1 + random.next(1 << bits);
            let at = machine.allocate(key, bytes);
            assert!(at.is_multiple_of(UNIT));
            let before = live.range(..=at).next_back();
            assert!(before.is_none_or(|(first, (bytes, _))| first + bytes <= at), "step {step}");
            let after = live.range(at..).next();
            assert!(after.is_none_or(|(next, _)| at + bytes <= *next), "step {step}");
            assert_eq!(machine.blocks.key_of(at), Some(key), "a block of another stream");
            assert_eq!(machine.blocks.block(at + bytes - 1, 1), Some(at));
            live.insert(at, (bytes, key));
        }
        assert_eq!(machine.blocks.stats().blocks, live.len());
    }
    let reserved = machine.blocks.stats().reserved;
    let asked: usize = live.values().map(|(bytes, _)| bytes).sum();
    assert!(machine.blocks.stats().allocated >= asked && reserved >= asked);
    for at in live.into_keys() {
        assert!(machine.blocks.give(at));
    }
    let segments = machine.blocks.stats().segments;
    assert_eq!(machine.drain_idle().len(), segments, "every segment is one free block again");
    let empty = machine.blocks.stats();
    assert_eq!((empty.allocated, empty.reserved, empty.segments, empty.blocks), (0, 0, 0, 0));
}

#[test]
fn a_repeated_pattern_makes_no_further_segment() {
    let (mut machine, mut random) = (Machine::default(), Random(7));
    let sizes: Vec<usize> = (0..200).map(|_| 1 + random.next(3 << 20)).collect();
    let mut after_first = 0;
    for turn in 0..200 {
        let taken: Vec<usize> =
            sizes.iter().map(|bytes| machine.allocate((0, 0), *bytes)).collect();
        taken.into_iter().for_each(|at| assert!(machine.blocks.give(at)));
        if turn == 0 {
            after_first = machine.made;
        }
    }
    assert_eq!(machine.made, after_first);
}

#[test]
fn a_free_block_serves_its_own_stream_alone() {
    let mut machine = Machine::default();
    let at = machine.allocate((0, 1), 4096);
    assert!(machine.blocks.give(at));
    assert_eq!(machine.blocks.take((0, 2), 4096), None);
    assert_eq!(machine.blocks.take((1, 1), 4096), None, "nor another device's");
    assert_eq!(machine.blocks.take((0, 1), 4096), Some(at));
}

#[test]
fn a_held_block_serves_nobody_and_joins_nothing() {
    let mut machine = Machine::default();
    let [first, second] = [0; 2].map(|_| machine.allocate((0, 0), 1 << 20));
    assert!(machine.blocks.hold(first) && machine.blocks.give(second));
    assert_eq!(machine.blocks.take((0, 0), 1 << 20), Some(second));
    assert!(machine.blocks.give(second));
    assert!(machine.drain_idle().is_empty(), "its segment is in use");
    assert!(machine.blocks.release(first));
    assert_eq!(machine.drain_idle().len(), 1);
}

#[test]
fn impossible_sizes_are_refused_and_whole_segments_are_taken() {
    let mut machine = Machine::default();
    for bytes in [0, usize::MAX, isize::MAX as usize] {
        assert_eq!((segment_bytes(bytes), machine.blocks.take((0, 0), bytes)), (None, None));
    }
    machine.blocks.add((0, 0), 1 << 30, 20 << 20, 1);
    assert!(machine.blocks.take_whole(1 << 30));
    assert_eq!(machine.blocks.take((0, 0), 100), None);
    assert_eq!(machine.blocks.block((1 << 30) + 5, 100), Some(1 << 30));
    assert_eq!(machine.blocks.block((1 << 30) + (20 << 20) - 5, 100), None, "beyond its end");
    assert_eq!(machine.blocks.remove(1 << 30), Some(((0, 0), 1)));
    assert_eq!(machine.blocks.stats().reserved, 0);
}
