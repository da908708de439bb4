//! Frames that come over a connection, without anything around them.

use super::FrameSource;
use crate::{Filled, net::failed};
use bytemuck::Pod;
use onebuf_hal::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
};
use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// No read waits longer.
const SLICE: Duration = Duration::from_millis(50);

/// No call is longer, though bytes come: so often a stop is heard. What has come is put aside then, so calls for large frames are longer by what
/// that may take.
const LONGEST: Duration = Duration::from_millis(250);
const PUT_ASIDE_BYTES_PER_S: f64 = 1e9;

/// How long a frame may take, unless said otherwise: this, and what it takes at the slowest rate that is expected.
const FRAME_LIMIT: Duration = Duration::from_secs(60);
const SLOWEST_BYTES_PER_S: f64 = 1e6;

/// Frames as they lie in memory, one behind the other, over TCP. The sender's closing ends the stream, between two frames.
///
/// However slowly the sender writes, a stop of the pipeline is heard within 250 ms (and a second more for every GB of a frame), and a frame has
/// a [limit](Tcp::frame_limit).
#[derive(Debug)]
pub struct Tcp {
    end: End,
    timeout: Duration,
    frame_limit: Option<Duration>,
    /// The beginning of a frame whose rest has not come: the next call may be about other memory.
    pub(super) begun: Vec<u8>,
    frames: u64,
    quiet: Duration,
    /// How long the source has been reading since the frame's first byte.
    reading: Duration,
}

/// This end of the connection.
#[derive(Debug)]
enum End {
    /// The sender is to come.
    Door(TcpListener),
    Stream(TcpStream),
}

impl Tcp {
    /// Connects to a sender. The time is for connecting, and for every silence afterwards.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when nobody answers in time.
    pub fn connect(to: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        let to = super::super::net::resolve(to)?;
        let stream =
            TcpStream::connect_timeout(&to, timeout).map_err(|error| Error::Unavailable {
                what: format!("a sender at tcp:{to}"),
                tried: Vec::new(),
                reason: error.to_string(),
            })?;
        Self::over(stream, timeout)
    }

    /// Waits for one sender to connect.
    ///
    /// # Errors
    /// [`Error::Timeout`] when nobody comes.
    pub fn accept(listener: &TcpListener, timeout: Duration) -> Result<Self> {
        match knock(listener, timeout)? {
            Some(stream) => Self::over(stream, timeout),
            None => Err(Error::timeout("a sender to connect", timeout)),
        }
    }

    /// Listens for a sender, who connects when the first frame is asked for. The time is for that, and for every silence
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for an address that cannot be listened at.
    pub fn listen(at: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        let at = super::super::net::resolve(at)?;
        let door = TcpListener::bind(at).map_err(|error| Error::Unavailable {
            what: format!("tcp:{at} to listen at"),
            tried: Vec::new(),
            reason: error.to_string(),
        })?;
        // Whoever knocked may be gone before the door is opened.
        door.set_nonblocking(true).map_err(failed("fcntl"))?;
        Self::at(End::Door(door), timeout)
    }

    /// Over a connection that there is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a timeout of nothing.
    pub fn over(stream: TcpStream, timeout: Duration) -> Result<Self> {
        let mut made = Self::at(End::Stream(stream), timeout)?;
        made.prepare()?;
        Ok(made)
    }

    fn at(end: End, timeout: Duration) -> Result<Self> {
        if timeout.is_zero() {
            return Err(Error::invalid("a timeout of nothing: every wait would be too long"));
        }
        let (quiet, reading) = (Duration::ZERO, Duration::ZERO);
        Ok(Self { end, timeout, frame_limit: None, begun: Vec::new(), frames: 0, quiet, reading })
    }

    /// How long a frame may take from its first byte to its last, however steadily its bytes come: otherwise a minute, and a second
    /// more for every megabyte of the frame. Time in which the pipeline does not read does not count. A frame that takes longer is
    /// [`Error::Timeout`].
    pub fn frame_limit(self, limit: Duration) -> Self {
        Self { frame_limit: Some(limit), ..self }
    }

    /// Where it listens, or is connected from.
    ///
    /// # Errors
    /// [`Error::Driver`] from the kernel.
    pub fn address(&self) -> Result<SocketAddr> {
        let address = match &self.end {
            End::Door(door) => door.local_addr(),
            End::Stream(stream) => stream.local_addr(),
        };
        address.map_err(failed("getsockname"))
    }

    /// Lets reads end soon enough that a stop is heard.
    fn prepare(&mut self) -> Result<()> {
        let End::Stream(stream) = &self.end else { return Ok(()) };
        stream.set_nonblocking(false).map_err(failed("fcntl"))?;
        stream.set_read_timeout(Some(SLICE.min(self.timeout))).map_err(failed("setsockopt"))
    }

    /// Waits a while for the sender to connect; false when nobody came.
    fn is_connected(&mut self) -> Result<bool> {
        let End::Door(door) = &self.end else { return Ok(true) };
        match knock(door, SLICE.min(self.timeout))? {
            Some(stream) => {
                (self.end, self.quiet) = (End::Stream(stream), Duration::ZERO);
                self.prepare()?;
                Ok(true)
            }
            None => self.note_silence("a sender to connect").map(|()| false),
        }
    }

    /// Nothing came for a while.
    fn note_silence(&mut self, what: &str) -> Result<()> {
        self.quiet += SLICE.min(self.timeout);
        if self.quiet < self.timeout { Ok(()) } else { Err(Error::timeout(what, self.timeout)) }
    }

    /// Reads on; `None` when nothing came for a while.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        let End::Stream(stream) = &mut self.end else { return Ok(None) };
        match stream.read(into) {
            Ok(bytes) => {
                self.quiet = Duration::ZERO;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                self.note_silence(&format!("the rest of frame {}", self.frames)).map(|()| None)
            }
            Err(error) => Err(Error::PeerLost { reason: error.to_string() }),
        }
    }

    /// Reads what comes of a frame, of which so many bytes are there, for a while.
    fn read_frame(&mut self, into: &mut [u8], have: &mut usize) -> Result<Filled> {
        let (start, longest) =
            (Instant::now(), LONGEST + time_for(into.len(), PUT_ASIDE_BYTES_PER_S));
        while *have < into.len() {
            match self.read(&mut into[*have..])? {
                Some(0) if *have == 0 => return Ok(Filled::End),
                Some(0) => return Err(self.cut(*have, into.len())),
                Some(bytes) => *have += bytes,
                None => return Ok(Filled::Idle),
            }
            if start.elapsed() >= longest && *have < into.len() {
                return Ok(Filled::Idle);
            }
        }
        Ok(Filled::Frame)
    }

    /// The frame is not whole yet, and has been read for so much longer.
    fn note_reading(&mut self, more: Duration, have: usize, whole: usize) -> Result<()> {
        self.reading += more;
        let usual = FRAME_LIMIT + time_for(whole, SLOWEST_BYTES_PER_S);
        let limit = self.frame_limit.unwrap_or(usual);
        if self.reading < limit {
            return Ok(());
        }
        // The caller may go on, and wait as long again.
        self.reading = Duration::ZERO;
        let frame = self.frames;
        let what =
            format!("frame {frame}: {have} of {whole} bytes came (`frame_limit` allows longer)");
        Err(Error::timeout(what, limit))
    }

    fn cut(&self, have: usize, whole: usize) -> Error {
        let frame = self.frames;
        Error::PeerLost {
            reason: format!(
                "the connection ended {have} bytes into frame {frame} of {whole} bytes"
            ),
        }
    }
}

/// How long so many bytes take at a rate.
fn time_for(bytes: usize, bytes_per_s: f64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / bytes_per_s)
}

/// Whether somebody knocked and did not wait.
fn is_gone(error: &std::io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted].contains(&error.kind())
}

/// Whoever comes within a time.
fn knock(door: &TcpListener, limit: Duration) -> Result<Option<TcpStream>> {
    let limit = Timespec::try_from(limit).map_err(|_| Error::invalid("too long a timeout"))?;
    let mut doors = [PollFd::new(door, PollFlags::IN)];
    match retry_on_intr(|| poll(&mut doors, Some(&limit))) {
        Ok(0) => Ok(None),
        Ok(_) => match door.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(failed("accept")(error)),
        },
        Err(errno) => Err(failed("poll")(errno.into())),
    }
}

impl<T: Pod> FrameSource<T> for Tcp {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        if !self.is_connected()? {
            return Ok(Filled::Idle);
        }
        let into: &mut [u8] = bytemuck::cast_slice_mut(frame);
        let mut have = self.begun.len();
        let Some(begun) = into.get_mut(..have) else {
            return Err(Error::invalid(format!("{have} bytes of a larger frame have come")));
        };
        begun.copy_from_slice(&self.begun);
        self.begun.clear();
        let start = Instant::now();
        let filled = self.read_frame(into, &mut have);
        match filled {
            Ok(Filled::Frame) => {
                self.frames += 1;
                self.reading = Duration::ZERO;
            }
            Ok(Filled::Idle) | Err(_) => self.begun.extend_from_slice(&into[..have]),
            _ => {}
        }
        if have > 0 && matches!(filled, Ok(Filled::Idle)) {
            self.note_reading(start.elapsed(), have, into.len())?;
        }
        filled
    }
}
