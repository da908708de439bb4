//! Whether packets that came close together are taken together.

use crate::net::socket;
use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

/// So many packets one by one, in so short a time, and a call is better made for many of those.
const ALONE: u32 = 256;
const BUSY: Duration = Duration::from_millis(10);

/// What the kernel was told, which holds for packets that come afterwards: those that waited already are as they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    on: bool,
    /// So many bytes may have come before it was told.
    earlier: usize,
    /// How many have come one by one since, and from when on.
    alone: (u32, Instant),
}

impl Joining {
    /// Asks for it, or for an end of it.
    pub fn ask(socket: &UdpSocket, on: bool) -> Self {
        let on = socket::set_joined(socket, on);
        Self { on, earlier: socket::waiting(socket), alone: (0, Instant::now()) }
    }

    /// For another sender, who may be served otherwise.
    pub fn again(self, socket: &UdpSocket) -> Self {
        if self.on { self } else { Self::ask(socket, true) }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether none comes together any more.
    pub fn is_over(&self) -> bool {
        !self.on && self.earlier == 0
    }

    /// So many packets came together. A sender whose packets come one by one, and quickly, is better served many at a time.
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
