//! How much more memory a pool holds than its program uses, with a trace that is identical on every machine.

use crate::host;
use onebuf::{
    Buffer, Pool,
    pool::{Fresh, SizeClasses},
};
use onebuf_conformance::{Random, note};
use std::collections::BTreeMap;

/// One use in the trace: a buffer of `bytes` bytes for `steps` steps.
#[derive(Clone, Copy, Debug)]
struct Life {
    bytes: usize,
    steps: usize,
}

const STEPS: usize = 20_000;
const SMALLEST: usize = 4 << 10;
const LARGEST: usize = 64 << 20;
/// The mix of sizes changes after this number of steps.
const PHASE: usize = 2_500;

/// The trace: sizes by a power law whose centre moves from phase to phase, bursts of many buffers at once,
/// and one in two hundred buffers is long-lived. `lives[step]` begins at that step.
fn trace(seed: u64) -> Vec<Vec<Life>> {
    let mut random = Random::new(seed);
    (0..STEPS).map(|step| begin(&mut random, step)).collect()
}

fn begin(random: &mut Random, step: usize) -> Vec<Life> {
    let burst = random.below(100) == 0;
    let count = if burst { 8 + random.below(24) } else { 1 };
    (0..count).map(|_| Life { bytes: size(random, step), steps: span(random, burst) }).collect()
}

/// Each doubling is half as likely as the one before, starting at a size that depends on the phase;
/// uniform between two powers of two.
fn size(random: &mut Random, step: usize) -> usize {
    let shift = [0, 4, 1, 7, 2, 5, 0, 9][step / PHASE % 8];
    let doublings = shift + (random.word().trailing_zeros() as usize).min(14);
    let base = SMALLEST << doublings.min(14);
    (base + random.below(base)).min(LARGEST)
}

fn span(random: &mut Random, burst: bool) -> usize {
    match () {
        () if random.below(200) == 0 => 2_000 + random.below(2_000),
        () if burst => 5 + random.below(10),
        () => 1 + random.below(60),
    }
}

/// A hash of the trace.
fn fingerprint(trace: &[Vec<Life>]) -> u64 {
    let lives = trace.iter().flatten();
    lives.fold(0xcbf2_9ce4_8422_2325, |sum: u64, life| {
        let sum = (sum ^ life.bytes as u64).wrapping_mul(0x100_0000_01b3);
        (sum ^ life.steps as u64).wrapping_mul(0x100_0000_01b3)
    })
}

/// Runs the trace, and calls `begin` and `end` for each buffer.
fn play<B>(trace: &[Vec<Life>], mut begin: impl FnMut(usize) -> B, mut end: impl FnMut(B)) {
    let mut ends: BTreeMap<usize, Vec<B>> = BTreeMap::new();
    for (step, lives) in trace.iter().enumerate() {
        ends.remove(&step).into_iter().flatten().for_each(&mut end);
        for life in lives {
            ends.entry(step + life.steps).or_default().push(begin(life.bytes));
        }
    }
    ends.into_values().flatten().for_each(&mut end);
}

/// What free lists without the trimming rule would hold: of each class the most that were ever in use.
fn untrimmed(trace: &[Vec<Life>]) -> f64 {
    #[derive(Default)]
    struct Count {
        live: BTreeMap<usize, (u64, u64)>,
        bytes: u64,
        peak: u64,
    }
    let count = std::cell::RefCell::new(Count::default());
    let begin = |bytes: usize| {
        let class = SizeClasses::<Fresh>::class_of(bytes);
        let mut count = count.borrow_mut();
        let (live, most) = count.live.entry(class).or_default();
        *live += 1;
        *most = (*most).max(*live);
        count.bytes += class as u64;
        count.peak = count.peak.max(count.bytes);
        class
    };
    let end = |class: usize| {
        let mut count = count.borrow_mut();
        count.live.entry(class).and_modify(|(live, _)| *live -= 1);
        count.bytes -= class as u64;
    };
    play(trace, begin, end);
    let count = count.into_inner();
    let held: u64 = count.live.iter().map(|(class, (_, most))| *class as u64 * most).sum();
    held as f64 / count.peak as f64 - 1.0
}

/// Untouched host memory is not resident, so gigabytes cost nothing here.
#[test]
fn fragmentation_stays_below_a_tenth() {
    let trace = trace(2024);
    assert_eq!(fingerprint(&trace), FINGERPRINT, "another trace than the recorded one");
    let hub = host();
    let pool = Pool::new(&hub);
    let (mut asked, mut most_asked) = (0_u64, 0_u64);
    let sizes = std::cell::Cell::new((0_u64, 0_u64));
    let begin = |bytes: usize| {
        (asked, most_asked) = sizes.get();
        asked += bytes as u64;
        sizes.set((asked, most_asked.max(asked)));
        pool.get(&hub.buffer::<u8>(bytes)).unwrap()
    };
    let end = |buffer: Buffer<u8>| {
        let (asked, most) = sizes.get();
        sizes.set((asked - buffer.len() as u64, most));
    };
    play(&trace, begin, end);
    let found = pool.statistics();
    let (fragmentation, control) = (found.fragmentation(), untrimmed(&trace));
    let hits = found.hits as f64 / (found.hits + found.misses) as f64;
    let rounding = found.peak_live_bytes as f64 / sizes.get().1 as f64 - 1.0;
    note(&format!(
        "pool trace: fragmentation {:.2} %, untrimmed {:.1} %, hits {:.1} %, rounded up {:.1} %, peak {} MiB",
        fragmentation * 100.0,
        control * 100.0,
        hits * 100.0,
        rounding * 100.0,
        found.peak_live_bytes >> 20,
    ));
    assert!(fragmentation <= 0.10, "{fragmentation}");
    assert!(control > 0.10, "the trace does not try the rule: {control}");
    assert!(hits >= 0.75, "{hits}");
    assert_eq!((found.live_buffers, found.lost), (0, 0));
}

const FINGERPRINT: u64 = 9_395_006_823_009_051_299;
