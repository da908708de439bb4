//! Corner turns: every element of every frame, whatever the division.

use crate::ranks::{Random, SOON, everywhere, frames, hub, join};
use onebuf::{
    Buffer, Error, Hub, Result,
    pipeline::{Builder, Filled, Pipeline},
};
use onebuf_mpi::{CornerTurn, World, share};
use std::{thread, time::Duration};

pub struct Slot {
    spectra: Buffer<u32>,
    turned: Buffer<u32>,
}

fn element(frame: u64, channel: usize, frequency: usize) -> u32 {
    (frame as u32).wrapping_mul(0x85eb_ca6b)
        ^ (channel as u32).wrapping_mul(0x9e37_79b9)
        ^ (frequency as u32).wrapping_mul(2_654_435_761)
}

/// A pipeline of a source, the turn, and a sink that checks every element.
pub fn turning<'f>(
    hub: &'f Hub,
    turn: CornerTurn,
    shape: [usize; 2],
    slots: usize,
    count: u64,
) -> Builder<'f, Slot> {
    let [channels, frequencies] = shape;
    let (own, mine) = (turn.own_channels(), turn.own_frequencies());
    let (input, output) = ((own.len() * frequencies).max(1), (channels * mine.len()).max(1));
    let slot = move |_| {
        Ok(Slot { spectra: hub.buffer(input).build()?, turned: hub.buffer(output).build()? })
    };
    let source = move |slot: &Slot, frame: u64| {
        if frame == count {
            return Ok(Filled::End);
        }
        let mut map = slot.spectra.map_mut()?;
        for (row, channel) in own.clone().enumerate() {
            let row = &mut map[row * frequencies..][..frequencies];
            (0..).zip(row).for_each(|(frequency, x)| *x = element(frame, channel, frequency));
        }
        Ok(Filled::Frame)
    };
    let sink = move |slot: &Slot, frame: u64| {
        let map = slot.turned.map()?;
        for channel in 0..channels {
            for (at, frequency) in mine.clone().enumerate() {
                if map[channel * mine.len() + at] != element(frame, channel, frequency) {
                    let what = format!("channel {channel}, frequency {frequency} of frame {frame}");
                    return Err(Error::invalid(what));
                }
            }
        }
        Ok(())
    };
    let builder = Pipeline::builder(slots, slot).source(source).sink(sink);
    builder.stage_overlapped(
        "turn",
        &hub.host(),
        turn.between(|slot: &Slot| &slot.spectra, |slot| &slot.turned),
    )
}

#[test]
fn every_element_gets_to_its_rank() {
    everywhere(&[1, 2, 3, 4], "turns::rank_turn");
}

#[test]
#[ignore = "a rank"]
fn rank_turn() {
    const FRAMES: u64 = 12;
    let (hub, world) = (hub(), join());
    // Multiples of the ranks and others, fewer channels or frequencies than ranks, short and long rows.
    for [channels, frequencies] in [[12, 24], [5, 7], [1, 1], [3, 100], [7, 2], [4, 40_000]] {
        for (slots, one_thread) in [(1, false), (3, false), (2, true)] {
            let turn = CornerTurn::new(&world, channels, frequencies);
            let meter = turn.meter();
            let own = share(channels, world.size(), world.rank());
            let received = (channels - own.len()) * turn.own_frequencies().len() * 4;
            let pipeline = turning(&hub, turn, [channels, frequencies], slots, FRAMES);
            let pipeline = if one_thread { pipeline.one_thread() } else { pipeline };
            let mut pipeline = pipeline.build().unwrap();
            for run in 1..=2 {
                assert_eq!(pipeline.run().unwrap().frames, FRAMES, "{channels} x {frequencies}");
                let counts = meter.counts();
                assert_eq!(
                    (counts.frames, counts.bytes),
                    (run * FRAMES, run * FRAMES * received as u64)
                );
            }
        }
    }
    assert_eq!(hub.ledger().asked_bytes() + hub.ledger().implied_bytes(), 0, "all in place");
    assert!(!world.has_failed());
}

#[test]
fn any_division_will_do() {
    everywhere(&[3], "turns::rank_divided");
}

#[test]
#[ignore = "a rank"]
fn rank_divided() {
    let (hub, world) = (hub(), join());
    let divisions: [([usize; 3], [usize; 3]); 4] = [
        ([1, 5, 2], [10, 0, 30]),
        ([0, 0, 4], [1, 2, 3]),
        ([3, 3, 0], [0, 17, 0]),
        ([2, 0, 0], [9000, 0, 9000]),
    ];
    for (channels, frequencies) in divisions {
        let shape = [channels.iter().sum(), frequencies.iter().sum()];
        let turn = CornerTurn::new(&world, 0, 0)
            .channels(&channels)
            .unwrap()
            .frequencies(&frequencies)
            .unwrap();
        let report = turning(&hub, turn, shape, 3, 20).build().unwrap().run().unwrap();
        assert_eq!(report.frames, 20, "{channels:?} x {frequencies:?}");
    }
    let refused = CornerTurn::new(&world, 4, 4).channels(&[1, 2]).unwrap_err().to_string();
    assert!(refused.contains("2 counts for 3 ranks"), "{refused}");
}

#[test]
fn wrong_elements_are_noticed() {
    everywhere(&[2], "turns::rank_control");
}

/// The control: a rank that turns other elements fails the other's check, and its pipeline stops the first one's.
#[test]
#[ignore = "a rank"]
fn rank_control() {
    let (hub, world) = (hub(), join());
    let turn = CornerTurn::new(&world, 4, 8);
    let builder = turning(&hub, turn, [4, 8], 2, 50);
    let builder = match world.rank() {
        0 => builder,
        _ => builder.source(|slot, _| {
            slot.spectra.fill(7)?;
            Ok(Filled::Frame)
        }),
    };
    let failure = builder.build().unwrap().run().unwrap_err();
    match &*failure.at {
        "sink" => assert!(failure.to_string().contains("channel"), "{failure}"),
        // The other rank was faster.
        _ => assert!(failure.to_string().contains("has stopped after"), "{failure}"),
    }
    world.barrier(SOON).unwrap();
    assert!(!world.has_failed());
}

#[test]
fn ranks_that_differ_are_refused_with_their_numbers() {
    everywhere(&[3], "turns::rank_mismatch");
}

#[test]
#[ignore = "a rank"]
fn rank_mismatch() {
    let (hub, world) = (hub(), join());
    let odd = world.rank() == 1;
    // Another number of frequencies, another division, another number of frames, other frames.
    let shape = [6, if odd { 13 } else { 12 }];
    let failure = turning(&hub, CornerTurn::new(&world, 6, shape[1]), shape, 2, 5)
        .build()
        .unwrap()
        .run()
        .unwrap_err();
    let said = failure.to_string();
    assert!(said.contains("differ in frequencies: ") && said.contains("rank 1"), "{said}");
    world.barrier(SOON).unwrap();

    let counts = if odd { [2, 3, 1] } else { [2, 2, 2] };
    let turn = CornerTurn::new(&world, 0, 12).channels(&counts).unwrap();
    let said = turning(&hub, turn, [6, 12], 2, 5).build().unwrap().run().unwrap_err().to_string();
    assert!(said.contains("divide channels or frequencies") && said.contains("rank 1"), "{said}");
    world.barrier(SOON).unwrap();

    let count = if odd { 4 } else { 6 };
    let ended =
        turning(&hub, CornerTurn::new(&world, 6, 12), [6, 12], 2, count).build().unwrap().run();
    let said = ended.unwrap_err().to_string();
    assert!(said.contains("ended after") || said.contains("has stopped"), "{said}");
    world.barrier(SOON).unwrap();

    // Frame 2 is lost at one rank, before the turn.
    let builder = turning(&hub, CornerTurn::new(&world, 6, 12), [6, 12], 2, 6);
    let builder = builder.source(move |_, frame| {
        Ok(match frame {
            6 => Filled::End,
            2 if odd => Filled::Incomplete,
            _ => Filled::Frame,
        })
    });
    let failure = builder.sink(|_, _| Ok(())).build().unwrap().run().unwrap_err();
    let said = failure.to_string();
    assert!(said.contains("is at frame") || said.contains("has stopped"), "{said}");
    world.barrier(SOON).unwrap();

    // Buffers of another size, on one rank alone: the others are told.
    let slot = |_| {
        Ok(Slot {
            spectra: hub.buffer(if odd { 25 } else { 24 }).build()?,
            turned: hub.buffer(24).build()?,
        })
    };
    let turn = CornerTurn::new(&world, 6, 12).timeout(Duration::from_millis(500));
    let stage = turn.between(|slot: &Slot| &slot.spectra, |slot| &slot.turned);
    let builder = Pipeline::builder(2, slot).source(|_, _| Ok(Filled::Frame)).sink(|_, _| Ok(()));
    let said = builder
        .stage_overlapped("turn", &hub.host(), stage)
        .build()
        .unwrap()
        .run()
        .unwrap_err()
        .to_string();
    match odd {
        true => assert!(
            said.contains("the input of a corner turn has 25 elements, and 24 are needed"),
            "{said}"
        ),
        false => {
            assert!(said.contains("rank 1 (process ") || said.contains("has stopped"), "{said}")
        }
    }
}

#[test]
fn turns_beside_each_other_and_one_after_another() {
    everywhere(&[2], "turns::rank_several");
}

#[test]
#[ignore = "a rank"]
fn rank_several() {
    let (hub, world) = (hub(), join());
    thread::scope(|scope| {
        for number in 0..3 {
            let (hub, world) = (&hub, &world);
            scope.spawn(move || {
                let turn = CornerTurn::new(world, 5, 300).number(number).unwrap();
                let report = turning(hub, turn, [5, 300], 3, 40).build().unwrap().run().unwrap();
                assert_eq!(report.frames, 40);
            });
        }
    });
    assert!(CornerTurn::new(&world, 1, 1).number(5000).is_err());
}

#[test]
fn nothing_is_lost_under_random_delays() {
    everywhere(&[3, 4], "turns::rank_delays");
}

#[test]
#[ignore = "a rank"]
fn rank_delays() {
    let (hub, world) = (hub(), join());
    let count = frames(150);
    delayed(&hub, &world, count).unwrap();
}

fn delayed(hub: &Hub, world: &World, count: u64) -> Result<()> {
    let mut random = Random::new(world.rank() as u64);
    let turn = CornerTurn::new(world, 7, 500);
    let builder = turning(hub, turn, [7, 500], 4, count).stage("nap", &hub.host(), move |_| {
        if random.below(6) == 0 {
            thread::sleep(Duration::from_micros(random.below(900) as u64));
        }
        Ok(())
    });
    let report = builder.build()?.run()?;
    assert_eq!((report.frames, report.dropped, report.incomplete), (count, 0, 0));
    Ok(())
}
