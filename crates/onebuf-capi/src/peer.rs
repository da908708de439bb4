//! Peers
//!
//! A peer is the process at the other end of an offer. The two processes take turns: a hand-over waits for all work on
//! the buffer and lets the other process begin; using the buffer out of turn fails with ONEBUF_BUSY. When a peer ends,
//! in whatever way, waits for it fail with ONEBUF_PEER_LOST at once; the owner has its turn again and keeps its buffer.

use crate::{
    buffer::{Asked, onebuf_buffer, onebuf_buffer_options},
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, array, give, options, out, text, timeout},
    kept::{Buf, Whole},
    status::onebuf_status,
    visit::Visiting,
};
use onebuf::{
    Error, Hub,
    peer::{Attach, Attached},
};
use std::{
    ffi::c_char,
    sync::{Mutex, MutexGuard, TryLockError},
    time::Duration,
};

/// The process at the other end of an offered buffer. Free it with onebuf_peer_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_peer {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_peer, PeerEnd, 17);

/// Options for attaching. Zero in every field means the default, except for `name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_attach_options {
    /// `sizeof(onebuf_attach_options)`.
    pub size: usize,
    /// The name or path under which the owner offers the buffer.
    pub name: *const c_char,
    /// Size of an element in bytes; both sides must state the same number. Zero: 1.
    pub element_bytes: usize,
    /// Other users who are trusted as owners; this user always is.
    pub uids: *const u32,
    /// Number of users.
    pub uid_count: usize,
    /// Time limit for the owner to hand the buffer out, in milliseconds; zero: 10 seconds.
    pub timeout_ms: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_attach_options {}

/// The identity of a peer, and the state of the connection.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_peer_info {
    /// `sizeof(onebuf_peer_info)`.
    pub size: usize,
    /// Process id of the peer; zero if this process cannot see it.
    pub pid: u32,
    /// User id of the peer.
    pub uid: u32,
    /// Number of this connection among all of its offer; the same at both ends.
    pub session: u64,
    /// Number of hand-overs, in both directions.
    pub round: u64,
    /// Not zero: it is this process's turn.
    pub our_turn: u32,
    /// Not zero: the peer disconnected in good order, rather than by dying.
    pub left: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_peer_info {}

/// One end of a connection, and its default timeout.
#[doc(hidden)]
pub struct PeerEnd {
    side: Mutex<Side>,
    timeout: Duration,
}

enum Side {
    Owner(Visiting),
    Client(Attached<u8>),
}

/// Calls the same method of either end.
macro_rules! either {
    ($side:expr, $end:ident => $call:expr) => {
        match $side {
            Side::Owner(Visiting { visit: $end, .. }) => $call,
            Side::Client($end) => $call,
        }
    };
}

impl PeerEnd {
    pub(crate) fn of_owner(visiting: Visiting) -> Self {
        let timeout = visiting.visit.buffer().hub().timeout();
        Self { side: Mutex::new(Side::Owner(visiting)), timeout }
    }

    fn of_guest(attached: Attached<u8>) -> Self {
        let timeout = attached.buffer().hub().timeout();
        Self { side: Mutex::new(Side::Client(attached)), timeout }
    }

    /// A wait for the other process may be long, so other calls do not queue behind it.
    fn lock(&self) -> Result<MutexGuard<'_, Side>> {
        match self.side.try_lock() {
            Ok(side) => Ok(side),
            Err(TryLockError::Poisoned(side)) => Ok(side.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let what = "another thread waits for this peer, or hands the buffer over".into();
                Err(Error::Busy { what }.into())
            }
        }
    }

    fn info(&self) -> Result<onebuf_peer_info> {
        let side = self.lock()?;
        let peer = match &*side {
            Side::Owner(visiting) => visiting.visit.peer(),
            Side::Client(attached) => attached.owner(),
        };
        Ok(onebuf_peer_info {
            size: size_of::<onebuf_peer_info>(),
            pid: peer.pid,
            uid: peer.uid,
            session: either!(&*side, end => end.session()),
            round: either!(&*side, end => end.round()),
            our_turn: either!(&*side, end => end.is_our_turn()).into(),
            left: either!(&*side, end => end.has_left()).into(),
        })
    }
}

/// # Safety
/// As for [`onebuf_peer_attach`].
unsafe fn attach(given: *const onebuf_attach_options) -> Result<Attach> {
    // SAFETY: guaranteed by the caller, for all of these.
    let (given, name, uids) = unsafe {
        let given = options(given)?;
        (given, text(given.name, "name")?, array(given.uids, given.uid_count, "uids")?)
    };
    let bytes = u32::try_from(given.element_bytes.max(1))
        .map_err(|_| Fault::invalid(format!("elements of {} bytes", given.element_bytes)))?;
    let attach = Attach::to(name).element_bytes(bytes);
    let attach = uids.iter().fold(attach, |attach, uid| attach.allow_uid(*uid));
    Ok(match timeout(given.timeout_ms).filter(|limit| !limit.is_zero()) {
        Some(limit) => attach.timeout(limit),
        None => attach,
    })
}

/// # Safety
/// As for [`onebuf_peer_attach`].
unsafe fn open(hub: &Hub, attach: &Attach, asked: &Asked) -> Result<Attached<u8>> {
    if asked.brings_bytes() {
        return Err(Fault::invalid("`contents` or `host_memory` for a buffer that exists already"));
    }
    let mut fault = None;
    let attached = attach.open::<u8>(hub, |builder| {
        // SAFETY: guaranteed by the caller.
        unsafe { asked.shape(builder.clone()) }.unwrap_or_else(|why| {
            fault = Some(why);
            builder
        })
    });
    match fault {
        Some(fault) => Err(fault),
        None => Ok(attached?),
    }
}

/// Attaches to a buffer that another process offers. It is then the owner's turn: call onebuf_peer_wait().
/// `buffer_options` say which devices access it here and how; they may be NULL, and must not contain host memory or
/// contents. Device memory is imported only on a device that they name, and not by a driver that trusts the contents of
/// the owner's file (drivers that run on the CPU). Free both handles; after the peer is freed, using the buffer fails
/// with ONEBUF_PEER_LOST.
///
/// ONEBUF_UNAVAILABLE if no process offers it; ONEBUF_TIMEOUT if the owner does not answer; ONEBUF_PEER_REFUSED for an
/// owner of another user, or if its messages or memory fail a check; ONEBUF_INVALID_ARGUMENT for another element size;
/// ONEBUF_UNSUPPORTED for device memory if the options name no device that can import it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_peer_attach(
    hub: onebuf_hub,
    options: *const onebuf_attach_options,
    buffer_options: *const onebuf_buffer_options,
    peer: Slot<'_, onebuf_peer>,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let (peer, buffer) = (out(peer, "peer")?, out(buffer, "buffer")?);
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let attached = unsafe { open(&hub.hub, &attach(options)?, &Asked::read(buffer_options)?)? };
        let whole = Whole::Attached(attached.shared_buffer());
        let made = onebuf_buffer::put(Buf::Whole(whole).into())?;
        // The caller needs both results, so both places are checked first.
        *peer = onebuf_peer::put(PeerEnd::of_guest(attached)).inspect_err(|_| drop(made.take()))?;
        *buffer = made;
        Ok(())
    })
}

/// Queries the peer. ONEBUF_BUSY while another thread waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_peer_query(
    peer: onebuf_peer,
    info: *mut onebuf_peer_info,
) -> onebuf_status {
    // SAFETY: guaranteed by the caller.
    entry(|| unsafe { give(peer.get()?.info()?, info, "info") })
}

/// Waits for all work on the buffer and gives the other process its turn. ONEBUF_PEER_LOST if the peer is gone: this
/// process keeps the buffer. ONEBUF_BUSY while a view is held, or out of turn.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_hand_over(peer: onebuf_peer) -> onebuf_status {
    entry(|| {
        let peer = peer.get()?;
        let mut side = peer.lock()?;
        Ok(either!(&mut *side, end => end.hand_over())?)
    })
}

/// Waits until the other process hands the buffer over. ONEBUF_TIMEOUT if it takes longer: wait again, or free the
/// peer. ONEBUF_PEER_LOST as soon as the peer is gone: an owner has its buffer again, with what the peer had written
/// until then; if the owner is gone, the buffer is lost.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_wait(peer: onebuf_peer, timeout_ms: u64) -> onebuf_status {
    entry(|| {
        let peer = peer.get()?;
        let limit = timeout(timeout_ms).unwrap_or(peer.timeout);
        let mut side = peer.lock()?;
        Ok(either!(&mut *side, end => end.wait(limit))?)
    })
}

/// Checks, during this process's turn, that the other process is still there: ONEBUF_PEER_LOST if it is not.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_check(peer: onebuf_peer) -> onebuf_status {
    entry(|| {
        let peer = peer.get()?;
        let mut side = peer.lock()?;
        Ok(either!(&mut *side, end => end.check())?)
    })
}

/// Ends the connection in good order: an owner has its buffer to itself again; an attached buffer fails with
/// ONEBUF_PEER_LOST.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_free(peer: onebuf_peer) -> onebuf_status {
    free(peer)
}
