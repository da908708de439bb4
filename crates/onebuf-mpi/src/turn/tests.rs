//! Corner turns of many ranks in one process: what they do is that of the real engines, and the order in which messages end is
//! random.

use super::CornerTurn;
use crate::{
    deadline::Deadline,
    engine::Engine,
    greet::greet,
    transport::fabric::{Fabric, fabric},
    world::{Parts, World},
};
use onebuf::{
    Buffer, Error, Hub, Result,
    pipeline::{Filled, Pipeline},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// Longer than anything takes that works.
const SOON: Duration = Duration::from_secs(60);

/// A world over a transport in memory, with a communication thread of its own.
fn world(transport: Fabric) -> World {
    let (ready, answer) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut transport = Box::new(transport);
        let ranks = greet(&mut *transport, &BTreeMap::new(), Deadline::after(SOON)).unwrap();
        let ranks = Arc::new(ranks);
        let (engine, link) = Engine::new(transport, ranks.clone());
        ready.send((link, ranks)).unwrap();
        engine.run();
    });
    let (link, ranks) = answer.recv_timeout(SOON).unwrap();
    let (library, options) = (String::new(), BTreeMap::new());
    World::new(Parts { link, ranks, timeout: SOON, library, options, thread: Some(thread) })
}

/// Runs a function as so many ranks, and returns what each has returned.
fn as_ranks<R: Send>(ranks: usize, seed: u64, run: impl Fn(World) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let ranks = fabric(ranks, seed).into_iter();
        let all: Vec<_> = ranks.map(|rank| scope.spawn(|| run(world(rank)))).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

struct Slot {
    spectra: Buffer<u32>,
    turned: Buffer<u32>,
}

fn element(frame: u64, channel: usize, frequency: usize) -> u32 {
    (frame as u32 + 1).wrapping_mul(0x85eb_ca6b)
        ^ (channel as u32).wrapping_mul(0x9e37_79b9)
        ^ (frequency as u32).wrapping_mul(2_654_435_761)
}

/// Turns so many frames, and checks every element of each. `element` is what this rank's channels have.
fn turned(
    hub: &Hub,
    world: &World,
    [channels, frequencies]: [usize; 2],
    frames: u64,
    own: impl Fn(u64, usize, usize) -> u32 + Sync,
) -> Result<u64> {
    let turn = CornerTurn::new(world, channels, frequencies);
    let (rows, columns) = (turn.own_channels(), turn.own_frequencies());
    let [input, output] = [rows.len() * frequencies, channels * columns.len()].map(|n| n.max(1));
    let slot =
        |_| Ok(Slot { spectra: hub.buffer(input).build()?, turned: hub.buffer(output).build()? });
    let source = |slot: &Slot, frame| {
        if frame == frames {
            return Ok(Filled::End);
        }
        let all = rows.clone().flat_map(|row| (0..frequencies).map(move |column| (row, column)));
        slot.spectra.map_mut()?.iter_mut().zip(all).for_each(|(x, (row, column))| {
            *x = own(frame, row, column);
        });
        Ok(Filled::Frame)
    };
    let sink = |slot: &Slot, frame| {
        let map = slot.turned.map()?;
        let all = (0..channels).flat_map(|row| columns.clone().map(move |column| (row, column)));
        match map.iter().zip(all).find(|(x, (row, column))| **x != element(frame, *row, *column)) {
            None => Ok(()),
            Some((_, at)) => Err(Error::invalid(format!("element {at:?} of frame {frame}"))),
        }
    };
    let stage = turn.between(|slot: &Slot| &slot.spectra, |slot| &slot.turned);
    let builder = Pipeline::builder(3, slot).source(source).sink(sink);
    let mut pipeline = builder.stage_overlapped("turn", &hub.host(), stage).build()?;
    Ok(pipeline.run()?.frames)
}

fn hub() -> Hub {
    onebuf::builder().only(["host"]).verdicts(Default::default()).build().unwrap()
}

/// More channels than ranks, and fewer frequencies: some ranks get none.
#[test]
fn sixty_four_ranks_turn_every_element() {
    let hub = hub();
    for (seed, shape) in [(1, [100, 150]), (2, [70, 50])] {
        let frames = as_ranks(64, seed, |world| turned(&hub, &world, shape, 6, element).unwrap());
        assert_eq!(frames, [6; 64], "{shape:?}");
    }
}

/// The control: one of the ranks has other elements. Every rank that gets any notices it or is told.
#[test]
fn one_wrong_rank_of_sixty_four_is_noticed() {
    let hub = hub();
    let ended = as_ranks(64, 3, |world| {
        let wrong = u32::from(world.rank() == 40);
        turned(&hub, &world, [64, 64], 50, |frame, row, column| element(frame, row, column) + wrong)
    });
    let said: Vec<String> = ended.into_iter().map(|ended| ended.unwrap_err().to_string()).collect();
    let noticed = said.iter().filter(|said| said.contains("element (40, ")).count();
    let told = said.iter().filter(|said| said.contains("has stopped after")).count();
    assert!(noticed > 0 && noticed + told == 64, "{said:?}");
}
