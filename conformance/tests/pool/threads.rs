//! Many threads on one pool.

use crate::host;
use onebuf::{Error, Pool};
use onebuf_conformance::{Random, Step, Watchdog, machine, random_words, step_model, threads_on};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

const THREADS: u64 = 8;
const SOON: Duration = Duration::from_secs(60);

fn sum(words: &[u32]) -> u64 {
    words.iter().fold(0, |sum, &word| sum.rotate_left(7) ^ u64::from(word))
}

/// Random sizes, a kernel in each use, and its sum checked; some buffers are kept for a while.
#[test]
fn stress_on_every_device() {
    let machine = machine();
    let _watchdog = Watchdog::new("pool stress", Duration::from_secs(300));
    for side in &machine.sides {
        let threads = threads_on(&side.device, THREADS as usize) as u64;
        let pool = &Pool::new(&machine.hub);
        thread::scope(|scope| {
            for number in 0..threads {
                scope.spawn(move || {
                    let (mut random, mut kept) = (Random::new(number), Vec::new());
                    for life in 0..12 {
                        let n = 64 << random.below(7) | random.below(64);
                        let mut model = random_words(number << 32 | life, n);
                        let request =
                            side.device.hub().buffer::<u32>(n).shared_with([&side.device]);
                        let buffer = pool.get(&request.init(&model[..])).unwrap();
                        side.step(&buffer, Step::nth(life as u32)).unwrap();
                        step_model(&mut model, Step::nth(life as u32));
                        kept.push((buffer, sum(&model)));
                        if kept.len() > 2 {
                            let (buffer, wanted) = kept.swap_remove(random.below(3));
                            assert_eq!(sum(&buffer.to_vec().unwrap()), wanted, "{}", side.device);
                        }
                    }
                });
            }
        });
        let found = pool.statistics();
        assert_eq!((found.live_buffers, found.lost), (0, 0), "{}", side.device);
        assert_eq!(found.hits + found.misses, threads * 12, "{}", side.device);
        assert_eq!(found.made - found.freed, found.idle_buffers, "{}", side.device);
    }
}

/// Eight threads wait for one buffer: each gets its share, and no two hold it at once.
#[test]
fn everybody_who_waits_is_served() {
    let hub = host();
    let pool = &Pool::with_limit(&hub, 4096);
    let request = &hub.buffer::<u64>(512);
    let _watchdog = Watchdog::new("pool waiting", Duration::from_secs(120));
    let users = &AtomicU64::new(0);
    drop(pool.get_cleared(request).unwrap());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || {
                for _ in 0..50 {
                    let buffer = pool.get_within(request, SOON).unwrap();
                    assert_eq!(users.fetch_add(1, Ordering::SeqCst), 0, "in two hands");
                    buffer.map_mut().unwrap()[0] += 1;
                    users.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    let buffer = pool.get(request).unwrap();
    assert_eq!(buffer.map().unwrap()[0], THREADS * 50);
    assert_eq!(pool.statistics().made, 1);
}

/// Threads that do not wait or that trim make room for waiting threads: no return is missed.
#[test]
fn gets_and_trims_do_not_strand_those_who_wait() {
    let hub = host();
    let pool = &Pool::with_limit(&hub, 8192);
    let hub = &hub;
    let _watchdog = Watchdog::new("pool mix", Duration::from_secs(120));
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(number);
                for _ in 0..300 {
                    let request = hub.buffer::<u8>(4096 << random.below(2));
                    match number % 4 {
                        0 => _ = pool.trim(0),
                        1 => match pool.get(&request) {
                            Ok(_) | Err(Error::OutOfMemory { .. }) => {}
                            Err(other) => panic!("{other}"),
                        },
                        _ => drop(pool.get_within(&request, SOON).unwrap()),
                    }
                }
            });
        }
    });
    let found = pool.statistics();
    assert_eq!((found.live_buffers, found.live_bytes), (0, 0));
    assert!(found.peak_held_bytes <= 8192, "{found:?}");
}
