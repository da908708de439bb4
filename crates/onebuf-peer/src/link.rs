//! Turns over a connection: which process may use the buffer, and what happens when the other one is gone.

use super::{messages::Messages, wire::Message};
use onebuf_core::internals::Core;
use onebuf_hal::{Error, Result, locks::Arc};
use onebuf_socket::{Deadline, Peer, Socket};
use std::time::Duration;

/// How long to wait for a packet to be accepted. The peer's socket buffer has room for many.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// One end of a connection whose two ends take turns on a buffer.
#[derive(Debug)]
pub(super) struct Link {
    socket: Socket,
    peer: Peer,
    side: Side,
    /// How many times the buffer has been handed over.
    round: u64,
    ours: bool,
    /// Why the connection ended.
    lost: Option<Error>,
    /// The other end announced that it leaves.
    left: bool,
    /// The client's buffer, if the client is in this process. It is kept while it may be the client's turn, because only that
    /// buffer knows the client's unfinished work.
    clients: Vec<Arc<Core>>,
}

/// Which end gets the buffer when the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This end owns the buffer and gets it back.
    Owner,
    /// The client keeps the buffer only if it is its turn.
    Client,
}

impl Link {
    pub fn new(socket: Socket, peer: Peer, side: Side) -> Self {
        let ours = side == Side::Owner;
        Self { socket, peer, side, round: 0, ours, lost: None, left: false, clients: Vec::new() }
    }

    /// The owner's end, for a client that may be in this process.
    pub fn of_owner(socket: Socket, peer: Peer, clients: Vec<Arc<Core>>) -> Self {
        Self { clients, ..Self::new(socket, peer, Side::Owner) }
    }

    pub fn peer(&self) -> Peer {
        self.peer
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    pub fn has_left(&self) -> bool {
        self.left
    }

    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Waits for all of this process's work on the buffer, and hands it to the other end.
    pub fn hand_over(&mut self, core: &Core) -> Result<()> {
        self.check(core)?;
        if !self.ours {
            let what = "it is already the other process's turn; call `wait` first".into();
            return Err(Error::Busy { what });
        }
        core.lend()?;
        let round = self.round + 1;
        let sent = self.socket.send(&Message::Turn { round }, &[], Deadline::after(SEND_LIMIT));
        if let Err(error) = sent {
            // Fails if the owner has already taken the buffer from a client in this process.
            let _ = core.take_back();
            return Err(self.end(core, error));
        }
        (self.round, self.ours) = (round, false);
        Ok(())
    }

    /// Waits for this end's turn. A timeout changes nothing; any other error ends the connection.
    pub fn wait(&mut self, core: &Core, timeout: Duration) -> Result<()> {
        if self.ours {
            return self.check(core);
        }
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let received =
            self.socket.receive(Deadline::after(timeout), "the other process's turn to end");
        match received.map(|(message, _)| message) {
            Ok(Message::Turn { round }) if round == self.round + 1 => match core.take_back() {
                Ok(()) => {
                    (self.round, self.ours) = (round, true);
                    Ok(())
                }
                // An owner in this process handed over before it ended the visit.
                Err(lost) => Err(self.end(core, lost)),
            },
            Err(error @ Error::Timeout { .. }) => Err(error),
            Ok(message) => Err(self.unexpected(core, &message)),
            Err(error) => Err(self.end(core, error)),
        }
    }

    /// Checks that the other end is still connected. During this end's turn it may only say goodbye.
    pub fn check(&mut self, core: &Core) -> Result<()> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if !self.ours {
            return Ok(());
        }
        match self.socket.try_receive() {
            Ok(None) => Ok(()),
            Ok(Some((message, _))) => Err(self.unexpected(core, &message)),
            Err(error) => Err(self.end(core, error)),
        }
    }

    /// Ends the connection after an error. A goodbye that arrived earlier may still be unread: the kernel reports a closed
    /// peer first if that peer had unread data.
    fn end(&mut self, core: &Core, error: Error) -> Error {
        // Faults of the other end's connection are protocol violations, never failures of this end.
        let error = match error {
            Error::Unsupported { .. } => Error::refused(error.to_string()),
            Error::Timeout { .. } => Error::refused("it does not read its messages"),
            other => other,
        };
        match self.socket.try_receive() {
            Ok(Some((message @ Message::Bye, _))) => self.unexpected(core, &message),
            _ => self.lose(core, error),
        }
    }

    fn unexpected(&mut self, core: &Core, message: &Message) -> Error {
        self.left = *message == Message::Bye;
        let error = match self.left {
            true => Error::PeerLost { reason: "it left normally".into() },
            false => Error::refused("it sent a message out of turn"),
        };
        self.lose(core, error)
    }

    /// Records that the connection is lost.
    fn lose(&mut self, core: &Core, error: Error) -> Error {
        self.lost = Some(error.clone());
        match self.side {
            Side::Client if !self.ours => core.orphan(),
            Side::Client => {}
            Side::Owner if !self.ours => {
                self.ours = true;
                core.claim_back(std::mem::take(&mut self.clients));
            }
            // During the owner's turn no work of the client is in progress.
            Side::Owner => self.clients.clear(),
        }
        error
    }

    /// Announces that this end leaves. The other end may already be gone.
    pub fn leave(&mut self, core: &Core) {
        if self.side == Side::Client {
            // The owner gets its turn when it receives this, so the client's work must have finished.
            if self.ours {
                let over = core.lend();
                over.unwrap_or_else(
                    |error| tracing::warn!(%error, "detached while work was in progress"),
                );
            }
            // Other users in this process may still hold the buffer, and must not use it any more.
            self.ours = false;
            core.orphan();
        }
        if self.lost.is_none() {
            let _ = self.socket.send(&Message::Bye, &[], Deadline::after(Duration::ZERO));
            let left = Error::PeerLost { reason: "this process left".into() };
            self.lose(core, left);
        }
    }
}
