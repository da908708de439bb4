//! A bare sender and a bare receiver: `UDP_SEGMENT` with `sendmmsg`, and `UDP_GRO` with `recvmmsg`. Packets have the size of
//! onebuf's, but nothing looks at them.

use super::udp::{ask_for_room, failed};
use crate::Stop;
use onebuf::{Error, Result};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    ptr::null_mut,
    thread,
    time::Duration,
};

/// The longest message, and how many go in one call.
const LONGEST: usize = 65_507;
const MESSAGES: usize = 16;

/// Timeout for a packet.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Memory for the messages of one call.
struct Area {
    memory: Vec<u8>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses are those of the memory that it owns.
unsafe impl Send for Area {}

impl Area {
    /// `many` messages of this size, one after another.
    fn new(bytes: usize, many: usize) -> Self {
        let mut area =
            Self { memory: vec![1; bytes * many], vectors: Vec::new(), messages: Vec::new() };
        for part in area.memory.chunks_mut(bytes) {
            area.vectors.push(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: bytes });
        }
        for vector in &mut area.vectors {
            // SAFETY: the structure has only numbers and pointers, for which zero is valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (vector, 1);
            area.messages.push(message);
        }
        area
    }
}

/// A sender.
pub struct RawSender {
    socket: UdpSocket,
    area: Area,
    /// Packets of one message.
    together: usize,
}

impl RawSender {
    /// Sends packets of this size to an address.
    pub fn connect(to: SocketAddr, packet: usize) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed("bind"))?;
        socket.connect(to).map_err(failed("connect"))?;
        option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, packet)?;
        let together = LONGEST / packet;
        Ok(Self { socket, area: Area::new(together * packet, MESSAGES), together })
    }

    /// The number of packets in its memory, which it sends again and again.
    pub fn packets(&self) -> usize {
        self.together * MESSAGES
    }

    /// Sends this many packets, rounded up to whole messages. Returns how many.
    pub fn send(&mut self, packets: usize) -> Result<usize> {
        let messages = packets.div_ceil(self.together);
        let mut left = messages;
        while left > 0 {
            let many = left.min(MESSAGES) as u32;
            // SAFETY: the messages and their memory live as long as `self` and do not move; the kernel reads them.
            let went = unsafe {
                let (fd, messages) = (self.socket.as_raw_fd(), self.area.messages.as_mut_ptr());
                libc::sendmmsg(fd, messages, many, libc::MSG_NOSIGNAL as _)
            };
            match usize::try_from(went) {
                Ok(went) => left -= went,
                Err(_) => match io::Error::last_os_error() {
                    // An earlier packet had no receiver.
                    error if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    error => return Err(failed("sendmmsg")(error)),
                },
            }
        }
        Ok(messages * self.together)
    }
}

/// A receiver.
struct RawReceiver {
    socket: UdpSocket,
    area: Area,
}

impl RawReceiver {
    fn bind(room: usize) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed("bind"))?;
        socket.set_read_timeout(Some(TIMEOUT)).map_err(failed("setsockopt"))?;
        ask_for_room(&socket, room);
        option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        Ok(Self { socket, area: Area::new(1 << 16, MESSAGES) })
    }

    /// Receives this many bytes.
    fn take(&mut self, bytes: usize) -> Result<(), Stop> {
        let mut left = bytes;
        while left > 0 {
            // SAFETY: as for the sender; the kernel writes to the memory.
            let came = unsafe {
                let (fd, messages) = (self.socket.as_raw_fd(), self.area.messages.as_mut_ptr());
                let flags = libc::MSG_WAITFORONE as _;
                libc::recvmmsg(fd, messages, MESSAGES as u32, flags, null_mut())
            };
            let Ok(came) = usize::try_from(came) else {
                return Err(match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => lost_packets(),
                    error => failed("recvmmsg")(error).into(),
                });
            };
            let got = self.area.messages[..came].iter().map(|message| message.msg_len as usize);
            left = left.saturating_sub(got.sum());
        }
        Ok(())
    }
}

/// Senders and receivers, each with a thread.
pub struct RawPair {
    lines: Vec<(RawSender, RawReceiver)>,
    packet: usize,
}

impl RawPair {
    /// This many pairs, for packets of this size, with this receive buffer each.
    pub fn open(many: usize, packet: usize, room: usize) -> Result<Self> {
        let line = || {
            let receiver = RawReceiver::bind(room)?;
            let to = receiver.socket.local_addr().map_err(failed("getsockname"))?;
            Ok((RawSender::connect(to, packet)?, receiver))
        };
        Ok(Self { lines: (0..many).map(|_| line()).collect::<Result<_>>()?, packet })
    }

    /// Sends and receives about this many packets by each pair, at the same time. Returns how many all have sent.
    ///
    /// # Errors
    /// [`Stop::Absent`] if packets were lost.
    pub fn run(&mut self, packets: usize) -> Result<usize, Stop> {
        let packet = self.packet;
        thread::scope(|threads| {
            let mut all = Vec::new();
            for (sender, receiver) in &mut self.lines {
                let whole = packets.div_ceil(sender.together) * sender.together;
                all.push(threads.spawn(move || Ok(sender.send(packets)?)));
                all.push(threads.spawn(move || receiver.take(whole * packet).map(|()| 0)));
            }
            let join = |thread: thread::ScopedJoinHandle<'_, Result<usize, Stop>>| {
                thread.join().unwrap_or_else(|_| Err(Error::invalid("a thread panicked").into()))
            };
            all.into_iter().map(join).sum()
        })
    }
}

/// The reason why a comparison of senders and receivers ends without a result.
pub fn lost_packets() -> Stop {
    Stop::Absent("the loopback interface loses packets; see `onebuf network`".into())
}

fn option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: usize) -> Result<()> {
    let value = value as libc::c_int;
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option is an `int`, which `value` is.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
    };
    if answer == 0 { Ok(()) } else { Err(failed("setsockopt")(io::Error::last_os_error())) }
}
