//! Sinks that send frames to other ranks.
//!
//! # Safety
//! A frame's guard is held until the frame was sent. Guards of frames that MPI may still use are forgotten, so that their memory
//! is never freed.

#![allow(unsafe_code)]

use crate::{
    checksum::checksum,
    counts::{Counters, MpiMeter},
    ending::{finish, settle},
    engine::Posted,
    stream::{
        end::End,
        sender::{Outgoing, StreamSender},
    },
    transport::Address,
    world::{Claimed, World},
};
use bytemuck::Pod;
use onebuf::{
    Buffer, Map,
    pipeline::{Filled, Flight, HostMemory, HostSlots, Overlapped},
};
use onebuf_hal::Result;
use std::{collections::VecDeque, mem, sync::Arc, task::Waker, time::Duration};

/// Sends frames to a [`source::Mpi`](crate::source::Mpi) of another rank, directly from their slots.
///
/// Several frames are on their way at a time, as many as the receiver has free slots. Each run of the pipeline is one stream: it
/// ends when the source does, and the receiver's source then ends, too.
///
/// ```
/// use onebuf::pipeline::{Pipeline, sink::Memory, source};
/// use onebuf_mpi::{Join, sink, source as from};
///
/// # fn main() -> onebuf::Result<()> {
/// let (hub, world) = (onebuf::discover()?, Join::new().start()?);
/// let slot = |_| hub.buffer::<f32>(1000).build();
/// # let (to, peer) = (0, 0);
/// let mut out = Pipeline::builder(3, slot)
///     .feed(source::Memory::new(vec![1.0; 1000]).times(20), |slot| slot)
///     .sink_overlapped(sink::Mpi::new(&world, to)?.drain(|slot| slot))
///     .build()?;
/// // On the other rank:
/// let mut all = Vec::new();
/// let mut into = Pipeline::builder(3, slot)
///     .source_overlapped(from::Mpi::new(&world, peer)?.feed(|slot| slot))
///     .drain(Memory::new(&mut all), |slot| slot)
///     .build()?;
/// # std::thread::scope(|scope| {
/// #     let sent = scope.spawn(|| out.run());
/// #     assert_eq!(into.run().unwrap().frames, 20);
/// #     sent.join().unwrap().unwrap();
/// # });
/// # drop(into);
/// # assert_eq!(all.len(), 20_000);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mpi(End);

impl Mpi {
    /// Sends to a rank, as stream 0 without checksums.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf::Error::InvalidArgument) for a rank that does not exist.
    pub fn new(world: &World, to: usize) -> Result<Self> {
        End::new(world, to, "the sink of stream").map(Self)
    }

    /// Sets the number of the stream, which the receiver must have, too. Several streams between two ranks need different
    /// numbers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf::Error::InvalidArgument) for a number above [`MOST_STREAM`](crate::MOST_STREAM).
    pub fn stream(mut self, stream: u32) -> Result<Self> {
        self.0.set_stream(stream)?;
        Ok(self)
    }

    /// Sends a checksum with each frame, which the receiver compares. Both ends must choose the same.
    pub fn checksum(mut self, checksum: bool) -> Self {
        self.0.checksum = checksum;
        self
    }

    /// Sets how long the receiver may be silent while frames wait: the world's timeout by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Returns a meter that reads the counters while a pipeline owns the sink.
    pub fn meter(&self) -> MpiMeter {
        MpiMeter(self.0.counters.clone())
    }

    /// Selects which buffer of a slot is sent: the sink of a pipeline, for
    /// [`Builder::sink_overlapped`](onebuf::pipeline::Builder::sink_overlapped).
    pub fn drain<S, T: Pod, F: Fn(&S) -> &Buffer<T>>(self, buffer: F) -> MpiDrain<T, F> {
        MpiDrain { end: self.0, buffer, memory: HostMemory::default() }
    }
}

/// An [`Mpi`] sink, and the buffer that it sends.
#[derive(Debug)]
pub struct MpiDrain<T: Pod, F> {
    end: End,
    buffer: F,
    memory: HostMemory<T>,
}

impl<S, T: Pod, F: Fn(&S) -> &Buffer<T>> Overlapped<S> for MpiDrain<T, F> {
    fn open<'r>(&'r mut self, slots: &'r [S], waker: &Waker) -> Result<Box<dyn Flight + 'r>> {
        let buffers: Vec<&Buffer<T>> = slots.iter().map(&self.buffer).collect();
        let (spec, claimed) = self.end.open(&buffers)?;
        let slots = self.memory.open(buffers, false)?;
        let actor = Arc::new(StreamSender::new(spec, slots.slots()));
        actor.board.set_waker(waker);
        let posted = self.end.world.link().post(actor.clone());
        let (world, counters) = (self.end.world.clone(), &*self.end.counters);
        Ok(Box::new(SinkFlight {
            slots,
            held: VecDeque::new(),
            actor,
            posted,
            world,
            counters,
            _claimed: claimed,
        }))
    }

    fn explain(&self, slot: &S) -> Option<String> {
        let how = HostMemory::explain((self.buffer)(slot), false);
        Some(format!("{how}, and sends it to rank {}", self.end.peer))
    }
}

struct SinkFlight<'r, T: Pod> {
    slots: HostSlots<'r, T>,
    /// The guards of frames that are not reported as sent, in their order.
    held: VecDeque<Map<'r, T>>,
    actor: Arc<StreamSender>,
    posted: Posted,
    world: World,
    counters: &'r Counters,
    _claimed: Claimed,
}

impl<T: Pod> Flight for SinkFlight<'_, T> {
    fn begin(&mut self, slot: usize, frame: u64) -> Result<()> {
        let map = self.slots.read(slot)?;
        let bytes: &[u8] = bytemuck::cast_slice(&map);
        let checksum = if self.actor.spec.checksum { checksum(bytes) } else { 0 };
        let outgoing = Outgoing { slot, at: Address::of(bytes), number: frame, checksum };
        self.held.push_back(map);
        // SAFETY: the guard is held until the frame was sent, or forever.
        unsafe { self.actor.send(outgoing) };
        self.posted.wake();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Filled>> {
        if !self.world.watch(self.actor.poll())? {
            return Ok(None);
        }
        self.held.pop_front();
        self.counters.add(self.actor.spec.bytes, 0);
        Ok(Some(Filled::Frame))
    }

    fn end(&mut self, _stopped: bool) -> Result<()> {
        self.actor.end(true);
        let spec = &self.actor.spec;
        finish(&self.actor.board, &self.posted, &self.world, spec.timeout, || spec.late_end())
    }
}

impl<T: Pod> Drop for SinkFlight<'_, T> {
    fn drop(&mut self) {
        self.actor.end(false);
        if !settle(&self.actor.board, &self.posted, &self.world) {
            tracing::warn!(
                "frames to rank {} are still on their way: their memory is kept",
                self.actor.spec.peer
            );
            mem::forget(mem::take(&mut self.held));
        }
    }
}
