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
mod joining;
mod stream;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod window;

pub use counts::{UdpCounts, UdpMeter};

use super::Source;
use crate::{
    Error, Result,
    pipeline::{
        Filled,
        net::{
            failed,
            mmsg::receive_whole,
            packet::{Header, Kind},
            resolve, socket,
        },
    },
};
use bytemuck::Pod;
use counts::{Counters, add};
use joining::Joining;
use std::{
    fmt,
    io::{ErrorKind, IoSliceMut},
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use stream::{How, SLICE, Stream, is_silence};

/// Room for packets that wait: a hundredth of a second at 25 Gbit/s.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Longer than any packet, and than any that come together.
const LONGEST_MESSAGE: usize = 1 << 16;

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
/// The first stream that sends frames of the right size is the one that is received, until its end; then the next one is. A frame that lacks a
/// packet is counted and never taken for a whole one: as a [`Source`] this says [`Filled::Incomplete`]. Who wants such frames too asks
/// [`Udp::receive`], and is told what is missing.
///
/// ```
/// use onebuf::pipeline::{Filled, sink::{self, Sink}, source::{Source, Udp}};
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
    stream: Option<Box<Stream>>,
    /// The stream that ended last: what still comes of it is late.
    over: Option<u32>,
    /// For how long nothing of use has come.
    quiet: Duration,
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
            stream: None,
            over: None,
            quiet: Duration::ZERO,
            counters: Arc::new(counters),
            misfit: None,
        })
    }

    /// Only this stream, and not the first that comes.
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
        let arrival = self.listen(frame, silence_holes)?;
        if !matches!(arrival, Arrival::Whole { .. }) {
            self.note_drops();
        }
        if arrival == Arrival::End {
            self.leave();
        }
        let useful = self.counters.packets.load(Ordering::Relaxed) > before;
        match arrival {
            Arrival::Silence if !useful => self.quiet += start.elapsed(),
            _ => self.quiet = Duration::ZERO,
        }
        if self.quiet >= self.timeout { Err(self.too_quiet()) } else { Ok(arrival) }
    }

    fn listen(&mut self, frame: &mut [u8], silence_holes: bool) -> Result<Arrival> {
        if self.stream.is_none() && !self.join(frame.len())? {
            return Ok(Arrival::Silence);
        }
        let Some(stream) = &mut self.stream else { return Ok(Arrival::Silence) };
        if stream.frame_bytes() != frame.len() {
            let (want, have) = (frame.len(), stream.frame_bytes());
            let what = format!("a frame of {want} bytes in a stream of frames of {have}");
            return Err(Error::invalid(what));
        }
        let how = How { socket: &self.socket, counters: &self.counters, silence_holes };
        stream.fill(frame, &how).map_err(failed("recvmmsg"))
    }

    /// Waits a while for the first packet of a stream.
    fn join(&mut self, frame_bytes: usize) -> Result<bool> {
        let (start, mut memory) = (Instant::now(), vec![0; LONGEST_MESSAGE]);
        while start.elapsed() < SLICE {
            let fd = self.socket.as_fd();
            let came = match receive_whole(fd, &mut [IoSliceMut::new(&mut memory)]) {
                Ok(came) => came,
                Err(error) if is_silence(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed("recvmsg")(error)),
            };
            // One without a byte is a packet too, and none of ours.
            let packets: Vec<&[u8]> = match came.bytes {
                0 => vec![&[]],
                bytes => memory[..bytes].chunks(came.each).collect(),
            };
            if self.begin(&packets, frame_bytes) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Begins a stream with the first of these packets that is one to begin with.
    fn begin(&mut self, packets: &[&[u8]], frame_bytes: usize) -> bool {
        let mut all = packets.iter().enumerate();
        let found = all.find_map(|(at, packet)| Some((at, self.judge(packet, frame_bytes)?)));
        let Some((at, (header, part))) = found else { return false };
        let mut stream = Stream::begin(&header, part, self.window, self.joining);
        stream.keep(packets[at..].iter().copied(), &self.counters);
        self.stream = Some(Box::new(stream));
        true
    }

    /// The stream is over.
    fn leave(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        self.over = Some(stream.id);
        self.joining = stream.joining().again(&self.socket);
    }

    /// Whether a packet is one to begin with.
    fn judge(&mut self, packet: &[u8], frame_bytes: usize) -> Option<(Header, u32)> {
        let header = packet
            .split_first_chunk()
            .and_then(|(head, payload)| Header::decode(head, payload.len()));
        let counters = &self.counters;
        let Some(header) = header else {
            add(&counters.malformed_packets, 1);
            return None;
        };
        match header.kind {
            _ if self.wanted.is_some_and(|wanted| wanted != header.stream) => {
                add(&counters.stray_packets, 1);
            }
            _ if self.over == Some(header.stream) => add(&counters.late_packets, 1),
            Kind::Part(part) if header.cut.frame_bytes() == frame_bytes => {
                return Some((header, part));
            }
            _ => {
                self.misfit = Some(header.cut.frame_bytes());
                add(&counters.malformed_packets, 1);
            }
        }
        None
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

impl<T: Pod> Source<T> for Udp {
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
