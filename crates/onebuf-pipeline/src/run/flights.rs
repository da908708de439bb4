//! The parts of a run that work on several frames at a time.

use super::{Came, Run, failed};
use crate::{
    Filled, Flight, Overlapped,
    slot_ring::{Failed, FrameInFlight},
};
use onebuf_core::observe::What;
use onebuf_hal::{Error, Result};
use std::{
    collections::VecDeque,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// How soon a stop is noticed.
const SLICE: Duration = Duration::from_millis(20);

/// A source with its slots under way, oldest first, when it runs on the pipeline's one thread.
pub(super) struct Filling<'r> {
    pub flight: Box<dyn Flight + 'r>,
    pub begun: VecDeque<usize>,
}

impl<'r, S: Send + Sync> Run<'r, S> {
    /// Opens a part: the source is 0, the first stage is 1, the sink is the last.
    pub(super) fn open<'p>(
        &self,
        part: usize,
        name: &str,
        overlapped: &'p mut (dyn Overlapped<S> + Send + '_),
    ) -> Result<Box<dyn Flight + 'p>, Failed>
    where
        'r: 'p,
    {
        overlapped.open(self.slots, &self.slot_ring.waker(part)).map_err(failed(name, 0))
    }

    /// Runs a source: begins every free slot, and passes the filled ones on in their order.
    pub(super) fn source_flight(
        self,
        source: &mut (dyn Overlapped<S> + Send + '_),
    ) -> Result<(), Failed> {
        let mut filling =
            Filling { flight: self.open(0, "source", source)?, begun: VecDeque::new() };
        let (mut begun, mut frame) = (0, 0);
        let stopped = loop {
            if self.is_stopped() {
                break true;
            }
            while let Some(slot) = self.slot_ring.try_free() {
                filling.flight.begin(slot, begun).map_err(failed("source", begun))?;
                filling.begun.push_back(slot);
                begun += 1;
            }
            match self.filled(&mut filling, frame)? {
                Came::Silence => self.slot_ring.wait_part(0, SLICE, false),
                Came::End => break false,
                Came::Frame(filled) => {
                    if let Some(in_flight) = filled {
                        self.slot_ring.enter(in_flight, crate::WhenFull::Block);
                    }
                    frame += 1;
                }
            }
        };
        self.end_source(filling, stopped, frame)?;
        self.slot_ring.end(0);
        Ok(())
    }

    /// Whether the source is not to be asked any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.counters.stop.load(Ordering::Relaxed) || self.slot_ring.has_failed()
    }

    /// Asks whether the oldest slot is filled.
    pub(super) fn filled(&self, filling: &mut Filling<'_>, frame: u64) -> Result<Came, Failed> {
        let (clock, began) = (Instant::now(), self.tracer.begin(What::Stage));
        let filled = match filling.flight.poll().map_err(failed("source", frame))? {
            None | Some(Filled::Idle) => return Ok(Came::Silence),
            Some(Filled::End) => return Ok(Came::End),
            Some(filled) => filled,
        };
        let unasked = || Error::invalid("the source filled a slot that it was not given");
        let slot = filling.begun.pop_front().ok_or_else(|| failed("source", frame)(unasked()))?;
        self.tell(began, "source", frame);
        self.counters.source.note(clock.elapsed());
        if filled == Filled::Incomplete {
            self.slot_ring.put_free(slot);
            self.counters.incomplete.fetch_add(1, Ordering::Relaxed);
            return Ok(Came::Frame(None));
        }
        self.counters.entered.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        Ok(Came::Frame(Some(FrameInFlight { slot, frame, filled: now, came: now })))
    }

    /// Ends a source, unless the pipeline has failed. Its slots are free again.
    pub(super) fn end_source(
        &self,
        filling: Filling<'_>,
        stopped: bool,
        frame: u64,
    ) -> Result<(), Failed> {
        let Filling { mut flight, begun } = filling;
        if !self.slot_ring.has_failed() {
            flight.end(stopped).map_err(failed("source", frame))?;
        }
        drop(flight);
        begun.into_iter().for_each(|slot| self.slot_ring.put_free(slot));
        Ok(())
    }

    /// Runs the stage before which frames wait at `at`, or the sink. `done` gets each frame as it is done.
    pub(super) fn flight(
        self,
        at: usize,
        name: &str,
        part: &mut (dyn Overlapped<S> + Send + '_),
        mut done: impl FnMut(FrameInFlight) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut flight = self.open(at + 1, name, part)?;
        let mut begun = VecDeque::new();
        loop {
            while let Some(in_flight) = self.slot_ring.try_take(at) {
                flight
                    .begin(in_flight.slot, in_flight.frame)
                    .map_err(failed(name, in_flight.frame))?;
                begun.push_back(in_flight);
            }
            match self.passed(&mut *flight, name, &mut begun)? {
                Came::Frame(Some(in_flight)) => done(in_flight)?,
                Came::Frame(None) => {}
                _ if self.slot_ring.has_failed() => return Ok(()),
                _ if begun.is_empty() && self.slot_ring.is_last(at) => break,
                _ => self.slot_ring.wait_part(at + 1, SLICE, begun.is_empty()),
            }
        }
        let frame = self.counters.entered.load(Ordering::Relaxed);
        flight.end(false).map_err(failed(name, frame))
    }

    /// Waits until a part has done with one frame, on the pipeline's one thread.
    pub(super) fn flight_alone(
        &self,
        at: usize,
        name: &str,
        flight: &mut (dyn Flight + '_),
        in_flight: FrameInFlight,
    ) -> Result<Option<FrameInFlight>, Failed> {
        flight.begin(in_flight.slot, in_flight.frame).map_err(failed(name, in_flight.frame))?;
        let mut begun = VecDeque::from([in_flight]);
        loop {
            if let Came::Frame(done) = self.passed(flight, name, &mut begun)? {
                return Ok(done);
            }
            self.slot_ring.wait_woken(at + 1, SLICE);
        }
    }

    /// Asks whether a part has done with its oldest frame.
    fn passed(
        &self,
        flight: &mut (dyn Flight + '_),
        name: &str,
        begun: &mut VecDeque<FrameInFlight>,
    ) -> Result<Came, Failed> {
        let frame = begun.front().map_or(0, |in_flight| in_flight.frame);
        let done = match flight.poll().map_err(failed(name, frame))? {
            None | Some(Filled::Idle) => return Ok(Came::Silence),
            Some(done) => done,
        };
        let Some(in_flight) = begun.pop_front() else {
            let error = Error::invalid("the part has done with a frame that it was not given");
            return Err(failed(name, frame)(error));
        };
        match done {
            Filled::Frame => Ok(Came::Frame(Some(in_flight))),
            Filled::Incomplete => {
                self.counters.incomplete.fetch_add(1, Ordering::Relaxed);
                self.counters.entered.fetch_sub(1, Ordering::Relaxed);
                self.slot_ring.put_free(in_flight.slot);
                Ok(Came::Frame(None))
            }
            Filled::Idle | Filled::End => {
                let error = Error::invalid("only a source can end the stream");
                Err(failed(name, frame)(error))
            }
        }
    }
}
