//! One run of a pipeline: each part on its own thread, or all parts on one.

mod flights;

use super::{
    Filled, Flight, Part, SinkFn, SinkPart, SourceFn, SourcePart, Stage, StageFn, WhenFull, Work,
    report::RunCounters,
    slot_ring::{Failed, FrameInFlight, SlotRing},
};
use flights::Filling;
use onebuf_core::{
    Queue,
    internals::{Began, Tracer},
    observe::What,
    topology::DeviceIx,
};
use onebuf_hal::{Error, Result};
use std::{
    collections::VecDeque,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

/// How long a stage waits for its batch to fill up.
const LINGER: Duration = Duration::from_millis(10);

/// One run, shared by its threads.
pub(super) struct Run<'r, S> {
    pub slots: &'r [S],
    pub slot_ring: &'r SlotRing,
    pub counters: &'r RunCounters,
    /// Records the calls of the source and the sink.
    pub tracer: &'r Tracer,
}

/// The outcome of calling the source.
enum Came {
    /// A frame, or `None` if it was incomplete.
    Frame(Option<FrameInFlight>),
    /// The source has no frame now.
    Silence,
    /// The source has no more frames.
    End,
}

/// The next frame to ask the source for. `slot` is set if the source has started filling one.
#[derive(Default)]
struct Next {
    frame: u64,
    slot: Option<usize>,
}

/// The source when everything runs on one thread.
enum SoloSource<'r, 'f, S> {
    Function(&'r mut SourceFn<'f, S>),
    Flight(Filling<'r>),
}

/// A stage or the sink when everything runs on one thread.
enum Solo<'r, F: ?Sized> {
    Function(&'r mut F),
    Flight(Box<dyn Flight + 'r>),
}

/// What the source can deliver after a batch.
#[derive(PartialEq, Eq)]
enum More {
    /// More frames may follow at once.
    Frames,
    /// No frame now, perhaps later.
    Later,
    /// No more frames.
    Nothing,
}

impl<S> Clone for Run<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Run<'_, S> {}

impl<S: Send + Sync> Run<'_, S> {
    pub fn beside_each_other(
        self,
        source: &mut SourcePart<'_, S>,
        stages: &mut [Stage<'_, S>],
        sink: &mut SinkPart<'_, S>,
        when_full: WhenFull,
    ) {
        let last = stages.len();
        thread::scope(|threads| {
            threads.spawn(move || {
                self.guard("source", || match source {
                    Part::Function(source) => self.source(&mut **source, when_full),
                    Part::Overlapped(source) => self.source_flight(&mut **source),
                });
            });
            for (at, Stage { queue, run }) in stages.iter_mut().enumerate() {
                let name = &self.counters.stages[at].name;
                threads.spawn(move || {
                    self.guard(name, || match run {
                        Part::Function(run) => self.stage(at, queue, &mut **run),
                        Part::Overlapped(part) => {
                            self.flight(at, name, &mut **part, |in_flight| {
                                self.slot_ring.pass(at + 1, vec![self.done(at, in_flight)]);
                                Ok(())
                            })?;
                            self.slot_ring.end(at + 1);
                            Ok(())
                        }
                    });
                });
            }
            self.guard("sink", || match sink {
                Part::Function(sink) => self.sink(last, &mut **sink),
                Part::Overlapped(part) => self.flight(last, "sink", &mut **part, |in_flight| {
                    self.out(in_flight);
                    Ok(())
                }),
            });
        });
    }

    /// Sends a batch through all stages, then lets the sink take the oldest frames until the next batch has free slots.
    pub fn alone(
        self,
        source: &mut SourcePart<'_, S>,
        stages: &mut [Stage<'_, S>],
        sink: &mut SinkPart<'_, S>,
    ) {
        self.guard("pipeline", || {
            let last = stages.len();
            let mut source = match source {
                Part::Function(source) => SoloSource::Function(&mut **source),
                Part::Overlapped(source) => {
                    let flight = self.open(0, "source", &mut **source)?;
                    SoloSource::Flight(Filling { flight, begun: VecDeque::new() })
                }
            };
            let mut solo = Vec::with_capacity(last);
            for (at, Stage { queue, run }) in stages.iter_mut().enumerate() {
                let name = &self.counters.stages[at].name;
                solo.push((&*queue, self.solo(at, name, run)?));
            }
            let mut sink = self.solo(last, "sink", sink)?;
            let (mut next, mut on_the_way) = (Next::default(), VecDeque::new());
            loop {
                let batch = self.counters.batching.frames();
                let (mut in_flight, more) = self.fill_batch(&mut source, &mut next, batch)?;
                for (at, (queue, stage)) in solo.iter_mut().enumerate() {
                    in_flight = self.stage_alone(at, queue, stage, in_flight)?;
                }
                on_the_way.extend(in_flight);
                // While the source is idle, the sink gets every frame in flight.
                let room = if more == More::Frames { batch } else { self.slots.len() };
                while on_the_way.len() + room > self.slots.len()
                    && let Some(in_flight) = on_the_way.pop_front()
                {
                    self.sink_alone(last, &mut sink, in_flight)?;
                }
                if more == More::Nothing {
                    break;
                }
            }
            if let SoloSource::Flight(filling) = source {
                self.end_source(filling, self.is_stopped(), next.frame)?;
            }
            let flights = solo.into_iter().map(|(_, stage)| stage).filter_map(Solo::flight);
            for mut flight in flights.chain(sink.flight()) {
                flight.end(false).map_err(failed("pipeline", next.frame))?;
            }
            Ok(())
        });
    }

    /// Prepares a stage or the sink for one thread.
    fn solo<'p, F: ?Sized>(
        &self,
        at: usize,
        name: &str,
        part: &'p mut Part<'_, S, F>,
    ) -> Result<Solo<'p, F>, Failed>
    where
        Self: 'p,
    {
        match part {
            Part::Function(function) => Ok(Solo::Function(&mut **function)),
            Part::Overlapped(part) => Ok(Solo::Flight(self.open(at + 1, name, &mut **part)?)),
        }
    }

    fn stage_alone(
        &self,
        at: usize,
        queue: &Queue,
        stage: &mut Solo<'_, StageFn<'_, S>>,
        mut in_flight: Vec<FrameInFlight>,
    ) -> Result<Vec<FrameInFlight>, Failed> {
        let flight = match stage {
            Solo::Function(run) => {
                self.enqueue(at, queue, run, &mut in_flight)?;
                return Ok(in_flight);
            }
            Solo::Flight(flight) => flight,
        };
        let name = &self.counters.stages[at].name;
        let mut done = Vec::with_capacity(in_flight.len());
        for in_flight in in_flight {
            let passed = self.flight_alone(at, name, &mut **flight, in_flight)?;
            done.extend(passed.map(|in_flight| self.done(at, in_flight)));
        }
        Ok(done)
    }

    fn sink_alone(
        &self,
        at: usize,
        sink: &mut Solo<'_, SinkFn<'_, S>>,
        in_flight: FrameInFlight,
    ) -> Result<(), Failed> {
        match sink {
            Solo::Function(sink) => self.take(sink, in_flight),
            Solo::Flight(flight) => {
                let done = self.flight_alone(at, "sink", &mut **flight, in_flight)?;
                done.into_iter().for_each(|in_flight| self.out(in_flight));
                Ok(())
            }
        }
    }

    /// The next frames, and what the source can deliver after them. An idle source ends the batch.
    fn fill_batch(
        &self,
        source: &mut SoloSource<'_, '_, S>,
        next: &mut Next,
        batch: usize,
    ) -> Result<(Vec<FrameInFlight>, More), Failed> {
        let mut in_flight = Vec::with_capacity(batch);
        while in_flight.len() < batch
            && let Some(slot) = next.slot.take().or_else(|| self.slot_ring.take_free())
        {
            let came = match source {
                SoloSource::Function(source) => self.fill(source, slot, next.frame, 1)?,
                SoloSource::Flight(filling) => self.fill_flight(filling, slot, next.frame)?,
            };
            match came {
                Came::Frame(filled) => in_flight.extend(filled),
                Came::Silence => {
                    next.slot = Some(slot);
                    return Ok((in_flight, More::Later));
                }
                Came::End => return Ok((in_flight, More::Nothing)),
            }
            next.frame += 1;
        }
        Ok((in_flight, More::Frames))
    }

    /// Lets a source fill one slot, and waits for it for a while.
    fn fill_flight(
        &self,
        filling: &mut Filling<'_>,
        slot: usize,
        frame: u64,
    ) -> Result<Came, Failed> {
        if self.is_stopped() {
            return Ok(Came::End);
        }
        if filling.begun.is_empty() {
            filling.flight.begin(slot, frame).map_err(failed("source", frame))?;
            filling.begun.push_back(slot);
        }
        match self.filled(filling, frame)? {
            Came::Silence => {
                self.slot_ring.wait_woken(0, LINGER);
                self.filled(filling, frame)
            }
            came => Ok(came),
        }
    }

    fn source(self, source: &mut SourceFn<'_, S>, when_full: WhenFull) -> Result<(), Failed> {
        let mut frame = 0;
        while let Some(slot) = self.slot_ring.take_free() {
            let Came::Frame(filled) = self.fill(source, slot, frame, u64::MAX)? else { break };
            if let Some(in_flight) = filled {
                let dropped = self.slot_ring.enter(in_flight, when_full);
                self.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
            }
            frame += 1;
        }
        self.slot_ring.end(0);
        Ok(())
    }

    /// Calls the source up to `times` times while it is idle. Frees the slot at the end of the stream and for an incomplete
    /// frame.
    fn fill(
        &self,
        source: &mut SourceFn<'_, S>,
        slot: usize,
        frame: u64,
        times: u64,
    ) -> Result<Came, Failed> {
        let filled = self.ask(source, slot, frame, times).map_err(failed("source", frame))?;
        if filled == Filled::Frame {
            self.counters.entered.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            return Ok(Came::Frame(Some(FrameInFlight { slot, frame, filled: now, came: now })));
        }
        if filled == Filled::Idle {
            return Ok(Came::Silence);
        }
        self.slot_ring.put_free(slot);
        if filled == Filled::Incomplete {
            self.counters.incomplete.fetch_add(1, Ordering::Relaxed);
            return Ok(Came::Frame(None));
        }
        Ok(Came::End)
    }

    /// Calls the source until it returns something other than `Idle`, `times` times at most, or until the pipeline stops.
    fn ask(
        &self,
        source: &mut SourceFn<'_, S>,
        slot: usize,
        frame: u64,
        times: u64,
    ) -> Result<Filled> {
        for _ in 0..times {
            if self.counters.stop.load(Ordering::Relaxed) || self.slot_ring.has_failed() {
                return Ok(Filled::End);
            }
            let clock = Instant::now();
            let began = self.tracer.begin(What::Stage);
            let filled = source(&self.slots[slot], frame)?;
            if filled != Filled::Idle {
                self.tell(began, "source", frame);
                self.counters.source.note(clock.elapsed());
                return Ok(filled);
            }
        }
        Ok(Filled::Idle)
    }

    fn stage(self, at: usize, queue: &Queue, run: &mut StageFn<'_, S>) -> Result<(), Failed> {
        let batch = || self.counters.batching.frames();
        while let Some(mut in_flight) = self.slot_ring.take(at, batch(), LINGER) {
            self.enqueue(at, queue, run, &mut in_flight)?;
            self.slot_ring.pass(at + 1, in_flight);
        }
        self.slot_ring.end(at + 1);
        Ok(())
    }

    /// Runs one stage on some frames and flushes its queue once for all of them, because the next stage's queue may wait for
    /// it.
    fn enqueue(
        &self,
        at: usize,
        queue: &Queue,
        run: &mut StageFn<'_, S>,
        in_flight: &mut [FrameInFlight],
    ) -> Result<(), Failed> {
        if in_flight.is_empty() {
            return Ok(());
        }
        let place = &self.counters.stages[at];
        let start = Instant::now();
        for in_flight in &*in_flight {
            let clock = Instant::now();
            let work = Work { slot: &self.slots[in_flight.slot], queue, frame: in_flight.frame };
            let began = queue.tracer().begin(What::Stage);
            run(work).map_err(failed(&place.name, in_flight.frame))?;
            place.busy.note(clock.elapsed());
            queue.record(began, |event| {
                event.name.clone_from(&place.name);
                event.frame = Some(in_flight.frame);
            });
        }
        let first = in_flight.first().map_or(0, |in_flight| in_flight.frame);
        queue.flush().map_err(failed(&place.name, first))?;
        if self.counters.batching.is_measuring() {
            queue.finish().map_err(failed(&place.name, first))?;
            self.counters.batching.note(at, start.elapsed());
        }
        in_flight.iter_mut().for_each(|in_flight| *in_flight = self.done(at, *in_flight));
        Ok(())
    }

    /// Counts a frame that a stage passes on.
    fn done(&self, at: usize, in_flight: FrameInFlight) -> FrameInFlight {
        let place = &self.counters.stages[at];
        place.times.note(in_flight.came.elapsed());
        place.frames.fetch_add(1, Ordering::Relaxed);
        FrameInFlight { came: Instant::now(), ..in_flight }
    }

    fn sink(self, at: usize, sink: &mut SinkFn<'_, S>) -> Result<(), Failed> {
        while let Some(in_flight) = self.slot_ring.take(at, 1, LINGER) {
            in_flight.into_iter().try_for_each(|in_flight| self.take(sink, in_flight))?;
        }
        Ok(())
    }

    fn take(&self, sink: &mut SinkFn<'_, S>, in_flight: FrameInFlight) -> Result<(), Failed> {
        let (clock, began) = (Instant::now(), self.tracer.begin(What::Stage));
        sink(&self.slots[in_flight.slot], in_flight.frame)
            .map_err(failed("sink", in_flight.frame))?;
        self.counters.sink.note(clock.elapsed());
        self.tell(began, "sink", in_flight.frame);
        self.out(in_flight);
        Ok(())
    }

    /// Counts a frame that the sink has done with. Its slot is free again.
    fn out(&self, in_flight: FrameInFlight) {
        self.counters.latency.note(in_flight.filled.elapsed());
        self.counters.frames.fetch_add(1, Ordering::Relaxed);
        self.counters.beats.note();
        self.slot_ring.put_free(in_flight.slot);
    }

    /// Runs one part. If it fails or panics, all others stop, because they would wait for it.
    fn guard(&self, name: &str, part: impl FnOnce() -> Result<(), Failed>) {
        let _alarm = Alarm(self.slot_ring, name);
        if let Err(failed) = part() {
            let Failed { at, frame, error } = &failed;
            tracing::error!("pipeline stopped: {at} at frame {frame}: {error}");
            self.slot_ring.fail(failed);
        }
    }

    /// Records a call of the source or the sink, which run on the host.
    fn tell(&self, began: Began<'_>, part: &'static str, frame: u64) {
        began.end_at(DeviceIx::HOST, part, |event| {
            event.name = part.into();
            event.frame = Some(frame);
        });
    }
}

impl<'r, F: ?Sized> Solo<'r, F> {
    fn flight(self) -> Option<Box<dyn Flight + 'r>> {
        match self {
            Solo::Function(_) => None,
            Solo::Flight(flight) => Some(flight),
        }
    }
}

fn failed(at: &str, frame: u64) -> impl FnOnce(Error) -> Failed {
    let at = at.to_owned();
    move |error| Failed { at, frame, error }
}

/// Stops the pipeline if its thread panics.
struct Alarm<'r>(&'r SlotRing, &'r str);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::invalid("the function panicked");
            self.0.fail(Failed { at: self.1.into(), frame: 0, error });
        }
    }
}
