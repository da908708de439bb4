//! Frames that come in packets, over UDP.
//!
//! ```text
//!   recvmmsg ─► head ──► check: ours? fits? which frame, which part?
//!            └► payload ─► where it is expected: in the slot itself ──► whole? to the stages
//!                             └ came elsewhere: moved once, counted
//! ```
//!
//! Packets are received straight into the slot's memory, at the places they will have if none is lost and none overtakes another:
//! then nothing is copied. When that was wrong, they are moved to where they belong.

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
use counts::{Counters, add};
use joining::Joining;
use onebuf_hal::{Error, Result};
use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use stream::{How, SLICE, Stream};

/// Room for packets that wait: a hundredth of a second at 25 Gbit/s.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Longer than any packet, and than any that come together.
const LONGEST_MESSAGE: usize = 1 << 16;

/// How long a stream is quiet before another takes over, unless said otherwise.
const TAKEOVER_AFTER: Duration = Duration::from_secs(1);

/// What came of waiting for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// All of it.
    Whole {
        /// Its number in the stream.
        frame: u64,
    },
    /// A part of it: what is missing is zero.
    Holes {
        /// Its number in the stream.
        frame: u64,
        /// How many packets never came.
        missing: u32,
    },
    /// Nothing for a while, or not yet all of it. Ask again.
    Silence,
    /// The sender has said that there are no more.
    End,
}

/// Frames that come over UDP, in the packets of [`sink::Udp`](super::super::sink::Udp) and `onebuf send`.
///
/// One stream is received at a time: a stream number, sent from one address and port, with frames of the right size. The first that comes is
/// received until its end. One that goes quiet without an end, because its sender crashed, is replaced by the next stream that sends
/// ([`Udp::takeover_after`]). Packets of other streams are counted meanwhile, and no frame is made of the packets of two.
///
/// A frame that lacks a packet is counted and never taken for a whole one: as a [`FrameSource`] this says [`Filled::Incomplete`]. Programs that want
/// such frames too call [`Udp::receive`], which says what is missing.
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
    /// The stream that takes over, while frames of the old one remain to be told.
    successor: Option<Box<Stream>>,
    /// The stream that ended last: for a while, what still comes of it is late.
    over: Option<(u32, Origin)>,
    /// For how long nothing of use has come, since the last timeout.
    quiet: Duration,
    /// For how long the receiver has listened since anything of use came. Time in which the program did not listen does not
    /// count: the owner's packets wait in the socket then.
    idle: Duration,
    counters: Arc<Counters>,
    kernel_drops: u32,
    /// The size of frames that were too large or too small.
    misfit: Option<usize>,
    joining: Joining,
}

impl Udp {
    /// Listens at an address, such as `0.0.0.0:5000`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no address, [`Error::Driver`] for one that cannot be had.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self> {
        let socket = UdpSocket::bind(resolve(address)?).map_err(failed("bind"))?;
        socket::set_receive_buffer(&socket, RECEIVE_BUFFER);
        Self::over(socket)
    }

    /// Listens by a socket that there is, with the room that it has.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn over(socket: UdpSocket) -> Result<Self> {
        socket.set_nonblocking(false).map_err(failed("fcntl"))?;
        socket.set_read_timeout(Some(SLICE)).map_err(failed("setsockopt"))?;
        let counters = Counters::default();
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

    /// Only streams of this number, and not the first that comes.
    pub fn stream(self, stream: u32) -> Self {
        Self { wanted: Some(stream), ..self }
    }

    /// How many frames may be open at a time: two unless said otherwise, and at least one. A packet of the one after them ends the oldest.
    pub fn window(self, frames: usize) -> Self {
        Self { window: frames.clamp(1, 1 << 10), ..self }
    }

    /// For how long nothing of use may come before that is an error: ten seconds unless said otherwise.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long nothing of use may come from a stream's sender before another stream takes over: a second unless said otherwise. Choose it
    /// longer than the pauses of a sender that shares the port with others; [`Duration::MAX`] lets only a stream's end make room.
    ///
    /// The time is that of listening, in steps of 50 ms. A stream of which only one packet has come is replaced after 50 ms, since one
    /// packet may be a stray. A stream that takes over is counted ([`UdpCounts::takeovers`]), and its frames have its own numbers; what had
    /// come of the old stream's last frames is told first, as [`Arrival::Holes`] or whole. The same goes for a sender that begins again
    /// from the same port with the same stream number.
    pub fn takeover_after(self, quiet: Duration) -> Self {
        Self { takeover_after: quiet, ..self }
    }

    /// Asks for other room for packets that wait: 32 MiB unless said otherwise. [`UdpCounts::receive_buffer_bytes`] is what the kernel gave,
    /// which has a limit (`net.core.rmem_max`).
    pub fn receive_buffer(self, bytes: usize) -> Self {
        let room = socket::set_receive_buffer(&self.socket, bytes) as u64;
        self.counters.receive_buffer_bytes.store(room, Ordering::Relaxed);
        self
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(failed("getsockname"))
    }

    /// For whoever wants to see what has come, while a pipeline has the source.
    pub fn meter(&self) -> UdpMeter {
        UdpMeter(self.counters.clone())
    }

    /// Waits a while for the next frame, and says what came. What is missing of a frame is zero.
    ///
    /// # Errors
    /// [`Error::Timeout`] when nothing of use has come for too long, [`Error::InvalidArgument`] for frames of another size than before,
    /// [`Error::Driver`] from the kernel.
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
        // A call that was longer did not run for a while, rather than listen.
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
            let what = format!("a frame of {want} bytes in a stream of frames of {have}");
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

    /// The kernel counts since the socket was made, in 32 bits.
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
                format!("a stream: those that came have frames of {bytes} bytes")
            }
            (None, None) => "a stream".to_owned(),
        };
        let UdpCounts { late_packets, stray_packets, malformed_packets, .. } = counts;
        let others = format!(
            "{stray_packets} of other streams, {late_packets} late, {malformed_packets} malformed"
        );
        Error::timeout(format!("{what} (packets otherwise: {others})"), self.timeout)
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
