//! The ledger
//!
//! Every byte that onebuf moved is counted: as asked for (a read, write, fill or copy that the caller
//! requested) or as implied (staging, a driver's hidden copy).

use crate::{
    entry::entry,
    handle::Noun,
    hub::onebuf_hub,
    input::{Slot, out},
    status::onebuf_status,
    string::{self, onebuf_string},
};

/// Bytes that callers asked to be moved.
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

/// Bytes that were moved although nobody asked; zero on proven zero-copy routes.
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

/// Everything that was moved, by pair of devices, in words.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_ledger_text(
    hub: onebuf_hub,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(hub.get()?.hub.ledger().to_string().into_bytes())))
}
