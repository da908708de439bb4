//! Peers
//!
//! Two processes on one buffer: a peer is the other one, at either end of an offer. The two take turns: a hand-over waits for all work on the buffer and
//! lets the other begin; out of turn every use of the buffer is ONEBUF_BUSY. However a peer ends, whoever waits for it
//! has ONEBUF_PEER_LOST at once: the owner has its turn again, and its buffer lives on.

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

/// The process at the other end of an offered buffer. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_peer {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_peer, PeerEnd, 17);

/// How to attach. Zeroes are the defaults, but for `name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_attach_options {
    /// `sizeof(onebuf_attach_options)`.
    pub size: usize,
    /// The name, or path, that the owner offers it by.
    pub name: *const c_char,
    /// How many bytes an element has: both sides say the same number. Zero: 1.
    pub element_bytes: usize,
    /// Other users who are trusted as owners; one's own always is.
    pub uids: *const u32,
    /// How many users.
    pub uid_count: usize,
    /// How long the owner may take to give the buffer, in milliseconds; zero: 10 seconds.
    pub timeout_ms: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_attach_options {}

/// Who it is, and how far the two are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_peer_info {
    /// `sizeof(onebuf_peer_info)`.
    pub size: usize,
    /// Its process id; zero where this process cannot see it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The number of this visit among all of its offer, the same at both ends.
    pub session: u64,
    /// How often the buffer was handed over, either way.
    pub round: u64,
    /// Not zero: this process may use the buffer now.
    pub our_turn: u32,
    /// Not zero: the other said goodbye, which one that died does not.
    pub left: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_peer_info {}

/// One end of a connection, and how long it is waited for when nothing is said.
#[doc(hidden)]
pub struct PeerEnd {
    side: Mutex<Side>,
    timeout: Duration,
}

enum Side {
    Owner(Visiting),
    Client(Attached<u8>),
}

/// The same call of either.
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

    /// Who waits for the other process may do so for long: nobody else waits for that.
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
    // SAFETY: the caller's promise, for all of these.
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
        // SAFETY: the caller's promise.
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

/// Attaches to a buffer that another process offers. It is the owner's turn then: onebuf_peer_wait() for one's own.
/// `buffer_options` say who sees it here and how; they may be NULL, and bring neither memory nor contents. Memory of a device
/// is imported only on a device that they name, and not by a driver that believes what the owner's file says (those that run on
/// the CPU). Both handles are to be freed; without the peer's the buffer is ONEBUF_PEER_LOST.
///
/// ONEBUF_UNAVAILABLE when nobody offers it; ONEBUF_TIMEOUT when the owner does not answer; ONEBUF_PEER_REFUSED for one
/// of another user, or whose words or memory fail a check; ONEBUF_INVALID_ARGUMENT for elements of another size;
/// ONEBUF_UNSUPPORTED for memory of a device where no device that takes it was named.
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
        // SAFETY: the caller's promise, also about what the options point at.
        let attached = unsafe { open(&hub.hub, &attach(options)?, &Asked::read(buffer_options)?)? };
        let whole = Whole::Attached(attached.shared_buffer());
        let made = onebuf_buffer::put(Buf::Whole(whole).into())?;
        // Without a place for the one there is no use for the other.
        *peer = onebuf_peer::put(PeerEnd::of_guest(attached)).inspect_err(|_| drop(made.take()))?;
        *buffer = made;
        Ok(())
    })
}

/// Who it is, and how far the two are. ONEBUF_BUSY while another thread waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_peer_query(
    peer: onebuf_peer,
    info: *mut onebuf_peer_info,
) -> onebuf_status {
    // SAFETY: the caller's promise.
    entry(|| unsafe { give(peer.get()?.info()?, info, "info") })
}

/// Waits for all work on the buffer, and gives the other process its turn. ONEBUF_PEER_LOST when it is gone: the buffer
/// stays this process's. ONEBUF_BUSY while a view is held, or out of turn.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_hand_over(peer: onebuf_peer) -> onebuf_status {
    entry(|| {
        let peer = peer.get()?;
        let mut side = peer.lock()?;
        Ok(either!(&mut *side, end => end.hand_over())?)
    })
}

/// Waits until the other process hands the buffer over. ONEBUF_TIMEOUT when it takes longer: wait again, or leave.
/// ONEBUF_PEER_LOST as soon as it is gone: an owner has its buffer again, with what the peer had written until then; the
/// turn of an owner that is gone falls to nobody.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_wait(peer: onebuf_peer, timeout_ms: u64) -> onebuf_status {
    entry(|| {
        let peer = peer.get()?;
        let limit = timeout(timeout_ms).unwrap_or(peer.timeout);
        let mut side = peer.lock()?;
        Ok(either!(&mut *side, end => end.wait(limit))?)
    })
}

/// Whether the other process is still there, in this one's turn: ONEBUF_PEER_LOST when it is not.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_check(peer: onebuf_peer) -> onebuf_status {
    entry(|| {
        let peer = peer.get()?;
        let mut side = peer.lock()?;
        Ok(either!(&mut *side, end => end.check())?)
    })
}

/// Ends the visit in good order: an owner's buffer is its own again; an attached one is ONEBUF_PEER_LOST.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_peer_free(peer: onebuf_peer) -> onebuf_status {
    free(peer)
}
