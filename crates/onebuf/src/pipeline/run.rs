//! One run of a pipeline: each part on a thread of its own, or all on one.

use super::{
    Filled, SinkFn, SourceFn, Stage, WhenFull, Work,
    belt::{Belt, Car, Failed},
    report::Counters,
};
use crate::{
    Error, Result,
    topology::DeviceIx,
    trace::{Began, Tap, What},
};
use std::{
    collections::VecDeque,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

/// How long a stage that takes several frames at once waits for the last of them.
const LINGER: Duration = Duration::from_millis(10);

/// One run, as its threads see it.
pub(super) struct Run<'r, S> {
    pub slots: &'r [S],
    pub belt: &'r Belt,
    pub counters: &'r Counters,
    /// Where the source and the sink are recorded.
    pub tap: &'r Tap,
}

/// What came of asking the source.
enum Came {
    /// A frame; nothing in it where it is incomplete.
    Frame(Option<Car>),
    /// It has none now.
    Silence,
    /// It has no more.
    End,
}

/// The frame that the source is asked for, and its slot where the source has begun with it.
#[derive(Default)]
struct Next {
    frame: u64,
    slot: Option<usize>,
}

/// What a source has behind a batch.
#[derive(PartialEq, Eq)]
enum More {
    /// Frames, as far as is known.
    Frames,
    /// None now.
    Later,
    /// No more.
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
        batch: usize,
        when_full: WhenFull,
    ) {
        let last = stages.len();
        thread::scope(|threads| {
            threads.spawn(move || self.guard("source", || self.source(source, when_full)));
            for (at, stage) in stages.iter_mut().enumerate() {
                let name = &self.counters.stages[at].name;
                threads.spawn(move || self.guard(name, || self.stage(at, stage, batch)));
            }
            self.guard("sink", || self.sink(last, sink));
        });
    }

    /// A batch through all stages; then the sink takes so many of the oldest that the next batch has room.
    pub fn alone(
        self,
        source: &mut SourceFn<'_, S>,
        stages: &mut [Stage<'_, S>],
        sink: &mut SinkFn<'_, S>,
        batch: usize,
    ) {
        self.guard("pipeline", || {
            let (mut next, mut on_the_way) = (Next::default(), VecDeque::new());
            loop {
                let (mut cars, more) = self.fill_batch(source, &mut next, batch)?;
                for (at, stage) in stages.iter_mut().enumerate() {
                    self.enqueue(at, stage, &mut cars)?;
                }
                on_the_way.extend(cars);
                // While the source has nothing, the sink gets everything that is on the way.
                let room = if more == More::Frames { batch } else { self.slots.len() };
                while on_the_way.len() + room > self.slots.len()
                    && let Some(car) = on_the_way.pop_front()
                {
                    self.take(sink, car)?;
                }
                if more == More::Nothing {
                    return Ok(());
                }
            }
        });
    }

    /// The next frames, and what comes after them. A source that has nothing now ends the batch.
    fn fill_batch(
        &self,
        source: &mut SourceFn<'_, S>,
        next: &mut Next,
        batch: usize,
    ) -> Result<(Vec<Car>, More), Failed> {
        let mut cars = Vec::with_capacity(batch);
        while cars.len() < batch
            && let Some(slot) = next.slot.take().or_else(|| self.belt.take_free())
        {
            match self.fill(source, slot, next.frame, 1)? {
                Came::Frame(filled) => cars.extend(filled),
                Came::Silence => {
                    next.slot = Some(slot);
                    return Ok((cars, More::Later));
                }
                Came::End => return Ok((cars, More::Nothing)),
            }
            next.frame += 1;
        }
        Ok((cars, More::Frames))
    }

    fn source(self, source: &mut SourceFn<'_, S>, when_full: WhenFull) -> Result<(), Failed> {
        let mut frame = 0;
        while let Some(slot) = self.belt.take_free() {
            let Came::Frame(filled) = self.fill(source, slot, frame, u64::MAX)? else { break };
            if let Some(car) = filled {
                let dropped = self.belt.enter(car, when_full);
                self.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
            }
            frame += 1;
        }
        self.belt.end(0);
        Ok(())
    }

    /// Asks the source for a frame, so often while it has none. The slot is free again at the end and for an incomplete frame.
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
            return Ok(Came::Frame(Some(Car { slot, frame, filled: now, came: now })));
        }
        if filled == Filled::Idle {
            return Ok(Came::Silence);
        }
        self.belt.put_free(slot);
        if filled == Filled::Incomplete {
            self.counters.incomplete.fetch_add(1, Ordering::Relaxed);
            return Ok(Came::Frame(None));
        }
        Ok(Came::End)
    }

    /// Asks the source until there is something, or so often, or until the pipeline is stopped.
    fn ask(
        &self,
        source: &mut SourceFn<'_, S>,
        slot: usize,
        frame: u64,
        times: u64,
    ) -> Result<Filled> {
        for _ in 0..times {
            if self.counters.stop.load(Ordering::Relaxed) || self.belt.has_failed() {
                return Ok(Filled::End);
            }
            let clock = Instant::now();
            let began = self.tap.begin(What::Stage);
            let filled = source(&self.slots[slot], frame)?;
            if filled != Filled::Idle {
                self.tell(began, "source", frame);
                self.counters.source.note(clock.elapsed());
                return Ok(filled);
            }
        }
        Ok(Filled::Idle)
    }

    fn stage(self, at: usize, stage: &mut Stage<'_, S>, batch: usize) -> Result<(), Failed> {
        while let Some(mut cars) = self.belt.take(at, batch, LINGER) {
            self.enqueue(at, stage, &mut cars)?;
            self.belt.pass(at + 1, cars);
        }
        self.belt.end(at + 1);
        Ok(())
    }

    /// One stage's work on some frames. It is flushed once for all of them: the next stage's queue may wait for it.
    fn enqueue(&self, at: usize, stage: &mut Stage<'_, S>, cars: &mut [Car]) -> Result<(), Failed> {
        if cars.is_empty() {
            return Ok(());
        }
        let (place, Stage { queue, run }) = (&self.counters.stages[at], stage);
        for car in &*cars {
            let clock = Instant::now();
            let work = Work { slot: &self.slots[car.slot], queue, frame: car.frame };
            let began = queue.line.tap.begin(What::Stage);
            run(work).map_err(failed(&place.name, car.frame))?;
            place.busy.note(clock.elapsed());
            began.end(&queue.line, |event| {
                event.name.clone_from(&place.name);
                event.frame = Some(car.frame);
            });
        }
        let first = cars.first().map_or(0, |car| car.frame);
        queue.flush().map_err(failed(&place.name, first))?;
        for car in &mut *cars {
            place.times.note(car.came.elapsed());
            car.came = Instant::now();
        }
        place.frames.fetch_add(cars.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn sink(self, at: usize, sink: &mut SinkFn<'_, S>) -> Result<(), Failed> {
        while let Some(cars) = self.belt.take(at, 1, LINGER) {
            cars.into_iter().try_for_each(|car| self.take(sink, car))?;
        }
        Ok(())
    }

    fn take(&self, sink: &mut SinkFn<'_, S>, car: Car) -> Result<(), Failed> {
        let (clock, began) = (Instant::now(), self.tap.begin(What::Stage));
        sink(&self.slots[car.slot], car.frame).map_err(failed("sink", car.frame))?;
        self.counters.sink.note(clock.elapsed());
        self.tell(began, "sink", car.frame);
        self.counters.latency.note(car.filled.elapsed());
        self.counters.frames.fetch_add(1, Ordering::Relaxed);
        self.counters.beats.note();
        self.belt.put_free(car.slot);
        Ok(())
    }

    /// Runs one part; when it fails, or panics, the others stop: they would wait for it.
    fn guard(&self, name: &str, part: impl FnOnce() -> Result<(), Failed>) {
        let _alarm = Alarm(self.belt, name);
        if let Err(failed) = part() {
            let Failed { at, frame, error } = &failed;
            tracing::error!("pipeline stopped: {at} at frame {frame}: {error}");
            self.belt.fail(failed);
        }
    }

    /// The source and the sink are the host's.
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

/// Rings when a thread panics.
struct Alarm<'r>(&'r Belt, &'r str);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::invalid("the function panicked");
            self.0.fail(Failed { at: self.1.into(), frame: 0, error });
        }
    }
}
