//! A source that reads raw frames from a TCP connection.

use super::FrameSource;
use crate::{Filled, net::failed};
use bytemuck::Pod;
use onebuf_hal::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt::socket_error},
};
use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// The longest wait of one read.
const SLICE: Duration = Duration::from_millis(50);

/// One call takes no longer than this even while bytes arrive, so that a stop request is noticed. The bytes of an incomplete
/// frame are then copied aside, so calls for large frames may take longer by the time of that copy.
const LONGEST: Duration = Duration::from_millis(250);
const PUT_ASIDE_BYTES_PER_S: f64 = 1e9;

/// The default time limit of a frame: this, plus its transfer time at the slowest expected rate.
const FRAME_LIMIT: Duration = Duration::from_secs(60);
const SLOWEST_BYTES_PER_S: f64 = 1e6;

/// Reads frames over TCP, one after another, as they lie in memory. The stream ends when the sender closes the connection
/// between two frames.
///
/// A stop of the pipeline takes effect within 250 ms (plus one second per GB of a frame), however slowly the sender writes.
/// Each frame has a [time limit](Tcp::frame_limit).
#[derive(Debug)]
pub struct Tcp {
    end: End,
    timeout: Duration,
    frame_limit: Option<Duration>,
    /// The beginning of an incomplete frame. It is kept here because the next call may pass other memory.
    pub(super) begun: Vec<u8>,
    frames: u64,
    quiet: Duration,
    /// Time spent reading since the frame's first byte.
    reading: Duration,
}

/// The state of the connection.
#[derive(Debug)]
enum End {
    /// Listening; the sender has not connected yet.
    Door(TcpListener),
    Stream(TcpStream),
}

impl Tcp {
    /// Connects to a sender. The timeout applies to connecting, and to every later pause of the sender.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no sender answers in time.
    pub fn connect(to: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        Self::connect_while(to, timeout, || Ok(()))
    }

    /// Like [`Tcp::connect`]; an error of `go_on`, which is called every 50 ms, ends the wait for the sender. A name is resolved
    /// without asking. For bindings of languages whose signals end waits.
    #[doc(hidden)]
    pub fn connect_while(
        to: impl ToSocketAddrs,
        timeout: Duration,
        mut go_on: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let to = super::super::net::resolve(to)?;
        let start = Instant::now();
        let unanswered = |why: Errno| Error::Unavailable {
            what: format!("sender at tcp:{to}"),
            tried: Vec::new(),
            reason: why.to_string(),
        };
        let stream = dial(&to).map_err(unanswered)?;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if is_ready(&stream, PollFlags::OUT, left.min(SLICE))? {
                break;
            }
            match left > SLICE {
                true => go_on()?,
                false => return Err(unanswered(Errno::TIMEDOUT)),
            }
        }
        socket_error(&stream).and_then(|answer| answer).map_err(unanswered)?;
        Self::over(stream, timeout)
    }

    /// Waits for one sender to connect.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no sender connects.
    pub fn accept(listener: &TcpListener, timeout: Duration) -> Result<Self> {
        match knock(listener, timeout)? {
            Some(stream) => Self::over(stream, timeout),
            None => Err(Error::timeout("a sender to connect", timeout)),
        }
    }

    /// Listens for a sender. The connection is accepted when the first frame is requested. The timeout applies to that wait,
    /// and to every later pause of the sender.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the address cannot be bound.
    pub fn listen(at: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        let at = super::super::net::resolve(at)?;
        let door = TcpListener::bind(at).map_err(|error| Error::Unavailable {
            what: format!("listening on tcp:{at}"),
            tried: Vec::new(),
            reason: error.to_string(),
        })?;
        // A client may disconnect between `poll` and `accept`; `accept` must not block then.
        door.set_nonblocking(true).map_err(failed("fcntl"))?;
        Self::at(End::Door(door), timeout)
    }

    /// Reads from an established connection.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the timeout is zero.
    pub fn over(stream: TcpStream, timeout: Duration) -> Result<Self> {
        let mut made = Self::at(End::Stream(stream), timeout)?;
        made.prepare()?;
        Ok(made)
    }

    fn at(end: End, timeout: Duration) -> Result<Self> {
        if timeout.is_zero() {
            return Err(Error::invalid("the timeout must not be zero"));
        }
        let (quiet, reading) = (Duration::ZERO, Duration::ZERO);
        Ok(Self { end, timeout, frame_limit: None, begun: Vec::new(), frames: 0, quiet, reading })
    }

    /// Limits the time from a frame's first byte to its last, even if bytes keep arriving. The default is one minute plus one
    /// second per megabyte of the frame. Time during which the pipeline does not read does not count. A frame that takes
    /// longer is [`Error::Timeout`].
    pub fn frame_limit(self, limit: Duration) -> Self {
        Self { frame_limit: Some(limit), ..self }
    }

    /// The local address: where it listens, or of the connection.
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

    /// Sets a read timeout short enough that a stop request is noticed.
    fn prepare(&mut self) -> Result<()> {
        let End::Stream(stream) = &self.end else { return Ok(()) };
        stream.set_nonblocking(false).map_err(failed("fcntl"))?;
        stream.set_read_timeout(Some(SLICE.min(self.timeout))).map_err(failed("setsockopt"))
    }

    /// Waits briefly for the sender to connect; false if none did.
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

    /// Adds one read timeout to the silence; an error if the silence is too long.
    fn note_silence(&mut self, what: &str) -> Result<()> {
        self.quiet += SLICE.min(self.timeout);
        if self.quiet < self.timeout { Ok(()) } else { Err(Error::timeout(what, self.timeout)) }
    }

    /// Reads more bytes; `None` if none arrived within the read timeout.
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

    /// Reads more of a frame of which `have` bytes have arrived, for a limited time.
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

    /// Adds the time spent reading an incomplete frame; an error beyond the limit.
    fn note_reading(&mut self, more: Duration, have: usize, whole: usize) -> Result<()> {
        self.reading += more;
        let usual = FRAME_LIMIT + time_for(whole, SLOWEST_BYTES_PER_S);
        let limit = self.frame_limit.unwrap_or(usual);
        if self.reading < limit {
            return Ok(());
        }
        // The caller may retry, with the full limit again.
        self.reading = Duration::ZERO;
        let frame = self.frames;
        let what = format!(
            "frame {frame}: {have} of {whole} bytes arrived (raise `frame_limit` to wait longer)"
        );
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

/// The transfer time of this many bytes at a rate.
fn time_for(bytes: usize, bytes_per_s: f64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / bytes_per_s)
}

/// Whether the client disconnected before `accept`.
fn is_gone(error: &std::io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted].contains(&error.kind())
}

/// Begins to connect.
fn dial(to: &SocketAddr) -> Result<TcpStream, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket.into()),
        Err(errno) => Err(errno),
    }
}

/// Waits until a socket is ready, for at most the limit.
fn is_ready(socket: impl AsFd, what_for: PollFlags, limit: Duration) -> Result<bool> {
    let limit = Timespec::try_from(limit).map_err(|_| Error::invalid("the timeout is too long"))?;
    let mut sockets = [PollFd::new(&socket, what_for)];
    let ready = retry_on_intr(|| poll(&mut sockets, Some(&limit)));
    Ok(ready.map_err(|errno| failed("poll")(errno.into()))? > 0)
}

/// Accepts a connection that arrives within the limit.
fn knock(door: &TcpListener, limit: Duration) -> Result<Option<TcpStream>> {
    if !is_ready(door, PollFlags::IN, limit)? {
        return Ok(None);
    }
    match door.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(failed("accept")(error)),
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
            return Err(Error::invalid(format!(
                "{have} bytes of a larger frame have already arrived"
            )));
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
