//! A sink that sends frames as UDP packets.
//!
//! ```text
//!   frame ─► lane 0: packets of the first range ─► its socket, its port ─► UDP_SEGMENT, sendmmsg
//!         └► lane 1: packets of the second      ─► its socket, the next port
//! ```

mod faults;
mod lane;
mod pace;
mod sent;

pub use faults::Faults;
pub use sent::{UdpSent, UdpSentMeter};

use super::Sink;
use crate::net::{
    crew::Crew,
    failed,
    packet::{self, Cut, HEADER, Header, Kind, MOST, MOST_PORTS, Ports},
    resolve, socket,
};
use bytemuck::Pod;
use faults::Order;
use lane::{Lane, Sending};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use pace::Pace;
use sent::{SendCounters, add};
use std::{
    io::IoSlice,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    sync::{Arc, atomic::Ordering},
    time::SystemTime,
};

/// The default limit of the payload: it fits jumbo frames.
const USUAL_MOST: usize = 8192;

/// How many times the end of the stream is sent, because packets may be lost.
const FAREWELLS: usize = 3;

/// Sends frames to a [`source::Udp`](super::super::source::Udp), directly from their memory.
///
/// Each frame is split into packets. Dropping the sink, or calling [`Udp::finish`], announces the end of the stream.
#[derive(Debug)]
pub struct Udp {
    to: SocketAddr,
    /// The sockets. Each is locked by its own thread, for a frame.
    lanes: Vec<Mutex<Lane>>,
    crew: Crew,
    ports: Ports,
    stream: u32,
    payload: usize,
    pace: Pace,
    faults: Faults,
    cut: Option<Cut>,
    sent: Arc<SendCounters>,
}

impl Udp {
    /// Sends to an address, without a rate limit, in packets that fit the path MTU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the address is invalid, [`Error::Driver`] from the kernel.
    pub fn connect(to: impl ToSocketAddrs) -> Result<Self> {
        let to = resolve(to)?;
        let lanes = Lane::several(to, 1)?;
        Ok(Self {
            to,
            stream: some_number(),
            payload: usual_payload(&lanes[0].socket, to),
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            crew: Crew::new(1, "onebuf-send", |_| ())?,
            ports: Ports::default(),
            pace: Pace::default(),
            faults: Faults::default(),
            cut: None,
            sent: Arc::default(),
        })
    }

    /// Sends each frame by this many threads, 1 to 64; one by default, the caller's. Each thread has a socket of its own,
    /// and sends one range of the frame's packets from it. Their ports are consecutive, and every packet declares them, so
    /// that the receiver accepts the stream from these ports alone. An address translation that changes ports makes such a
    /// stream invalid.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number, [`Error::Driver`] from the kernel.
    pub fn threads(mut self, threads: usize) -> Result<Self> {
        if !(1..=MOST_PORTS).contains(&threads) {
            let what = format!("{threads} threads: the number must be 1 to {MOST_PORTS}");
            return Err(Error::invalid(what));
        }
        self.finish()?;
        let lanes = Lane::several(self.to, threads)?;
        let first = lanes[0].socket.local_addr().map_err(failed("getsockname"))?.port();
        self.ports = Ports::new(first, threads).unwrap_or_default();
        self.lanes = lanes.into_iter().map(Mutex::new).collect();
        self.crew = Crew::new(threads, "onebuf-send", |_| ())?;
        self.set_lanes();
        Ok(self)
    }

    /// Gives each lane its part of the rate, and its own order of faults.
    fn set_lanes(&mut self) {
        let many = self.lanes.len();
        for (number, lane) in self.lanes.iter().enumerate() {
            let mut lane = lock(lane);
            lane.pace = self.pace.part(many);
            lane.order = Order::of_lane(number);
        }
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
        self.set_lanes();
        Ok(self)
    }

    /// Drops, duplicates and reorders packets, to test receivers. Needs the cargo feature `testing`.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self.set_lanes();
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
        let head = Header { kind: Kind::End, ..self.head(cut) }.encode();
        let packets: [_; FAREWELLS] =
            std::array::from_fn(|_| [IoSlice::new(&head), IoSlice::new(&[])]);
        lock(&self.lanes[0]).send_all(&packets, cut, &self.sent)?;
        self.stream = self.stream.wrapping_add(1);
        Ok(())
    }

    /// The header of the next frame's first packet.
    fn head(&self, cut: Cut) -> Header {
        let (stream, frame, ports) = (self.stream, self.frame(), self.ports);
        Header { kind: Kind::Part(0), stream, frame, cut, ports }
    }

    /// How frames of this size are split. All frames of a stream must have the same size.
    fn cut(&mut self, bytes: usize) -> Result<Cut> {
        let what =
            || format!("frames of {bytes} bytes cannot be split into packets of {}", self.payload);
        let cut = Cut::new(bytes, self.payload.min(bytes)).ok_or_else(|| Error::invalid(what()))?;
        match self.cut.replace(cut) {
            None => self.lanes.iter().for_each(|lane| lock(lane).prepare(cut)),
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
}

impl<T: Pod> Sink<T> for Udp {
    fn take(&mut self, frame: &[T], _number: u64) -> Result<()> {
        let frame: &[u8] = bytemuck::cast_slice(frame);
        let cut = self.cut(frame.len())?;
        let head = self.head(cut);
        let Self { crew, lanes, faults, sent, .. } = self;
        let (many, wrong) = (lanes.len(), Mutex::new(None));
        let sending = Sending { head, frame, faults, sent };
        crew.run(&|number| {
            let range = packet::share(number, cut.packets(), many);
            if let Err(error) = lock(&lanes[number]).send(range, &sending) {
                lock(&wrong).get_or_insert(error);
            }
        });
        if let Some(error) = lock(&wrong).take() {
            return Err(error);
        }
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
