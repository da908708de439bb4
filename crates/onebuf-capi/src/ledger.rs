//! The ledger
//!
//! The ledger counts every byte that onebuf moves: as requested (a read, write, fill or copy by the caller) or as
//! implied (staging, or a driver's hidden copy).

use crate::{
    device::onebuf_device,
    entry::entry,
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, give, out},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::Cause;

/// Bytes that callers requested to be moved.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_ledger_asked_bytes(
    hub: onebuf_hub,
    bytes: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        *out(bytes, "bytes")? = hub.get()?.hub.ledger().asked_bytes();
        Ok(())
    })
}

/// Bytes that were moved without a request; zero on proven zero-copy routes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_ledger_implied_bytes(
    hub: onebuf_hub,
    bytes: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        *out(bytes, "bytes")? = hub.get()?.hub.ledger().implied_bytes();
        Ok(())
    })
}

/// Describes in text everything that was moved, by pair of devices.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_ledger_text(
    hub: onebuf_hub,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(hub.get()?.hub.ledger().to_string().into_bytes())))
}

/// What was moved from one device to another. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_traffic {
    /// `sizeof(onebuf_traffic)`.
    pub size: usize,
    /// Bytes that callers requested to be moved.
    pub asked_bytes: u64,
    /// Number of such operations.
    pub asked_operations: u64,
    /// Bytes that were moved without a request.
    pub implied_bytes: u64,
    /// Number of such operations.
    pub implied_operations: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_traffic {}

/// What was moved from one device to another, or inside one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_ledger_query(
    hub: onebuf_hub,
    from: onebuf_device,
    to: onebuf_device,
    traffic: *mut onebuf_traffic,
) -> onebuf_status {
    entry(|| {
        let (hub, from, to) = (hub.get()?, from.get()?, to.get()?);
        let mut found = onebuf_traffic {
            size: 0,
            asked_bytes: 0,
            asked_operations: 0,
            implied_bytes: 0,
            implied_operations: 0,
        };
        let entries = hub.hub.ledger().entries();
        for entry in entries.iter().filter(|one| one.from == from.id() && one.to == to.id()) {
            let (bytes, operations) = match entry.cause {
                Cause::Asked => (&mut found.asked_bytes, &mut found.asked_operations),
                Cause::Implied => (&mut found.implied_bytes, &mut found.implied_operations),
            };
            *bytes += entry.bytes;
            *operations += entry.operations;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give(found, traffic, "traffic") }
    })
}
