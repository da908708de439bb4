//! Socket options and statistics.
//!
//! # Safety
//! The kernel gets memory together with its length.

#![allow(unsafe_code)]

use std::{
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd},
};

/// `SK_MEMINFO_RMEM_ALLOC` and `SK_MEMINFO_DROPS`, of linux/sock_diag.h.
const WAITING: usize = 0;
const DROPS: usize = 8;

/// Sets the socket's receive buffer, beyond the system's limit if permitted. Returns the actual size. Linux also counts its
/// own per-packet overhead and therefore doubles the requested size.
pub(crate) fn set_receive_buffer(socket: &UdpSocket, bytes: usize) -> usize {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket.as_fd(), bytes).is_err() {
        // The actual size is returned below.
        let _ = sockopt::set_socket_recv_buffer_size(socket.as_fd(), bytes);
    }
    receive_buffer(socket)
}

pub(crate) fn receive_buffer(socket: &UdpSocket) -> usize {
    rustix::net::sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap_or(0)
}

/// Packets dropped because the receive buffer was full, since the socket was created. `SO_RXQ_OVFL` reports the same count
/// with each later packet; this query also works when no more packets arrive.
pub(crate) fn drops(socket: &UdpSocket) -> Option<u32> {
    memory(socket).map(|all| all[DROPS])
}

/// An upper bound of the bytes waiting in the socket. It includes the kernel's per-packet overhead.
pub(crate) fn waiting(socket: &UdpSocket) -> usize {
    memory(socket).map_or_else(|| receive_buffer(socket), |all| all[WAITING] as usize)
}

fn memory(socket: &UdpSocket) -> Option<[u32; DROPS + 1]> {
    ask(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)
}

/// The path MTU to the connected peer, including IP and UDP headers.
pub(crate) fn path_mtu(socket: &UdpSocket) -> Option<usize> {
    let (level, option) = match socket.peer_addr().ok()?.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_MTU),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    ask::<i32>(socket, level, option).and_then(|mtu| usize::try_from(mtu).ok())
}

/// Turns `UDP_GRO` on or off: the kernel may deliver several packets as one message. Returns false if the kernel does not
/// support it.
pub(crate) fn set_joined(socket: &UdpSocket, joined: bool) -> bool {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, joined.into()) && joined
}

/// Lets the kernel or the network card split messages into packets of this size (`UDP_SEGMENT`). Returns false if
/// unsupported.
pub(crate) fn set_cutting(socket: &UdpSocket, packet: usize) -> bool {
    i32::try_from(packet).is_ok_and(|packet| set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, packet))
}

fn set(socket: &UdpSocket, level: i32, option: i32, value: i32) -> bool {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option is an `int`, which `value` is.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    answer == 0
}

/// Reads a socket option; `None` if the kernel does not know it or returns fewer bytes.
fn ask<T: bytemuck::Pod>(socket: &UdpSocket, level: i32, option: i32) -> Option<T> {
    let mut value = T::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `len` is the size of `value`, and any bytes are a valid `T`.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &mut len)
    };
    (answer == 0 && len as usize == size_of::<T>()).then_some(value)
}
