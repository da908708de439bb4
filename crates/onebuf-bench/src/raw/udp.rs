//! A loop around `recvmmsg`, and nothing more: packets are taken, and left where they came, each at a place of its own.

use onebuf::{Error, Result};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    ptr::null_mut,
    time::Duration,
};

/// Packets of one call.
const BATCH: usize = 64;

/// Longer than this no packet is waited for.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A socket, and room for a frame's packets.
pub struct RawUdp {
    socket: UdpSocket,
    packets: Vec<u8>,
    /// Where each packet goes.
    places: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    packet_bytes: usize,
}

impl RawUdp {
    /// For frames of so many packets of so many bytes, with so much room for those that wait.
    pub fn bind(packets: usize, packet_bytes: usize, room: usize) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed("bind"))?;
        socket.set_read_timeout(Some(TIMEOUT)).map_err(failed("setsockopt"))?;
        ask_for_room(&socket, room);
        let mut raw = Self {
            socket,
            packets: vec![0; packets * packet_bytes],
            places: Vec::with_capacity(packets),
            messages: Vec::with_capacity(packets),
            packet_bytes,
        };
        raw.prepare();
        Ok(raw)
    }

    fn prepare(&mut self) {
        for packet in self.packets.chunks_mut(self.packet_bytes) {
            let place = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
            self.places.push(place);
        }
        for place in &mut self.places {
            // SAFETY: numbers and pointers, for which zero means that there is nothing.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (place, 1);
            self.messages.push(message);
        }
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(failed("getsockname"))
    }

    /// Takes a frame's packets.
    pub fn take(&mut self) -> Result<()> {
        let (fd, mut rest) = (self.socket.as_raw_fd(), &mut self.messages[..]);
        while !rest.is_empty() {
            let (messages, many) = (rest.as_mut_ptr(), rest.len().min(BATCH) as u32);
            // SAFETY: so many messages with a place each, which live as long as `self` and do not move.
            let came = unsafe {
                libc::recvmmsg(fd, messages, many, libc::MSG_WAITFORONE as _, null_mut())
            };
            let came = usize::try_from(came);
            let came = came.map_err(|_| failed("recvmmsg")(io::Error::last_os_error()))?;
            rest = &mut rest[came..];
        }
        Ok(())
    }
}

/// As our source does: past the system's limit where we may.
fn ask_for_room(socket: &UdpSocket, room: usize) {
    let room = room as libc::c_int;
    for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
        let len = size_of_val(&room) as libc::socklen_t;
        // SAFETY: the option is an `int`, which `room` is. What is refused leaves the limit as it is.
        let _ = unsafe {
            let fd = socket.as_raw_fd();
            libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const room).cast(), len)
        };
    }
}

fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Driver {
        api: "host",
        call,
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    }
}
