//! What the network's sources and sinks share: packets, and calls that move many of them.

pub(super) mod clock;
pub(super) mod counters;
pub(super) mod mmsg;
pub(super) mod packet;
pub(super) mod socket;

use onebuf_hal::{Error, Result};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
};

/// A call to the kernel that failed.
pub(super) fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Driver {
        api: "host",
        call,
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    }
}

/// The first address of a name.
pub(super) fn resolve(name: impl ToSocketAddrs) -> Result<SocketAddr> {
    let found = name.to_socket_addrs().map(|mut all| all.next());
    let why = match found {
        Ok(Some(address)) => return Ok(address),
        Ok(None) => "a name without an address: write HOST:PORT".to_owned(),
        Err(error) => format!("no address, which is HOST:PORT: {error}"),
    };
    Err(Error::invalid(why))
}
