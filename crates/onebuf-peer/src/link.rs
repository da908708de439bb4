//! Turns over a connection: who has the buffer, and what becomes of it when the other end is lost.

use super::{messages::Messages, wire::Message};
use onebuf_core::internals::Core;
use onebuf_hal::{Error, Result, locks::Arc};
use onebuf_socket::{Deadline, Peer, Socket};
use std::time::Duration;

/// How long an end waits for a packet to be taken: the other one has room for many.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// One end of two that take turns on a buffer.
#[derive(Debug)]
pub(super) struct Link {
    socket: Socket,
    peer: Peer,
    side: Side,
    /// How often the buffer was handed over between the two.
    round: u64,
    ours: bool,
    /// Why there is no other end any more.
    lost: Option<Error>,
    /// It said that it leaves.
    left: bool,
    /// The other end's buffer, where that is a client in this process. It is kept while it may be the client's turn: what
    /// the client left at work is known to the buffer alone.
    clients: Vec<Arc<Core>>,
}

/// To whom the buffer falls when the other end is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This end: it owns the buffer.
    Owner,
    /// The owner, though it be gone; but who has it keeps it.
    Client,
}

impl Link {
    pub fn new(socket: Socket, peer: Peer, side: Side) -> Self {
        let ours = side == Side::Owner;
        Self { socket, peer, side, round: 0, ours, lost: None, left: false, clients: Vec::new() }
    }

    /// The owner's end, of a client that may be in this process.
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

    /// Waits for everything of ours on the buffer, and gives it to the other end.
    pub fn hand_over(&mut self, core: &Core) -> Result<()> {
        self.check(core)?;
        if !self.ours {
            let what = "it is the other process's turn already; wait for it".into();
            return Err(Error::Busy { what });
        }
        core.lend()?;
        let round = self.round + 1;
        let sent = self.socket.send(&Message::Turn { round }, &[], Deadline::after(SEND_LIMIT));
        if let Err(error) = sent {
            // A client that its owner put out stays so.
            let _ = core.take_back();
            return Err(self.end(core, error));
        }
        (self.round, self.ours) = (round, false);
        Ok(())
    }

    /// Waits for our turn. A timeout changes nothing; any other error is the end.
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
                // An owner in this process said that before it ended the visit.
                Err(lost) => Err(self.end(core, lost)),
            },
            Err(error @ Error::Timeout { .. }) => Err(error),
            Ok(message) => Err(self.unexpected(core, &message)),
            Err(error) => Err(self.end(core, error)),
        }
    }

    /// Whether the other end is there still. In our turn it has nothing to say but goodbye.
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

    /// The connection failed. A goodbye that came before that is still there to be heard: the kernel tells first that the
    /// end is closed, when its owner had not heard everything.
    fn end(&mut self, core: &Core, error: Error) -> Error {
        // What the other end does to the connection is a breach of the protocol, never a failure of this end.
        let error = match error {
            Error::Unsupported { .. } => Error::refused(error.to_string()),
            Error::Timeout { .. } => Error::refused("it does not read what it is sent"),
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
            true => Error::PeerLost { reason: "it left, in good order".into() },
            false => Error::refused("it spoke out of turn"),
        };
        self.lose(core, error)
    }

    /// From now on there is no other end.
    fn lose(&mut self, core: &Core, error: Error) -> Error {
        self.lost = Some(error.clone());
        match self.side {
            Side::Client if !self.ours => core.orphan(),
            Side::Client => {}
            Side::Owner if !self.ours => {
                self.ours = true;
                core.claim_back(std::mem::take(&mut self.clients));
            }
            // Nothing of the client's is at work in the owner's turn.
            Side::Owner => self.clients.clear(),
        }
        error
    }

    /// Leaves in good order. The other end need not be there to hear it.
    pub fn leave(&mut self, core: &Core) {
        if self.side == Side::Client {
            // The owner has its turn when it hears of this: nothing of a client's may be at work any more.
            if self.ours {
                let over = core.lend();
                over.unwrap_or_else(|error| tracing::warn!(%error, "left in the middle of work"));
            }
            // Others here may still have the buffer: it is not theirs to use now.
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
