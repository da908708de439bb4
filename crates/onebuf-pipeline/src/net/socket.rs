//! Socket options and statistics.
//!
//! # Safety
//! The kernel gets memory together with its length.

#![allow(unsafe_code)]

use std::{
    io,
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// `SK_MEMINFO_RMEM_ALLOC` and `SK_MEMINFO_DROPS`, of linux/sock_diag.h.
const WAITING: usize = 0;
const DROPS: usize = 8;

/// Of asm-generic/socket.h.
const SO_BUSY_POLL: libc::c_int = 46;

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

/// Sets how long receive calls poll the network card (`SO_BUSY_POLL`). Returns false if it is not permitted.
pub(crate) fn set_busy_poll(socket: &UdpSocket, time: Duration) -> bool {
    let micros = i32::try_from(time.as_micros()).unwrap_or(i32::MAX);
    set(socket, libc::SOL_SOCKET, SO_BUSY_POLL, micros)
}

/// Waits until any of the sockets can be read. Returns their numbers.
pub(crate) fn wait_for_any(sockets: &[BorrowedFd<'_>], most: Duration) -> io::Result<Vec<usize>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut all: Vec<PollFd<'_>> =
        sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    // Shorter than a second.
    let most = Timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
    match poll(&mut all, Some(&most)) {
        // Trying all of them is harmless.
        Err(rustix::io::Errno::INTR) => return Ok((0..sockets.len()).collect()),
        result => result?,
    };
    let ready = all.iter().enumerate().filter(|(_, one)| !one.revents().is_empty());
    Ok(ready.map(|(number, _)| number).collect())
}

/// Wakes a thread that waits for it (`eventfd`).
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the thread, or the next call that waits.
    pub fn ring(&self) {
        // It can only fail because it has rung 2⁶⁴ times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until it rings, for a limited time.
    pub fn wait(&self, most: Duration) -> io::Result<()> {
        if !wait_for_any(&[self.as_fd()], most)?.is_empty() {
            self.reset();
        }
        Ok(())
    }

    pub fn reset(&self) {
        // It fails if it has not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
