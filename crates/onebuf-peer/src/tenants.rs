//! Clients in the same process as their owner.
//!
//! An owner that ends a visit has its turn at once. A client in another process may go on writing, which corrupts contents
//! and nothing else. In one process both ends are safe code, so the owner's buffer must know the client's and end its turn
//! first. The two are matched by the address of the owner's socket and the number of the visit.

use onebuf_core::internals::Core;
use onebuf_hal::locks::Arc;
use onebuf_socket::{Peer, Socket};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

struct Tenant {
    address: Vec<u8>,
    session: u64,
    core: Weak<Core>,
}

fn all() -> MutexGuard<'static, Vec<Tenant>> {
    static ALL: Mutex<Vec<Tenant>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a client's buffer. Must be called before the owner is told that the client is ready.
pub(super) fn enter(socket: &Socket, owner: Peer, session: u64, core: Weak<Core>) {
    let Some(address) = socket.their_address().filter(|_| owner.is_here()) else { return };
    let mut all = all();
    all.retain(|tenant| tenant.core.strong_count() > 0);
    all.push(Tenant { address, session, core });
}

/// The clients of a visit that are in this process. An earlier offer at the same address may have left a client with the same
/// number that was never found. It is returned too, and loses a buffer whose owner is gone. A client that exited before it
/// was found never had a turn.
pub(super) fn find(socket: &Socket, client: Peer, session: u64) -> Vec<Arc<Core>> {
    let Some(address) = socket.own_address().filter(|_| client.is_here()) else {
        return Vec::new();
    };
    let of_visit = |tenant: &mut Tenant| tenant.address == address && tenant.session == session;
    all().extract_if(.., of_visit).filter_map(|tenant| tenant.core.upgrade()).collect()
}
