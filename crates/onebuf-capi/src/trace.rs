//! Traces
//!
//! A hub that was discovered with `onebuf_hub_options.trace_events` records every launch, hand-over, wait and copy. The
//! file is in the Trace Event format: drop it on <https://ui.perfetto.dev>.

use crate::{
    entry::entry,
    fault::{Fault, Result},
    handle::Noun,
    hub::onebuf_hub,
    input::{Slot, out, path},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{Error, prelude::*, trace::Trace};
use serde_json::json;
use std::{ffi::c_char, io, time::Duration};

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

/// The current time on the clock of the trace's events, in nanoseconds: for onebuf_trace_account().
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_trace_now_ns(hub: onebuf_hub, now_ns: Slot<'_, u64>) -> onebuf_status {
    entry(|| {
        let now_ns = out(now_ns, "now_ns")?;
        *now_ns = ns(trace(hub)?.now());
        Ok(())
    })
}

/// Queries the device times of completed work now. The trace does so occasionally, which takes time; after this call it does not
/// for the next few dozen launches.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_trace_catch_up(hub: onebuf_hub) -> onebuf_status {
    entry(|| {
        trace(hub)?.catch_up();
        Ok(())
    })
}

/// Accounts for the time between two moments of onebuf_trace_now_ns(), as JSON: `{"total_ns":n,"work":[{"device","name","ns"}],
/// "idle":[{"cause","ns"}]}`. The parts add up to the total. Needs `onebuf_hub_options.trace_devices`: work counts by the devices'
/// own clocks.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_trace_account(
    hub: onebuf_hub,
    from_ns: u64,
    to_ns: u64,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            if to_ns < from_ns {
                return Err(Fault::invalid("`to_ns` is before `from_ns`"));
            }
            let stretch = Duration::from_nanos(from_ns)..Duration::from_nanos(to_ns);
            let account = trace(hub)?.account(std::iter::once(stretch));
            let topology = hub.get()?.hub.topology().clone();
            let work = account.work.iter().map(|((device, name), time)| {
                json!({ "device": topology.node(*device).id, "name": name, "ns": ns(*time) })
            });
            let idle = account
                .idle
                .iter()
                .map(|(cause, time)| json!({ "cause": cause.to_string(), "ns": ns(*time) }));
            let found = json!({
                "total_ns": ns(account.total),
                "work": work.collect::<Vec<_>>(),
                "idle": idle.collect::<Vec<_>>(),
            });
            Ok(found.to_string().into_bytes())
        })
    })
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
