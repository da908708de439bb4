//! A sink that sends frames as UDP packets.

mod faults;
mod pace;
mod sent;

pub use faults::Faults;
pub use sent::{UdpSent, UdpSentMeter};

use super::Sink;
use crate::net::{
    failed,
    mmsg::{self, BATCH},
    packet::{Cut, HEADER, Header, Kind, MOST},
    resolve, socket,
};
use bytemuck::Pod;
use faults::Order;
use onebuf_hal::{Error, Result};
use pace::Pace;
use sent::{SendCounters, add};
use std::{
    io::{self, ErrorKind, IoSlice},
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

/// The longest wait for the network's send queue.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The default limit of the payload: it fits jumbo frames.
const USUAL_MOST: usize = 8192;

/// The longest message of several packets.
const LONGEST: usize = 65_507;

/// How many times the end of the stream is sent, because packets may be lost.
const FAREWELLS: usize = 3;

/// Sends frames to a [`source::Udp`](super::super::source::Udp), directly from their memory.
///
/// Each frame is split into packets. Dropping the sink, or calling [`Udp::finish`], announces the end of the stream.
#[derive(Debug)]
pub struct Udp {
    socket: UdpSocket,
    stream: u32,
    payload: usize,
    pace: Pace,
    faults: Faults,
    order: Order,
    cut: Option<Cut>,
    /// How many packets go to the kernel as one message that it splits itself.
    together: usize,
    sent: Arc<SendCounters>,
}

impl Udp {
    /// Sends to an address, without a rate limit, in packets that fit the path MTU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the address is invalid, [`Error::Driver`] from the kernel.
    pub fn connect(to: impl ToSocketAddrs) -> Result<Self> {
        let to = resolve(to)?;
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).map_err(failed("bind"))?;
        socket.connect(to).map_err(failed("connect"))?;
        socket.set_write_timeout(Some(TIMEOUT)).map_err(failed("setsockopt"))?;
        Ok(Self {
            stream: some_number(),
            payload: usual_payload(&socket, to),
            socket,
            pace: Pace::default(),
            faults: Faults::default(),
            order: Order::default(),
            cut: None,
            together: 1,
            sent: Arc::default(),
        })
    }

    /// Sets the stream's number. The default is random.
    pub fn stream(mut self, stream: u32) -> Self {
        self.stream = stream;
        self
    }

    /// Sets the maximum payload of a packet. The default is what fits the path MTU, at most 8192 bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is zero or more than a UDP packet can carry.
    pub fn payload(mut self, bytes: usize) -> Result<Self> {
        if !(1..=MOST).contains(&bytes) {
            let what = format!("a payload of {bytes} bytes: it must be 1 to {MOST}");
            return Err(Error::invalid(what));
        }
        self.payload = bytes;
        Ok(self)
    }

    /// Limits the rate to this many bytes of frame data per second, evenly paced.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the rate is not a finite number of at least 1.
    pub fn rate(mut self, bytes_per_s: f64) -> Result<Self> {
        self.pace = Pace::new(bytes_per_s).ok_or_else(|| {
            Error::invalid(format!("{bytes_per_s} bytes per second is not a valid rate"))
        })?;
        Ok(self)
    }

    /// Drops, duplicates and reorders packets, to test receivers. Needs the cargo feature `testing`.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(mut self, faults: Faults) -> Self {
        (self.faults, self.order) = (faults, Order::default());
        self
    }

    /// The counters so far.
    pub fn sent(&self) -> UdpSent {
        self.sent.get()
    }

    /// Returns a meter that reads the counters while a pipeline owns the sink.
    pub fn meter(&self) -> UdpSentMeter {
        UdpSentMeter(self.sent.clone())
    }

    /// The number of the next frame.
    fn frame(&self) -> u64 {
        self.sent.frames.load(Ordering::Relaxed)
    }

    /// The payload of a packet in bytes.
    pub fn payload_bytes(&self) -> usize {
        self.payload
    }

    /// Announces the end of the stream. The next frame starts a new stream.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn finish(&mut self) -> Result<()> {
        let Some(cut) = self.cut.take() else { return Ok(()) };
        let end = Header { kind: Kind::End, stream: self.stream, frame: self.frame(), cut };
        let head = end.encode();
        let packets: [_; FAREWELLS] =
            std::array::from_fn(|_| [IoSlice::new(&head), IoSlice::new(&[])]);
        self.send_all(&packets, cut)?;
        self.stream = self.stream.wrapping_add(1);
        Ok(())
    }

    /// How frames of this size are split. All frames of a stream must have the same size.
    fn cut(&mut self, bytes: usize) -> Result<Cut> {
        let what =
            || format!("frames of {bytes} bytes cannot be split into packets of {}", self.payload);
        let cut = Cut::new(bytes, self.payload.min(bytes)).ok_or_else(|| Error::invalid(what()))?;
        match self.cut.replace(cut) {
            None => self.together = together(&self.socket, cut),
            Some(before) if before == cut => {}
            before => {
                self.cut = before;
                let what =
                    format!("a frame of {bytes} bytes in a stream of frames of another size");
                return Err(Error::invalid(what));
            }
        }
        Ok(cut)
    }

    /// Sends all packets, with as many system calls as needed.
    fn send_all(&mut self, mut packets: &[[IoSlice<'_>; 2]], cut: Cut) -> Result<()> {
        let start = Instant::now();
        while !packets.is_empty() {
            let messages = messages(packets, self.together, cut);
            match mmsg::send(self.socket.as_fd(), &messages) {
                Ok(went) => {
                    let went: usize = messages[..went].iter().map(|parts| parts.len() / 2).sum();
                    packets = &packets[went..];
                }
                Err(error) => self.go_on_after(error, packets[0][1].len(), start)?,
            }
        }
        Ok(())
    }

    /// Handles a send error, and returns `Ok` if sending can be retried.
    fn go_on_after(&mut self, error: io::Error, payload: usize, start: Instant) -> Result<()> {
        match (error.kind(), error.raw_os_error()) {
            // The error concerns an earlier packet and is reported once. The receiver may start later.
            (ErrorKind::ConnectionRefused, _) => add(&self.sent.refused, 1),
            (ErrorKind::Interrupted, _) => {}
            // Segmentation offload is unavailable on this path, or IP would have to fragment the packets.
            (_, Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE)) if self.together > 1 => {
                self.together = 1;
                socket::set_cutting(&self.socket, 0);
            }
            (_, Some(libc::EMSGSIZE)) => {
                let what = format!("packets with {payload} bytes do not fit the path MTU");
                return Err(Error::invalid(format!("{what}: choose a smaller payload")));
            }
            // The send queue is full. Some network drivers return this error instead of blocking.
            (_, Some(libc::ENOBUFS)) if start.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            (ErrorKind::WouldBlock, _) => {
                return Err(Error::timeout("the network to take a packet", TIMEOUT));
            }
            _ => return Err(failed("sendmmsg")(error)),
        }
        Ok(())
    }

    fn send(&mut self, frame: &[u8], cut: Cut, packets: &[u32]) -> Result<()> {
        let head = |&packet: &u32| {
            let kind = Kind::Part(packet);
            Header { kind, stream: self.stream, frame: self.frame(), cut }.encode()
        };
        let heads: Vec<[u8; HEADER]> = packets.iter().map(head).collect();
        let parts = packets
            .iter()
            .zip(&heads)
            .map(|(&packet, head)| [IoSlice::new(head), IoSlice::new(&frame[cut.range(packet)])]);
        let parts: Vec<[IoSlice<'_>; 2]> = parts.collect();
        self.send_all(&parts, cut)?;
        add(&self.sent.packets, packets.len() as u64);
        Ok(())
    }
}

impl<T: Pod> Sink<T> for Udp {
    fn take(&mut self, frame: &[T], _number: u64) -> Result<()> {
        let frame: &[u8] = bytemuck::cast_slice(frame);
        let cut = self.cut(frame.len())?;
        let mut order = std::mem::take(&mut self.order);
        let packets = order.of_frame(cut.packets(), &self.faults, &self.sent);
        let at_once = self.pace.packets(cut.stride()).min(BATCH);
        let went = packets.chunks(at_once).try_for_each(|some| {
            self.pace.wait(some.iter().map(|&packet| cut.len(packet)).sum());
            self.send(frame, cut, some)
        });
        self.order = order;
        went?;
        add(&self.sent.frames, 1);
        add(&self.sent.bytes, frame.len() as u64);
        Ok(())
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "the end of the stream could not be sent");
        }
    }
}

/// How many packets go to the kernel as one message (`UDP_SEGMENT`). The kernel splits it late, or never if the receiver is
/// on this machine. One if the kernel does not support it.
fn together(socket: &UdpSocket, cut: Cut) -> usize {
    let packet = HEADER + cut.stride();
    let most = (LONGEST / packet).min(BATCH);
    // An earlier stream may have set another size.
    let cuts = socket::set_cutting(socket, if most > 1 { packet } else { 0 });
    if cuts { most.max(1) } else { 1 }
}

/// Groups packets into messages. Within a message all packets but the last have the full size.
fn messages<'p>(
    mut packets: &'p [[IoSlice<'p>; 2]],
    together: usize,
    cut: Cut,
) -> Vec<&'p [IoSlice<'p>]> {
    let mut messages = Vec::with_capacity(packets.len());
    while !packets.is_empty() {
        let most = together.min(packets.len());
        let short = packets[..most].iter().position(|[_, part]| part.len() < cut.stride());
        let (message, rest) = packets.split_at(short.map_or(most, |short| short + 1));
        messages.push(message.as_flattened());
        packets = rest;
    }
    messages
}

/// The largest payload that fits the path MTU, in whole cache lines.
fn usual_payload(socket: &UdpSocket, to: SocketAddr) -> usize {
    let heads = HEADER + if to.is_ipv4() { 28 } else { 48 };
    let mtu = socket::path_mtu(socket).unwrap_or(1280).max(576);
    ((mtu - heads) / 64 * 64).min(USUAL_MOST)
}

/// A number that another sender is unlikely to use.
fn some_number() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos() as u64);
    let mixed = (now ^ u64::from(std::process::id()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
