//! Handshakes with connecting peers, all at once, so that a silent peer delays no other.

use super::{
    messages::Messages,
    wire::{Grant, Message},
};
use onebuf_hal::{Error, Result};
use onebuf_socket::{Deadline, Listener, Peer, Socket, wait_for_any};
use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// The maximum number of concurrent handshakes. More peers wait in the listen queue.
const MOST_AT_ONCE: usize = 16;

/// A peer has this many times the greeting limit to build its buffer: creating a driver's context takes seconds on a busy
/// machine.
const BUILDING: u32 = 6;

/// What a peer receives after a correct hello.
pub(super) struct Gift<'g> {
    pub element_bytes: u32,
    pub fds: Vec<BorrowedFd<'g>>,
}

/// A peer during its handshake.
#[derive(Debug)]
pub(super) struct Client {
    pub socket: Socket,
    pub peer: Peer,
    pub session: u64,
    /// How long it has been waited for. Time in which the owner is busy with another peer does not count.
    waited: Duration,
    /// It has received the memory and must confirm that it has mapped it.
    granted: bool,
}

impl Client {
    /// Handles the peer's next message; true if it is ready.
    fn hear(&mut self, gift: &Gift<'_>, grant: impl Fn(u64) -> Grant) -> Result<bool> {
        let Some((message, _)) = self.socket.try_receive()? else { return Ok(false) };
        match message {
            Message::Ready if self.granted => return self.stayed().map(|()| true),
            _ if self.granted => {
                return Err(Error::refused("its second message was not `ready`"));
            }
            Message::Hello { element_bytes } if element_bytes == gift.element_bytes => {
                self.send(&Message::Grant(Box::new(grant(self.session))), &gift.fds)?;
                (self.granted, self.waited) = (true, Duration::ZERO);
            }
            Message::Hello { element_bytes } => {
                let ours = gift.element_bytes;
                self.send(&Message::WrongElement { element_bytes: ours }, &[])?;
                return Err(super::other_elements(ours, element_bytes));
            }
            _ => return Err(Error::refused("its first message was not `hello`")),
        }
        Ok(false)
    }

    /// Checks that the peer is still there: it may have been ready for long.
    fn stayed(&self) -> Result<()> {
        match self.socket.try_receive()? {
            None => Ok(()),
            Some((Message::Bye, _)) => {
                Err(Error::PeerLost { reason: "the peer left before its visit began".into() })
            }
            Some(_) => Err(Error::refused("it sent a message out of turn")),
        }
    }

    /// Sends without waiting. A peer whose socket buffer is full is refused.
    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let sent = self.socket.send(message, fds, Deadline::after(Duration::ZERO));
        sent.map_err(|error| match error {
            Error::Timeout { .. } => Error::refused("it does not read its messages"),
            other => other,
        })
    }

    /// The time left until the limit. A peer that has the memory gets longer, because it has to open its devices.
    fn left(&self, limit: Duration) -> Duration {
        self.limit(limit).saturating_sub(self.waited)
    }

    fn limit(&self, limit: Duration) -> Duration {
        if self.granted { limit.saturating_mul(BUILDING) } else { limit }
    }

    fn too_slow(&self, limit: Duration) -> Error {
        let (pid, ms) = (self.peer.pid, self.limit(limit).as_millis());
        let what = if self.granted { "map the buffer" } else { "say hello" };
        Error::refused(format!("process {pid} connected and did not {what} within {ms} ms"))
    }
}

/// The peers whose handshakes are in progress, in the order of their connections.
#[derive(Debug, Default)]
pub(super) struct Clients {
    all: Vec<Client>,
    /// How many peers have connected in total.
    came: u64,
}

impl Clients {
    /// Returns the first peer that is ready. An error concerns one peer, which is disconnected, or the deadline. The other
    /// peers stay, and the next call continues with them.
    pub fn next(
        &mut self,
        listener: &Listener,
        allowed: &[u32],
        (deadline, limit): (Deadline, Duration),
        gift: &Gift<'_>,
        grant: impl Fn(u64) -> Grant,
    ) -> Result<Client> {
        loop {
            self.let_in(listener, allowed)?;
            if let Some(ready) = self.hear_all(gift, &grant)? {
                return Ok(ready);
            }
            if let Some(slow) = self.all.iter().position(|client| client.left(limit).is_zero()) {
                return Err(self.all.remove(slow).too_slow(limit));
            }
            if deadline.left().is_zero() {
                return Err(deadline.missed("waiting for a peer to connect"));
            }
            self.wait(listener, deadline, limit)?;
        }
    }

    fn let_in(&mut self, listener: &Listener, allowed: &[u32]) -> Result<()> {
        while self.all.len() < MOST_AT_ONCE
            && let Some(socket) = listener.try_accept()?
        {
            let peer = socket.peer()?.check(allowed)?;
            self.came += 1;
            let (session, waited) = (self.came, Duration::ZERO);
            self.all.push(Client { socket, peer, session, waited, granted: false });
        }
        Ok(())
    }

    fn hear_all(
        &mut self,
        gift: &Gift<'_>,
        grant: &impl Fn(u64) -> Grant,
    ) -> Result<Option<Client>> {
        for at in 0..self.all.len() {
            match self.all[at].hear(gift, grant) {
                Ok(false) => {}
                Ok(true) => return Ok(Some(self.all.remove(at))),
                Err(error) => {
                    self.all.remove(at);
                    // A failed connection is the peer's failure, not this process's.
                    return Err(match error {
                        Error::Driver { .. } => Error::refused(error.to_string()),
                        other => other,
                    });
                }
            }
        }
        Ok(None)
    }

    /// Waits until a peer connects, sends or disconnects, or until a peer's or the caller's time is up.
    fn wait(&mut self, listener: &Listener, deadline: Deadline, limit: Duration) -> Result<()> {
        let room = self.all.len() < MOST_AT_ONCE;
        let door = room.then(|| listener.as_fd());
        let fds = self.all.iter().map(|client| client.socket.as_fd()).chain(door);
        let left = self.all.iter().map(|client| client.left(limit));
        let left = left.fold(deadline.left(), Duration::min);
        let start = Instant::now();
        wait_for_any(fds, left)?;
        let waited = start.elapsed();
        self.all.iter_mut().for_each(|client| client.waited += waited);
        Ok(())
    }
}
