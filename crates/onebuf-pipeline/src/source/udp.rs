//! A source that receives frames as UDP packets.
//!
//! ```text
//!   recvmmsg ─► header ──► check: valid? this stream? which frame, which packet?
//!            └► payload ─► at its expected position in the slot ──► complete? to the stages
//!                             └ arrived elsewhere: moved once, counted
//! ```
//!
//! Packets are received directly into the slot's memory, at the positions they have if none is lost or reordered. Then no
//! payload is copied. A packet that arrived at another position is moved to its own.

mod batch;
mod counts;
mod door;
mod joining;
mod stream;
#[cfg(all(test, not(onebuf_shuttle)))]
mod takeover_tests;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod window;

pub use counts::{UdpCounts, UdpMeter};

use super::FrameSource;
use crate::{
    Filled,
    net::{failed, mmsg::Origin, resolve, socket},
};
use bytemuck::Pod;
use counts::{ReceiveCounters, add};
use joining::Joining;
use onebuf_hal::{Error, Result};
use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use stream::{How, SLICE, Stream};

/// The default receive buffer: 10 ms at 25 Gbit/s.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Longer than any packet, and than any message of joined packets.
const LONGEST_MESSAGE: usize = 1 << 16;

/// How long a stream must be quiet before another takes over, by default.
const TAKEOVER_AFTER: Duration = Duration::from_secs(1);

/// The outcome of waiting for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The complete frame.
    Whole {
        /// Its number in the stream.
        frame: u64,
    },
    /// A frame with missing packets. Their bytes are zero.
    Holes {
        /// Its number in the stream.
        frame: u64,
        /// How many packets are missing.
        missing: u32,
    },
    /// Nothing arrived for a while, or the frame is not complete yet. Call again.
    Silence,
    /// The sender announced the end of the stream.
    End,
}

/// Receives frames over UDP, in the packets of [`sink::Udp`](super::super::sink::Udp) and `onebuf send`.
///
/// Only one stream is received at a time: one stream number from one address and port, with frames of the right size. The
/// first stream is received until its end. If it goes quiet without an end, because its sender crashed, the next stream that
/// sends takes over ([`Udp::takeover_after`]). Packets of other streams are counted and ignored. A frame never mixes packets
/// of two streams.
///
/// A frame that lacks a packet is counted and never passed on as complete: as a [`FrameSource`] this returns
/// [`Filled::Incomplete`]. Programs that also want incomplete frames call [`Udp::receive`], which reports what is missing.
///
/// ```
/// use onebuf::pipeline::{Filled, sink::{self, Sink}, source::{FrameSource, Udp}};
///
/// # fn main() -> onebuf::Result<()> {
/// let mut udp = Udp::bind("127.0.0.1:0")?;
/// let meter = udp.meter();
/// let mut sender = sink::Udp::connect(udp.address()?)?;
/// sender.take(&[1.5f32; 1000], 0)?;
/// let mut frame = [0.0f32; 1000];
/// assert_eq!((udp.fill(&mut frame)?, frame), (Filled::Frame, [1.5; 1000]));
/// sender.finish()?;
/// assert_eq!(udp.fill(&mut frame)?, Filled::End);
/// assert_eq!(meter.counts().lost_packets, 0);
/// # Ok(())
/// # }
/// ```
pub struct Udp {
    socket: UdpSocket,
    wanted: Option<u32>,
    window: usize,
    timeout: Duration,
    takeover_after: Duration,
    stream: Option<Box<Stream>>,
    /// The stream that takes over once all frames of the old one have been returned.
    successor: Option<Box<Stream>>,
    /// The stream that ended last. Its packets still in flight are counted as late.
    over: Option<(u32, Origin)>,
    /// How long no useful packet has arrived, since the last timeout.
    quiet: Duration,
    /// How long the receiver has listened since the last useful packet. Time in which the program did not call the receiver
    /// does not count, because the stream's packets wait in the socket meanwhile.
    idle: Duration,
    counters: Arc<ReceiveCounters>,
    kernel_drops: u32,
    /// The frame size of a stream that was refused because it does not match.
    misfit: Option<usize>,
    joining: Joining,
}

impl Udp {
    /// Binds to an address, such as `0.0.0.0:5000`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the address is invalid, [`Error::Driver`] if it cannot be bound.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self> {
        let socket = UdpSocket::bind(resolve(address)?).map_err(failed("bind"))?;
        socket::set_receive_buffer(&socket, RECEIVE_BUFFER);
        Self::over(socket)
    }

    /// Receives on an existing socket, with its present receive buffer.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn over(socket: UdpSocket) -> Result<Self> {
        socket.set_nonblocking(false).map_err(failed("fcntl"))?;
        socket.set_read_timeout(Some(SLICE)).map_err(failed("setsockopt"))?;
        let counters = ReceiveCounters::default();
        let room = socket::receive_buffer(&socket) as u64;
        counters.receive_buffer_bytes.store(room, Ordering::Relaxed);
        Ok(Self {
            kernel_drops: socket::drops(&socket).unwrap_or(0),
            joining: Joining::ask(&socket, true),
            socket,
            wanted: None,
            window: 2,
            timeout: Duration::from_secs(10),
            takeover_after: TAKEOVER_AFTER,
            stream: None,
            successor: None,
            over: None,
            quiet: Duration::ZERO,
            idle: Duration::ZERO,
            counters: Arc::new(counters),
            misfit: None,
        })
    }

    /// Accepts only streams with this number, instead of the first that arrives.
    pub fn stream(self, stream: u32) -> Self {
        Self { wanted: Some(stream), ..self }
    }

    /// Sets how many frames may be open at a time: at least one, by default two. A packet of the frame after them closes the
    /// oldest.
    pub fn window(self, frames: usize) -> Self {
        Self { window: frames.clamp(1, 1 << 10), ..self }
    }

    /// Sets how long no useful packet may arrive before that is an error: ten seconds by default.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets how long a stream may send no useful packet before another stream takes over: one second by default. Choose it
    /// longer than the pauses of a sender that shares the port with others. With [`Duration::MAX`] only the end of a stream
    /// lets another begin.
    ///
    /// Only time spent listening counts, in steps of 50 ms. A stream of which only one packet has arrived is replaced after
    /// 50 ms, because that packet may be a stray. Takeovers are counted ([`UdpCounts::takeovers`]). Frames of the new stream
    /// have its own numbers. The old stream's open frames are returned first, complete or as [`Arrival::Holes`]. The same
    /// applies to a sender that restarts on the same port with the same stream number.
    pub fn takeover_after(self, quiet: Duration) -> Self {
        Self { takeover_after: quiet, ..self }
    }

    /// Sets the socket's receive buffer: 32 MiB by default. [`UdpCounts::receive_buffer_bytes`] is what the kernel granted;
    /// `net.core.rmem_max` limits it.
    pub fn receive_buffer(self, bytes: usize) -> Self {
        let room = socket::set_receive_buffer(&self.socket, bytes) as u64;
        self.counters.receive_buffer_bytes.store(room, Ordering::Relaxed);
        self
    }

    /// The local address.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(failed("getsockname"))
    }

    /// Returns a meter that reads the counters while a pipeline owns the source.
    pub fn meter(&self) -> UdpMeter {
        UdpMeter(self.counters.clone())
    }

    /// Waits for the next frame for a limited time and reports what arrived. Missing bytes of a frame are zero.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no useful packet arrived for too long, [`Error::InvalidArgument`] if the frame size differs from
    /// before, [`Error::Driver`] from the kernel.
    pub fn receive<T: Pod>(&mut self, frame: &mut [T]) -> Result<Arrival> {
        self.next(bytemuck::cast_slice_mut(frame), true)
    }

    fn next(&mut self, frame: &mut [u8], silence_holes: bool) -> Result<Arrival> {
        let (start, before) = (Instant::now(), self.counters.packets.load(Ordering::Relaxed));
        let mut arrival = self.listen(frame, silence_holes)?;
        if arrival == Arrival::End && self.succeed() {
            arrival = self.listen(frame, silence_holes)?;
        }
        if !matches!(arrival, Arrival::Whole { .. }) {
            self.note_drops();
        }
        let useful = self.counters.packets.load(Ordering::Relaxed) > before;
        // If the call took longer, the thread was not running; that time does not count as listening.
        let listened = start.elapsed().min(2 * SLICE);
        self.idle = if useful { Duration::ZERO } else { self.idle.saturating_add(listened) };
        if arrival == Arrival::End {
            self.leave();
            self.idle = Duration::ZERO;
        }
        match arrival {
            Arrival::Silence if !useful => self.quiet += start.elapsed(),
            _ => self.quiet = Duration::ZERO,
        }
        if self.quiet >= self.timeout { Err(self.too_quiet()) } else { Ok(arrival) }
    }

    fn listen(&mut self, frame: &mut [u8], silence_holes: bool) -> Result<Arrival> {
        if let Some(stream) = &self.stream
            && stream.frame_bytes() != frame.len()
        {
            let (want, have) = (frame.len(), stream.frame_bytes());
            let what = format!(
                "a frame of {want} bytes was requested, but the stream's frames have {have}"
            );
            return Err(Error::invalid(what));
        }
        let silent = self.is_open() && !self.admit(frame.len())?;
        let Some(stream) = &mut self.stream else { return Ok(Arrival::Silence) };
        let how = How { socket: &self.socket, counters: &self.counters, silence_holes };
        let arrival = match silent {
            true => stream.fill_in_silence(frame, &how),
            false => stream.fill(frame, &how),
        };
        arrival.map_err(failed("recvmmsg"))
    }

    /// Adds the packets that the kernel dropped. Its counter has 32 bits and starts when the socket is created.
    fn note_drops(&mut self) {
        if let Some(drops) = socket::drops(&self.socket) {
            add(&self.counters.kernel_drops, drops.wrapping_sub(self.kernel_drops).into());
            self.kernel_drops = drops;
        }
    }

    fn too_quiet(&mut self) -> Error {
        self.quiet = Duration::ZERO;
        let counts = self.counters.get();
        let what = match (&self.stream, self.misfit) {
            (Some(stream), _) => format!("the next packet of stream {}", stream.id),
            (None, Some(bytes)) => {
                format!("a stream (one with frames of {bytes} bytes was refused)")
            }
            (None, None) => "a stream".to_owned(),
        };
        let UdpCounts { late_packets, stray_packets, malformed_packets, .. } = counts;
        let others = format!(
            "{stray_packets} of other streams, {late_packets} late, {malformed_packets} malformed"
        );
        Error::timeout(format!("{what} (other packets: {others})"), self.timeout)
    }
}

impl<T: Pod> FrameSource<T> for Udp {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        Ok(match self.next(bytemuck::cast_slice_mut(frame), false)? {
            Arrival::Whole { .. } => Filled::Frame,
            Arrival::Holes { .. } => Filled::Incomplete,
            Arrival::Silence => Filled::Idle,
            Arrival::End => Filled::End,
        })
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Udp")
            .field("socket", &self.socket)
            .field("counts", &self.counters.get())
            .finish_non_exhaustive()
    }
}
