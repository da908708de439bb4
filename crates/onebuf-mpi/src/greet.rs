//! The ranks introduce themselves, before anything else is sent.
//!
//! # Safety
//! The arrays of a transfer are kept until it has ended, or forever.

#![allow(unsafe_code)]

use crate::{
    claim::GpuClaim,
    deadline::Deadline,
    ranks::{self, BYTES, OPTIONS_BYTES, Peer, Ranks},
    transport::{Address, Key, Outcome, Transport},
};
use onebuf_hal::{Error, Result};
use std::{collections::BTreeMap, thread, time::Duration};

/// Exchanges what the ranks say of themselves.
///
/// # Errors
/// [`Error::InvalidArgument`] if they do not fit together, on every rank; [`Error::Timeout`]; the transport's.
pub(crate) fn greet(
    transport: &mut dyn Transport,
    options: &BTreeMap<String, String>,
    until: Deadline,
) -> Result<Ranks> {
    let options = ranks::options_text(options);
    let own = transport.rank();
    let records = gather(transport, &Peer::this(own, &options).encode(), BYTES, until)?;
    let mut ranks = Ranks::read(own, &records)?;
    ranks.claim = transport.raw().map(|(mpi, _)| GpuClaim::of(mpi)).unwrap_or_default();
    if !ranks.options_differ() {
        return Ok(ranks);
    }
    // All ranks see the same records, and so come here together.
    let texts = gather(transport, options.as_bytes(), OPTIONS_BYTES, until)?;
    Err(ranks.options_error(&texts))
}

/// Gathers `each` bytes of every rank: these, and zeros behind them.
fn gather(
    transport: &mut dyn Transport,
    own: &[u8],
    each: usize,
    until: Deadline,
) -> Result<Vec<u8>> {
    let (mut from, mut into) = (vec![0u8; each], vec![0u8; each * transport.size()]);
    let many = own.len().min(each);
    from[..many].copy_from_slice(&own[..many]);
    let (at, to) = (Address::of(&from), Address::new(into.as_mut_ptr()));
    // SAFETY: both vectors stay until the call has ended; otherwise they are forgotten.
    let ended = unsafe { transport.all_gather(at, to, each, 0) }
        .and_then(|()| complete(transport, 0, "the ranks to introduce themselves", until));
    match ended {
        Ok(()) => Ok(into),
        Err(error) => {
            std::mem::forget((from, into));
            Err(error)
        }
    }
}

/// Waits for the one call that is under way.
pub(crate) fn complete(
    transport: &mut dyn Transport,
    key: Key,
    what: &str,
    until: Deadline,
) -> Result<()> {
    let mut ended = Vec::new();
    loop {
        transport.poll(&mut ended)?;
        for (other, outcome) in ended.drain(..) {
            match outcome {
                _ if other != key => {}
                Outcome::Failed(error) => return Err(error),
                Outcome::Truncated => {
                    return Err(Error::refused("a message of another length came"));
                }
                Outcome::Done(_) | Outcome::Cancelled => return Ok(()),
            }
        }
        if until.is_over() {
            return Err(until.error(what));
        }
        thread::sleep(Duration::from_micros(50));
    }
}
