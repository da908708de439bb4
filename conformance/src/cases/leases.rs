//! Leases: the fast path for a queue that uses a buffer again must obey all rules.

use super::{queues::out_of_order, threads::on_all_threads};
use crate::{Machine, Side, Step, Trial, assert_same, step_model, threads_on};
use onebuf::{Buffer, Error, Result};
use std::{mem::forget, thread};

const N: usize = 1000;

/// Returns a buffer that this side's queue has a lease of: the queue took it and returned it.
fn leased(machine: &Machine, side: &Side, write: bool) -> Buffer<u32> {
    let buffer = machine.hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
    for _ in 0..2 {
        if write {
            drop(buffer.write_on(&side.queue).unwrap());
        } else {
            drop(buffer.read_on(&side.queue).unwrap());
        }
    }
    buffer
}

#[track_caller]
fn busy<T>(outcome: Result<T>, what: &str) {
    match outcome {
        Err(Error::Busy { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: not busy"),
    }
}

pub fn a_forgotten_leased_guard_keeps_the_buffer_busy(t: &Trial<'_>) {
    t.each_device(|side| {
        let (other, id) = (Side::open(&side.device).unwrap(), side.device.id());
        let buffer = leased(t.machine, side, true);
        forget(buffer.write_on(&side.queue).unwrap());
        for side in [side, &other, side] {
            busy(buffer.write_on(&side.queue), id);
            busy(buffer.read_on(&side.queue), id);
            busy(side.step(&buffer, Step::nth(1)), id);
        }
        busy(buffer.to_vec(), id);
        busy(buffer.map(), id);
        let region = buffer.sub_buffer(..10, onebuf::Access::Read).unwrap();
        busy(region.read_on(&other.queue), id);

        // A forgotten read guard still lets others read.
        for write in [true, false] {
            let buffer = leased(t.machine, side, write);
            forget(buffer.read_on(&side.queue).unwrap());
            busy(buffer.write_on(&side.queue), id);
            busy(buffer.write_on(&other.queue), id);
            busy(buffer.fill(1), id);
            assert_same(&buffer.to_vec().unwrap(), &[0; N], id);
            drop(buffer.read_on(&side.queue).unwrap());
            busy(buffer.write_on(&side.queue), id);
        }
    });
}

pub fn a_lease_for_reading_is_none_for_writing(t: &Trial<'_>) {
    t.each_device(|side| {
        let id = side.device.id();
        let buffer = leased(t.machine, side, false);
        let first = buffer.read_on(&side.queue).unwrap();
        let second = buffer.read_on(&side.queue).unwrap();
        busy(buffer.write_on(&side.queue), id);
        drop(first);
        busy(buffer.write_on(&side.queue), id);
        drop(second);
        side.step(&buffer, Step::nth(1)).unwrap();
        let mut model = vec![0; N];
        step_model(&mut model, Step::nth(1));
        assert_same(&buffer.to_vec().unwrap(), &model, id);
    });
}

/// Every later user sees the work of a leased guard, on any queue.
pub fn queues_that_alternate_are_ordered(t: &Trial<'_>) {
    t.each_device(|side| {
        let other = Side::open(&side.device).unwrap();
        let buffer = leased(t.machine, side, true);
        let mut model = vec![0; N];
        for round in 0..60 {
            // Runs of one to five steps on a queue: with and without a lease.
            let side = if (round / (1 + round / 12)) % 2 == 0 { side } else { &other };
            side.step(&buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            if round % 7 == 0 {
                assert_same(&buffer.to_vec().unwrap(), &model, side.device.id());
            }
        }
        assert_same(&other.look(&buffer).unwrap(), &model, side.device.id());
        assert_same(&buffer.map().unwrap(), &model, side.device.id());
    });
}

/// A guard that is held while another user requests the buffer loses its lease, and is returned by the slow path.
pub fn a_recalled_guard_is_given_back(t: &Trial<'_>) {
    t.each_device(|side| {
        let (other, id) = (Side::open(&side.device).unwrap(), side.device.id());
        let buffer = leased(t.machine, side, true);
        let mut model = vec![0; N];
        for round in 0..4 {
            let view = buffer.write_on(&side.queue).unwrap();
            busy(buffer.read_on(&other.queue), id);
            side.step_view(view, N, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            other.step(&buffer, Step::nth(round + 9)).unwrap();
            step_model(&mut model, Step::nth(round + 9));
        }
        assert_same(&buffer.to_vec().unwrap(), &model, id);
    });
}

pub fn threads_on_one_queue_never_hold_it_both(t: &Trial<'_>) {
    const THREADS: usize = 3;
    const ROUNDS: usize = 200;
    t.each_device(|side| {
        let buffer = leased(t.machine, side, true);
        // Each round adds 1 + i to element i. The order does not matter, but every round must count.
        let increment = Step { mul: 1, add: 1 };
        let threads = threads_on(&side.device, THREADS);
        on_all_threads(threads, || {
            let mut left = ROUNDS;
            while left > 0 {
                match side.step(&buffer, increment) {
                    Ok(()) => left -= 1,
                    Err(Error::Busy { .. }) => thread::yield_now(),
                    Err(other) => panic!("{}: {other}", side.device),
                }
            }
        });
        let rounds = (threads * ROUNDS) as u32;
        let model: Vec<u32> = (0..N as u32).map(|i| rounds.wrapping_mul(1 + i)).collect();
        assert_same(&buffer.to_vec().unwrap(), &model, side.device.id());
    });
}

/// Several launches with one view, on every device, in order and out of order. Each launch sees the previous one's writes,
/// no other user gets in between, and the next user waits for all of them.
pub fn a_lent_view_serves_many_launches(t: &Trial<'_>) {
    t.each_device(|side| {
        let unordered = out_of_order(side);
        for side in [Some(side), unordered.as_ref()].into_iter().flatten() {
            let id = side.device.id();
            let buffer = t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
            let (mut model, mut view) = (vec![0; N], buffer.write_on(&side.queue).unwrap());
            for n in 0..5 {
                side.step_view(&mut view, N, Step::nth(n)).unwrap();
                step_model(&mut model, Step::nth(n));
                busy(buffer.read_on(&side.queue), id);
            }
            side.step_view(view, N, Step::nth(5)).unwrap();
            step_model(&mut model, Step::nth(5));
            assert_same(&buffer.to_vec().unwrap(), &model, id);
            let reads = buffer.read_on(&side.queue).unwrap();
            let refused = side.step_view(&reads, N, Step::nth(6)).map(drop);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{id}: {refused:?}");
            drop(reads);
            assert_same(&buffer.to_vec().unwrap(), &model, id);
        }
    });
}
