//! What network sources and sinks share: the packet format, and system calls that move many packets.

pub(super) mod clock;
pub(super) mod counters;
pub(super) mod cpu;
pub(super) mod crew;
pub(super) mod mmsg;
pub(super) mod packet;
pub(super) mod reuse;
pub(super) mod socket;

use onebuf_hal::{Error, Result};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
};

/// Wraps the error of a failed system call.
pub(super) fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Driver {
        api: "host",
        call,
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    }
}

/// Resolves a name to its first address.
pub(super) fn resolve(name: impl ToSocketAddrs) -> Result<SocketAddr> {
    let found = name.to_socket_addrs().map(|mut all| all.next());
    let why = match found {
        Ok(Some(address)) => return Ok(address),
        Ok(None) => "the name has no address; expected HOST:PORT".to_owned(),
        Err(error) => format!("expected HOST:PORT: {error}"),
    };
    Err(Error::invalid(why))
}
