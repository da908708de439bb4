//! What the kernel says of a socket.
//!
//! # Safety
//! The kernel is asked into memory of which it is told how long it is.

#![allow(unsafe_code)]

use std::{
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd},
};

/// `SK_MEMINFO_RMEM_ALLOC` and `SK_MEMINFO_DROPS`, of linux/sock_diag.h.
const WAITING: usize = 0;
const DROPS: usize = 8;

/// Asks for room for packets that wait, past the system's limit where we may. Returns what there is then: Linux counts the
/// packets' own administration too, and therefore gives twice what it was asked for.
pub(crate) fn set_receive_buffer(socket: &UdpSocket, bytes: usize) -> usize {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket.as_fd(), bytes).is_err() {
        // What it is instead is told below.
        let _ = sockopt::set_socket_recv_buffer_size(socket.as_fd(), bytes);
    }
    receive_buffer(socket)
}

pub(crate) fn receive_buffer(socket: &UdpSocket) -> usize {
    rustix::net::sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap_or(0)
}

/// Packets that the kernel had no room for, since the socket was made. `SO_RXQ_OVFL` would tell the same with each packet that
/// comes after; this can be asked when it is needed, and when nothing comes any more.
pub(crate) fn drops(socket: &UdpSocket) -> Option<u32> {
    memory(socket).map(|all| all[DROPS])
}

/// How many bytes of packets wait at most. The kernel counts what it needs for a packet itself too.
pub(crate) fn waiting(socket: &UdpSocket) -> usize {
    memory(socket).map_or_else(|| receive_buffer(socket), |all| all[WAITING] as usize)
}

fn memory(socket: &UdpSocket) -> Option<[u32; DROPS + 1]> {
    ask(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)
}

/// The largest packet on the way to where the socket is connected to, heads of IP and UDP included.
pub(crate) fn path_mtu(socket: &UdpSocket) -> Option<usize> {
    let (level, option) = match socket.peer_addr().ok()?.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_MTU),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    ask::<i32>(socket, level, option).and_then(|mtu| usize::try_from(mtu).ok())
}

/// Whether packets that come close together may be handed over together. False where the kernel cannot.
pub(crate) fn set_joined(socket: &UdpSocket, joined: bool) -> bool {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, joined.into()) && joined
}

/// Lets the kernel, or the network card, cut what is sent into packets of this size. False where it cannot.
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

/// One option of a socket; `None` for one that the kernel does not know, or that is shorter.
fn ask<T: bytemuck::Pod>(socket: &UdpSocket, level: i32, option: i32) -> Option<T> {
    let mut value = T::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `len` says how long `value` is, and any bytes are a `T`.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &mut len)
    };
    (answer == 0 && len as usize == size_of::<T>()).then_some(value)
}
