//! Two stages on two devices, one buffer between them, and a stopwatch.

use super::{
    kernels,
    signal::{Frames, max_rel_error},
};
use crate::out::{Failure, Result};
use onebuf::{
    Buffer, Complex32, Device, Grid, Kernel, Queue, Rung, args,
    plan::{Hop, Plan},
};
use std::time::Instant;

/// Work-items per group, at most.
const GROUP: usize = 64;

/// Samples that the launches which time a hand-over change.
const TOUCHED: usize = 2 * GROUP;

/// How often a hand-over is timed.
const HAND_OVERS: usize = 11;

/// Single precision is good for 1e-6 here; a stale or lost page is wrong by about 1.
const TOLERANCE: f64 = 1e-4;

pub struct Stage {
    pub name: &'static str,
    pub device: Device,
    queue: Queue,
    kernel: Kernel,
}

pub struct Pipeline {
    pub stages: [Stage; 2],
    samples: usize,
    frames: usize,
}

/// What one way of sharing costs.
pub struct Measured {
    /// From the first stage's launch to the second's end, median over the frames.
    pub frame_us: f64,
    /// What it costs the second device to take over, median.
    pub handoff_us: f64,
    /// What was copied between launch and end although nobody asked, all frames together.
    pub bytes_copied: u64,
    /// The same outside of that: while frames were uploaded and results read.
    pub io_bytes_copied: u64,
    pub max_rel_error: f64,
    /// The lowest rung by which each stage waited.
    pub sync: [Rung; 2],
    pub plan: Plan,
}

impl Pipeline {
    pub fn open(devices: &[Device; 2], samples: usize, frames: usize) -> Result<Self> {
        let [first, second] = devices;
        let stages =
            [Stage::open(kernels::DOWN_CONVERT, first)?, Stage::open(kernels::DOPPLER, second)?];
        Ok(Self { stages, samples, frames })
    }

    /// How each device sees a buffer that lies where the plan says.
    pub fn hops<'p>(&self, plan: &'p Plan) -> Vec<&'p Hop> {
        let ours = |hop: &&Hop| self.stages.iter().any(|stage| stage.device.index() == hop.to);
        plan.routes.iter().filter(ours).collect()
    }

    /// Runs the frames through every buffer in turn: what else the machine does meanwhile hits all alike.
    pub fn measure(
        &self,
        buffers: &[&Buffer<Complex32>],
        frames: &mut Frames,
    ) -> Result<Vec<Measured>> {
        let mut output = vec![Complex32::ZERO; self.samples];
        let mut ways: Vec<Way<'_>> = buffers.iter().map(|buffer| Way::new(buffer)).collect();
        // The first goes unmeasured: drivers compile and pages appear on first use.
        for number in 0..=self.frames {
            let input = frames.frame(number)?;
            for turn in 0..ways.len() {
                let way = &mut ways[(turn + number) % buffers.len()];
                let before = implied(way.buffer);
                let frame = self.frame(way.buffer, input)?;
                way.buffer.read(&mut output)?;
                way.max_rel_error = way.max_rel_error.max(check(number, input, &output)?);
                if number > 0 {
                    way.io_copied += implied(way.buffer) - before - frame.copied;
                    way.frames.push(frame);
                }
            }
        }
        ways.iter().map(|way| self.sum_up(way)).collect()
    }

    fn sum_up(&self, way: &Way<'_>) -> Result<Measured> {
        let plan = way.buffer.plan().clone();
        // A hand-over that found the work done already had nothing to wait for: the plan says by what.
        let planned = plan.routes.iter().map(|hop| hop.sync).max().unwrap_or(Rung::SameQueue);
        let lowest = |stage: usize| way.frames.iter().map(|f| f.sync[stage]).max();
        let seen = [0, 1].map(|stage| lowest(stage).unwrap_or(Rung::SameQueue));
        Ok(Measured {
            frame_us: median(way.frames.iter().map(|frame| frame.us).collect()),
            handoff_us: self.handoff_us(way.buffer)?,
            bytes_copied: way.frames.iter().map(|frame| frame.copied).sum(),
            io_bytes_copied: way.io_copied,
            max_rel_error: way.max_rel_error,
            sync: [seen[0], seen[1].max(planned)],
            plan,
        })
    }

    /// One frame: the upload that was asked for, then both stages against the clock.
    fn frame(&self, buffer: &Buffer<Complex32>, input: &[Complex32]) -> Result<Frame> {
        let [first, second] = &self.stages;
        buffer.write(input)?;
        // The buffer goes to the first device before the clock starts: that belongs to the upload. On
        // the staged way it is a copy back, since a write lands where the newest contents are; counting
        // it as part of the frame would make staging look worse than it has to be.
        drop(buffer.write_on(&first.queue)?);
        first.queue.finish()?;
        let before = implied(buffer);
        let start = Instant::now();
        let sync = [first.launch(buffer, self.samples)?, second.launch(buffer, self.samples)?];
        second.queue.finish()?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        Ok(Frame { us, copied: implied(buffer) - before, sync })
    }

    /// A launch on a few samples by the second device after one by the first, less the same after one by
    /// the second itself.
    fn handoff_us(&self, buffer: &Buffer<Complex32>) -> Result<f64> {
        let [first, second] = &self.stages;
        let touch = |stage: &Stage| -> Result<f64> {
            let start = Instant::now();
            stage.launch(buffer, self.samples.min(TOUCHED))?;
            stage.queue.finish()?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let once = |_| -> Result<f64> {
            touch(first)?;
            let crossed = touch(second)?;
            Ok(crossed - touch(second)?)
        };
        // Below what the clock can tell from noise a difference may be negative: clamped at the end, since
        // clamping each would make the median too large.
        Ok(median((0..HAND_OVERS).map(once).collect::<Result<_>>()?).max(0.0))
    }
}

impl Stage {
    fn open(name: &'static str, device: &Device) -> Result<Self> {
        let kernel = kernels::build(device, name)?;
        Ok(Self { name, device: device.clone(), queue: device.queue()?, kernel })
    }

    /// Starts the stage on the first `samples`, and says how its queue waits for its turn.
    fn launch(&self, buffer: &Buffer<Complex32>, samples: usize) -> Result<Rung> {
        let items = samples / kernels::samples_per_item(self.name);
        let view = buffer.write_on(&self.queue)?;
        let rung = view.rung();
        self.queue.launch(&self.kernel, self.grid(items), args![view])?;
        Ok(rung)
    }

    /// The largest group that divides the work-items: the kernels have no guard for a rest, and left to
    /// themselves drivers may take groups of one.
    fn grid(&self, items: usize) -> Grid {
        let largest = self.device.info().caps.max_group_size.clamp(1, GROUP);
        let group = (1..=largest).rev().find(|group| items.is_multiple_of(*group)).unwrap_or(1);
        Grid::from([items]).local([group])
    }
}

/// One way of sharing while it is measured.
struct Way<'b> {
    buffer: &'b Buffer<Complex32>,
    frames: Vec<Frame>,
    io_copied: u64,
    max_rel_error: f64,
}

impl<'b> Way<'b> {
    fn new(buffer: &'b Buffer<Complex32>) -> Self {
        Self { buffer, frames: Vec::new(), io_copied: 0, max_rel_error: 0.0 }
    }
}

struct Frame {
    us: f64,
    copied: u64,
    sync: [Rung; 2],
}

/// What was copied so far although nobody asked. Ways take turns, so a difference is one way's own.
fn implied(buffer: &Buffer<Complex32>) -> u64 {
    buffer.hub().ledger().implied_bytes()
}

fn check(number: usize, input: &[Complex32], output: &[Complex32]) -> Result<f64> {
    match max_rel_error(input, output) {
        error if error <= TOLERANCE => Ok(error),
        error => Err(Failure::new(format!(
            "frame {number} came out wrong: a sample is off by {error:.1e} of the signal's RMS, \
             {TOLERANCE:.0e} is allowed; `onebuf doctor --fresh` tries the routes again"
        ))),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
