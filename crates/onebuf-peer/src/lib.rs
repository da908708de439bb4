//! One buffer, two processes.
//!
//! The owner offers a buffer under a name; another process of the same user attaches to it and gets a
//! [`Buffer`](onebuf_core::Buffer) over the *same pages*, for its own devices, by its own hub's routes; or over the same
//! memory of a device ([`MemoryKind::Exportable`](onebuf_hal::MemoryKind::Exportable)), by a device of the same chip. Fences do not
//! cross processes, so the two take turns: a hand-over waits for all work of the one, and lets the other begin.
//!
//! ```text
//!   owner                                          peer
//!   Offer::open(&buffer, "frames") ── socket ──▶   Attach::to("frames").open(&hub, |builder| builder)
//!   accept() ◀── hello ── grant, memfd ── ready ──▶
//!   write, launch …  hand_over() ── turn ──▶       wait()  read, launch …
//!   wait() ◀── turn ──────────────────────────     hand_over()
//! ```
//!
//! ```
//! use onebuf::{peer::{Attach, Offer}};
//! use std::time::Duration;
//!
//! # fn main() -> onebuf::Result<()> {
//! let soon = Duration::from_secs(10);
//! let hub = onebuf::discover()?;
//! let buffer = hub.buffer::<u32>(1 << 20).build()?;
//! # use std::os::unix::fs::PermissionsExt;
//! # let rights = std::fs::Permissions::from_mode(0o700);
//! # let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
//! # let name = folder.path().join("doc.sock").to_str().unwrap().to_owned();
//! # let name = name.as_str();
//! # /*
//! let name = "frames";
//! # */
//! let mut offer = Offer::open(&buffer, name)?;
//!
//! std::thread::scope(|scope| {
//!     // In another process, as a rule.
//!     let peer = scope.spawn(|| -> onebuf::Result<()> {
//!         let hub = onebuf::discover()?;
//!         let mut attached = Attach::to(name).open::<u32>(&hub, |builder| builder)?;
//!         attached.wait(soon)?;                            // the owner's turn is over
//!         assert_eq!(attached.buffer().to_vec()?[7], 1);
//!         attached.buffer().fill(2)?;
//!         attached.hand_over()
//!     });
//!     let mut visit = offer.accept(soon)?;
//!     buffer.fill(1)?;
//!     visit.hand_over()?;
//!     assert!(buffer.fill(3).is_err());                    // busy: it is the peer's turn
//!     visit.wait(soon)?;                                   // or PeerLost, as soon as it is gone
//!     assert_eq!(buffer.to_vec()?[7], 2);
//!     peer.join().unwrap()
//! })
//! # }
//! ```
//!
//! # What is not believed
//!
//! Everything that comes from the other process is checked before it is used: its user (`SO_PEERCRED`), version,
//! every size and offset, the number of fds; that the fd is a memfd which can neither shrink nor grow nor be
//! unsealed, and is exactly as long as was said. The socket lies in a folder of mode 0700. A device's memory is taken only
//! on a device that the caller named, and never by a driver that believes what the owner's file says. What is no memory
//! at all, such as a socket, gets to no driver.
//!
//! Turns are an agreement. A process that breaks it can spoil the *contents*, at any time, even after it has
//! detached: it may keep its mapping. It cannot break the memory safety of the other: from the moment that a
//! buffer is offered or attached, no slice of it is made. `map` and native kernels are refused, `read`, `write`,
//! `fill` and copies move atomic words. A kernel of a device that runs on it must stay in bounds whatever it reads, also
//! when it reads the same element twice. The way out is `unsafe`: a view of a host queue has an
//! [`address`](onebuf_core::WriteView::address).
//!
//! # When the other process ends
//!
//! However it ends, the kernel closes its end of the socket, and whoever waits gets
//! [`Error::PeerLost`] at once. The owner has its turn again, and the buffer lives on; it
//! may hold half of what the peer was writing. A peer that merely hangs is a [`Timeout`](onebuf_hal::Error::Timeout).
//! A peer that is left behind keeps what it has in its own turn, and gets nothing out of turn. One in the owner's own
//! process keeps it until the owner uses the buffer, and that waits for it, or is [`Busy`](onebuf_hal::Error::Busy) while it
//! holds a guard: safe calls of the two never meet.

#![deny(unsafe_code)]

/// Tests of parsers measure what they allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;

mod attach;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod device_tests;
mod given;
mod greeting;
mod inside;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod ipc_tests;
mod link;
mod messages;
mod offer;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod one_process_tests;
mod taken;
mod tenants;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;
mod wire;

pub use attach::{Attach, Attached};
pub use offer::{Offer, Visit};
pub use onebuf_socket::{Peer, folder, remove_sockets, remove_sockets_on_signals, socket_path};

use onebuf_hal::Error;

fn other_elements(owners: u32, peers: u32) -> Error {
    Error::invalid(format!(
        "the owner's elements have {owners} bytes, the peer asked for elements of {peers}"
    ))
}
