//! Runs frames through both stages in batches, timed and checked against a reference.

use super::{
    batch::{handoff_us, median},
    judge::{TOLERANCE, wrong},
    signal::Frames,
};
use crate::out::Result;
use onebuf::{
    Complex32, SyncMethod,
    plan::{Hop, Plan},
};
use onebuf_demo::{Expected, Frame, Pipeline};
use std::{sync::Arc, time::Instant};

/// The cost of one way of sharing.
pub struct Measured {
    /// From the first stage's launch to the second's end, per frame, median over the batches.
    pub frame_us: f64,
    /// Cost of handing over to the second device, median.
    pub handoff_us: f64,
    /// Implied copies between launch and end, all frames together.
    pub bytes_copied: u64,
    /// Implied copies outside of that: while frames were uploaded and results read.
    pub io_bytes_copied: u64,
    pub max_rel_error: f64,
    /// The lowest sync method by which each stage waited.
    pub sync: [SyncMethod; 2],
    pub plan: Plan,
}

/// How each of the pipeline's devices accesses a buffer that is allocated as the plan says.
pub fn hops<'p>(pipeline: &Pipeline, plan: &'p Plan) -> Vec<&'p Hop> {
    let ours = |hop: &&Hop| pipeline.devices.iter().any(|device| device.index() == hop.to);
    plan.routes.iter().filter(ours).collect()
}

/// One way of sharing while it is measured, with memory for each frame of a batch.
pub struct Way<'p> {
    pipeline: &'p Pipeline,
    slots: Vec<Frame>,
    batch_us: Vec<f64>,
    copied: u64,
    io_copied: u64,
    max_rel_error: f64,
    sync: [SyncMethod; 2],
}

impl<'p> Way<'p> {
    pub fn new(pipeline: &'p Pipeline, slots: Vec<Frame>) -> Self {
        let sync = [SyncMethod::SameQueue; 2];
        Self {
            pipeline,
            slots,
            batch_us: Vec::new(),
            copied: 0,
            io_copied: 0,
            max_rel_error: 0.0,
            sync,
        }
    }

    /// Implied copies so far. The ways take turns, so a difference belongs to one way.
    fn implied(&self) -> u64 {
        self.slots[0].signal.hub().ledger().implied_bytes()
    }

    /// The requested upload.
    fn upload(&mut self, slot: usize, input: &[Complex32]) -> Result<()> {
        let before = self.implied();
        self.slots[slot].signal.write(input)?;
        self.io_copied += self.implied() - before;
        Ok(())
    }

    /// Runs and times both stages on this many slots.
    fn run(&mut self, count: usize) -> Result<()> {
        let (pipeline, slots, before) = (self.pipeline, &self.slots[..count], self.implied());
        // The buffers go to the first device before the clock starts: that belongs to the upload.
        pipeline.prepare(slots)?;
        let prepared = self.implied();
        let start = Instant::now();
        let sync = pipeline.run(slots)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        self.io_copied += prepared - before;
        self.copied += self.implied() - prepared;
        self.sync = [0, 1].map(|stage| self.sync[stage].max(sync[stage]));
        if count == self.slots.len() {
            self.batch_us.push(us / count as f64);
        }
        Ok(())
    }

    fn check(&mut self, first: usize, wanted: &[Arc<Expected>]) -> Result<()> {
        let before = self.implied();
        for (number, (slot, expected)) in self.slots.iter().zip(wanted).enumerate() {
            let error = expected.max_rel_error(&slot.beams.to_vec()?);
            if error.is_nan() || error > TOLERANCE {
                return Err(wrong((first + number) as u64, error));
            }
            self.max_rel_error = self.max_rel_error.max(error);
        }
        self.io_copied += self.implied() - before;
        Ok(())
    }

    /// Discards the measurements of the first batch, in which drivers compile and pages are allocated.
    fn forget(&mut self) {
        self.batch_us.clear();
        (self.copied, self.io_copied) = (0, 0);
    }

    fn sum_up(self) -> Result<Measured> {
        let plan = self.slots[0].signal.plan().clone();
        // A hand-over that found the work already done did not wait: the plan says by which method it would have.
        let planned = plan.routes.iter().map(|hop| hop.sync).max().unwrap_or(SyncMethod::SameQueue);
        Ok(Measured {
            frame_us: median(self.batch_us),
            handoff_us: handoff_us(self.pipeline, &self.slots[0])?,
            bytes_copied: self.copied,
            io_bytes_copied: self.io_copied,
            max_rel_error: self.max_rel_error,
            sync: [self.sync[0], self.sync[1].max(planned)],
            plan,
        })
    }
}

/// Runs the frames through every way in turn, so that disturbances affect all ways alike.
pub fn measure(mut ways: Vec<Way<'_>>, frames: &mut Frames, count: usize) -> Result<Vec<Measured>> {
    let size = ways.first().map_or(1, |way| way.slots.len());
    batch(&mut ways, frames, 0..size)?;
    ways.iter_mut().for_each(Way::forget);
    let end = size + count;
    for first in (size..end).step_by(size) {
        batch(&mut ways, frames, first..end.min(first + size))?;
    }
    ways.into_iter().map(Way::sum_up).collect()
}

/// The frames with these numbers, through every way.
fn batch(ways: &mut [Way<'_>], frames: &mut Frames, numbers: std::ops::Range<usize>) -> Result<()> {
    let (first, size) = (numbers.start, ways.first().map_or(1, |way| way.slots.len()));
    let mut wanted = Vec::with_capacity(size);
    for (slot, number) in numbers.enumerate() {
        let (input, expected) = frames.frame(number, size)?;
        ways.iter_mut().try_for_each(|way| way.upload(slot, input))?;
        wanted.push(expected);
    }
    let many = ways.len();
    for turn in 0..many {
        let way = &mut ways[(turn + first / size) % many];
        way.run(wanted.len())?;
        way.check(first, &wanted)?;
    }
    Ok(())
}
