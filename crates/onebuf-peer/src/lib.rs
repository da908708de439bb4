//! Sharing a buffer between two processes.
//!
//! The owner offers a buffer under a name. Another process of the same user attaches to it and gets a
//! [`Buffer`](onebuf_core::Buffer) over the *same pages*, for its own devices and by its own hub's routes; or over the same device
//! memory ([`MemoryKind::Exportable`](onebuf_hal::MemoryKind::Exportable)), on a device of the same chip. Fences do not cross
//! processes, so the two processes take turns: a hand-over waits for all work of one process and then lets the other begin.
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
//!     // Usually in another process.
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
//!     assert!(buffer.fill(3).is_err());                    // Busy: it is the peer's turn
//!     visit.wait(soon)?;                                   // PeerLost as soon as the peer is gone
//!     assert_eq!(buffer.to_vec()?[7], 2);
//!     peer.join().unwrap()
//! })
//! # }
//! ```
//!
//! # What is checked
//!
//! Everything from the other process is checked before it is used: its user (`SO_PEERCRED`), the protocol version, every size
//! and offset, and the number of fds. A memfd must be sealed against shrinking, growing and further sealing, and have exactly
//! the announced size. The socket lies in a directory of mode 0700. Device memory is imported only on a device that the
//! caller named, and never by a driver that trusts the contents of the owner's file. A descriptor that is not memory, such as
//! a socket, never reaches a driver.
//!
//! Turns are cooperative. A process that ignores them can corrupt the *contents* at any time, even after it has detached,
//! because it may keep its mapping. It cannot break the memory safety of the other process: once a buffer is offered or
//! attached, no slice of it is created. `map` and native kernels are refused; `read`, `write`, `fill` and copies use atomic
//! words. A device kernel must stay in bounds whatever it reads, even if two reads of one element differ. Unsafe code can
//! still use the [`address`](onebuf_core::WriteView::address) of a host queue's view.
//!
//! # When the other process exits
//!
//! However it exits, the kernel closes its socket, and the waiting process gets [`Error::PeerLost`] at once. The owner then
//! has its turn again, and its buffer remains usable; it may hold a partial write of the peer. A peer that hangs causes a
//! [`Timeout`](onebuf_hal::Error::Timeout). If the owner exits during the peer's turn, the peer keeps its buffer; outside of
//! its turn it loses it. A peer in the owner's own process keeps it until the owner uses the buffer. That use waits for the
//! peer's work, and is [`Busy`](onebuf_hal::Error::Busy) while the peer holds a guard. Safe calls of the two therefore never
//! access the memory at the same time.

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
pub use onebuf_socket::{
    Peer, before_signals_end, folder, remove_sockets, remove_sockets_on_signals, socket_path,
};

use onebuf_hal::Error;

fn other_elements(owners: u32, peers: u32) -> Error {
    Error::invalid(format!(
        "the owner's elements have {owners} bytes, but the peer asked for {peers}"
    ))
}
