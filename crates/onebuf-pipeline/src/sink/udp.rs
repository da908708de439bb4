//! Frames that are sent in packets, over UDP.

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
use sent::{Counters, add};
use std::{
    io::{self, ErrorKind, IoSlice},
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

/// No wait for the network's queue is longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A payload at most, unless said otherwise: what jumbo frames have room for.
const USUAL_MOST: usize = 8192;

/// The longest message of several packets.
const LONGEST: usize = 65_507;

/// How often the end is said, since that can be lost too.
const FAREWELLS: usize = 3;

/// Sends frames to a [`source::Udp`](super::super::source::Udp), straight out of their memory.
///
/// Each frame is cut into packets; dropping the sink, or [`Udp::finish`], says that there are no more.
#[derive(Debug)]
pub struct Udp {
    socket: UdpSocket,
    stream: u32,
    payload: usize,
    pace: Pace,
    faults: Faults,
    order: Order,
    cut: Option<Cut>,
    /// How many packets the kernel takes at once, to cut them apart itself.
    together: usize,
    sent: Arc<Counters>,
}

impl Udp {
    /// Sends to an address, as fast as it goes, in packets that fit the way there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no address, [`Error::Driver`] from the kernel.
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

    /// The stream's number; some number otherwise.
    pub fn stream(mut self, stream: u32) -> Self {
        self.stream = stream;
        self
    }

    /// How many bytes of a frame a packet carries at most. Otherwise as many as fit the way there, and no more than 8192.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for none, or more than a packet can have.
    pub fn payload(mut self, bytes: usize) -> Result<Self> {
        if !(1..=MOST).contains(&bytes) {
            let what = format!("a payload of {bytes} bytes: from 1 to {MOST} fit");
            return Err(Error::invalid(what));
        }
        self.payload = bytes;
        Ok(self)
    }

    /// So many bytes of frames per second and no more, evenly.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no rate.
    pub fn rate(mut self, bytes_per_s: f64) -> Result<Self> {
        self.pace = Pace::new(bytes_per_s)
            .ok_or_else(|| Error::invalid(format!("a rate of {bytes_per_s} bytes per second")))?;
        Ok(self)
    }

    /// Loses, doubles and reorders packets, for trying what a receiver makes of it. Needs the cargo feature `testing`.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(mut self, faults: Faults) -> Self {
        (self.faults, self.order) = (faults, Order::default());
        self
    }

    /// What has been sent.
    pub fn sent(&self) -> UdpSent {
        self.sent.get()
    }

    /// For whoever wants to see what has been sent, while a pipeline has the sink.
    pub fn meter(&self) -> UdpSentMeter {
        UdpSentMeter(self.sent.clone())
    }

    /// The number of the frame that is sent next.
    fn frame(&self) -> u64 {
        self.sent.frames.load(Ordering::Relaxed)
    }

    /// How many bytes of a frame a packet carries.
    pub fn payload_bytes(&self) -> usize {
        self.payload
    }

    /// Says that there are no more frames. The next frame begins a new stream.
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

    /// How frames of this size are cut: all of a stream alike.
    fn cut(&mut self, bytes: usize) -> Result<Cut> {
        let what = || format!("frames of {bytes} bytes in packets of {}", self.payload);
        let cut = Cut::new(bytes, self.payload.min(bytes)).ok_or_else(|| Error::invalid(what()))?;
        match self.cut.replace(cut) {
            None => self.together = together(&self.socket, cut),
            Some(before) if before == cut => {}
            before => {
                self.cut = before;
                let what = format!("a frame of {bytes} bytes in a stream of others");
                return Err(Error::invalid(what));
            }
        }
        Ok(cut)
    }

    /// Sends all, however many calls that takes.
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

    /// Whether it can be tried again.
    fn go_on_after(&mut self, error: io::Error, payload: usize, start: Instant) -> Result<()> {
        match (error.kind(), error.raw_os_error()) {
            // It is about an earlier packet, and told once. Whoever shall listen may come later.
            (ErrorKind::ConnectionRefused, _) => add(&self.sent.refused, 1),
            (ErrorKind::Interrupted, _) => {}
            // Not on this way, or packets are to be cut by IP.
            (_, Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE)) if self.together > 1 => {
                self.together = 1;
                socket::set_cutting(&self.socket, 0);
            }
            (_, Some(libc::EMSGSIZE)) => {
                let what = format!("packets with {payload} bytes do not fit the way");
                return Err(Error::invalid(format!("{what}: take a smaller payload")));
            }
            // The queue is full: not all network cards let a sender wait for that.
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
            tracing::warn!(%error, "the receiver was not told of the end");
        }
    }
}

/// How many packets the kernel takes at once, to cut them apart late, or never if the receiver is on this machine
/// (`UDP_SEGMENT`): one where it cannot.
fn together(socket: &UdpSocket, cut: Cut) -> usize {
    let packet = HEADER + cut.stride();
    let most = (LONGEST / packet).min(BATCH);
    // What was said for an earlier stream has to go.
    let cuts = socket::set_cutting(socket, if most > 1 { packet } else { 0 });
    if cuts { most.max(1) } else { 1 }
}

/// Messages of so many packets: all but a message's last are as long as can be.
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

/// What fits the way without being cut again, in whole cache lines.
fn usual_payload(socket: &UdpSocket, to: SocketAddr) -> usize {
    let heads = HEADER + if to.is_ipv4() { 28 } else { 48 };
    let mtu = socket::path_mtu(socket).unwrap_or(1280).max(576);
    ((mtu - heads) / 64 * 64).min(USUAL_MOST)
}

/// A number that another sender hardly has.
fn some_number() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos() as u64);
    let mixed = (now ^ u64::from(std::process::id()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
