//! The peer's side: a buffer of another process.
//!
//! # Safety
//! The one unsafe call makes a buffer of pages that another process can write. It is exposed before anybody
//! has seen it, and so no slices of it are ever made.

#![allow(unsafe_code)]

use super::{
    inside::{self, core},
    link::{Link, Side},
    messages::Messages,
    taken::{self, Came},
    tenants,
    wire::{Grant, Message},
};
use bytemuck::Pod;
use onebuf_core::{Buffer, BufferBuilder, Hub};
use onebuf_hal::{Error, HostRange, Result};
use onebuf_socket::{Deadline, Peer, Socket, socket_path};
use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

/// How long the owner may take to give the buffer: it may be busy with another peer.
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// How to attach to a buffer that another process offers.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `open`"]
pub struct Attach {
    name: String,
    allowed: Vec<u32>,
    limit: Duration,
    element_bytes: Option<u32>,
}

impl Attach {
    /// By the name or path that the owner gave to [`Offer::open`](super::Offer::open).
    pub fn to(name: impl Into<String>) -> Self {
        Self { name: name.into(), allowed: Vec::new(), limit: DEFAULT_LIMIT, element_bytes: None }
    }

    /// Also trusts an owner of this user; those of one's own are.
    pub fn allow_uid(mut self, uid: u32) -> Self {
        self.allowed.push(uid);
        self
    }

    /// How long the owner may take to give the buffer; 10 s otherwise.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How large the owner's elements are, where they are not seen as such here: for programs that know every buffer as
    /// one of bytes. Those of `T`, otherwise.
    pub fn element_bytes(mut self, bytes: u32) -> Self {
        self.element_bytes = Some(bytes);
        self
    }

    /// Attaches. It is the owner's turn then: [`Attached::wait`] for this process's.
    ///
    /// `builder` says what the buffer shall be here, apart from its length and its memory: who sees it
    /// ([`BufferBuilder::shared_with`]) and how. Memory of a device is imported by one of those named that is of
    /// the same chip and takes such descriptors or handles, and by no other: the owner must not choose which driver reads what
    /// it sent. Drivers that believe what a file says are refused
    /// ([`Caps::parses_fds`](onebuf_hal::Caps::parses_fds)). Those of other chips have copies.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when nobody offers it; [`Error::Timeout`] when the owner does not answer;
    /// [`Error::PeerRefused`] for one of another user, or whose words or memory fail a check;
    /// [`Error::InvalidArgument`] for other elements than the owner's; [`Error::Unsupported`] for a kind of
    /// memory that cannot be attached, or of a chip that no device named is of (the message says which ones are); [`Error::PeerLost`]; and what [`BufferBuilder::build`] has.
    pub fn open<'h, T: Pod>(
        &self,
        hub: &'h Hub,
        builder: impl FnOnce(BufferBuilder<'h, T>) -> BufferBuilder<'h, T>,
    ) -> Result<Attached<T>> {
        let deadline = Deadline::after(self.limit);
        let socket = Socket::connect(&socket_path(&self.name)?, deadline)?;
        let owner = socket.peer()?.check(&self.allowed)?;
        let element_bytes = self.element_bytes.unwrap_or(size_of::<T>() as u32);
        let (grant, file) = ask(&socket, element_bytes, deadline)?;
        let mut buffer = match taken::sort(&grant, file, owner)? {
            Came::Pages(file) => {
                let range = inside::map_file(hub, file, grant.allocation_bytes)?;
                buffer_over(hub, part(&grant, &range)?, builder)?
            }
            Came::Device(from) => {
                let builder = checked(hub, elements::<T>(grant.bytes)?, builder)?;
                taken::buffer_on(hub, &grant, &from, &builder)?
            }
        };
        let core = Arc::downgrade(&inside::share_core(&mut buffer));
        tenants::enter(&socket, owner, grant.session, core);
        socket.send(&Message::Ready, &[], deadline)?;
        let link = Link::new(socket, owner, Side::Client);
        Ok(Attached { link, buffer: Arc::new(buffer), session: grant.session })
    }
}

/// Says hello, and gets what was asked for.
fn ask(
    socket: &Socket,
    element_bytes: u32,
    deadline: Deadline,
) -> Result<(Grant, Option<OwnedFd>)> {
    socket.send(&Message::Hello { element_bytes }, &[], deadline)?;
    let (grant, fds) = match socket.receive(deadline, "the owner to give the buffer")? {
        (Message::Grant(grant), fds) => (*grant, fds),
        (Message::WrongElement { element_bytes: theirs }, _) => {
            return Err(super::other_elements(theirs, element_bytes));
        }
        _ => return Err(Error::refused("the owner's first word was no grant")),
    };
    if grant.element_bytes != element_bytes {
        return Err(super::other_elements(grant.element_bytes, element_bytes));
    }
    Ok((grant, fds.first()))
}

/// The buffer in its allocation.
fn part(grant: &Grant, range: &HostRange) -> Result<HostRange> {
    let fits = |number: u64| usize::try_from(number).map_err(|_| Error::refused("it is too large"));
    range.part(fits(grant.offset)?, fits(grant.bytes)?)
}

fn elements<T>(bytes: u64) -> Result<usize> {
    let bytes = usize::try_from(bytes).map_err(|_| Error::refused("it is too large"))?;
    Ok(bytes / size_of::<T>())
}

/// The caller's wish for a buffer of that length, here.
fn checked<'h, T: Pod>(
    hub: &'h Hub,
    len: usize,
    builder: impl FnOnce(BufferBuilder<'h, T>) -> BufferBuilder<'h, T>,
) -> Result<BufferBuilder<'h, T>> {
    let builder = builder(hub.buffer::<T>(len));
    if builder.len() != len || !builder.hub().is(hub) {
        return Err(Error::invalid("another builder than the one given"));
    }
    Ok(builder)
}

fn buffer_over<'h, T: Pod>(
    hub: &'h Hub,
    range: HostRange,
    builder: impl FnOnce(BufferBuilder<'h, T>) -> BufferBuilder<'h, T>,
) -> Result<Buffer<T>> {
    let pointer = range.pointer.cast::<T>();
    if !pointer.is_aligned() {
        return Err(Error::refused("its buffer begins where no element can"));
    }
    let len = range.bytes / size_of::<T>();
    let builder = checked(hub, len, builder)?;
    // SAFETY: as many elements, mapped while their owner lives. Another process uses them, too: see below.
    let buffer = unsafe { builder.host_memory(pointer, range.owner) }.build()?;
    core(&buffer).expose()?;
    core(&buffer).lend()?;
    Ok(buffer)
}

/// A buffer of another process, and the connection to it. Dropped, it detaches; the owner's lives on.
///
/// After the owner is gone, what this process had in its turn stays usable; out of turn every use is
/// [`Error::PeerLost`]. Where the owner is in this process, too, it stays usable until the owner uses the buffer.
pub struct Attached<T: Pod> {
    link: Link,
    buffer: Arc<Buffer<T>>,
    session: u64,
}

impl<T: Pod> Attached<T> {
    /// Whose the buffer is.
    pub fn owner(&self) -> Peer {
        self.link.peer()
    }

    /// The number of this visit among all of its owner's, the same at both ends.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// How often the buffer was handed over, either way.
    pub fn round(&self) -> u64 {
        self.link.round()
    }

    /// The buffer, to be used in this process's turns.
    pub fn buffer(&self) -> &Buffer<T> {
        &self.buffer
    }

    /// The same for whoever keeps it elsewhere. When this has detached, every use of it is [`Error::PeerLost`], but for
    /// guards that are held then.
    pub fn shared_buffer(&self) -> Arc<Buffer<T>> {
        self.buffer.clone()
    }

    /// Whether this process may use the buffer now.
    pub fn is_our_turn(&self) -> bool {
        self.link.is_ours()
    }

    /// Waits for all work on the buffer, and gives it back to the owner.
    ///
    /// # Errors
    /// As for [`Visit::hand_over`](super::Visit::hand_over).
    pub fn hand_over(&mut self) -> Result<()> {
        self.link.hand_over(core(&self.buffer))
    }

    /// Waits until the owner hands the buffer over.
    ///
    /// # Errors
    /// As for [`Visit::wait`](super::Visit::wait); but the turn of an owner that is gone falls to nobody.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.link.wait(core(&self.buffer), timeout)
    }

    /// Whether the owner is still there, in this process's turn.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when it is not.
    pub fn check(&mut self) -> Result<()> {
        self.link.check(core(&self.buffer))
    }

    /// Whether the owner ended the visit in good order, which one that died does not.
    pub fn has_left(&self) -> bool {
        self.link.has_left()
    }
}

impl<T: Pod> Drop for Attached<T> {
    fn drop(&mut self) {
        self.link.leave(core(&self.buffer));
    }
}

impl<T: Pod> fmt::Debug for Attached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached({:?} of {:?})", self.buffer, self.owner())
    }
}
