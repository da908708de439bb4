//! Sources that receive frames from other ranks.
//!
//! # Safety
//! A slot's guard is held until its frame has come. Guards of slots that MPI may still write to are forgotten, so that their
//! memory is never freed.

#![allow(unsafe_code)]

use crate::{
    checksum::checksum,
    counts::{Counters, MpiMeter},
    ending::{finish, settle},
    engine::Posted,
    stream::{
        end::End,
        receiver::{Arrived, Filling, StreamReceiver},
    },
    transport::Address,
    world::{Claimed, World},
};
use bytemuck::Pod;
use onebuf::{
    Buffer, MapWrite,
    pipeline::{Filled, Flight, HostMemory, HostSlots, Overlapped},
};
use onebuf_hal::{Error, Result};
use std::{collections::VecDeque, mem, sync::Arc, task::Waker, time::Duration};

/// Receives frames from a `sink::Mpi` of another rank, directly into free slots.
///
/// The sender is told about each free slot, and sends no more frames than there are. The stream ends when the sender's pipeline
/// does. A pipeline that is stopped before that tells the sender, whose pipeline fails with
/// [`Error::Unavailable`].
#[derive(Debug)]
pub struct Mpi(End);

impl Mpi {
    /// Receives from a rank, as stream 0 without checksums.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that does not exist.
    pub fn new(world: &World, from: usize) -> Result<Self> {
        End::new(world, from, "the source of stream").map(Self)
    }

    /// Sets the number of the stream, which the sender must have, too.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number above [`MOST_STREAM`](crate::MOST_STREAM).
    pub fn stream(mut self, stream: u32) -> Result<Self> {
        self.0.set_stream(stream)?;
        Ok(self)
    }

    /// Compares a checksum of each frame with the sender's. A frame that differs is [`Error::PeerRefused`].
    pub fn checksum(mut self, checksum: bool) -> Self {
        self.0.checksum = checksum;
        self
    }

    /// Sets how long the sender may be silent: the world's timeout by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Returns a meter that reads the counters while a pipeline owns the source.
    pub fn meter(&self) -> MpiMeter {
        MpiMeter(self.0.counters.clone())
    }

    /// Selects which buffer of a slot is filled: the source of a pipeline, for
    /// [`Builder::source_overlapped`](onebuf::pipeline::Builder::source_overlapped).
    pub fn feed<S, T: Pod, F: Fn(&S) -> &Buffer<T>>(self, buffer: F) -> MpiFeed<T, F> {
        MpiFeed { end: self.0, buffer, memory: HostMemory::default() }
    }
}

/// An [`Mpi`] source, and the buffer that it fills.
#[derive(Debug)]
pub struct MpiFeed<T: Pod, F> {
    end: End,
    buffer: F,
    memory: HostMemory<T>,
}

impl<S, T: Pod, F: Fn(&S) -> &Buffer<T>> Overlapped<S> for MpiFeed<T, F> {
    fn open<'r>(&'r mut self, slots: &'r [S], waker: &Waker) -> Result<Box<dyn Flight + 'r>> {
        let buffers: Vec<&Buffer<T>> = slots.iter().map(&self.buffer).collect();
        let (spec, claimed) = self.end.open(&buffers)?;
        let slots = self.memory.open(buffers, true)?;
        let actor = Arc::new(StreamReceiver::new(spec, slots.slots()));
        actor.board.set_waker(waker);
        let posted = self.end.world.link().post(actor.clone());
        let (world, counters) = (self.end.world.clone(), &*self.end.counters);
        let held = VecDeque::new();
        Ok(Box::new(SourceFlight {
            slots,
            held,
            actor,
            posted,
            world,
            counters,
            next: 0,
            _claimed: claimed,
        }))
    }

    fn explain(&self, slot: &S) -> Option<String> {
        let how = HostMemory::explain((self.buffer)(slot), true);
        Some(format!("{how}, with frames of rank {}", self.end.peer))
    }
}

struct SourceFlight<'r, T: Pod> {
    slots: HostSlots<'r, T>,
    /// The slots that are not reported as filled, in their order, and their guards.
    held: VecDeque<(usize, MapWrite<'r, T>)>,
    actor: Arc<StreamReceiver>,
    posted: Posted,
    world: World,
    counters: &'r Counters,
    /// The number of the sender's next frame, if it skips none.
    next: u64,
    _claimed: Claimed,
}

impl<T: Pod> SourceFlight<'_, T> {
    /// Takes a frame that has come.
    fn take(&mut self, arrived: Arrived) -> Result<()> {
        let unasked = || Error::invalid("a frame without a slot");
        let (slot, map) = self.held.pop_front().ok_or_else(unasked)?;
        let Arrived { number, checksum: expected } = arrived;
        match self.actor.spec.checksum {
            false => self.slots.filled(slot, map)?,
            true => self.slots.filled_if(slot, map, |frame| {
                let rank = self.actor.spec.peer;
                match checksum(bytemuck::cast_slice(frame)) == expected {
                    true => Ok(()),
                    false => Err(Error::refused(format!(
                        "frame {number} of rank {rank} has a wrong checksum"
                    ))),
                }
            })?,
        }
        self.counters.add(self.actor.spec.bytes, number.saturating_sub(self.next));
        self.next = number.saturating_add(1);
        Ok(())
    }
}

impl<T: Pod> Flight for SourceFlight<'_, T> {
    fn begin(&mut self, slot: usize, _frame: u64) -> Result<()> {
        let mut map = self.slots.overwrite(slot)?;
        let at = Address::new(map.as_mut_ptr().cast());
        self.held.push_back((slot, map));
        // SAFETY: the guard is held until the frame has come, or forever.
        unsafe { self.actor.give(slot, at) };
        self.posted.wake();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Filled>> {
        match self.world.watch(self.actor.poll())? {
            Filling::Waits => Ok(None),
            Filling::End => Ok(Some(Filled::End)),
            Filling::Frame(arrived) => self.take(arrived).map(|()| Some(Filled::Frame)),
        }
    }

    fn end(&mut self, stopped: bool) -> Result<()> {
        if stopped {
            self.actor.stop();
        }
        let spec = &self.actor.spec;
        finish(&self.actor.board, &self.posted, &self.world, spec.timeout, || spec.late_end())
    }
}

impl<T: Pod> Drop for SourceFlight<'_, T> {
    fn drop(&mut self) {
        self.actor.stop();
        if !settle(&self.actor.board, &self.posted, &self.world) {
            tracing::warn!(
                "frames of rank {} are still on their way: their memory is kept",
                self.actor.spec.peer
            );
            mem::forget(mem::take(&mut self.held));
        }
    }
}
