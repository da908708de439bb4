//! One socket of a sender: it sends one range of every frame's packets.

use super::{
    Faults,
    faults::Order,
    pace::Pace,
    sent::{SendCounters, add},
};
use crate::net::{
    failed,
    mmsg::{self, BATCH},
    packet::{Cut, HEADER, Header, Kind},
    socket,
};
use onebuf_hal::{Error, Result};
use std::{
    io::{self, ErrorKind, IoSlice},
    net::{SocketAddr, UdpSocket},
    ops::Range,
    os::fd::AsFd,
    sync::Once,
    time::{Duration, Instant},
};

/// The longest wait for the network's send queue.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest message of several packets.
const LONGEST: usize = 65_507;

/// How many bytes go to the kernel by one call, if packets are short.
const BURST: usize = 1 << 20;

/// How many ranges of ports are tried.
const ATTEMPTS: usize = 64;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Lane {
    pub socket: UdpSocket,
    pub pace: Pace,
    pub order: Order,
    /// How many packets go to the kernel as one message that it splits itself.
    together: usize,
}

/// What a lane needs to send a part of a frame.
pub(super) struct Sending<'s> {
    /// The header of the frame's first packet.
    pub head: Header,
    pub frame: &'s [u8],
    pub faults: &'s Faults,
    pub sent: &'s SendCounters,
}

impl Lane {
    fn new(socket: UdpSocket, to: SocketAddr) -> Result<Self> {
        socket.connect(to).map_err(failed("connect"))?;
        socket.set_write_timeout(Some(TIMEOUT)).map_err(failed("setsockopt"))?;
        Ok(Self { socket, pace: Pace::default(), order: Order::default(), together: 1 })
    }

    /// Lanes with consecutive ports, which the system chooses.
    pub fn several(to: SocketAddr, many: usize) -> Result<Vec<Self>> {
        let mut why = None;
        for _ in 0..ATTEMPTS {
            match bind_several(to, many) {
                Ok(sockets) => {
                    return sockets.into_iter().map(|socket| Self::new(socket, to)).collect();
                }
                Err(error) => why = Some(error),
            }
        }
        Err(failed("bind")(why.unwrap_or_else(|| ErrorKind::AddrInUse.into())))
    }

    /// Prepares for frames that are split in this way.
    pub fn prepare(&mut self, cut: Cut) {
        self.together = together(&self.socket, cut);
    }

    /// Sends a range of a frame's packets.
    pub fn send(&mut self, range: Range<u32>, sending: &Sending<'_>) -> Result<()> {
        let (Sending { faults, sent, .. }, cut) = (sending, sending.head.cut);
        let mut order = std::mem::take(&mut self.order);
        let packets = order.of_range(range, faults, sent);
        let at_once = self.pace.packets(cut.stride()).min((BURST / cut.stride()).max(BATCH));
        let at_once = whole_messages(at_once, self.together);
        let went = packets.chunks(at_once).try_for_each(|some| {
            self.pace.wait(some.iter().map(|&packet| cut.len(packet)).sum());
            self.send_some(some, sending)
        });
        self.order = order;
        went
    }

    fn send_some(&mut self, packets: &[u32], sending: &Sending<'_>) -> Result<()> {
        let &Sending { head, frame, sent, .. } = sending;
        let head = |&packet: &u32| Header { kind: Kind::Part(packet), ..head }.encode();
        let heads: Vec<[u8; HEADER]> = packets.iter().map(head).collect();
        let cut = sending.head.cut;
        let parts = packets
            .iter()
            .zip(&heads)
            .map(|(&packet, head)| [IoSlice::new(head), IoSlice::new(&frame[cut.range(packet)])]);
        let parts: Vec<[IoSlice<'_>; 2]> = parts.collect();
        self.send_all(&parts, cut, sent)?;
        add(&sent.packets, packets.len() as u64);
        Ok(())
    }

    /// Sends all packets, with as many system calls as needed.
    pub fn send_all(
        &mut self,
        mut packets: &[[IoSlice<'_>; 2]],
        cut: Cut,
        sent: &SendCounters,
    ) -> Result<()> {
        let start = Instant::now();
        while !packets.is_empty() {
            let messages = messages(packets, self.together, cut);
            match mmsg::send(self.socket.as_fd(), &messages) {
                Ok(went) => {
                    let went: usize = messages[..went].iter().map(|parts| parts.len() / 2).sum();
                    packets = &packets[went..];
                }
                Err(error) => self.go_on_after(error, packets[0][1].len(), start, sent)?,
            }
        }
        Ok(())
    }

    /// Handles a send error, and returns `Ok` if sending can be retried.
    fn go_on_after(
        &mut self,
        error: io::Error,
        payload: usize,
        start: Instant,
        sent: &SendCounters,
    ) -> Result<()> {
        match (error.kind(), error.raw_os_error()) {
            // The error concerns an earlier packet and is reported once. The receiver may start later.
            (ErrorKind::ConnectionRefused, _) => add(&sent.refused, 1),
            (ErrorKind::Interrupted, _) => {}
            // Segmentation offload is unavailable on this path, or IP would have to fragment the packets.
            (_, Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE)) if self.together > 1 => {
                one_by_one(&error.to_string());
                self.together = 1;
                socket::set_cutting(&self.socket, 0);
            }
            (_, Some(libc::EMSGSIZE)) => {
                let what = format!("packets with {payload} bytes do not fit the path MTU");
                return Err(Error::invalid(format!("{what}: choose a smaller payload")));
            }
            // The send queue is full. Some network drivers return this error instead of blocking.
            (_, Some(libc::ENOBUFS)) if start.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            (ErrorKind::WouldBlock, _) => {
                return Err(Error::timeout("the network to take a packet", TIMEOUT));
            }
            _ => return Err(failed("sendmmsg")(error)),
        }
        Ok(())
    }
}

/// Binds one port that the system chooses, and those after it.
fn bind_several(to: SocketAddr, many: usize) -> io::Result<Vec<UdpSocket>> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let first = UdpSocket::bind(any)?;
    let mut address = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..many {
        let next = address.port().checked_add(1).ok_or(ErrorKind::AddrInUse)?;
        address.set_port(next);
        sockets.push(UdpSocket::bind(address)?);
    }
    Ok(sockets)
}

/// As many packets as fill whole messages: a short message takes the kernel nearly as long as a full one.
fn whole_messages(packets: usize, together: usize) -> usize {
    if packets > together { packets / together * together } else { packets }
}

/// Reports once that the kernel gets packets one by one.
fn one_by_one(why: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            target: "onebuf::pipeline",
            "the kernel does not split messages into packets (UDP_SEGMENT: {why}): packets are sent one by one, which is slower"
        );
    });
}

/// How many packets go to the kernel as one message (`UDP_SEGMENT`). The kernel splits it late, or never if the receiver is
/// on this machine. One if the kernel does not support it.
fn together(socket: &UdpSocket, cut: Cut) -> usize {
    let packet = HEADER + cut.stride();
    let most = (LONGEST / packet).min(BATCH);
    // An earlier stream may have set another size.
    let cuts = socket::set_cutting(socket, if most > 1 { packet } else { 0 });
    if !cuts && most > 1 {
        one_by_one(&io::Error::last_os_error().to_string());
    }
    if cuts { most.max(1) } else { 1 }
}

/// Groups packets into messages. Within a message all packets but the last have the full size.
fn messages<'p>(
    mut packets: &'p [[IoSlice<'p>; 2]],
    together: usize,
    cut: Cut,
) -> Vec<&'p [IoSlice<'p>]> {
    let mut messages = Vec::with_capacity(packets.len().div_ceil(together));
    while !packets.is_empty() {
        let most = together.min(packets.len());
        let short = packets[..most].iter().position(|[_, part]| part.len() < cut.stride());
        let (message, rest) = packets.split_at(short.map_or(most, |short| short + 1));
        messages.push(message.as_flattened());
        packets = rest;
    }
    messages
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_whole_messages() {
        assert_eq!([1, 6, 7, 8, 128].map(|packets| whole_messages(packets, 7)), [1, 6, 7, 7, 126]);
        assert_eq!(whole_messages(128, 1), 128);
    }

    #[test]
    fn lanes_have_consecutive_ports() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let lanes = Lane::several(receiver.local_addr().unwrap(), 8).unwrap();
        let ports: Vec<u16> =
            lanes.iter().map(|lane| lane.socket.local_addr().unwrap().port()).collect();
        assert!(ports.windows(2).all(|two| two[0] + 1 == two[1]), "{ports:?}");
    }
}
