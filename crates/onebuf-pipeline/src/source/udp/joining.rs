//! Decides whether the kernel joins packets (`UDP_GRO`).

use crate::net::socket;
use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

/// If this many packets arrive one by one within `BUSY`, `recvmmsg` is faster than joining.
const ALONE: u32 = 256;
const BUSY: Duration = Duration::from_millis(10);

/// The current setting. It applies to packets that arrive afterwards; those already waiting stay as they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    on: bool,
    /// An upper bound of the bytes that arrived before the setting changed.
    earlier: usize,
    /// How many packets have arrived one by one since, and since when.
    alone: (u32, Instant),
}

impl Joining {
    /// Turns joining on or off.
    pub fn ask(socket: &UdpSocket, on: bool) -> Self {
        let on = socket::set_joined(socket, on);
        Self { on, earlier: socket::waiting(socket), alone: (0, Instant::now()) }
    }

    /// Turns joining on again for another sender, whose packets may be joined.
    pub fn again(self, socket: &UdpSocket) -> Self {
        if self.on { self } else { Self::ask(socket, true) }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether no joined packets can arrive any more.
    pub fn is_over(&self) -> bool {
        !self.on && self.earlier == 0
    }

    /// Records one receive call of `came` packets. Joining is turned off if a sender's packets arrive one by one at a high
    /// rate.
    pub fn note(&mut self, came: usize, bytes: usize, socket: &UdpSocket) {
        if self.earlier > 0 {
            self.earlier = self.earlier.saturating_sub(bytes);
        } else if came > 1 {
            self.alone.0 = 0;
        } else {
            self.note_alone(socket);
        }
    }

    fn note_alone(&mut self, socket: &UdpSocket) {
        if self.alone.0 == 0 {
            self.alone.1 = Instant::now();
        }
        self.alone.0 += 1;
        if self.alone.0 == ALONE {
            self.alone.0 = 0;
            if self.alone.1.elapsed() < BUSY {
                *self = Self::ask(socket, false);
            }
        }
    }
}
