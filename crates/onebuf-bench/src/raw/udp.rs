//! A plain `recvmmsg` loop: it receives packets and ignores their contents.

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

/// Timeout for a packet.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A socket, and memory for the packets of a frame.
pub struct RawUdp {
    socket: UdpSocket,
    /// The memory behind the I/O vectors below.
    heads: Vec<u8>,
    frame: Vec<u8>,
    /// The memory of each packet: its header, if that is separate, and the rest.
    places: Vec<[libc::iovec; 2]>,
    messages: Vec<libc::mmsghdr>,
}

impl RawUdp {
    /// For frames of this many packets with these header and payload sizes, and this receive buffer. With separate
    /// headers the payloads form a frame; otherwise each packet stays as it came.
    pub fn bind(packets: usize, bytes: [usize; 2], room: usize, apart: bool) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed("bind"))?;
        socket.set_read_timeout(Some(TIMEOUT)).map_err(failed("setsockopt"))?;
        ask_for_room(&socket, room);
        let [head, payload] = if apart { bytes } else { [0, bytes[0] + bytes[1]] };
        let mut raw = Self {
            socket,
            heads: vec![0; packets * head],
            frame: vec![0; packets * payload],
            places: Vec::with_capacity(packets),
            messages: Vec::with_capacity(packets),
        };
        raw.prepare(packets, [head, payload]);
        Ok(raw)
    }

    fn prepare(&mut self, packets: usize, [head, payload]: [usize; 2]) {
        let place = |memory: &mut [u8], at: usize, len: usize| libc::iovec {
            iov_base: memory[at * len..].as_mut_ptr().cast(),
            iov_len: len,
        };
        for packet in 0..packets {
            let rest = place(&mut self.frame, packet, payload);
            self.places.push([place(&mut self.heads, packet, head), rest]);
        }
        for places in &mut self.places {
            // SAFETY: the structure has only numbers and pointers, for which zero is valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            let places = if head > 0 { &mut places[..] } else { &mut places[1..] };
            message.msg_hdr.msg_iov = places.as_mut_ptr();
            message.msg_hdr.msg_iovlen = places.len() as _;
            self.messages.push(message);
        }
    }

    /// The address it listens at.
    pub fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(failed("getsockname"))
    }

    /// Receives the packets of one frame.
    pub fn take(&mut self) -> Result<()> {
        let (fd, mut rest) = (self.socket.as_raw_fd(), &mut self.messages[..]);
        while !rest.is_empty() {
            let (messages, many) = (rest.as_mut_ptr(), rest.len().min(BATCH) as u32);
            // SAFETY: the messages and their places live as long as `self` and do not move.
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

/// Requests a receive buffer beyond the system's limit if permitted, as onebuf's source does.
pub(super) fn ask_for_room(socket: &UdpSocket, room: usize) {
    let room = room as libc::c_int;
    for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
        let len = size_of_val(&room) as libc::socklen_t;
        // SAFETY: the option is an `int`, which `room` is. A refusal leaves the limit unchanged.
        let _ = unsafe {
            let fd = socket.as_raw_fd();
            libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const room).cast(), len)
        };
    }
}

pub(super) fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Driver {
        api: "host",
        call,
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    }
}
