//! Offers
//!
//! Shares a buffer with another process of the same user. The owner offers it under a name; the other process attaches
//! to it (onebuf_peer_attach()) and accesses the same memory without a copy. Fences do not cross processes, so the two
//! take turns: see the section on peers. An offered buffer cannot be mapped or used by native kernels, because another
//! process can write it at any time.

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
use onebuf::peer::{Offer, remove_sockets, remove_sockets_on_signals, socket_path};
use std::{
    ffi::c_char,
    os::unix::ffi::{OsStrExt, OsStringExt},
    sync::Arc,
};

/// An offer. Free it with onebuf_offer_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_offer {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_offer, Offered, 16);

/// Options of an offer. Zero in every field means the default, except for `name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_offer_options {
    /// `sizeof(onebuf_offer_options)`.
    pub size: usize,
    /// The name under which peers find it, or the path of a socket in a folder that only this user can enter.
    pub name: *const c_char,
    /// Size of an element in bytes; both sides must state the same number. Zero: 1.
    pub element_bytes: usize,
    /// Other users whose processes may attach; processes of this user always may.
    pub uids: *const u32,
    /// Number of users.
    pub uid_count: usize,
    /// Time limit of the handshake with a peer that has connected, in milliseconds; zero: 5 seconds.
    pub greeting_ms: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_offer_options {}

/// An offer, and the path of its socket.
#[doc(hidden)]
pub struct Offered {
    offer: Arc<OpenOffer>,
    path: Vec<u8>,
}

impl Offered {
    /// # Safety
    /// As for [`onebuf_offer_open`].
    unsafe fn open(buffer: Arc<Kept>, given: &onebuf_offer_options) -> Result<Self> {
        // SAFETY: guaranteed by the caller, for both.
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

/// Offers a buffer. ONEBUF_UNSUPPORTED unless the buffer lies in host pages allocated by onebuf, or in device memory
/// that can be exported; ONEBUF_BUSY while a view is held, while it is already offered, or while another owner uses the
/// name; ONEBUF_CACHE for a folder that other users can enter. The buffer may be freed: the offer keeps it alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_offer_open(
    buffer: onebuf_buffer,
    options: *const onebuf_offer_options,
    offer: Slot<'_, onebuf_offer>,
) -> onebuf_status {
    entry(|| {
        let offer = out(offer, "offer")?;
        let buffer = buffer.get()?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        *offer = onebuf_offer::put(unsafe { Offered::open(buffer, &self::options(options)?)? })?;
        Ok(())
    })
}

/// The path of the socket, for processes that resolve names differently.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_offer_path(
    offer: onebuf_offer,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(offer.get()?.path.clone())))
}

/// Waits for the next peer, validates it and gives it the memory. It is then this process's turn. One peer at a time:
/// ONEBUF_BUSY while one is attached. ONEBUF_TIMEOUT if no peer completed the handshake; ONEBUF_PEER_REFUSED for a peer
/// of another user, or one that sends nothing; ONEBUF_INVALID_ARGUMENT for a peer with another element size;
/// ONEBUF_PEER_LOST for a peer that disconnected. After any of these you can wait for the next peer.
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

/// Frees an offer: no peer can attach any more. An attached peer stays until its handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_offer_free(offer: onebuf_offer) -> onebuf_status {
    free(offer)
}

/// The path of the socket of a name: in `$XDG_RUNTIME_DIR/onebuf`, or in a folder of the user's among the temporary files.
/// ONEBUF_INVALID_ARGUMENT for a name that no socket can have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_socket_path(
    name: *const c_char,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            // SAFETY: guaranteed by the caller.
            let path = socket_path(unsafe { self::text(name, "name")? })?;
            Ok(path.into_os_string().into_vec())
        })
    })
}

/// Removes every socket that this process has created, for programs that exit without freeing their offers and publications.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_sockets_remove() -> onebuf_status {
    entry(|| {
        remove_sockets();
        Ok(())
    })
}

/// Does so when SIGINT, SIGTERM or SIGHUP ends the process. Only for programs that leave these signals to the library.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_sockets_remove_on_signals() -> onebuf_status {
    entry(|| Ok(remove_sockets_on_signals()?))
}
