//! One rank's part of the demonstration: its channels, its frequencies, and the pipeline between them.

use super::{
    super::{
        judge::{Findings, Judge},
        live::{Live, Scale},
        signal::Frames,
        stream::{Detected, plain},
        watched::Watched,
    },
    DemoArgs, RING, Source,
    losses::Taken,
    port::Port,
    wired::Wired,
};
use crate::out::{Failure, Result};
use onebuf::{
    Buffer, Complex32, Device, Error, Hub, Queue,
    bytemuck::{cast_slice, cast_slice_mut},
    pipeline::{self, Filled, Report},
};
use onebuf_demo::{Beams, Detection, Setup, Shape, Spectrum, detect};
use onebuf_mpi::{CornerTurn, Exchange, TurnLog, World, share};
use std::{ops::Range, sync::mpsc::channel, thread};

/// Frequencies are divided in groups of as many as the kernel for CPUs computes at once.
const GROUP: usize = 8;

/// The name of the stage that exchanges spectra.
pub const CORNER_TURN: &str = "corner turn";

/// The name of the stage that sends beams to rank 0.
const GATHER: &str = "gather";

/// How many exchanges of each turn a trace keeps.
const EXCHANGES: usize = 1 << 16;

/// One frame's memory.
struct Slot {
    /// Samples of this rank's channels, then their spectra.
    signal: Buffer<Complex32>,
    /// All channels of this rank's frequencies.
    turned: Buffer<Complex32>,
    /// The beams of this rank's frequencies.
    beams: Buffer<Complex32>,
    /// On rank 0: the beams of all ranks, one rank after another.
    gathered: Buffer<Complex32>,
}

/// A rank's share, and the stages on its devices.
pub struct Part {
    hub: Hub,
    pub devices: [Device; 2],
    pub setup: Setup,
    ranks: usize,
    rank: usize,
    /// `None` on a rank without channels.
    spectrum: Option<Spectrum>,
    /// `None` on a rank without frequencies.
    product: Option<Beams>,
}

/// The results of a rank's run.
pub struct Ran {
    pub report: Report,
    pub frames_per_s: f64,
    pub ring: usize,
    /// Implied copies.
    pub bytes_copied: u64,
    /// What came from other ranks.
    pub bytes_received: u64,
    /// For the trace: each turn's exchanges with other ranks.
    pub exchanges: Vec<(&'static str, Vec<Exchange>)>,
    /// The frames of the ranks' ports that were processed.
    pub taken: Taken,
    /// On rank 0.
    pub findings: Findings,
    pub detected: u64,
    pub detections: Vec<Detection>,
    /// The beams of the last frame, if they are saved.
    pub beams: Option<Vec<Complex32>>,
}

/// The source of a rank's pipeline.
enum Ingest<'w> {
    /// Frames that each rank knows, of which it takes its channels.
    Frames(Box<Frames>),
    /// Its own port.
    Wired(Box<Wired<'w>>),
}

/// The frequencies of a rank.
fn frequencies(length: usize, ranks: usize, rank: usize) -> Range<usize> {
    let group = if length >= GROUP { GROUP } else { 1 };
    let groups = share(length / group, ranks, rank);
    groups.start * group..groups.end * group
}

impl Part {
    /// Builds the kernels and launches them once: drivers compile on first use.
    pub fn open(hub: Hub, devices: [Device; 2], setup: &Setup, world: &World) -> Result<Self> {
        let (ranks, rank) = (world.size(), world.rank());
        let mut part =
            Self { hub, devices, setup: setup.clone(), ranks, rank, spectrum: None, product: None };
        let (channels, frequencies) = (part.channels(), part.frequencies());
        if !channels.is_empty() {
            let shape = Shape { channels: channels.len(), ..setup.shape };
            let places = setup.places[channels].to_vec();
            let own = Setup { shape, places, used: shape.channels, ..setup.clone() };
            part.spectrum = Some(Spectrum::open(&part.devices[0], &own)?);
        }
        if !frequencies.is_empty() {
            let shape = Shape { length: frequencies.len(), ..setup.shape };
            part.product = Some(Beams::open(&part.devices[1], &Setup { shape, ..setup.clone() })?);
        }
        let slot = part.slot()?;
        if let Some(spectrum) = &part.spectrum {
            part.transform(spectrum.queue(), &slot)?;
        }
        if let Some(product) = &part.product {
            part.multiply(product.queue(), &slot)?;
        }
        let used = [&slot.signal, &slot.beams].into_iter().filter_map(|buffer| buffer.fence());
        used.into_iter().try_for_each(|fence| fence.wait_default())?;
        Ok(part)
    }

    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The channels that this rank receives.
    pub fn channels(&self) -> Range<usize> {
        share(self.setup.shape.channels, self.ranks, self.rank)
    }

    /// The frequencies whose beams it forms.
    pub fn frequencies(&self) -> Range<usize> {
        self.frequencies_of(self.rank)
    }

    fn frequencies_of(&self, rank: usize) -> Range<usize> {
        frequencies(self.setup.shape.length, self.ranks, rank)
    }

    /// Numbers of the block that each rank sends to rank 0: as many as the rank with the most frequencies has.
    fn block(&self) -> usize {
        self.setup.shape.beams * self.frequencies_of(0).len()
    }

    fn slot(&self) -> onebuf::Result<Slot> {
        let Shape { length, channels, .. } = self.setup.shape;
        let [first, second] = &self.devices;
        let on = |device: &Device, len: usize, name| {
            // A rank without channels or frequencies has buffers that nothing uses.
            self.hub.buffer::<Complex32>(len.max(1)).name(name).shared_with([device]).build()
        };
        let all = if self.rank == 0 { self.ranks * self.block() } else { 1 };
        Ok(Slot {
            signal: on(first, self.channels().len() * length, "signal")?,
            turned: on(second, channels * self.frequencies().len(), "turned")?,
            beams: on(second, self.block(), "beams")?,
            gathered: on(&self.hub.host(), all, "gathered")?,
        })
    }

    fn transform(&self, queue: &Queue, slot: &Slot) -> onebuf::Result<()> {
        let Some(stage) = &self.spectrum else { return Ok(()) };
        stage.run_on(queue, &slot.signal, self.channels().len()).map(drop)
    }

    fn multiply(&self, queue: &Queue, slot: &Slot) -> onebuf::Result<()> {
        let Some(stage) = &self.product else { return Ok(()) };
        let shape = Shape { length: self.frequencies().len(), ..self.setup.product() };
        stage.run_on(queue, &shape, &slot.turned, &slot.beams).map(drop)
    }

    /// The exchange of spectra, and the one that sends all beams to rank 0.
    fn turns(&self, world: &World) -> onebuf::Result<[CornerTurn; 2]> {
        let Shape { length, channels, .. } = self.setup.shape;
        let counts = |of: &dyn Fn(usize) -> usize| (0..self.ranks).map(of).collect::<Vec<_>>();
        let turn = CornerTurn::new(world, channels, length)
            .frequencies(&counts(&|rank| self.frequencies_of(rank).len()))?;
        let to_first = counts(&|rank| if rank == 0 { self.block() } else { 0 });
        let gather = CornerTurn::new(world, self.ranks, self.block());
        let gather = gather.channels(&vec![1; self.ranks])?.frequencies(&to_first)?.number(1)?;
        Ok([turn, gather])
    }

    /// All beams of a frame, from the blocks of all ranks.
    fn whole(&self, gathered: &[Complex32]) -> Vec<Complex32> {
        let Shape { length, beams, .. } = self.setup.shape;
        let mut whole = vec![Complex32::ZERO; beams * length];
        for rank in 0..self.ranks {
            let (own, block) = (self.frequencies_of(rank), &gathered[rank * self.block()..]);
            for beam in 0..beams {
                let from = &block[beam * own.len()..][..own.len()];
                whole[beam * length..][own.clone()].copy_from_slice(from);
            }
        }
        whole
    }

    /// Streams the frames through all ranks. Rank 0 checks every number.
    pub fn run(&self, args: &DemoArgs, world: &World, port: Option<&Port>) -> Result<Ran> {
        let before = self.hub.ledger().implied_bytes();
        let (ring, first) = (args.ring.unwrap_or(RING) as usize, self.rank == 0);
        let (mut ingest, count) = (self.ingest(args, world, port)?, u64::from(args.frames));
        let ((judge, jobs), mut seen, mut last) = (Judge::new(), Detected::default(), None);
        let mut turns = self.turns(world)?;
        let logs = match args.trace {
            Some(_) => turns.each_mut().map(|turn| turn.log(EXCHANGES)).into(),
            None => Vec::new(),
        };
        let meters = turns.each_ref().map(CornerTurn::meter);
        let [turn, gather] = turns;
        let mut number = 0;
        let fill = |memory: &mut [Complex32]| match &mut ingest {
            Ingest::Wired(wired) => wired.fill(&judge, memory).map_err(plain),
            Ingest::Frames(_) if number == count => Ok(Filled::End),
            Ingest::Frames(frames) => {
                self.copy(frames, number, ring, &judge, memory).map_err(plain)?;
                number += 1;
                Ok(Filled::Frame)
            }
        };
        let sink = |slot: &Slot, number: u64| {
            seen.note_frame(ring);
            if !first {
                return Ok(());
            }
            let beams = self.whole(&slot.gathered.map()?);
            if args.save_beams.is_some() {
                last = Some(beams.clone());
            }
            let found = detect(&beams, self.setup.shape.length);
            seen.found(&found);
            judge.judge(number, beams, found).map_or(Ok(()), |why| Err(Error::invalid(why)))
        };
        let host = self.hub.host();
        let mut running = pipeline::Pipeline::builder(ring, |_| self.slot())
            .feed(fill, |slot: &Slot| &slot.signal)
            .stage(Spectrum::NAME, &self.devices[0], |work| self.transform(work.queue, work.slot))
            .stage_overlapped(
                CORNER_TURN,
                &host,
                turn.between(|slot: &Slot| &slot.signal, |slot| &slot.turned),
            )
            .stage(Beams::NAME, &self.devices[1], |work| self.multiply(work.queue, work.slot))
            .stage_overlapped(
                GATHER,
                &host,
                gather.between(|slot: &Slot| &slot.beams, |slot| &slot.gathered),
            )
            .sink(sink)
            .build()?;
        let watched = Watched::open(&self.hub, None);
        watched.pipeline(running.handle());
        let shown = watched.ranks(world);
        let frame_bytes = (self.setup.shape.samples() * size_of::<Complex32>()) as u64;
        let live =
            Live::new(running.handle(), &self.hub, Scale { frames: count, frame_bytes, ring });
        let (done, over) = channel();
        let report = thread::scope(|threads| {
            let _open = (judge.until_dropped(), done);
            threads.spawn(|| judge.work(&self.setup, jobs));
            if first {
                threads.spawn(|| live.watch(over));
            }
            let report = running.run();
            drop(shown);
            report
        });
        drop(running);
        let taken = match ingest {
            Ingest::Wired(wired) => wired.taken(),
            Ingest::Frames(_) => Taken::default(),
        };
        let (findings, report) = (judge.sum_up()?, report?);
        if report.frames == 0 {
            let incomplete = report.incomplete;
            return Err(Failure::new(format!(
                "no frame was whole at every rank, {incomplete} were incomplete"
            )));
        }
        if first && findings.checked == 0 {
            return Err(Failure::new("no frame was checked"));
        }
        Ok(Ran {
            frames_per_s: seen.rate(ring, &report),
            report,
            ring,
            bytes_copied: self.hub.ledger().implied_bytes() - before,
            exchanges: [CORNER_TURN, GATHER]
                .into_iter()
                .zip(logs.iter().map(TurnLog::take))
                .collect(),
            taken,
            bytes_received: meters.iter().map(|meter| meter.counts().bytes).sum(),
            findings,
            detected: seen.count,
            detections: seen.last,
            beams: last,
        })
    }

    /// Of frames that all ranks know, rank 0 also knows what to expect; the others need no more than their samples.
    fn ingest<'w>(
        &self,
        args: &DemoArgs,
        world: &'w World,
        port: Option<&'w Port>,
    ) -> Result<Ingest<'w>> {
        let frames = match (&args.source, self.rank) {
            (Source::Network(_), _) => {
                let wired = Wired::new(world, port, args.frames.into())?;
                return Ok(Ingest::Wired(Box::new(wired)));
            }
            (Source::File(path), _) => Frames::file(path, &self.setup),
            (_, 0) => Frames::synthetic(&self.setup),
            _ => Frames::unchecked(&self.setup),
        };
        Ok(Ingest::Frames(Box::new(frames?)))
    }

    /// Copies this rank's channels of a frame.
    fn copy(
        &self,
        frames: &mut Frames,
        number: u64,
        ring: usize,
        judge: &Judge,
        memory: &mut [Complex32],
    ) -> Result<()> {
        let (length, own) = (self.setup.shape.length, self.channels());
        let own = own.start * length..own.end * length;
        let copy = |samples: &[Complex32], memory: &mut [Complex32]| {
            let samples = &samples[own];
            // A rank without channels has one number that nothing uses.
            self.hub.copy_slice(cast_slice(samples), cast_slice_mut(&mut memory[..samples.len()]));
        };
        if self.rank > 0 {
            copy(frames.samples(number as usize, ring)?, memory);
        } else if frames.are_known() {
            let (samples, expected) = frames.frame(number as usize, ring)?;
            copy(samples, memory);
            judge.expects(number, expected);
        } else {
            let samples = frames.samples(number as usize, ring)?;
            copy(samples, memory);
            judge.sees(number, samples);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::frequencies;

    #[test]
    fn every_frequency_has_one_rank() {
        for (length, ranks) in [(2048, 1), (2048, 3), (2048, 7), (8, 3), (2, 4), (64, 64)] {
            let mut next = 0;
            for rank in 0..ranks {
                let own = frequencies(length, ranks, rank);
                assert_eq!(own.start, next, "{length} on {ranks}");
                assert!(own.len() <= frequencies(length, ranks, 0).len());
                assert!(length < 8 || own.len().is_multiple_of(8));
                next = own.end;
            }
            assert_eq!(next, length);
        }
    }
}
