//! Several sockets at one address (`SO_REUSEPORT`), and how the kernel divides packets between them.
//!
//! # Safety
//! The kernel gets the address and length of a filter that lives for the call, and copies it.

#![allow(unsafe_code)]

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
};

/// The option that attaches a classic filter to the sockets of one address, of asm-generic/socket.h.
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;

/// Offsets in the packet's header: the number of the packet, and the packets of a frame.
const PACKET: u32 = 12;
const PACKETS: u32 = 16;

/// Binds several sockets to one address. Only sockets of the same user can be bound to it as well.
pub(crate) fn bind(mut address: SocketAddr, many: usize) -> io::Result<Vec<UdpSocket>> {
    let mut sockets = Vec::with_capacity(many);
    for _ in 0..many {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseport(socket.as_fd(), true)?;
        net::bind(&socket, &address)?;
        let socket = UdpSocket::from(socket);
        // The system may have chosen the port.
        address = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// A `sock_fprog` whose gap is zero: the kernel reads all of it.
#[repr(C)]
struct Program {
    len: libc::c_ushort,
    gap: [u8; GAP],
    filter: *mut libc::sock_filter,
}

const GAP: usize = size_of::<*mut libc::sock_filter>() - size_of::<libc::c_ushort>();
const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());

/// Lets the kernel pass each packet to the socket that its part of the frame belongs to: of `sockets` equal ranges of a
/// frame's packets. Frames with fewer than `least` packets for each socket go to the first one. Other sockets get what the
/// filter cannot read.
pub(crate) fn steer(socket: &UdpSocket, sockets: u32, least: u32) -> io::Result<()> {
    let mut code = filter(sockets, least);
    let program =
        Program { len: code.len() as libc::c_ushort, gap: [0; GAP], filter: code.as_mut_ptr() };
    let len = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the option is a `sock_fprog`, whose filter has the stated length. The kernel checks the filter and copies it.
    let answer = unsafe {
        let (fd, option) = (socket.as_raw_fd(), SO_ATTACH_REUSEPORT_CBPF);
        libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const program).cast(), len)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A program of classic BPF: `packets < sockets * least ? 0 : packet * sockets / packets`. It loads bytes, because its own
/// words are big-endian. Loads beyond the packet's end, and divisions by zero, make it return 0.
fn filter(sockets: u32, least: u32) -> Vec<libc::sock_filter> {
    use libc::{
        BPF_A, BPF_ALU, BPF_DIV, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_MEM, BPF_MISC, BPF_MUL,
        BPF_RET, BPF_ST, BPF_TAX, BPF_X,
    };
    let mut code = word(PACKET);
    code.push(step(BPF_ALU | BPF_MUL | BPF_K, sockets));
    code.push(step(BPF_ST, 1));
    code.extend(word(PACKETS));
    let few = step(BPF_JMP | BPF_JGE | BPF_K, sockets.saturating_mul(least));
    code.push(libc::sock_filter { jt: 0, jf: 4, ..few });
    code.push(step(BPF_MISC | BPF_TAX, 0));
    code.push(step(BPF_LD | BPF_MEM, 1));
    code.push(step(BPF_ALU | BPF_DIV | BPF_X, 0));
    code.push(step(BPF_RET | BPF_A, 0));
    code.push(step(BPF_RET | BPF_K, 0));
    code
}

/// Loads a little-endian word of the payload.
fn word(at: u32) -> Vec<libc::sock_filter> {
    use libc::{
        BPF_ABS, BPF_ALU, BPF_B, BPF_K, BPF_LD, BPF_LDX, BPF_LSH, BPF_MEM, BPF_OR, BPF_ST, BPF_X,
    };
    let load = |offset| step(BPF_LD | BPF_B | BPF_ABS, at + offset);
    let mut code = vec![load(3)];
    for offset in [2, 1, 0] {
        code.push(step(BPF_ALU | BPF_LSH | BPF_K, 8));
        code.push(step(BPF_ST, 0));
        code.push(load(offset));
        code.push(step(BPF_LDX | BPF_MEM, 0));
        code.push(step(BPF_ALU | BPF_OR | BPF_X, 0));
    }
    code
}

fn step(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;
    use crate::net::packet::{Cut, Header, Kind, Ports, share_of};
    use std::time::Duration;

    /// The kernel sends every packet to the socket of its range.
    #[test]
    fn packets_reach_the_socket_of_their_range() {
        let sockets = bind("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        steer(&sockets[0], 3, 2).unwrap();
        let address = sockets[0].local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let one_frame = |packets: u32| {
            let cut = Cut::new(packets as usize * 10, 10).unwrap();
            for packet in 0..packets {
                let kind = Kind::Part(packet);
                let ports = Ports::default();
                let header = Header { kind, stream: 1, frame: 1 << 40, cut, ports };
                let whole = [&header.encode()[..], &[0; 10]].concat();
                sender.send_to(&whole, address).unwrap();
                let share = if packets < 6 { 0 } else { share_of(packet, packets, 3) };
                let mut got = [0; 64];
                sockets[share].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                assert_eq!(sockets[share].recv(&mut got).unwrap(), 50, "{packet} of {packets}");
                assert_eq!(got[12..16], packet.to_le_bytes());
            }
        };
        [1, 5, 6, 100, 300].into_iter().for_each(one_frame);
        // What is no packet reaches some socket.
        sender.send_to(&[7; 5], address).unwrap();
        let mut got = [0; 64];
        assert_eq!(sockets[0].recv(&mut got).unwrap(), 5);
    }
}
