//! The owner's side: a buffer of this process for others to attach to.

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

/// How long the handshake of a peer that has come may take.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// A buffer that other processes may attach to, one after the other, while this lives.
///
/// The buffer stays the caller's, and is used as ever in this process's turns. Since another process can write
/// its memory from now on, `map` and native kernels are refused for good: see [`peer`](super).
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

/// The one offer of a buffer.
struct Only<'b>(&'b Core);

impl<'b> Only<'b> {
    fn of(core: &'b Core) -> Result<Self> {
        core.set_offered(true).map(|()| Self(core))
    }
}

impl Drop for Only<'_> {
    fn drop(&mut self) {
        // Only taking it can fail.
        let _ = self.0.set_offered(false);
    }
}

impl<'b, T: Pod> Offer<'b, T> {
    /// Opens a socket by a name (see [`socket_path`](super::socket_path)) or a path in a folder of mode 0700. A relative path is
    /// made absolute, and has at most 107 bytes then.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless the buffer lies in host pages of its own, or in memory of a device that exports
    /// it ([`MemoryKind::Exportable`](onebuf_hal::MemoryKind::Exportable)), or in a device's plain memory of whole 2 MiB that has a
    /// handle for other processes; [`Error::Busy`] while a guard of it is held, while it is offered already, or while the
    /// name is another owner's; [`Error::Cache`] for a folder that others can enter.
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

    /// Also lets processes of this user attach; those of one's own may always. They must be able to reach the
    /// socket: its folder is closed to them unless somebody opens it.
    pub fn allow_uid(mut self, uid: u32) -> Self {
        self.allowed.push(uid);
        self
    }

    /// How long a peer that has come may take for its first word, while [`accept`](Self::accept) waits; 5 s otherwise. It has six times as
    /// long to build its buffer. One that takes longer is refused.
    pub fn greeting_limit(mut self, limit: Duration) -> Self {
        self.greeting_limit = limit;
        self
    }

    /// How large the elements are that the buffer's bytes really hold, for peers to agree with: for programs that know
    /// every buffer as one of bytes. Those of `T`, otherwise.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the buffer is made of whole ones.
    pub fn element_bytes(mut self, bytes: usize) -> Result<Self> {
        let whole = bytes > 0 && self.buffer.size_bytes().is_multiple_of(bytes);
        self.element_bytes = match u32::try_from(bytes) {
            Ok(bytes) if whole => bytes,
            _ => {
                let all = self.buffer.size_bytes();
                return Err(Error::invalid(format!("{all} bytes are not elements of {bytes}")));
            }
        };
        Ok(self)
    }

    /// Where peers find it.
    pub fn path(&self) -> &Path {
        &self.name.socket
    }

    /// Waits for the next peer, checks it, and gives it the memory. It is this process's turn then. After any
    /// error the next one may be waited for.
    ///
    /// Up to 16 peers are heard at once, and the first that has done its part of the handshake is served. So a peer that connects and says
    /// nothing holds up no other; it is refused when the [limit](Self::greeting_limit) is over.
    ///
    /// # Errors
    /// [`Error::Timeout`] when no peer has come and done its part within the time; [`Error::PeerRefused`] for one of
    /// another user, that says nothing, or that does not keep to the protocol; [`Error::Unsupported`] for another version of it;
    /// [`Error::InvalidArgument`] for one with other elements; [`Error::PeerLost`] for one that went away;
    /// [`Error::Driver`] when this process cannot let peers in, which lasts until it has descriptors again.
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

/// One peer, while it is attached. Dropped, it ends the visit, and the buffer is this process's again.
pub struct Visit<'o, 'b, T: Pod> {
    offer: &'o Offer<'b, T>,
    link: Link,
    session: u64,
}

impl<T: Pod> Visit<'_, '_, T> {
    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.link.peer()
    }

    /// The number of this visit among all of its offer, the same at both ends.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// How often the buffer was handed over, either way.
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

    /// Waits for all work on the buffer (fences do not cross processes), and gives the peer its turn. Until it
    /// hands the buffer back every use of it here is [`Error::Busy`].
    ///
    /// # Errors
    /// [`Error::PeerLost`] when it is gone, [`Error::PeerRefused`] when it does not keep to the protocol or does not read what
    /// it is sent: the buffer stays this process's. [`Error::Busy`] while a guard is held; [`Error::Timeout`] of work on the buffer.
    pub fn hand_over(&mut self) -> Result<()> {
        self.link.hand_over(core(self.offer.buffer))
    }

    /// Waits until the peer hands the buffer back.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it takes longer; it may be waited for again, or dropped. [`Error::PeerLost`] as
    /// soon as it is gone, however it ended: the buffer is this process's again, and holds what the peer had
    /// written until then. [`Error::PeerRefused`] when it does not keep to the protocol.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.link.wait(core(self.offer.buffer), timeout)
    }

    /// Whether the peer is still there, in this process's turn.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when it is not.
    pub fn check(&mut self) -> Result<()> {
        self.link.check(core(self.offer.buffer))
    }

    /// Whether the peer said goodbye, which one that died does not.
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
