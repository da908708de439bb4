//! The peer's side: attaches to a buffer of another process.
//!
//! # Safety
//! The one unsafe call creates a buffer over pages that another process can write. The buffer is exposed before any other
//! code sees it, so no slice of it is ever created.

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

/// The default time limit for the owner's grant. The owner may be busy with another peer.
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// How long a wait takes at most before the caller is asked whether to go on.
const SLICE: Duration = Duration::from_millis(50);

/// Configures how to attach to a buffer that another process offers.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `open`"]
pub struct Attach {
    name: String,
    allowed: Vec<u32>,
    limit: Duration,
    element_bytes: Option<u32>,
}

impl Attach {
    /// Attaches by the name or path that the owner passed to [`Offer::open`](super::Offer::open).
    pub fn to(name: impl Into<String>) -> Self {
        Self { name: name.into(), allowed: Vec::new(), limit: DEFAULT_LIMIT, element_bytes: None }
    }

    /// Also accepts an owner of this user. Owners of the same user are always accepted.
    pub fn allow_uid(mut self, uid: u32) -> Self {
        self.allowed.push(uid);
        self
    }

    /// Sets how long the owner may take to grant the buffer: 10 s by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the owner's element size, for programs that treat every buffer as bytes. The default is the size of `T`.
    pub fn element_bytes(mut self, bytes: u32) -> Self {
        self.element_bytes = Some(bytes);
        self
    }

    /// Attaches. It is then the owner's turn: call [`Attached::wait`] for this process's.
    ///
    /// `builder` configures the buffer except for its length and memory: which devices use it
    /// ([`BufferBuilder::shared_with`]) and how. Device memory is imported only by a named device of the same chip that
    /// supports such descriptors or handles, because the owner must not choose which driver reads what it sent. Drivers that
    /// trust the contents of a file are refused ([`Caps::parses_fds`](onebuf_hal::Caps::parses_fds)). Devices of other chips
    /// get copies.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the buffer is not offered; [`Error::Timeout`] if the owner does not answer;
    /// [`Error::PeerRefused`] for an owner of another user, or whose messages or memory fail a check;
    /// [`Error::InvalidArgument`] for another element size; [`Error::Unsupported`] for memory that cannot be attached, or of
    /// a chip that no named device is on (the message lists those that are); [`Error::PeerLost`]; and the errors of
    /// [`BufferBuilder::build`].
    pub fn open<'h, T: Pod>(
        &self,
        hub: &'h Hub,
        builder: impl FnOnce(BufferBuilder<'h, T>) -> BufferBuilder<'h, T>,
    ) -> Result<Attached<T>> {
        self.open_while(hub, builder, || Ok(()))
    }

    /// Like [`Attach::open`]; an error of `go_on`, which is called every 50 ms, ends the wait for the owner. For bindings of languages
    /// whose signals end waits.
    #[doc(hidden)]
    pub fn open_while<'h, T: Pod>(
        &self,
        hub: &'h Hub,
        builder: impl FnOnce(BufferBuilder<'h, T>) -> BufferBuilder<'h, T>,
        mut go_on: impl FnMut() -> Result<()>,
    ) -> Result<Attached<T>> {
        let deadline = Deadline::after(self.limit);
        let path = socket_path(&self.name)?;
        let socket = in_slices(deadline, &mut go_on, |slice| Socket::connect(&path, slice))?;
        let owner = socket.peer()?.check(&self.allowed)?;
        let element_bytes = self.element_bytes.unwrap_or(size_of::<T>() as u32);
        let (grant, file) = ask(&socket, element_bytes, deadline, &mut go_on)?;
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

/// Repeats a wait, which is whole again after its timeout, and asks in between whether to go on.
fn in_slices<R>(
    deadline: Deadline,
    go_on: &mut impl FnMut() -> Result<()>,
    wait: impl Fn(Deadline) -> Result<R>,
) -> Result<R> {
    loop {
        let left = deadline.left();
        match wait(Deadline::after(left.min(SLICE))) {
            Err(Error::Timeout { .. }) if left > SLICE => go_on()?,
            Err(Error::Timeout { what, .. }) => return Err(deadline.missed(what)),
            ended => return ended,
        }
    }
}

/// Sends hello and receives the grant.
fn ask(
    socket: &Socket,
    element_bytes: u32,
    deadline: Deadline,
    go_on: &mut impl FnMut() -> Result<()>,
) -> Result<(Grant, Option<OwnedFd>)> {
    socket.send(&Message::Hello { element_bytes }, &[], deadline)?;
    let granted = |slice| socket.receive(slice, "the owner to give the buffer");
    let (grant, fds) = match in_slices(deadline, go_on, granted)? {
        (Message::Grant(grant), fds) => (*grant, fds),
        (Message::WrongElement { element_bytes: theirs }, _) => {
            return Err(super::other_elements(theirs, element_bytes));
        }
        _ => return Err(Error::refused("the owner's first message was not a grant")),
    };
    if grant.element_bytes != element_bytes {
        return Err(super::other_elements(grant.element_bytes, element_bytes));
    }
    Ok((grant, fds.first()))
}

/// The buffer's range in its allocation.
fn part(grant: &Grant, range: &HostRange) -> Result<HostRange> {
    let fits = |number: u64| {
        usize::try_from(number).map_err(|_| Error::refused("its buffer is too large"))
    };
    range.part(fits(grant.offset)?, fits(grant.bytes)?)
}

fn elements<T>(bytes: u64) -> Result<usize> {
    let bytes = usize::try_from(bytes).map_err(|_| Error::refused("its buffer is too large"))?;
    Ok(bytes / size_of::<T>())
}

/// Lets the caller configure a buffer of this length on this hub, and checks that it did not replace the builder.
fn checked<'h, T: Pod>(
    hub: &'h Hub,
    len: usize,
    builder: impl FnOnce(BufferBuilder<'h, T>) -> BufferBuilder<'h, T>,
) -> Result<BufferBuilder<'h, T>> {
    let builder = builder(hub.buffer::<T>(len));
    if builder.elements() != len || !builder.hub().is(hub) {
        return Err(Error::invalid("the function must return the builder it was given"));
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
        return Err(Error::refused("its buffer is not aligned for its elements"));
    }
    let len = range.bytes / size_of::<T>();
    let builder = checked(hub, len, builder)?;
    // SAFETY: the pages hold `len` elements and stay mapped while the range's owner lives. Another process can write them, so the
    // buffer is exposed below.
    let buffer = unsafe { builder.host_memory(pointer, range.owner) }.build()?;
    core(&buffer).expose()?;
    core(&buffer).lend()?;
    Ok(buffer)
}

/// A buffer of another process, and the connection to that process. Dropping it detaches; the owner's buffer remains.
///
/// If the owner exits during this process's turn, the buffer stays usable; otherwise every use is [`Error::PeerLost`]. If the
/// owner is in this process, the buffer stays usable until the owner uses its own.
pub struct Attached<T: Pod> {
    link: Link,
    buffer: Arc<Buffer<T>>,
    session: u64,
}

impl<T: Pod> Attached<T> {
    /// The owner's process.
    pub fn owner(&self) -> Peer {
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

    /// The buffer, for use during this process's turns.
    pub fn buffer(&self) -> &Buffer<T> {
        &self.buffer
    }

    /// The buffer, to be kept elsewhere. After this has detached, every use of it is [`Error::PeerLost`], except through
    /// guards that are still held.
    pub fn shared_buffer(&self) -> Arc<Buffer<T>> {
        self.buffer.clone()
    }

    /// Whether this process may use the buffer now.
    pub fn is_our_turn(&self) -> bool {
        self.link.is_ours()
    }

    /// Waits for all work on the buffer, and hands it back to the owner.
    ///
    /// # Errors
    /// As for [`Visit::hand_over`](super::Visit::hand_over).
    pub fn hand_over(&mut self) -> Result<()> {
        self.link.hand_over(core(&self.buffer))
    }

    /// Waits until the owner hands the buffer over.
    ///
    /// # Errors
    /// As for [`Visit::wait`](super::Visit::wait), except that this process does not get the turn of an owner that is gone.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.link.wait(core(&self.buffer), timeout)
    }

    /// Checks during this process's turn that the owner is still connected.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if it is not.
    pub fn check(&mut self) -> Result<()> {
        self.link.check(core(&self.buffer))
    }

    /// Whether the owner ended the visit normally instead of dying.
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
