//! Frames that come over a connection, without anything around them.

use super::Source;
use crate::{Error, Result, pipeline::Filled, pipeline::net::failed};
use bytemuck::Pod;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{ErrorKind, Read},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    time::Duration,
};

/// So often a stop is heard.
const SLICE: Duration = Duration::from_millis(50);

/// Frames as they lie in memory, one behind the other, over TCP. The sender's closing ends the stream, between two frames.
#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    timeout: Duration,
    /// The beginning of a frame whose rest has not come: the next call may be about other memory.
    begun: Vec<u8>,
    frames: u64,
    quiet: Duration,
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
        let limit =
            Timespec::try_from(timeout).map_err(|_| Error::invalid("too long a timeout"))?;
        let mut door = [PollFd::new(listener, PollFlags::IN)];
        let came = poll(&mut door, Some(&limit)).map_err(|errno| failed("poll")(errno.into()))?;
        if came == 0 {
            return Err(Error::timeout("a sender to connect", timeout));
        }
        let (stream, _) = listener.accept().map_err(failed("accept"))?;
        Self::over(stream, timeout)
    }

    /// Over a connection that there is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a timeout of nothing.
    pub fn over(stream: TcpStream, timeout: Duration) -> Result<Self> {
        if timeout.is_zero() {
            return Err(Error::invalid("a timeout of nothing: every wait would be too long"));
        }
        stream.set_nonblocking(false).map_err(failed("fcntl"))?;
        stream.set_read_timeout(Some(SLICE.min(timeout))).map_err(failed("setsockopt"))?;
        Ok(Self { stream, timeout, begun: Vec::new(), frames: 0, quiet: Duration::ZERO })
    }

    /// Reads on; `None` when nothing came for a while.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        match self.stream.read(into) {
            Ok(bytes) => {
                self.quiet = Duration::ZERO;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                self.quiet += SLICE.min(self.timeout);
                if self.quiet < self.timeout {
                    return Ok(None);
                }
                Err(Error::timeout(format!("the rest of frame {}", self.frames), self.timeout))
            }
            Err(error) => Err(Error::PeerLost { reason: error.to_string() }),
        }
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

impl<T: Pod> Source<T> for Tcp {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        let into: &mut [u8] = bytemuck::cast_slice_mut(frame);
        let mut have = self.begun.len();
        let Some(begun) = into.get_mut(..have) else {
            return Err(Error::invalid(format!("{have} bytes of a larger frame have come")));
        };
        begun.copy_from_slice(&self.begun);
        self.begun.clear();
        while have < into.len() {
            match self.read(&mut into[have..]) {
                Ok(Some(0)) if have == 0 => return Ok(Filled::End),
                Ok(Some(0)) => return Err(self.cut(have, into.len())),
                Ok(Some(bytes)) => have += bytes,
                nothing => {
                    self.begun.extend_from_slice(&into[..have]);
                    return nothing.map(|_| Filled::Idle);
                }
            }
        }
        self.frames += 1;
        Ok(Filled::Frame)
    }
}
