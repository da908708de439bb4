//! Receives and sends many packets with one system call.
//!
//! # Safety
//! The kernel gets arrays of addresses. They point to slices that are borrowed for the whole call.

#![allow(unsafe_code)]

use std::{
    array,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

/// The maximum number of packets per call.
pub(crate) const BATCH: usize = 64;

/// The sender's address and port as the kernel writes them: a `sockaddr_in` followed by zeros, or a `sockaddr_in6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin([u32; size_of::<libc::sockaddr_in6>() / 4]);

impl Origin {
    /// The port. Both kinds of address have it at the same offset.
    pub fn port(&self) -> u16 {
        let bytes: &[u8] = bytemuck::cast_slice(&self.0);
        u16::from_be_bytes([bytes[2], bytes[3]])
    }

    /// The same host with another port.
    pub fn with_port(mut self, port: u16) -> Self {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0);
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self
    }

    /// Makes the kernel write the sender here with the next message.
    fn ask(&mut self, message: &mut libc::msghdr) {
        message.msg_name = (&raw mut self.0).cast();
        message.msg_namelen = size_of_val(&self.0) as _;
    }
}

/// Whether a receive call waits for the first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Up to the socket's timeout.
    Timeout,
    No,
}

impl Wait {
    fn flags(self) -> libc::c_int {
        if self == Self::No { libc::MSG_DONTWAIT } else { 0 }
    }
}

/// A received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Got {
    pub bytes: usize,
    /// The packet was longer than its buffers.
    pub cut_off: bool,
    pub from: Origin,
}

/// Waits for one packet, up to the socket's timeout, and also takes all packets that have already arrived. Each packet fills
/// its own buffers in order.
pub(crate) fn receive<const N: usize>(
    socket: BorrowedFd<'_>,
    places: &mut [[IoSliceMut<'_>; N]],
    got: &mut [Got; BATCH],
    wait: Wait,
) -> io::Result<usize> {
    let parts = places.iter_mut().map(|place| {
        // Empty buffers at the end are left out: each buffer costs the kernel about 40 ns.
        let used = place.iter().rposition(|part| !part.is_empty()).map_or(0, |last| last + 1);
        (place.as_mut_ptr().cast(), used)
    });
    let mut messages = messages(parts);
    let many = places.len().min(BATCH) as u32;
    for (message, got) in messages[..many as usize].iter_mut().zip(&mut *got) {
        got.from.ask(&mut message.msg_hdr);
    }
    // SAFETY: `many` of the messages are set, each to at most `N` buffers. `IoSliceMut` is guaranteed to be ABI-compatible
    // with `iovec`, and the buffers are exclusively borrowed. Each message also points to memory for the sender's address and
    // states its length. There is no control data.
    let came = unsafe {
        let (fd, none) = (socket.as_raw_fd(), ptr::null_mut());
        let flags = libc::MSG_WAITFORONE | wait.flags();
        libc::recvmmsg(fd, messages.as_mut_ptr(), many, flags as _, none)
    };
    let came = usize::try_from(came).map_err(|_| io::Error::last_os_error())?;
    for (got, message) in got.iter_mut().zip(&messages[..came]) {
        let cut_off = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        (got.bytes, got.cut_off) = (message.msg_len as usize, cut_off);
    }
    Ok(came)
}

/// Waits for one message, which may be several packets that the kernel joined (`UDP_GRO`); all but the last have the same
/// size. The packets fill the buffers in order. A message of packets of any other size than the expected one is reported as
/// one packet that was cut off.
pub(crate) fn receive_joined(
    socket: BorrowedFd<'_>,
    places: &mut [IoSliceMut<'_>],
    Joined { packet, is_marked }: Joined,
    got: &mut [Got; BATCH],
    wait: Wait,
) -> io::Result<usize> {
    let Whole { bytes, each, cut_off, from } = receive_whole(socket, places, wait)?;
    let each = if is_marked { each } else { bytes.min(packet) };
    if each == bytes || each != packet {
        got[0] = Got { bytes, cut_off: cut_off || each != bytes, from };
        return Ok(1);
    }
    let many = bytes.div_ceil(each).min(BATCH);
    for (number, got) in got[..many].iter_mut().enumerate() {
        let last = number + 1 == many;
        *got = Got { bytes: each.min(bytes - number * each), cut_off: cut_off && last, from };
    }
    Ok(many)
}

/// What is known of joined packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    /// The expected packet size.
    pub packet: usize,
    /// The kernel states the packet size. Once joining is turned off, packets that already waited still arrive joined, but
    /// without it.
    pub is_marked: bool,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub bytes: usize,
    /// The size of each packet in the message, except the last.
    pub each: usize,
    /// The message was longer than its buffers.
    pub cut_off: bool,
    /// The sender. The kernel joins packets of one sender only.
    pub from: Origin,
}

/// Waits for one message of one or several packets.
pub(crate) fn receive_whole(
    socket: BorrowedFd<'_>,
    places: &mut [IoSliceMut<'_>],
    wait: Wait,
) -> io::Result<Whole> {
    receive_message(socket, places, wait.flags())
}

/// Returns the beginning of the next message, if one has arrived, and leaves it in the socket.
pub(crate) fn peek(socket: BorrowedFd<'_>, head: &mut [u8]) -> io::Result<Whole> {
    receive_message(socket, &mut [IoSliceMut::new(head)], libc::MSG_PEEK | libc::MSG_DONTWAIT)
}

fn receive_message(
    socket: BorrowedFd<'_>,
    places: &mut [IoSliceMut<'_>],
    flags: libc::c_int,
) -> io::Result<Whole> {
    // Aligned, and larger than the one word that the kernel writes.
    let mut control = [0u64; 8];
    // SAFETY: the struct has only integers and pointers, for which zero means absent.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (places.as_mut_ptr().cast(), places.len() as _);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let mut from = Origin::default();
    from.ask(&mut message);
    // SAFETY: `IoSliceMut` is ABI-compatible with `iovec`, and the buffers are exclusively borrowed. So is the memory for
    // control data and for the sender's address; their lengths are stated.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    let cut_off = message.msg_flags & libc::MSG_TRUNC != 0;
    let each = joined_size(&message).filter(|&each| each < bytes).unwrap_or(bytes);
    Ok(Whole { bytes, each, cut_off, from })
}

/// The size of the joined packets, if the kernel joined several.
fn joined_size(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control data and set its length; `CMSG_FIRSTHDR` checks that a header fits.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(message);
        if head.is_null()
            || (*head).cmsg_level != libc::SOL_UDP
            || (*head).cmsg_type != libc::UDP_GRO
        {
            return None;
        }
        let size = libc::CMSG_DATA(head).cast::<libc::c_int>().read_unaligned();
        usize::try_from(size).ok().filter(|&size| size > 0)
    }
}

/// Sends messages, each the concatenation of its parts. Returns how many were sent, which is at least one.
pub(crate) fn send(socket: BorrowedFd<'_>, sent: &[&[IoSlice<'_>]]) -> io::Result<usize> {
    let parts = sent.iter().map(|parts| (parts.as_ptr().cast_mut().cast(), parts.len()));
    let mut messages = messages(parts);
    let many = sent.len().min(BATCH) as u32;
    // SAFETY: as for `receive`; the kernel only reads the data.
    let went = unsafe {
        let flags = libc::MSG_NOSIGNAL as _;
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), many, flags)
    };
    usize::try_from(went).map_err(|_| io::Error::last_os_error())
}

/// Builds messages from parts, each given by its first element and its length.
fn messages(mut parts: impl Iterator<Item = (*mut libc::iovec, usize)>) -> [libc::mmsghdr; BATCH] {
    array::from_fn(|_| {
        // SAFETY: the struct has only integers and pointers, for which zero means absent.
        let mut message: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        if let Some((first, many)) = parts.next() {
            message.msg_hdr.msg_iov = first;
            message.msg_hdr.msg_iovlen = many as _;
        }
        message
    })
}
