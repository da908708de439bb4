//! Traces
//!
//! A hub that was discovered with `onebuf_hub_options.trace_events` records every launch, hand-over, wait and copy. The
//! file is in the Trace Event format: drop it on <https://ui.perfetto.dev>.

use crate::{
    entry::entry,
    fault::Result,
    handle::Noun,
    hub::onebuf_hub,
    input::{Slot, out, path},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{Error, prelude::*, trace::Trace};
use std::{ffi::c_char, io};

fn trace(hub: onebuf_hub) -> Result<Trace> {
    let found = hub.get()?.hub.trace();
    let needs = "a hub with `onebuf_hub_options.trace_events`";
    Ok(found.ok_or_else(|| Error::unsupported("a trace", needs))?)
}

fn failed(error: io::Error) -> Error {
    let reason = error.to_string();
    Error::Unavailable { what: "a file for the trace".into(), tried: Vec::new(), reason }
}

/// Writes the events recorded so far to a file. Work that a device has not finished has only the host's times.
/// ONEBUF_UNSUPPORTED for a hub without a trace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_trace_save(hub: onebuf_hub, path: *const c_char) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let path = unsafe { self::path(path, "path")? };
        Ok(trace(hub)?.save(path).map_err(failed)?)
    })
}

/// The same as text.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_trace_json(
    hub: onebuf_hub,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let mut all = Vec::new();
            trace(hub)?.write(&mut all).map_err(failed)?;
            Ok(all)
        })
    })
}

/// How many events were overwritten by later ones.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_trace_dropped(hub: onebuf_hub, events: Slot<'_, u64>) -> onebuf_status {
    entry(|| {
        let events = out(events, "events")?;
        *events = trace(hub)?.dropped();
        Ok(())
    })
}

/// Deletes all recorded events.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_trace_clear(hub: onebuf_hub) -> onebuf_status {
    entry(|| {
        trace(hub)?.clear();
        Ok(())
    })
}
