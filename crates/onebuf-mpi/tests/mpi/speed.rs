//! Measurements: run them optimised, by `cargo test --profile optimised -p onebuf-mpi --test mpi speed -- --ignored --nocapture`.

use crate::{
    launch,
    ranks::{SOON, hub, join},
};
use onebuf::{
    Buffer, Hub,
    pipeline::{Filled, Pipeline},
};
use onebuf_mpi::{CornerTurn, World, raw, sink, source};
use std::time::{Duration, Instant};

/// A median, and the interval in which it is with 95 %.
fn median(mut all: Vec<f64>) -> (f64, f64, f64) {
    all.sort_by(f64::total_cmp);
    let n = all.len();
    let spread = (0.98 * (n as f64).sqrt()).ceil() as usize;
    (all[n / 2], all[(n / 2).saturating_sub(spread)], all[(n / 2 + spread).min(n - 1)])
}

/// Compares in blocks of A B B A, and describes the speed of `ours` over that of `theirs`: the median of the blocks, and the best
/// times of both, which other programs on the machine disturb least.
fn compare(
    blocks: usize,
    mut ours: impl FnMut() -> Duration,
    mut theirs: impl FnMut() -> Duration,
) -> String {
    let (mut ratios, mut best) = (Vec::new(), [f64::MAX; 2]);
    for block in 0..=blocks {
        let first = ours();
        let (a, b) = (theirs(), theirs());
        let last = ours();
        if block > 0 {
            ratios.push((a + b).as_secs_f64() / (first + last).as_secs_f64());
            best[0] = best[0].min(first.min(last).as_secs_f64());
            best[1] = best[1].min(a.min(b).as_secs_f64());
        }
    }
    let (ratio, low, high) = median(ratios);
    format!("median {ratio:.2} ({low:.2} to {high:.2}), best {:.2}", best[1] / best[0])
}

#[test]
#[ignore = "a measurement"]
fn measure_streams() {
    launch::all()
        .into_iter()
        .for_each(|mpi| print!("{}:\n{}", mpi.name, said(&mpi.run(2, "speed::rank_stream", &[]))));
}

#[test]
#[ignore = "a measurement"]
fn measure_turns() {
    for (mpi, ranks) in launch::all().into_iter().flat_map(|mpi| [(mpi.clone(), 2), (mpi, 4)]) {
        print!("{}, {ranks} ranks:\n{}", mpi.name, said(&mpi.run(ranks, "speed::rank_turn", &[])));
    }
}

fn said(text: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_once("speed: "))
        .map(|(_, line)| format!("  {line}\n"))
        .collect()
}

const SLOTS: usize = 4;

/// The time that frames take from the pipeline of rank 0 to that of rank 1. The slots are there before.
fn stream(hub: &Hub, world: &World, bytes: usize, frames: u64) -> Duration {
    let builder = Pipeline::builder(SLOTS, |_| hub.buffer::<u8>(bytes).build());
    let builder = if world.rank() == 0 {
        let to = sink::Mpi::new(world, 1).unwrap().drain(|slot: &Buffer<u8>| slot);
        let source =
            move |_: &_, frame| Ok(if frame < frames { Filled::Frame } else { Filled::End });
        builder.source(source).sink_overlapped(to)
    } else {
        let from = source::Mpi::new(world, 0).unwrap().feed(|slot: &Buffer<u8>| slot);
        builder.source_overlapped(from).sink(|_, _| Ok(()))
    };
    let mut pipeline = builder.build().unwrap();
    pipeline.slots().iter().for_each(|slot| slot.fill(1).unwrap());
    world.barrier(SOON).unwrap();
    let began = Instant::now();
    assert_eq!(pipeline.run().unwrap().frames, frames);
    world.barrier(SOON).unwrap();
    began.elapsed()
}

#[test]
#[ignore = "a rank"]
fn rank_stream() {
    let (hub, world) = (hub(), join());
    for (bytes, frames) in [(1 << 20, 160), (8 << 20, 20)] {
        let mut rate = 0.0f64;
        let ours = || {
            let took = stream(&hub, &world, bytes, frames);
            rate = rate.max(frames as f64 * bytes as f64 / took.as_secs_f64() / 1e9);
            took
        };
        let ratio = compare(9, ours, || raw::ring(&world, bytes, SLOTS, frames as usize).unwrap());
        if world.rank() == 0 {
            println!(
                "speed: frames of {} MiB: {ratio} of the raw ring; at most {rate:.2} GB/s",
                bytes >> 20
            );
        }
    }
}

struct Slot {
    spectra: Buffer<u32>,
    turned: Buffer<u32>,
}

/// The time that frames take to be turned.
fn turn(hub: &Hub, world: &World, channels: usize, frequencies: usize, frames: u64) -> Duration {
    let turn = CornerTurn::new(world, channels, frequencies);
    let (input, output) =
        (turn.own_channels().len() * frequencies, channels * turn.own_frequencies().len());
    let slot =
        |_| Ok(Slot { spectra: hub.buffer(input).build()?, turned: hub.buffer(output).build()? });
    let source = |_: &Slot, frame| Ok(if frame < frames { Filled::Frame } else { Filled::End });
    let stage = turn.between(|slot: &Slot| &slot.spectra, |slot| &slot.turned);
    let builder =
        Pipeline::builder(SLOTS, slot).source(source).stage_overlapped("turn", &hub.host(), stage);
    let mut pipeline = builder.sink(|_, _| Ok(())).build().unwrap();
    pipeline.slots().iter().for_each(|slot| {
        slot.spectra.fill(1).and(slot.turned.fill(1)).unwrap();
    });
    world.barrier(SOON).unwrap();
    let began = Instant::now();
    pipeline.run().unwrap();
    world.barrier(SOON).unwrap();
    began.elapsed()
}

#[test]
#[ignore = "a rank"]
fn rank_turn() {
    let (hub, world) = (hub(), join());
    let size = world.size();
    // Blocks of 1 MiB between every two ranks: few long rows, and many short ones.
    for (rows, columns, frames) in [(4, 65_536, 30), (64, 4096, 30), (1024, 256, 30)] {
        let (channels, frequencies) = (rows * size, columns * size);
        let ours = || turn(&hub, &world, channels, frequencies, frames);
        let theirs = || raw::alltoall(&world, 4 * rows * columns, SLOTS, frames as usize).unwrap();
        let ratio = compare(9, ours, theirs);
        if world.rank() == 0 {
            let row = 4 * columns;
            println!("speed: blocks of {rows} rows of {row} bytes: {ratio} of MPI_Alltoall");
        }
    }
}
