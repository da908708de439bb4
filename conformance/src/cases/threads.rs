//! Several hubs, several threads, and objects dropped in any order.

use crate::{
    Machine, Side, Step, Trial, assert_same, random_words, shared, step_model, threads_on,
};
use onebuf::{Buffer, Error, RouteKind, SyncMethod};
use std::{panic::resume_unwind, thread};

pub fn hubs_live_side_by_side(t: &Trial<'_>) {
    t.together(|| {
        let (first, second) = (t.machine, Machine::open(t.builder()));
        assert!(!first.hub.is(&second.hub));
        let ledgers = || [&first.hub, &second.hub].map(|hub| hub.ledger().asked_bytes());
        let before = ledgers();
        for (mine, theirs) in first.sides.iter().zip(&second.sides) {
            assert_eq!(mine.device.id(), theirs.device.id());
            let buffers = [mine, theirs].map(|side| {
                let hub = side.device.hub();
                hub.buffer::<u32>(1000).shared_with([&side.device]).build().unwrap()
            });
            mine.step(&buffers[0], Step::nth(1)).unwrap();
            theirs.step(&buffers[1], Step::nth(2)).unwrap();
            for (n, buffer) in (1..).zip(&buffers) {
                let mut model = vec![0; 1000];
                step_model(&mut model, Step::nth(n));
                assert_same(&buffer.to_vec().unwrap(), &model, mine.device.id());
            }
            assert!(matches!(buffers[0].read_on(&theirs.queue), Err(Error::ForeignContext { .. })));
        }
        let after = ledgers();
        assert_eq!(after[0] - before[0], 4000 * first.sides.len() as u64);
        assert_eq!(after[1] - before[1], 4000 * second.sides.len() as u64);
    });
}

pub fn a_buffer_keeps_what_it_needs(t: &Trial<'_>) {
    t.together(|| {
        let machine = Machine::open(t.builder());
        let mut kept: Vec<(Buffer<u32>, Vec<u32>)> = Vec::new();
        for side in &machine.sides {
            let buffer =
                machine.hub.buffer::<u32>(5000).shared_with([&side.device]).build().unwrap();
            let mut model = random_words(1, 5000);
            buffer.write(&model).unwrap();
            side.step(&buffer, Step::nth(4)).unwrap();
            step_model(&mut model, Step::nth(4));
            kept.push((buffer, model));
        }
        let pending = kept.iter().map(|(b, _)| b.read_async(.., vec![0; 5000]).unwrap());
        let pending: Vec<_> = pending.collect();
        drop(machine); // drops the hub, the devices, the queues and the kernels
        for ((buffer, model), mut pending) in kept.into_iter().zip(pending) {
            assert_same(&buffer.to_vec().unwrap(), &model, "without its hub");
            drop(buffer);
            assert_same(&pending.wait(std::time::Duration::from_secs(20)).unwrap(), &model, "late");
        }
    });
}

/// Runs `work` on `count` threads, each with its number, and returns how each ended.
fn on_threads(count: usize, work: impl Fn(usize) + Sync) -> Vec<thread::Result<()>> {
    thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        all.into_iter().map(|one| one.join()).collect()
    })
}

/// Runs `work` on `count` threads, and panics as the first failed one did.
pub fn on_all_threads(count: usize, work: impl Fn() + Sync) {
    on_threads(count, |_| work())
        .into_iter()
        .for_each(|end| end.unwrap_or_else(|p| resume_unwind(p)));
}

pub fn threads_with_buffers_of_their_own_do_not_disturb_each_other(t: &Trial<'_>) {
    let sides = &t.machine.sides;
    let ends = on_threads(sides.len(), |number| use_own_buffers(&sides[number], &sides[0], number));
    for (side, end) in sides.iter().zip(ends) {
        t.on(&[side], "", || end.unwrap_or_else(|panic| resume_unwind(panic)));
    }
}

fn use_own_buffers(side: &Side, host: &Side, number: usize) {
    let own = Side::open(&side.device).unwrap();
    let n = 1000 + number;
    let other = if number == 0 { &own } else { host };
    let other = Side::open(&other.device).unwrap();
    let alone = side.device.hub().buffer::<u32>(n).shared_with([&side.device]);
    let staged = (number > 0)
        .then(|| shared(&own, &other, RouteKind::Staged, SyncMethod::HostWait, n).unwrap());
    let buffers = [Some(alone.build().unwrap()), staged];
    for buffer in buffers.iter().flatten() {
        let mut model = vec![0; n];
        for round in 0..60 {
            own.step(buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            if round % 8 == 0 {
                assert_same(&buffer.to_vec().unwrap(), &model, own.device.id());
            }
        }
        assert_same(&buffer.to_vec().unwrap(), &model, own.device.id());
    }
}

pub fn threads_that_want_one_buffer_get_busy_and_nothing_else(t: &Trial<'_>) {
    const THREADS: usize = 4;
    const ROUNDS: usize = 50;
    t.each_device(|side| {
        let buffer = t.hub().buffer::<u32>(2000).shared_with([&side.device]).build().unwrap();
        // Each round adds 1 + i to element i. The order does not matter, but every round must count.
        let increment = Step { mul: 1, add: 1 };
        let threads = threads_on(&side.device, THREADS);
        on_all_threads(threads, || {
            let own = Side::open(&side.device).unwrap();
            let mut left = ROUNDS;
            while left > 0 {
                match own.step(&buffer, increment) {
                    Ok(()) => left -= 1,
                    Err(Error::Busy { .. }) => {
                        thread::yield_now();
                        continue;
                    }
                    Err(other) => panic!("{}: {other}", own.device),
                }
                match buffer.map() {
                    // Only complete rounds are visible: element i holds (1 + i) of each.
                    Ok(map) => assert_eq!(map[9], map[0].wrapping_mul(10)),
                    Err(Error::Busy { .. }) => {}
                    Err(other) => panic!("{}: {other}", own.device),
                }
            }
        });
        let rounds = (threads * ROUNDS) as u32;
        let model: Vec<u32> = (0..2000).map(|i| rounds.wrapping_mul(1 + i)).collect();
        assert_same(&buffer.to_vec().unwrap(), &model, side.device.id());
    });
}
