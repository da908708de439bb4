//! Messages over a socket: decoded and checked packets, with their fds.

use super::wire::{MAX_BYTES, Message};
use onebuf_hal::{Error, Result};
use onebuf_socket::{Deadline, Received, Socket};
use std::os::fd::BorrowedFd;

/// Sends and receives a peer's messages over a [`Socket`].
pub(super) trait Messages {
    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<()>;

    /// Waits for the next message. If fds come with a message that has none, they are closed and the message is refused.
    fn receive(&self, deadline: Deadline, what: &str) -> Result<(Message, Received)>;

    /// Receives a message without waiting; `None` if none has arrived.
    fn try_receive(&self) -> Result<Option<(Message, Received)>>;
}

impl Messages for Socket {
    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<()> {
        self.send_packet(&message.encode(), fds, deadline)
    }

    fn receive(&self, deadline: Deadline, what: &str) -> Result<(Message, Received)> {
        loop {
            self.wait_readable(deadline, what)?;
            if let Some(received) = self.try_receive()? {
                return Ok(received);
            }
        }
    }

    fn try_receive(&self) -> Result<Option<(Message, Received)>> {
        let mut packet = [0; MAX_BYTES + 1];
        let Some((bytes, fds)) = self.try_packet_with_fds(&mut packet)? else { return Ok(None) };
        let message = Message::decode(&packet[..bytes])?;
        let said = if let Message::Grant(grant) = &message { grant.fds.into() } else { 0 };
        if fds.count() != said {
            let sent = fds.count();
            return Err(Error::refused(format!("{sent} fds came with a message that has {said}")));
        }
        Ok(Some((message, fds)))
    }
}
