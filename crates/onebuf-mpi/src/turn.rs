//! Corner turns: every rank has some channels, and gets all channels of some frequencies.
//!
//! ```text
//!   rank 0:  channels 0, 1  ×  all frequencies        all channels  ×  frequencies 0 … 99
//!   rank 1:  channels 2, 3  ×  all frequencies   ──►  all channels  ×  frequencies 100 … 199
//!   rank 2:  channel  4     ×  all frequencies        all channels  ×  frequencies 200 … 299
//! ```
//!
//! # Safety
//! The guards of a frame's two buffers are held until the frame is turned. Guards of memory that MPI may still use are forgotten,
//! so that the memory is never freed.

#![allow(unsafe_code)]

mod actor;
mod division;
mod log;
#[cfg(test)]
mod tests;

use crate::{
    counts::{Counters, MpiMeter},
    ending::{finish, settle},
    engine::Posted,
    transport::Address,
    world::{Claimed, World},
};
use actor::TurnActor;
use bytemuck::Pod;
use division::{Division, Shape};
use onebuf::{
    Buffer, Map, MapWrite,
    pipeline::{Filled, Flight, HostMemory, HostSlots, Overlapped},
};
use onebuf_hal::{Error, Result};
use std::{collections::VecDeque, mem, ops::Range, sync::Arc, task::Waker, time::Duration};

pub use division::share;
pub use log::{Exchange, TurnLog};

/// The largest number of a corner turn.
pub const MOST_TURN: u32 = 4_095;

/// Exchanges blocks between the pipelines of all ranks: a stage that turns `[own channels][all frequencies]` of one buffer into
/// `[all channels][own frequencies]` of another one.
///
/// Channels and frequencies are divided as evenly as possible, unless [`channels`](Self::channels) or
/// [`frequencies`](Self::frequencies) divide them otherwise; a rank may have none. Blocks are sent from one slot's memory and
/// received into the other rank's, several frames at a time. All ranks must turn the same frames in the same order: another
/// frame number is an error.
///
/// ```
/// use onebuf::{Buffer, pipeline::{Filled, Pipeline}};
/// use onebuf_mpi::{CornerTurn, Join};
///
/// struct Slot { spectra: Buffer<f32>, turned: Buffer<f32> }
///
/// # fn main() -> onebuf::Result<()> {
/// let (hub, world) = (onebuf::discover()?, Join::new().start()?);
/// let turn = CornerTurn::new(&world, 16, 1024); // 16 channels, 1024 frequencies
/// let own = turn.own_channels().len() * 1024;
/// let all = 16 * turn.own_frequencies().len();
/// let slot = |_| Ok(Slot { spectra: hub.buffer(own).build()?, turned: hub.buffer(all).build()? });
/// let mut pipeline = Pipeline::builder(3, slot)
///     .source(|slot, frame| {
///         slot.spectra.fill(frame as f32)?; // the spectra of this rank's channels
///         Ok(if frame < 10 { Filled::Frame } else { Filled::End })
///     })
///     .stage_overlapped("turn", &hub.host(), turn.between(|slot: &Slot| &slot.spectra, |slot| &slot.turned))
///     .sink(|slot, frame| {
///         assert!(slot.turned.map()?.iter().all(|&x| x == frame as f32));
///         Ok(())
///     })
///     .build()?;
/// pipeline.run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CornerTurn {
    world: World,
    channels: Division,
    frequencies: Division,
    number: u32,
    timeout: Duration,
    counters: Arc<Counters>,
    log: Option<TurnLog>,
    runs: u64,
}

impl CornerTurn {
    /// Divides so many channels and frequencies evenly, as turn 0.
    pub fn new(world: &World, channels: usize, frequencies: usize) -> Self {
        Self {
            world: world.clone(),
            channels: Division::even(channels, world.size()),
            frequencies: Division::even(frequencies, world.size()),
            number: 0,
            timeout: world.timeout(),
            counters: Arc::default(),
            log: None,
            runs: 0,
        }
    }

    /// Sets how many channels each rank has, in the order of the ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is a count for each rank.
    pub fn channels(mut self, counts: &[usize]) -> Result<Self> {
        self.channels = Division::of(counts, self.world.size())?;
        Ok(self)
    }

    /// Sets how many frequencies each rank gets, in the order of the ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is a count for each rank.
    pub fn frequencies(mut self, counts: &[usize]) -> Result<Self> {
        self.frequencies = Division::of(counts, self.world.size())?;
        Ok(self)
    }

    /// Sets the number of the turn. Several turns of one pipeline, or of pipelines that run at the same time, need different ones.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number above [`MOST_TURN`].
    pub fn number(mut self, number: u32) -> Result<Self> {
        if number > MOST_TURN {
            return Err(Error::invalid(format!("turn {number}: the numbers are 0 to {MOST_TURN}")));
        }
        self.number = number;
        Ok(self)
    }

    /// Sets how long another rank may keep a frame waiting: the world's timeout by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The channels that this rank has.
    pub fn own_channels(&self) -> Range<usize> {
        self.channels.part(self.world.rank())
    }

    /// The frequencies that this rank gets.
    pub fn own_frequencies(&self) -> Range<usize> {
        self.frequencies.part(self.world.rank())
    }

    /// Returns a meter that reads the counters while a pipeline owns the turn. Its bytes are those that were received from other
    /// ranks.
    pub fn meter(&self) -> MpiMeter {
        MpiMeter(self.counters.clone())
    }

    /// Records how long each frame's exchange with each rank takes: so many of the newest. Returns the log, which can be read while a pipeline
    /// owns the turn.
    pub fn log(&mut self, most: usize) -> TurnLog {
        self.log.insert(TurnLog::new(most)).clone()
    }

    /// Selects the two buffers of a slot: a stage of a pipeline, for
    /// [`Builder::stage_overlapped`](onebuf::pipeline::Builder::stage_overlapped).
    pub fn between<S, T: Pod, A: Fn(&S) -> &Buffer<T>, B: Fn(&S) -> &Buffer<T>>(
        self,
        from: A,
        into: B,
    ) -> TurnStage<T, A, B> {
        TurnStage { turn: self, from, into, memories: Default::default() }
    }

    fn shape(&self, element: usize) -> Shape {
        let (channels, frequencies) = (self.channels.clone(), self.frequencies.clone());
        Shape { channels, frequencies, rank: self.world.rank(), element }
    }
}

/// A [`CornerTurn`], and the buffers that it turns.
#[derive(Debug)]
pub struct TurnStage<T: Pod, A, B> {
    turn: CornerTurn,
    from: A,
    into: B,
    memories: (HostMemory<T>, HostMemory<T>),
}

impl<S, T: Pod, A: Fn(&S) -> &Buffer<T>, B: Fn(&S) -> &Buffer<T>> Overlapped<S>
    for TurnStage<T, A, B>
{
    fn open<'r>(&'r mut self, slots: &'r [S], waker: &Waker) -> Result<Box<dyn Flight + 'r>> {
        let Self { turn, from, into, memories } = self;
        let shape = turn.shape(size_of::<T>());
        let (inputs, outputs): (Vec<&Buffer<T>>, Vec<&Buffer<T>>) =
            slots.iter().map(|slot| (from(slot), into(slot))).unzip();
        let checked = check(&inputs, shape.input(), "the input of a corner turn")
            .and_then(|()| check(&outputs, shape.output(), "the output of a corner turn"));
        let claimed = turn.world.claim(("corner turn", turn.number, 0))?;
        turn.runs += 1;
        let many = slots.len();
        let actor =
            TurnActor::new(shape.clone(), turn.number, turn.runs, many, turn.timeout, &turn.world);
        let actor = Arc::new(actor.recorded(turn.log.clone()));
        actor.board.set_waker(waker);
        let (from, into) = (memories.0.open(inputs, false)?, memories.1.open(outputs, true)?);
        let posted = turn.world.link().post(actor.clone());
        if let Err(error) = checked {
            // The other ranks are told, instead of waiting for this one.
            actor.end(false);
            settle(&actor.board, &posted, &turn.world);
            return Err(error);
        }
        let (world, counters) = (turn.world.clone(), &*turn.counters);
        let held = VecDeque::new();
        Ok(Box::new(TurnFlight {
            from,
            into,
            held,
            shape,
            actor,
            posted,
            world,
            counters,
            _claimed: claimed,
        }))
    }
}

/// Checks the lengths of buffers. Those of a rank that has no elements are not used.
fn check<T: Pod>(buffers: &[&Buffer<T>], expected: usize, what: &str) -> Result<()> {
    match buffers.iter().find(|buffer| expected > 0 && buffer.len() != expected) {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "{what} has {} elements, and {expected} are needed",
            other.len()
        ))),
    }
}

/// A frame that is being turned.
struct HeldFrame<'r, T: Pod> {
    slot: usize,
    _input: Option<Map<'r, T>>,
    output: Option<MapWrite<'r, T>>,
}

struct TurnFlight<'r, T: Pod> {
    from: HostSlots<'r, T>,
    into: HostSlots<'r, T>,
    /// The guards of frames that are not reported as turned, in their order.
    held: VecDeque<HeldFrame<'r, T>>,
    shape: Shape,
    actor: Arc<TurnActor>,
    posted: Posted,
    world: World,
    counters: &'r Counters,
    _claimed: Claimed,
}

impl<T: Pod> Flight for TurnFlight<'_, T> {
    fn begin(&mut self, slot: usize, frame: u64) -> Result<()> {
        let nothing = Address::new(std::ptr::dangling_mut());
        let input = (self.shape.input() > 0).then(|| self.from.read(slot)).transpose()?;
        let mut output =
            (self.shape.output() > 0).then(|| self.into.overwrite(slot)).transpose()?;
        // This rank's own block, which needs no message.
        if let (Some(input), Some(output)) = (&input, &mut output) {
            for (at, to, many) in self.shape.own() {
                output.write(to, &input[at..at + many])?;
            }
        }
        let from = input.as_ref().map_or(nothing, |map| Address::of(bytemuck::cast_slice(map)));
        let into = output.as_mut().map_or(nothing, |map| Address::new(map.as_mut_ptr().cast()));
        self.held.push_back(HeldFrame { slot, _input: input, output });
        // SAFETY: the guards are held until the frame is turned, or forever.
        unsafe { self.actor.turn(slot, frame, from, into) };
        self.posted.wake();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Filled>> {
        let polled = self.actor.poll();
        if polled.is_err() && self.actor.has_waited_in_vain() {
            self.world.doubt();
        }
        if !self.world.watch(polled)? {
            return Ok(None);
        }
        let Some(HeldFrame { slot, output, .. }) = self.held.pop_front() else { return Ok(None) };
        output.map_or(Ok(()), |map| self.into.filled(slot, map))?;
        self.counters.add(self.actor.received_bytes(), 0);
        Ok(Some(Filled::Frame))
    }

    fn end(&mut self, _stopped: bool) -> Result<()> {
        self.actor.end(true);
        let late = || self.actor.late_end();
        finish(&self.actor.board, &self.posted, &self.world, self.actor.timeout(), late)
    }
}

impl<T: Pod> Drop for TurnFlight<'_, T> {
    fn drop(&mut self) {
        self.actor.end(false);
        if !settle(&self.actor.board, &self.posted, &self.world) {
            tracing::warn!("blocks of a corner turn are still on their way: their memory is kept");
            mem::forget(mem::take(&mut self.held));
        }
    }
}
