//! The ledger
//!
//! The ledger counts every byte that onebuf moves: as requested (a read, write, fill or copy by the caller) or as
//! implied (staging, or a driver's hidden copy).

use crate::{
    entry::entry,
    handle::Noun,
    hub::onebuf_hub,
    input::{Slot, out},
    status::onebuf_status,
    string::{self, onebuf_string},
};

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
