//! A rank of a measurement.

use super::{BLOCK, LIBRARY};
use onebuf::{
    Buffer, Error, Hub, Result,
    pipeline::{Filled, Pipeline},
};
use onebuf_mpi::{CornerTurn, World, raw, sink, source};
use std::time::{Duration, Instant};

/// Slots of each pipeline, and memories of the raw ring.
const SLOTS: usize = 4;

/// The least that both sides move in a batch: a batch should be long beside its beginning and its end.
const BATCH: usize = 384 << 20;

/// The block that a rank sends to each other one in a corner turn, and its rows (the rank's channels): few long ones, or many short
/// ones.
const BLOCK_BYTES: usize = 1 << 20;
const LONG_ROWS: usize = 4;
const SHORT_ROWS: usize = 1024;

/// Longer than anything takes that works.
const SOON: Duration = Duration::from_secs(60);

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// Frames of so many bytes.
    Stream(usize),
    /// Turns of so many ranks, each with so many rows.
    Turn { ranks: usize, rows: usize },
}

impl What {
    fn of(row: &str) -> Option<Self> {
        let mib = row.strip_prefix("mpi_stream_").and_then(|rest| rest.strip_suffix("MiB"));
        if let Some(mib) = mib {
            return Some(Self::Stream(mib.parse::<usize>().ok()? << 20));
        }
        let ranks = row.strip_prefix("mpi_corner_turn_")?.strip_suffix("ranks")?;
        let (ranks, rows) = match ranks.strip_prefix("short_") {
            Some(ranks) => (ranks, SHORT_ROWS),
            None => (ranks, LONG_ROWS),
        };
        Some(Self::Turn { ranks: ranks.parse().ok()?, rows })
    }

    /// The bytes that a rank receives in a frame.
    fn bytes(self) -> usize {
        match self {
            Self::Stream(bytes) => bytes,
            Self::Turn { ranks, .. } => ranks.saturating_sub(1) * BLOCK_BYTES,
        }
    }
}

/// The bytes that an operation of a row moves.
pub(super) fn bytes_of(row: &str) -> Option<u64> {
    What::of(row).map(|what| what.bytes() as u64)
}

/// Runs this process as a rank that measures a row. Rank 0 prints the times.
///
/// # Errors
/// [`Error::InvalidArgument`] for a row that is not of ranks, or without other ranks; the errors of MPI and of pipelines.
pub fn run_rank(row: &str, blocks: usize) -> Result<()> {
    let what =
        What::of(row).ok_or_else(|| Error::invalid(format!("{row} is not measured by ranks")))?;
    let world = onebuf_mpi::Join::new().timeout(SOON).start()?;
    if world.size() < 2 {
        return Err(Error::invalid("a rank without others: the launcher is one of another MPI"));
    }
    let hub = onebuf::builder().only(["host"]).build()?;
    let frames = (BATCH / what.bytes()).max(8);
    let each = |took: Duration| took.as_nanos() as f64 / frames as f64;
    let ours = || match what {
        What::Stream(bytes) => stream(&hub, &world, bytes, frames as u64),
        What::Turn { rows, .. } => turn(&hub, &world, rows, frames as u64),
    };
    let theirs = || match what {
        What::Stream(bytes) => raw::ring(&world, bytes, SLOTS, frames),
        What::Turn { .. } => raw::alltoall(&world, BLOCK_BYTES, SLOTS, frames),
    };
    let library = world.library().lines().next().unwrap_or_default().to_owned();
    // The first block is a warm-up.
    for block in 0..=blocks {
        let [a, b, c, d] = [ours()?, theirs()?, theirs()?, ours()?].map(each);
        if world.rank() == 0 && block > 0 {
            println!("{BLOCK} {a} {b} {c} {d}");
        }
    }
    if world.rank() == 0 {
        println!("{LIBRARY} {library}");
    }
    Ok(())
}

/// The time that frames take from the pipeline of rank 0 to that of rank 1. The last slot that the receiver gets is checked.
fn stream(hub: &Hub, world: &World, bytes: usize, frames: u64) -> Result<Duration> {
    let builder = Pipeline::builder(SLOTS, |_| hub.buffer::<u8>(bytes).build());
    let sends = world.rank() == 0;
    let builder = if sends {
        let to = sink::Mpi::new(world, 1)?.drain(|slot: &Buffer<u8>| slot);
        builder.source(move |_, frame| Ok(until(frames, frame))).sink_overlapped(to)
    } else {
        let from = source::Mpi::new(world, 0)?.feed(|slot: &Buffer<u8>| slot);
        builder.source_overlapped(from).sink(|_, _| Ok(()))
    };
    let mut pipeline = builder.build()?;
    pipeline.slots().iter().try_for_each(|slot| slot.fill(u8::from(sends)))?;
    world.barrier(SOON)?;
    let began = Instant::now();
    let ran = pipeline.run()?;
    let took = began.elapsed();
    let whole = pipeline.slots().iter().map(|slot| Ok(slot.map()?.iter().all(|byte| *byte == 1)));
    check(ran.frames == frames && whole.collect::<Result<Vec<bool>>>()?.iter().all(|all| *all))?;
    world.barrier(SOON)?;
    Ok(took)
}

struct TurnedSlot {
    spectra: Buffer<u8>,
    turned: Buffer<u8>,
}

/// The time that frames take to be turned.
fn turn(hub: &Hub, world: &World, rows: usize, frames: u64) -> Result<Duration> {
    let row = BLOCK_BYTES / rows;
    let (channels, frequencies) = (rows * world.size(), row * world.size());
    let turn = CornerTurn::new(world, channels, frequencies);
    let slot = |_| {
        let spectra = hub.buffer(rows * frequencies).build()?;
        Ok(TurnedSlot { spectra, turned: hub.buffer(channels * row).build()? })
    };
    let stage = turn.between(|slot: &TurnedSlot| &slot.spectra, |slot| &slot.turned);
    let builder = Pipeline::builder(SLOTS, slot).source(move |_, frame| Ok(until(frames, frame)));
    let builder = builder.stage_overlapped("turn", &hub.host(), stage).sink(|_, _| Ok(()));
    let mut pipeline = builder.build()?;
    let own = world.rank() as u8 + 1;
    for slot in pipeline.slots() {
        slot.spectra.fill(own).and(slot.turned.fill(0))?;
    }
    world.barrier(SOON)?;
    let began = Instant::now();
    let ran = pipeline.run()?;
    let took = began.elapsed();
    let right = |slot: &TurnedSlot| {
        let map = slot.turned.map()?;
        let mut blocks = map.chunks(BLOCK_BYTES).zip(1u8..);
        Ok(blocks.all(|(block, rank)| block.iter().all(|byte| *byte == rank)))
    };
    let whole: Result<Vec<bool>> = pipeline.slots().iter().map(right).collect();
    check(ran.frames == frames && whole?.iter().all(|all| *all))?;
    world.barrier(SOON)?;
    Ok(took)
}

fn until(frames: u64, frame: u64) -> Filled {
    if frame < frames { Filled::Frame } else { Filled::End }
}

/// A wrong result makes the measurement void.
fn check(right: bool) -> Result<()> {
    match right {
        true => Ok(()),
        false => Err(Error::invalid("frames between ranks are wrong")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_parsed() {
        assert_eq!(What::of("mpi_stream_8MiB"), Some(What::Stream(8 << 20)));
        let [long, short] = [LONG_ROWS, SHORT_ROWS].map(|rows| Some(What::Turn { ranks: 4, rows }));
        assert_eq!(What::of("mpi_corner_turn_4ranks"), long);
        assert_eq!(What::of("mpi_corner_turn_short_4ranks"), short);
        assert_eq!([What::of("mpi_stream_8"), What::of("udp_send")], [None, None]);
        assert_eq!(bytes_of("mpi_corner_turn_4ranks"), Some(3 << 20));
        let refused = run_rank("udp_send", 1).unwrap_err().to_string();
        assert!(refused.contains("udp_send is not measured by ranks"), "{refused}");
    }
}
