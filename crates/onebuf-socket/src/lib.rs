//! Unix sockets between processes of one user: packets with fds, timeouts on every wait, the sockets' directory, and their
//! removal.
//!
//! Shared buffers and the live view build on this module. It depends on neither.
//!
//! # Safety
//! The one unsafe call asks the kernel for the peer's credentials.

#![allow(unsafe_code)]

mod ending;
mod folder;

pub use ending::{before_signals_end, remove_sockets, remove_sockets_on_signals};
pub use folder::Name;
pub use folder::{folder, socket_path};

use folder::unusable;
use onebuf_hal::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrAny, SocketAddrUnix,
        SocketFlags, SocketType, accept_with, bind, connect, getpeername, getsockname, listen,
        recvmsg, sendmsg, socket_with,
    },
};
use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

/// Packets keep their boundaries, fds arrive with their packet, and a closed peer is reported.
const KIND: SocketType = SocketType::SEQPACKET;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The length of the listen queue.
const BACKLOG: i32 = 16;

/// Room for more fds than any message has, to detect too many.
const MOST_FDS: usize = 4;

/// The pause before connecting again to a full listen queue.
const KNOCK_AGAIN: Duration = Duration::from_millis(10);

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    limit: Duration,
}

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl Deadline {
    /// A deadline at this time from now, at most one year.
    pub fn after(limit: Duration) -> Self {
        let limit = limit.min(LONGEST);
        Self { end: Instant::now() + limit, limit }
    }

    /// The time left; zero once the deadline has passed.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// The timeout error for a wait.
    pub fn missed(&self, what: impl Into<String>) -> Error {
        Error::timeout(what, self.limit)
    }
}

/// The process at the other end, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process id; 0 if this process cannot see it.
    pub pid: u32,
    /// The user id.
    pub uid: u32,
}

impl Peer {
    /// Whether it is this process itself.
    pub fn is_here(self) -> bool {
        self.pid == std::process::id()
    }

    /// Accepts a peer of the same user, or of an allowed one.
    pub fn check(self, allowed: &[u32]) -> Result<Self> {
        let uid = self.uid;
        if uid == rustix::process::geteuid().as_raw() || allowed.contains(&uid) {
            return Ok(self);
        }
        Err(Error::refused(format!("it belongs to user {uid}, which is not allowed")))
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at a path that does not exist yet.
    pub fn open(path: &Path) -> Result<Self> {
        let socket =
            socket_with(AddressFamily::UNIX, KIND, FLAGS, None).map_err(failed("socket"))?;
        let bound = address(path)?;
        bind(&socket, &bound).map_err(|errno| unusable(path, text(errno)))?;
        listen(&socket, BACKLOG).map_err(failed("listen"))?;
        Ok(Self(socket))
    }

    /// Waits for a peer to connect, and accepts it.
    pub fn accept(&self, deadline: Deadline) -> Result<Socket> {
        loop {
            wait(self.0.as_fd(), PollFlags::IN, deadline, "a peer to connect")?;
            if let Some(socket) = self.try_accept()? {
                return Ok(socket);
            }
        }
    }

    /// Accepts a waiting connection; `None` if there is none.
    pub fn try_accept(&self) -> Result<Option<Socket>> {
        match accept_with(&self.0, FLAGS) {
            Ok(socket) => Ok(Some(Socket(socket))),
            // The client has disconnected, or another thread accepted it.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(failed("accept")(errno)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Connects to the process that listens at a path.
    pub fn connect(path: &Path, deadline: Deadline) -> Result<Self> {
        let to = address(path)?;
        loop {
            let socket =
                socket_with(AddressFamily::UNIX, KIND, FLAGS, None).map_err(failed("socket"))?;
            match connect(&socket, &to) {
                Ok(()) => return Ok(Self(socket)),
                Err(Errno::AGAIN | Errno::INTR) if !deadline.left().is_zero() => {
                    std::thread::sleep(KNOCK_AGAIN.min(deadline.left()));
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    return Err(deadline.missed("the owner to answer"));
                }
                Err(errno) => return Err(nobody(path, errno)),
            }
        }
    }

    /// The socket's descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The credentials of the process that connected or listened.
    pub fn peer(&self) -> Result<Peer> {
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the option's type is `ucred`, and `len` is the size of `who`.
        let answer = unsafe {
            let to = (&raw mut who).cast();
            libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
        };
        match answer {
            0 => Ok(Peer { pid: who.pid.unsigned_abs(), uid: who.uid }),
            _ => Err(Error::refused("the kernel does not report its user")),
        }
    }

    /// The address that the other end listened at.
    pub fn their_address(&self) -> Option<Vec<u8>> {
        path_of(getpeername(&self.0).ok()??)
    }

    /// The address that this end listened at.
    pub fn own_address(&self) -> Option<Vec<u8>> {
        path_of(getsockname(&self.0).ok()?)
    }

    /// Sends one packet, and descriptors with it.
    pub fn send_packet(
        &self,
        packet: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<()> {
        loop {
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Error::invalid("too many fds for one message"));
            }
            match sendmsg(&self.0, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => {
                    wait(self.0.as_fd(), PollFlags::OUT, deadline, "the peer to read")?;
                }
                Err(errno) => return Err(gone(errno)),
            }
        }
    }

    /// Sends a packet without waiting; false if the socket buffer is full.
    pub fn try_send(&self, packet: &[u8]) -> Result<bool> {
        let mut none = SendAncillaryBuffer::default();
        match sendmsg(&self.0, &[IoSlice::new(packet)], &mut none, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(gone(errno)),
        }
    }

    /// Waits for the next packet and returns its length. Fds that come with it are closed.
    pub fn packet(&self, into: &mut [u8], deadline: Deadline, what: &str) -> Result<usize> {
        loop {
            wait(self.0.as_fd(), PollFlags::IN, deadline, what)?;
            if let Some(got) = self.try_packet(into)? {
                return Ok(got);
            }
        }
    }

    /// Receives a packet without waiting; `None` if there is none.
    pub fn try_packet(&self, into: &mut [u8]) -> Result<Option<usize>> {
        let mut none = RecvAncillaryBuffer::default();
        let got =
            recvmsg(&self.0, &mut [IoSliceMut::new(into)], &mut none, RecvFlags::CMSG_CLOEXEC);
        match got {
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Ok(got) if got.bytes == 0 => Err(closed()),
            Ok(got) if got.flags.intersects(ReturnFlags::TRUNC) => {
                Err(Error::refused("it sent a message that is too long"))
            }
            Ok(got) => Ok(Some(got.bytes)),
            Err(errno) => Err(gone(errno)),
        }
    }

    /// Receives a packet and up to four fds without waiting; `None` if there is none. A packet longer than `into`, or
    /// with more fds, is refused.
    pub fn try_packet_with_fds(&self, into: &mut [u8]) -> Result<Option<(usize, Received)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(into)];
        let got = match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            got => got.map_err(gone)?,
        };
        let mut fds = Received(Vec::new());
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(those) = part {
                fds.0.extend(those);
            }
        }
        if got.bytes == 0 {
            return Err(closed());
        }
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Error::refused("it sent a message that is too long or has too many fds"));
        }
        Ok(Some((got.bytes, fds)))
    }

    /// Waits until the socket is readable or the other end has closed it.
    pub fn wait_readable(&self, deadline: Deadline, what: &str) -> Result<()> {
        wait(self.0.as_fd(), PollFlags::IN, deadline, what)
    }
}

/// Descriptors that came with a message.
#[derive(Debug)]
pub struct Received(Vec<OwnedFd>);

impl Received {
    /// How many descriptors came.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The first descriptor; the others are closed.
    pub fn first(mut self) -> Option<OwnedFd> {
        self.0.drain(..1.min(self.0.len())).next()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.0.drain(..).for_each(close_aside);
    }
}

/// Closes a refused descriptor of another process. Unless it is a memfd, it is closed on its own thread: closing a lingering
/// socket, or a file of a user-space file system, can take as long as the other process likes.
pub fn close_aside(fd: OwnedFd) {
    if rustix::fs::fcntl_get_seals(&fd).is_ok() {
        return;
    }
    // If no thread can be started, dropping the closure closes it here.
    let _ = std::thread::Builder::new().name("onebuf close".into()).spawn(move || drop(fd));
}

/// Waits until the fd is ready or the other end has closed it.
fn wait(fd: BorrowedFd<'_>, what_for: PollFlags, deadline: Deadline, what: &str) -> Result<()> {
    loop {
        let limit = timespec(deadline.left());
        match poll(&mut [PollFd::from_borrowed_fd(fd, what_for)], Some(&limit)) {
            Ok(0) if deadline.left().is_zero() => {
                return Err(deadline.missed(format!("waiting for {what}")));
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(failed("poll")(errno)),
        }
    }
}

/// Waits until one of the fds is readable or closed by its other end, for a limited time.
pub fn wait_for_any<'f>(fds: impl Iterator<Item = BorrowedFd<'f>>, limit: Duration) -> Result<()> {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timespec(limit))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(failed("poll")(errno)),
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

fn path_of(address: SocketAddrAny) -> Option<Vec<u8>> {
    let address = SocketAddrUnix::try_from(address).ok()?;
    address.path_bytes().map(<[u8]>::to_vec)
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        Error::invalid(format!("{}: a socket's path may have at most 107 bytes", path.display()))
    })
}

fn closed() -> Error {
    Error::PeerLost { reason: "it closed the connection or died".into() }
}

fn gone(errno: Errno) -> Error {
    match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => closed(),
        errno => failed("sendmsg or recvmsg")(errno),
    }
}

fn nobody(path: &Path, errno: Errno) -> Error {
    let reason = match errno {
        Errno::NOENT => "no process shares a buffer under this name; see `onebuf share`".into(),
        Errno::CONNREFUSED => "the process that shared this buffer is gone".into(),
        errno => text(errno),
    };
    let tried = vec![path.display().to_string()];
    Error::Unavailable { what: "a shared buffer".into(), tried, reason }
}

fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Driver { api: "host", call, code: errno.raw_os_error(), name: text(errno) }
}

fn text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
