//! Frames from the pipeline of one rank to that of another.

use crate::ranks::{Random, SOON, everywhere, frames, hub, join, value};
use onebuf::{
    Buffer, Error, Hub, Result,
    pipeline::{Builder, Filled, Pipeline, Report},
};
use onebuf_mpi::{World, sink, source};
use std::{thread, time::Duration};

pub fn ring<'f>(hub: &'f Hub, slots: usize, len: usize) -> Builder<'f, Buffer<u32>> {
    Pipeline::builder(slots, move |_| hub.buffer(len).build())
}

/// A source of frames that contain their rank and number in every element.
pub fn numbered(rank: usize, count: u64) -> impl FnMut(&Buffer<u32>, u64) -> Result<Filled> + Send {
    move |slot, frame| {
        if frame == count {
            return Ok(Filled::End);
        }
        let mut map = slot.map_mut()?;
        (0..).zip(map.iter_mut()).for_each(|(at, x)| *x = value(rank, frame as usize, at));
        Ok(Filled::Frame)
    }
}

/// Checks every element of a frame of that rank.
pub fn checked(rank: usize) -> impl FnMut(&Buffer<u32>, u64) -> Result<()> + Send {
    move |slot, frame| {
        let map = slot.map()?;
        match (0..map.len()).find(|&at| map[at] != value(rank, frame as usize, at)) {
            None => Ok(()),
            Some(at) => {
                Err(Error::invalid(format!("element {at} of frame {frame} is not rank {rank}'s")))
            }
        }
    }
}

fn neighbours(world: &World) -> (usize, usize) {
    let (rank, size) = (world.rank(), world.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

/// Runs a sending and a receiving pipeline at the same time.
fn both<'f>(out: Builder<'f, Buffer<u32>>, into: Builder<'f, Buffer<u32>>) -> [Result<Report>; 2] {
    let (mut out, mut into) = (out.build().unwrap(), into.build().unwrap());
    thread::scope(|scope| {
        let sent = scope.spawn(move || out.run().map_err(Error::from));
        let came = into.run().map_err(Error::from);
        [sent.join().unwrap(), came]
    })
}

#[test]
fn frames_arrive_whole_and_in_order_around_a_ring() {
    everywhere(&[1, 2, 3], "streams::rank_ring");
}

#[test]
#[ignore = "a rank"]
fn rank_ring() {
    const FRAMES: u64 = 15;
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    let shapes = [(1, 1, 1), (2, 3, 1000), (4, 2, 20_000), (3, 3, 60_000)];
    for (round, (sends, receives, len)) in shapes.into_iter().enumerate() {
        for (one_thread, checksum) in [(false, false), (false, true), (true, false)] {
            let to = sink::Mpi::new(&world, next)
                .unwrap()
                .stream(round as u32)
                .unwrap()
                .checksum(checksum);
            let from = source::Mpi::new(&world, previous)
                .unwrap()
                .stream(round as u32)
                .unwrap()
                .checksum(checksum);
            let meters = [to.meter(), from.meter()];
            let out = ring(&hub, sends, len).source(numbered(world.rank(), FRAMES));
            let out = out.sink_overlapped(to.drain(|slot: &Buffer<u32>| slot));
            let into =
                ring(&hub, receives, len).source_overlapped(from.feed(|slot: &Buffer<u32>| slot));
            let into = into.sink(checked(previous));
            let (out, into) =
                if one_thread { (out.one_thread(), into.one_thread()) } else { (out, into) };
            for ended in both(out, into) {
                assert_eq!(ended.unwrap().frames, FRAMES, "{len} elements, checksum {checksum}");
            }
            for meter in meters {
                let counts = meter.counts();
                assert_eq!((counts.frames, counts.bytes), (FRAMES, FRAMES * 4 * len as u64));
            }
        }
    }
    assert_eq!(hub.ledger().asked_bytes() + hub.ledger().implied_bytes(), 0, "all in place");
    assert!(!world.has_failed());
}

#[test]
fn a_check_of_another_ranks_frames_fails() {
    everywhere(&[2], "streams::rank_control");
}

/// The control: what the checks above would not notice would pass here.
#[test]
#[ignore = "a rank"]
fn rank_control() {
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    let to = sink::Mpi::new(&world, next).unwrap();
    let from = source::Mpi::new(&world, previous).unwrap();
    let out = ring(&hub, 2, 100).source(numbered(world.rank() + 7, 5));
    let out = out.sink_overlapped(to.drain(|slot: &Buffer<u32>| slot));
    let into = ring(&hub, 2, 100)
        .source_overlapped(from.feed(|slot: &Buffer<u32>| slot))
        .sink(checked(previous));
    let [_, came] = both(out, into);
    let said = came.unwrap_err().to_string();
    assert!(said.contains("element 0 of frame 0"), "{said}");
    world.barrier(SOON).unwrap();
}

#[test]
fn a_pipeline_runs_again_and_streams_run_beside_each_other() {
    everywhere(&[2], "streams::rank_again");
}

#[test]
#[ignore = "a rank"]
fn rank_again() {
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    thread::scope(|scope| {
        for stream in 0..3 {
            let (hub, world) = (&hub, &world);
            scope.spawn(move || {
                let to = sink::Mpi::new(world, next).unwrap().stream(stream).unwrap();
                let mut out = ring(hub, 2, 5000)
                    .source(numbered(world.rank(), 20))
                    .sink_overlapped(to.drain(|slot: &Buffer<u32>| slot))
                    .build()
                    .unwrap();
                (0..3).for_each(|_| assert_eq!(out.run().unwrap().frames, 20));
            });
            scope.spawn(move || {
                let from = source::Mpi::new(world, previous).unwrap().stream(stream).unwrap();
                let mut into = ring(hub, 3, 5000)
                    .source_overlapped(from.feed(|slot: &Buffer<u32>| slot))
                    .sink(checked(previous))
                    .build()
                    .unwrap();
                (0..3).for_each(|_| assert_eq!(into.run().unwrap().frames, 20));
            });
        }
    });
    // One end of a stream at a time: the second is refused while the first waits for its receiver.
    let sends = || {
        let to = sink::Mpi::new(&world, next)
            .unwrap()
            .stream(9)
            .unwrap()
            .drain(|slot: &Buffer<u32>| slot);
        ring(&hub, 2, 10).source(numbered(world.rank(), 3)).sink_overlapped(to).build().unwrap()
    };
    let (mut one, mut two) = (sends(), sends());
    let from = source::Mpi::new(&world, previous)
        .unwrap()
        .stream(9)
        .unwrap()
        .feed(|slot: &Buffer<u32>| slot);
    let mut into =
        ring(&hub, 2, 10).source_overlapped(from).sink(checked(previous)).build().unwrap();
    thread::scope(|scope| {
        // Neither can end before the other rank's receiver runs, so whichever comes second is refused.
        let both = [scope.spawn(|| one.run()), scope.spawn(|| two.run())];
        while !both.iter().any(|one| one.is_finished()) {
            thread::yield_now();
        }
        world.barrier(SOON).unwrap();
        assert_eq!(into.run().unwrap().frames, 3);
        let (sent, refused): (Vec<_>, Vec<_>) =
            both.map(|one| one.join().unwrap()).into_iter().partition(Result::is_ok);
        assert_eq!((sent.len(), refused.len()), (1, 1));
        let busy = refused.into_iter().find_map(Result::err).unwrap();
        assert!(
            matches!(&busy.error, Error::Busy { what } if what.contains("stream 9 with rank")),
            "{busy}"
        );
    });
}

#[test]
fn ends_that_do_not_fit_are_refused_on_both_sides() {
    everywhere(&[2], "streams::rank_mismatch");
}

#[test]
#[ignore = "a rank"]
fn rank_mismatch() {
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    type Change = fn(usize, sink::Mpi, source::Mpi) -> (sink::Mpi, source::Mpi, [usize; 2]);
    let cases: [(Change, &str); 2] = [
        (|_, to, from| (to, from, [100, 101]), "bytes of a frame: "),
        (|_, to, from| (to.checksum(true), from, [100, 100]), "checksums: "),
    ];
    for (change, says) in cases {
        let (to, from) =
            (sink::Mpi::new(&world, next).unwrap(), source::Mpi::new(&world, previous).unwrap());
        let (to, from, [sends, receives]) = change(world.rank(), to, from);
        let out = ring(&hub, 2, sends)
            .source(numbered(0, 5))
            .sink_overlapped(to.drain(|slot: &Buffer<u32>| slot));
        let into = ring(&hub, 2, receives)
            .source_overlapped(from.feed(|slot: &Buffer<u32>| slot))
            .sink(checked(0));
        for (ended, peer) in both(out, into).into_iter().zip([next, previous]) {
            let refused = ended.unwrap_err();
            let Error::InvalidArgument(said) = &refused else { panic!("{refused}") };
            assert!(said.contains(says) && said.contains(&format!("at rank {peer}")), "{said}");
        }
        world.barrier(SOON).unwrap();
    }
    assert!(!world.has_failed());
}

#[test]
fn an_end_that_stops_early_tells_the_other() {
    everywhere(&[2], "streams::rank_stop");
}

#[test]
#[ignore = "a rank"]
fn rank_stop() {
    let (hub, world) = (hub(), join());
    for round in 0..3 {
        // The receiver is stopped, fails, or the sender fails.
        if world.rank() == 0 {
            let to = sink::Mpi::new(&world, 1).unwrap();
            let mut fill = numbered(0, u64::MAX);
            let source = move |slot: &Buffer<u32>, frame| match (round, frame) {
                (2, 30) => Err(Error::invalid("on purpose")),
                _ => fill(slot, frame),
            };
            let mut out = ring(&hub, 3, 20_000)
                .source(source)
                .sink_overlapped(to.drain(|slot: &Buffer<u32>| slot))
                .build()
                .unwrap();
            let failure = out.run().unwrap_err();
            match round {
                2 => assert_eq!((&*failure.at, failure.frame), ("source", 30)),
                _ => {
                    let said = failure.to_string();
                    assert!(matches!(&failure.error, Error::Unavailable { .. }), "{said}");
                    assert!(said.contains("rank 1 has stopped after"), "{said}");
                }
            }
            assert!(out.slots().iter().all(|slot| slot.map_mut().is_ok()), "nothing is in flight");
        } else {
            let from = source::Mpi::new(&world, 0).unwrap();
            let mut check = checked(0);
            let sink = move |slot: &Buffer<u32>, frame| match (round, frame) {
                (1, 20) => Err(Error::invalid("on purpose")),
                _ => check(slot, frame),
            };
            let builder =
                ring(&hub, 4, 20_000).source_overlapped(from.feed(|slot: &Buffer<u32>| slot));
            let mut into = builder.sink(sink).build().unwrap();
            let handle = into.handle();
            let ended = thread::scope(|scope| {
                scope.spawn(|| {
                    while round == 0 && handle.report().frames < 15 {
                        thread::yield_now();
                    }
                    if round == 0 {
                        handle.stop();
                    }
                });
                into.run()
            });
            match round {
                0 => assert!(ended.unwrap().frames >= 15),
                1 => assert_eq!(ended.unwrap_err().at, "sink"),
                _ => {
                    let said = ended.unwrap_err().to_string();
                    assert!(said.contains("rank 0 has stopped after"), "{said}");
                }
            }
            assert!(into.slots().iter().all(|slot| slot.map_mut().is_ok()), "nothing is in flight");
        }
        world.barrier(SOON).unwrap();
    }
    assert!(!world.has_failed());
}

#[test]
fn nothing_is_lost_under_random_delays() {
    everywhere(&[2, 4], "streams::rank_delays");
}

/// Sources, stages and sinks that take their time, now one and now the other.
#[test]
#[ignore = "a rank"]
fn rank_delays() {
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    let count = frames(300);
    let nap = |random: &mut Random| {
        if random.below(8) == 0 {
            thread::sleep(Duration::from_micros(random.below(600) as u64));
        }
    };
    let [mut a, mut b] = [1, 2].map(|n| Random::new(100 * world.rank() as u64 + n));
    let (mut fill, mut check) = (numbered(world.rank(), count), checked(previous));
    let to = sink::Mpi::new(&world, next).unwrap().checksum(true);
    let from = source::Mpi::new(&world, previous).unwrap().checksum(true);
    let out = ring(&hub, 3, 3000).source(move |slot, frame| {
        nap(&mut a);
        fill(slot, frame)
    });
    let out = out.sink_overlapped(to.drain(|slot: &Buffer<u32>| slot));
    let into = ring(&hub, 4, 3000).source_overlapped(from.feed(|slot: &Buffer<u32>| slot)).sink(
        move |slot, frame| {
            nap(&mut b);
            check(slot, frame)
        },
    );
    for ended in both(out, into) {
        let report = ended.unwrap();
        assert_eq!((report.frames, report.dropped, report.incomplete), (count, 0, 0));
    }
}
