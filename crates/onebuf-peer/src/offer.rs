//! The owner's side: offers a buffer to other processes.

use super::{
    given::Given,
    greeting::{Client, Clients, Gift},
    inside::{self, core},
    link::Link,
    tenants,
};
use bytemuck::Pod;
use onebuf_core::{Buffer, internals::Core};
use onebuf_hal::{Error, Result};
use onebuf_socket::{Deadline, Listener, Name, Peer, socket_path};
use std::{fmt, path::Path, time::Duration};

/// The default time limit of a handshake.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// A buffer that other processes may attach to, one at a time, while this exists.
///
/// The caller keeps the buffer and uses it as usual during this process's turns. Because another process can now write its
/// memory, `map` and native kernels are refused permanently: see [`peer`](super).
pub struct Offer<'b, T: Pod> {
    buffer: &'b Buffer<T>,
    given: Given,
    listener: Listener,
    name: Name,
    allowed: Vec<u32>,
    greeting_limit: Duration,
    element_bytes: u32,
    clients: Clients,
    _only: Only<'b>,
}

/// Marks a buffer as offered, which it can be only once.
struct Only<'b>(&'b Core);

impl<'b> Only<'b> {
    fn of(core: &'b Core) -> Result<Self> {
        core.set_offered(true).map(|()| Self(core))
    }
}

impl Drop for Only<'_> {
    fn drop(&mut self) {
        // Only setting the mark can fail.
        let _ = self.0.set_offered(false);
    }
}

impl<'b, T: Pod> Offer<'b, T> {
    /// Opens a socket by a name (see [`socket_path`](super::socket_path)) or by a path in a directory of mode 0700. A
    /// relative path is made absolute; the result may have at most 107 bytes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless the buffer lies in host pages of its own, in exportable device memory
    /// ([`MemoryKind::Exportable`](onebuf_hal::MemoryKind::Exportable)), or in plain device memory of a multiple of 2 MiB
    /// that has an IPC handle; [`Error::Busy`] while a guard is held, the buffer is already offered, or another owner uses
    /// the name; [`Error::Cache`] if other users can enter the directory.
    pub fn open(buffer: &'b Buffer<T>, name: &str) -> Result<Self> {
        let core = inside::whole_core(buffer)?;
        let _only = Only::of(core)?;
        let given = Given::of(core)?;
        let name = Name::take(socket_path(name)?)?;
        let listener = Listener::open(&name.socket)?;
        core.expose()?;
        let greeting_limit = GREETING_LIMIT;
        Ok(Self {
            buffer,
            given,
            listener,
            name,
            allowed: vec![],
            greeting_limit,
            element_bytes: size_of::<T>() as u32,
            clients: Clients::default(),
            _only,
        })
    }

    /// Also lets processes of this user attach. Processes of the same user always may. The other user must be able to reach
    /// the socket, whose directory is closed by default.
    pub fn allow_uid(mut self, uid: u32) -> Self {
        self.allowed.push(uid);
        self
    }

    /// Sets how long a connected peer may take for its first message while [`accept`](Self::accept) waits: 5 s by default. It
    /// has six times as long to build its buffer. A slower peer is refused.
    pub fn greeting_limit(mut self, limit: Duration) -> Self {
        self.greeting_limit = limit;
        self
    }

    /// Sets the element size that peers must agree with, for programs that treat every buffer as bytes. The default is the
    /// size of `T`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the buffer's size is not a multiple of it.
    pub fn element_bytes(mut self, bytes: usize) -> Result<Self> {
        let whole = bytes > 0 && self.buffer.size_bytes().is_multiple_of(bytes);
        self.element_bytes = match u32::try_from(bytes) {
            Ok(bytes) if whole => bytes,
            _ => {
                let all = self.buffer.size_bytes();
                return Err(Error::invalid(format!(
                    "the {all} bytes of the buffer are not a multiple of the element size {bytes}"
                )));
            }
        };
        Ok(self)
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.name.socket
    }

    /// Waits for the next peer, checks it, and grants it the memory. It is then this process's turn. After an error, `accept`
    /// can be called again.
    ///
    /// Up to 16 handshakes run at once, and the first peer that completes its handshake is returned. A peer that connects and
    /// sends nothing delays no other; it is refused when the [limit](Self::greeting_limit) is over.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no peer completed its handshake in time; [`Error::PeerRefused`] for a peer of another user, a
    /// silent one, or one that violates the protocol; [`Error::Unsupported`] for another protocol version;
    /// [`Error::InvalidArgument`] for another element size; [`Error::PeerLost`] for a peer that disconnected;
    /// [`Error::Driver`] if this process cannot accept connections, for example because it has no free descriptors.
    pub fn accept(&mut self, timeout: Duration) -> Result<Visit<'_, 'b, T>> {
        let Self { buffer, given, listener, allowed, greeting_limit, clients, .. } = self;
        let element_bytes = self.element_bytes;
        let gift = Gift { element_bytes, fds: given.fds() };
        let limits = (Deadline::after(timeout), *greeting_limit);
        let grant = |session| given.grant(buffer, element_bytes, session);
        let Client { socket, peer, session, .. } =
            clients.next(listener, allowed, limits, &gift, grant)?;
        let clients = tenants::find(&socket, peer, session);
        Ok(Visit { link: Link::of_owner(socket, peer, clients), offer: self, session })
    }
}

impl<T: Pod> fmt::Debug for Offer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer({:?} at {})", self.buffer, self.path().display())
    }
}

/// An attached peer. Dropping it ends the visit, and the buffer is this process's again.
pub struct Visit<'o, 'b, T: Pod> {
    offer: &'o Offer<'b, T>,
    link: Link,
    session: u64,
}

impl<T: Pod> Visit<'_, '_, T> {
    /// The peer process.
    pub fn peer(&self) -> Peer {
        self.link.peer()
    }

    /// The number of this visit within its offer. Both ends have the same.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// How many times the buffer has been handed over, in either direction.
    pub fn round(&self) -> u64 {
        self.link.round()
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer<T> {
        self.offer.buffer
    }

    /// Whether this process may use the buffer now.
    pub fn is_our_turn(&self) -> bool {
        self.link.is_ours()
    }

    /// Waits for all work on the buffer, because fences do not cross processes, and gives the peer its turn. Until the peer
    /// hands the buffer back, every use of it here is [`Error::Busy`].
    ///
    /// # Errors
    /// [`Error::PeerLost`] if the peer is gone, [`Error::PeerRefused`] if it violates the protocol or does not read its
    /// messages; the buffer stays this process's. [`Error::Busy`] while a guard is held; [`Error::Timeout`] if work on the
    /// buffer does not finish.
    pub fn hand_over(&mut self) -> Result<()> {
        self.link.hand_over(core(self.offer.buffer))
    }

    /// Waits until the peer hands the buffer back.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it takes longer; call `wait` again, or drop the visit. [`Error::PeerLost`] as soon as the peer
    /// is gone, however it exited: the buffer is this process's again and holds what the peer had written.
    /// [`Error::PeerRefused`] if it violates the protocol.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.link.wait(core(self.offer.buffer), timeout)
    }

    /// Checks during this process's turn that the peer is still connected.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if it is not.
    pub fn check(&mut self) -> Result<()> {
        self.link.check(core(self.offer.buffer))
    }

    /// Whether the peer detached normally instead of dying.
    pub fn has_left(&self) -> bool {
        self.link.has_left()
    }
}

impl<T: Pod> Drop for Visit<'_, '_, T> {
    fn drop(&mut self) {
        self.link.leave(core(self.offer.buffer));
    }
}

impl<T: Pod> fmt::Debug for Visit<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Visit({:?})", self.link)
    }
}
