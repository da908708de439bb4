//! Handshakes with peers that have come: all at once, so that one that says nothing holds nobody up.

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

/// Handshakes at a time. More peers wait before the door, and are let in as soon as one of these is over.
const MOST_AT_ONCE: usize = 16;

/// How many times as long as for its words a peer is waited for while it builds its buffer: a driver's context takes seconds on a
/// machine with other work.
const BUILDING: u32 = 6;

/// What a peer is given that says hello in the right way.
pub(super) struct Gift<'g> {
    pub element_bytes: u32,
    pub fds: Vec<BorrowedFd<'g>>,
}

/// A peer whose handshake is under way.
#[derive(Debug)]
pub(super) struct Client {
    pub socket: Socket,
    pub peer: Peer,
    pub session: u64,
    /// How long it has been waited for. Time in which the owner is busy with another peer does not count.
    waited: Duration,
    /// It has the memory, and is to say that it has mapped it.
    granted: bool,
}

impl Client {
    /// Hears what it has said since; whether it is ready.
    fn hear(&mut self, gift: &Gift<'_>, grant: impl Fn(u64) -> Grant) -> Result<bool> {
        let Some((message, _)) = self.socket.try_receive()? else { return Ok(false) };
        match message {
            Message::Ready if self.granted => return self.stayed().map(|()| true),
            _ if self.granted => {
                return Err(Error::refused("its second word was another than ready"));
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
            _ => return Err(Error::refused("its first word was another than hello")),
        }
        Ok(false)
    }

    /// It may have been ready for long, and be gone by now.
    fn stayed(&self) -> Result<()> {
        match self.socket.try_receive()? {
            None => Ok(()),
            Some((Message::Bye, _)) => {
                Err(Error::PeerLost { reason: "it left before its visit began".into() })
            }
            Some(_) => Err(Error::refused("it spoke out of turn")),
        }
    }

    /// Its socket has room for what it asked for; if not, it is not waited for.
    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let sent = self.socket.send(message, fds, Deadline::after(Duration::ZERO));
        sent.map_err(|error| match error {
            Error::Timeout { .. } => Error::refused("it does not read what it asked for"),
            other => other,
        })
    }

    /// How long it is waited for, of which it has used some. With the memory at hand it still has to open its devices.
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

/// Peers whose handshakes are under way, in the order of their coming.
#[derive(Debug, Default)]
pub(super) struct Clients {
    all: Vec<Client>,
    /// How many have come, ever.
    came: u64,
}

impl Clients {
    /// The first peer that is ready. An error is about one peer, which is sent away, or about the time: the others stay, and the
    /// next call goes on with them.
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
                return Err(deadline.missed("waiting for a peer to come"));
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
                    // A failure of one connection is no failure of this process.
                    return Err(match error {
                        Error::Driver { .. } => Error::refused(error.to_string()),
                        other => other,
                    });
                }
            }
        }
        Ok(None)
    }

    /// Until a peer comes, speaks or leaves, or time is up for one of them or for the caller.
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
