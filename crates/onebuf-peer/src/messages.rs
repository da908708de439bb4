//! Messages over a socket: packets that were decoded and checked, with the fds they may have.

use super::wire::{MAX_BYTES, Message};
use onebuf_hal::{Error, Result};
use onebuf_socket::{Deadline, Received, Socket};
use std::os::fd::BorrowedFd;

/// What a [`Socket`] can say of a peer's messages.
pub(super) trait Messages {
    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<()>;

    /// The next message. Fds that come with it are closed, and it is refused, where it is none that has any.
    fn receive(&self, deadline: Deadline, what: &str) -> Result<(Message, Received)>;

    /// `None` when there is nothing yet.
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
        if fds.len() != said {
            let sent = fds.len();
            return Err(Error::refused(format!(
                "it sent {sent} fds with a message that has {said}"
            )));
        }
        Ok(Some((message, fds)))
    }
}
