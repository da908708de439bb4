//! A source that receives frames as UDP packets.
//!
//! ```text
//!   recvmmsg ─► header ──► check: valid? this stream? which frame, which packet?
//!            └► payload ─► at its expected position in the slot ──► complete? to the stages
//!                             └ arrived elsewhere: moved once, counted
//! ```
//!
//! Several sockets at one address divide a frame's packets: each receives one range of them, on a thread of its own.
//! [`stream`] has the rounds of these threads, [`share`] what one of them does, [`round`] what they share.
//!
//! Packets are received directly into the slot's memory, at the positions they have if none is lost or reordered. Then no
//! payload is copied. A packet that arrived at another position is moved to its own.

mod batch;
mod counts;
mod door;
mod joining;
#[cfg(all(test, not(onebuf_shuttle)))]
mod ports_tests;
mod round;
mod share;
#[cfg(all(test, not(onebuf_shuttle)))]
mod sockets_tests;
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
    net::{
        cpu,
        crew::Crew,
        failed,
        packet::{MOST_PORTS, StreamId},
        resolve, reuse,
        socket::{self, Bell},
    },
};
use bytemuck::Pod;
use counts::{ReceiveCounters, add};
use joining::Joining;
use onebuf_hal::{Error, Result};
use share::SLICE;
use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::fd::AsFd,
    sync::{Arc, Once, atomic::Ordering},
    time::{Duration, Instant},
};
use stream::{Call, Stream, WORTH_A_SOCKET};

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
/// Only one stream is received at a time: one stream number from one sender, with frames of the right size. The sender is an
/// address and a port, or the consecutive ports that its packets declare ([`sink::Udp::threads`](super::super::sink::Udp::threads)). The
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
    lines: Vec<Line>,
    /// The threads of several sockets.
    crew: Option<Crew>,
    options: SocketOptions,
    wanted: Option<u32>,
    window: usize,
    timeout: Duration,
    takeover_after: Duration,
    stream: Option<Box<Stream>>,
    /// The stream that takes over once all frames of the old one have been returned.
    successor: Option<Box<Stream>>,
    /// The stream that ended last. Its packets still in flight are counted as late.
    over: Option<StreamId>,
    /// How long no useful packet has arrived, since the last timeout.
    quiet: Duration,
    /// How long the receiver has listened since the last useful packet. Time in which the program did not call the receiver
    /// does not count, because the stream's packets wait in the socket meanwhile.
    idle: Duration,
    /// What no socket counts.
    counters: Arc<ReceiveCounters>,
    /// The frame size of a stream that was refused because it does not match.
    misfit: Option<usize>,
}

/// One socket.
struct Line {
    socket: UdpSocket,
    counters: Arc<ReceiveCounters>,
    kernel_drops: u32,
    /// Whether the kernel joins packets, while no stream uses the socket.
    joining: Joining,
    /// Wakes the socket's thread.
    bell: Bell,
    /// How long its thread looks for packets before it sleeps.
    busy_poll: Duration,
}

/// What was asked for, for all sockets.
#[derive(Clone, Default)]
struct SocketOptions {
    /// The socket was given, so that others cannot be bound to its address.
    is_given: bool,
    receive_buffer: Option<usize>,
    busy_poll: Option<Duration>,
    /// The processors of the threads, and whether the caller's thread is on the first.
    cpus: Arc<[usize]>,
    is_pinned: bool,
}

impl Line {
    fn new(socket: UdpSocket, options: &SocketOptions) -> Result<Self> {
        socket.set_nonblocking(false).map_err(failed("fcntl"))?;
        socket.set_read_timeout(Some(SLICE)).map_err(failed("setsockopt"))?;
        let mut line = Self {
            kernel_drops: socket::drops(&socket).unwrap_or(0),
            joining: Joining::ask(&socket, true),
            counters: Arc::default(),
            bell: Bell::new().map_err(failed("eventfd"))?,
            busy_poll: Duration::ZERO,
            socket,
        };
        line.set(options);
        Ok(line)
    }

    /// Waits until a packet arrives or the bell rings; false if neither happens in time.
    fn wait(&self, most: Duration) -> io::Result<bool> {
        let ready = socket::wait_for_any(&[self.socket.as_fd(), self.bell.as_fd()], most)?;
        if ready.contains(&1) {
            self.bell.reset();
        }
        Ok(!ready.is_empty())
    }

    /// Applies the options that the kernel may limit.
    fn set(&mut self, options: &SocketOptions) {
        if let Some(bytes) = options.receive_buffer {
            socket::set_receive_buffer(&self.socket, bytes);
        }
        let room = socket::receive_buffer(&self.socket) as u64;
        self.counters.receive_buffer_bytes.store(room, Ordering::Relaxed);
        self.busy_poll = options.busy_poll.unwrap_or_default();
        if let Some(time) = options.busy_poll
            && !socket::set_busy_poll(&self.socket, time)
        {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!(target: "onebuf::pipeline", "SO_BUSY_POLL was refused: it needs CAP_NET_ADMIN");
            });
        }
    }

    /// Adds the packets that the kernel dropped. Its counter has 32 bits and starts when the socket is created.
    fn note_drops(&mut self) {
        if let Some(drops) = socket::drops(&self.socket) {
            add(&self.counters.kernel_drops, drops.wrapping_sub(self.kernel_drops).into());
            self.kernel_drops = drops;
        }
    }
}

impl Udp {
    /// Binds to an address, such as `0.0.0.0:5000`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the address is invalid, [`Error::Driver`] if it cannot be bound.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self> {
        let socket = UdpSocket::bind(resolve(address)?).map_err(failed("bind"))?;
        let receive_buffer = Some(RECEIVE_BUFFER);
        Self::with(socket, SocketOptions { receive_buffer, ..SocketOptions::default() })
    }

    /// Receives on an existing socket, with its present receive buffer.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn over(socket: UdpSocket) -> Result<Self> {
        Self::with(socket, SocketOptions { is_given: true, ..SocketOptions::default() })
    }

    fn with(socket: UdpSocket, options: SocketOptions) -> Result<Self> {
        Ok(Self {
            lines: vec![Line::new(socket, &options)?],
            crew: None,
            options,
            wanted: None,
            window: 2,
            timeout: Duration::from_secs(10),
            takeover_after: TAKEOVER_AFTER,
            stream: None,
            successor: None,
            over: None,
            quiet: Duration::ZERO,
            idle: Duration::ZERO,
            counters: Arc::default(),
            misfit: None,
        })
    }

    /// Receives on this many sockets at the same address, 1 to 64; one by default. Each receives one range of a frame's
    /// packets, on a thread of its own; the first thread is the caller's. Frames of fewer than 32 packets for each socket
    /// are received by the first one alone. For more than one thread can receive; the sender should send from as many ports
    /// ([`sink::Udp::threads`](super::super::sink::Udp::threads)), so that the network card uses several queues.
    ///
    /// Call it before [`Udp::meter`] and before the first frame. Sockets of the same user can be bound to the same address
    /// meanwhile (`SO_REUSEPORT`), and would then get a part of the packets.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number, or for a socket that was given ([`Udp::over`]); [`Error::Driver`] from
    /// the kernel.
    pub fn sockets(mut self, sockets: usize) -> Result<Self> {
        if !(1..=MOST_PORTS).contains(&sockets) {
            let what = format!("{sockets} sockets: the number must be 1 to {MOST_PORTS}");
            return Err(Error::invalid(what));
        }
        if sockets == self.lines.len() {
            return Ok(self);
        }
        if self.options.is_given {
            return Err(Error::invalid("several sockets need an address, not a socket"));
        }
        let address = self.address()?;
        // Closes the socket that has the address for itself. It has made sure that no other process listens there.
        self.lines.clear();
        let bound = match sockets {
            1 => UdpSocket::bind(address).map(|socket| vec![socket]),
            many => reuse::bind(address, many),
        };
        let bound = bound.map_err(failed("bind"))?;
        let lines = bound.into_iter().map(|socket| Line::new(socket, &self.options));
        self.lines = lines.collect::<Result<_>>()?;
        if sockets > 1 {
            reuse::steer(&self.lines[0].socket, sockets as u32, WORTH_A_SOCKET)
                .map_err(failed("setsockopt"))?;
        }
        (self.crew, self.stream, self.successor) = (None, None, None);
        Ok(self)
    }

    /// Pins the threads to processors: that of the first socket, which is the thread that calls this source, to the first
    /// processor, and so on, beginning again after the last. Without processors no thread is pinned, as by default.
    pub fn cpus(mut self, cpus: impl Into<Vec<usize>>) -> Self {
        self.options.cpus = cpus.into().into();
        (self.options.is_pinned, self.crew) = (false, None);
        self
    }

    /// Lets receive calls poll the network card's queue for this long before they sleep (`SO_BUSY_POLL`), if the kernel
    /// permits: more than `net.core.busy_read` needs `CAP_NET_ADMIN`. A warning says so if it does not. The threads of several
    /// sockets look for packets for as long in any case. It saves the time of an interrupt, and uses a processor for it.
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.options.busy_poll = Some(time);
        self.lines.iter_mut().for_each(|line| line.set(&self.options));
        self
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

    /// Sets the receive buffer of each socket: 32 MiB by default. [`UdpCounts::receive_buffer_bytes`] is what the kernel
    /// granted; `net.core.rmem_max` limits it.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.options.receive_buffer = Some(bytes);
        self.lines.iter_mut().for_each(|line| line.set(&self.options));
        self
    }

    /// The local address.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn address(&self) -> Result<SocketAddr> {
        self.lines[0].socket.local_addr().map_err(failed("getsockname"))
    }

    /// Returns a meter that reads the counters while a pipeline owns the source.
    pub fn meter(&self) -> UdpMeter {
        let sockets = self.lines.iter().map(|line| line.counters.clone()).collect();
        UdpMeter { all: self.counters.clone(), sockets }
    }

    /// The number of the stream to which the last frame belongs that was returned. For programs that receive at several ports.
    #[doc(hidden)]
    pub fn current_stream(&self) -> Option<u32> {
        self.stream.as_ref().map(|stream| stream.id.number)
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
        self.prepare()?;
        let (start, before) = (Instant::now(), self.packets());
        let mut arrival = self.listen(frame, silence_holes)?;
        if arrival == Arrival::End && self.succeed() {
            arrival = self.listen(frame, silence_holes)?;
        }
        if !matches!(arrival, Arrival::Whole { .. }) {
            self.lines.iter_mut().for_each(Line::note_drops);
        }
        let useful = self.packets() > before;
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

    /// Starts the threads of several sockets, and pins the caller's.
    fn prepare(&mut self) -> Result<()> {
        let SocketOptions { cpus, is_pinned, .. } = &mut self.options;
        let pin = |cpus: &[usize], number: usize| match cpus.get(number % cpus.len().max(1)) {
            Some(&cpu) => cpu::pin(cpu).map_err(failed("sched_setaffinity")),
            None => Ok(()),
        };
        if !*is_pinned {
            pin(cpus, 0)?;
            *is_pinned = true;
        }
        if self.lines.len() > 1 && self.crew.is_none() {
            let cpus = cpus.clone();
            let begin = move |number| {
                if let Err(error) = pin(&cpus, number) {
                    tracing::warn!(target: "onebuf::pipeline", %error, "a thread was not pinned");
                }
            };
            self.crew = Some(Crew::new(self.lines.len(), "onebuf-udp", begin)?);
        }
        Ok(())
    }

    /// Useful packets of all sockets.
    fn packets(&self) -> u64 {
        let packets = |line: &Line| line.counters.packets.load(Ordering::Relaxed);
        self.lines.iter().map(packets).sum()
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
        let Self { stream, lines, crew, counters, .. } = self;
        let Some(stream) = stream else { return Ok(Arrival::Silence) };
        let mut call = Call { lines, crew, counters, silence_holes };
        let arrival = match silent {
            true => Ok(stream.fill_in_silence(frame, &mut call)),
            false => stream.fill(frame, &mut call),
        };
        arrival.map_err(failed("recvmmsg"))
    }

    fn too_quiet(&mut self) -> Error {
        self.quiet = Duration::ZERO;
        let counts = self.meter().counts();
        let what = match (&self.stream, self.misfit) {
            (Some(stream), _) => format!("the next packet of stream {}", stream.id.number),
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
            .field("sockets", &self.lines.iter().map(|line| &line.socket).collect::<Vec<_>>())
            .field("counts", &self.meter().counts())
            .finish_non_exhaustive()
    }
}
