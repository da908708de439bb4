//! Offers
//!
//! A buffer for another process of the same user: the owner offers it under a name, the other attaches to it
//! (onebuf_peer_attach()) and has the same memory, without a copy. Fences do not cross processes, so the two take
//! turns, as peers do. From the offer on the buffer cannot be mapped, nor used by native kernels:
//! another process can write it at any time.

use crate::{
    buffer::onebuf_buffer,
    entry::{entry, free},
    fault::Result,
    handle::{Noun, noun},
    input::{Options, Slot, array, options, out, text, timeout},
    kept::Kept,
    peer::{PeerEnd, onebuf_peer},
    status::onebuf_status,
    string::{self, onebuf_string},
    visit::OpenOffer,
};
use onebuf::peer::Offer;
use std::{ffi::c_char, os::unix::ffi::OsStrExt, sync::Arc};

/// An offer. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_offer {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_offer, Offered, 16);

/// How to offer. Zeroes are the defaults, but for `name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_offer_options {
    /// `sizeof(onebuf_offer_options)`.
    pub size: usize,
    /// By what the others find it: a name, or the path of a socket in a folder that only its user may enter.
    pub name: *const c_char,
    /// How many bytes an element has: both sides say the same number. Zero: 1.
    pub element_bytes: usize,
    /// Other users whose processes may attach; those of one's own always may.
    pub uids: *const u32,
    /// How many users.
    pub uid_count: usize,
    /// How long a peer that has come may take for its part of the handshake, in milliseconds; zero: 5 seconds.
    pub greeting_ms: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_offer_options {}

/// An offer, and where its socket is.
#[doc(hidden)]
pub struct Offered {
    offer: Arc<OpenOffer>,
    path: Vec<u8>,
}

impl Offered {
    /// # Safety
    /// As for [`onebuf_offer_open`].
    unsafe fn open(buffer: Arc<Kept>, given: &onebuf_offer_options) -> Result<Self> {
        // SAFETY: the caller's promise, for both.
        let (name, uids) =
            unsafe { (text(given.name, "name")?, array(given.uids, given.uid_count, "uids")?) };
        let mut path = Vec::new();
        let offer = OpenOffer::new(buffer, |whole| {
            let offer = Offer::open(whole, name)?.element_bytes(given.element_bytes.max(1))?;
            path = offer.path().as_os_str().as_bytes().to_vec();
            let offer = uids.iter().fold(offer, |offer, uid| offer.allow_uid(*uid));
            Ok(match timeout(given.greeting_ms).filter(|limit| !limit.is_zero()) {
                Some(limit) => offer.greeting_limit(limit),
                None => offer,
            })
        })?;
        Ok(Self { offer: Arc::new(offer), path })
    }
}

/// Offers a buffer. ONEBUF_UNSUPPORTED unless it lies in host pages of its own, or in a device's memory that can be
/// exported; ONEBUF_BUSY while a view is held, while it is offered already, or while the name is another owner's;
/// ONEBUF_CACHE for a folder that others can enter. The buffer may be freed: it lives as long as the offer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_offer_open(
    buffer: onebuf_buffer,
    options: *const onebuf_offer_options,
    offer: Slot<'_, onebuf_offer>,
) -> onebuf_status {
    entry(|| {
        let offer = out(offer, "offer")?;
        let buffer = buffer.get()?;
        // SAFETY: the caller's promise, also about what the options point at.
        *offer = onebuf_offer::put(unsafe { Offered::open(buffer, &self::options(options)?)? })?;
        Ok(())
    })
}

/// The socket's path, by which processes with another notion of names find it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_offer_path(
    offer: onebuf_offer,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(offer.get()?.path.clone())))
}

/// Waits for the next peer, checks it, and gives it the memory; it is this process's turn then. One peer at a time:
/// ONEBUF_BUSY while one is here. ONEBUF_TIMEOUT when no peer has come and done its part of the
/// handshake; ONEBUF_PEER_REFUSED for one of another user, or that says nothing; ONEBUF_INVALID_ARGUMENT for one with other elements;
/// ONEBUF_PEER_LOST for one that went away. After any of these the next one may be waited for.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_offer_accept(
    offer: onebuf_offer,
    timeout_ms: u64,
    peer: Slot<'_, onebuf_peer>,
) -> onebuf_status {
    entry(|| {
        let peer = out(peer, "peer")?;
        let visiting = offer.get()?.offer.accept(timeout(timeout_ms))?;
        *peer = onebuf_peer::put(PeerEnd::of_owner(visiting))?;
        Ok(())
    })
}

/// Frees an offer: nobody can attach any more. A peer that is here stays until its handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_offer_free(offer: onebuf_offer) -> onebuf_status {
    free(offer)
}
