//! One run of a pipeline: each part on its own thread, or all parts on one.

use super::{
    Filled, SinkFn, SourceFn, Stage, WhenFull, Work,
    report::RunCounters,
    slot_ring::{Failed, FrameInFlight, SlotRing},
};
use onebuf_core::{
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
        source: &mut SourceFn<'_, S>,
        stages: &mut [Stage<'_, S>],
        sink: &mut SinkFn<'_, S>,
        when_full: WhenFull,
    ) {
        let last = stages.len();
        thread::scope(|threads| {
            threads.spawn(move || self.guard("source", || self.source(source, when_full)));
            for (at, stage) in stages.iter_mut().enumerate() {
                let name = &self.counters.stages[at].name;
                threads.spawn(move || self.guard(name, || self.stage(at, stage)));
            }
            self.guard("sink", || self.sink(last, sink));
        });
    }

    /// Sends a batch through all stages, then lets the sink take the oldest frames until the next batch has free slots.
    pub fn alone(
        self,
        source: &mut SourceFn<'_, S>,
        stages: &mut [Stage<'_, S>],
        sink: &mut SinkFn<'_, S>,
    ) {
        self.guard("pipeline", || {
            let (mut next, mut on_the_way) = (Next::default(), VecDeque::new());
            loop {
                let batch = self.counters.batching.frames();
                let (mut in_flight, more) = self.fill_batch(source, &mut next, batch)?;
                for (at, stage) in stages.iter_mut().enumerate() {
                    self.enqueue(at, stage, &mut in_flight)?;
                }
                on_the_way.extend(in_flight);
                // While the source is idle, the sink gets every frame in flight.
                let room = if more == More::Frames { batch } else { self.slots.len() };
                while on_the_way.len() + room > self.slots.len()
                    && let Some(in_flight) = on_the_way.pop_front()
                {
                    self.take(sink, in_flight)?;
                }
                if more == More::Nothing {
                    return Ok(());
                }
            }
        });
    }

    /// The next frames, and what the source can deliver after them. An idle source ends the batch.
    fn fill_batch(
        &self,
        source: &mut SourceFn<'_, S>,
        next: &mut Next,
        batch: usize,
    ) -> Result<(Vec<FrameInFlight>, More), Failed> {
        let mut in_flight = Vec::with_capacity(batch);
        while in_flight.len() < batch
            && let Some(slot) = next.slot.take().or_else(|| self.slot_ring.take_free())
        {
            match self.fill(source, slot, next.frame, 1)? {
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

    fn stage(self, at: usize, stage: &mut Stage<'_, S>) -> Result<(), Failed> {
        let batch = || self.counters.batching.frames();
        while let Some(mut in_flight) = self.slot_ring.take(at, batch(), LINGER) {
            self.enqueue(at, stage, &mut in_flight)?;
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
        stage: &mut Stage<'_, S>,
        in_flight: &mut [FrameInFlight],
    ) -> Result<(), Failed> {
        if in_flight.is_empty() {
            return Ok(());
        }
        let (place, Stage { queue, run }) = (&self.counters.stages[at], stage);
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
        for in_flight in &mut *in_flight {
            place.times.note(in_flight.came.elapsed());
            in_flight.came = Instant::now();
        }
        place.frames.fetch_add(in_flight.len() as u64, Ordering::Relaxed);
        Ok(())
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
        self.counters.latency.note(in_flight.filled.elapsed());
        self.counters.frames.fetch_add(1, Ordering::Relaxed);
        self.counters.beats.note();
        self.slot_ring.put_free(in_flight.slot);
        Ok(())
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
