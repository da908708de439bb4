//! Routes and verdicts
//!
//! What is known about the routes between a hub's devices: the doctor's verdicts, or what the drivers declare.

use crate::{
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, give},
    status::onebuf_status,
    string::{self, onebuf_string},
    words::{self, onebuf_route, onebuf_sync_method},
};
use onebuf::{
    Error,
    topology::{Verdict, VerdictState},
};

/// The state of a verdict.
pub type onebuf_verdict_state = u32;
/// The drivers declare it, and no experiment was made.
pub const ONEBUF_VERDICT_DECLARED: onebuf_verdict_state = 0;
/// An experiment on this machine has shown that it works.
pub const ONEBUF_VERDICT_PROVEN: onebuf_verdict_state = 1;
/// An experiment has shown that it does not work.
pub const ONEBUF_VERDICT_REFUTED: onebuf_verdict_state = 2;

/// What is known about a route or a graft. Set `size`; the call fills in the rest. Numbers that were not measured are zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_verdict {
    /// `sizeof(onebuf_verdict)`.
    pub size: usize,
    /// Declared, proven or refuted.
    pub state: onebuf_verdict_state,
    /// Whether a hand-over makes no copy: 1 or 0; -1 if that was not measured.
    pub zero_copy: i32,
    /// The best sync method that joins the two devices' queues over this route; ONEBUF_SYNC_ANY if it was not measured.
    pub sync: onebuf_sync_method,
    /// Not zero: the API's contract guarantees the route, without an experiment.
    pub guaranteed: u32,
    /// Duration of one hand-over, in microseconds.
    pub handoff_us: f64,
    /// Bandwidth of the receiving device through the route, or of the copy, in gigabytes per second.
    pub gb_per_s: f64,
    /// The smallest size that was tried, in bytes.
    pub min_bytes: u64,
    /// The largest size that was tried, in bytes.
    pub max_bytes: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_verdict {}

fn plain(verdict: &Verdict, guaranteed: bool) -> onebuf_verdict {
    let sizes = verdict.envelope.as_ref();
    onebuf_verdict {
        size: 0,
        state: match verdict.state {
            VerdictState::Declared => ONEBUF_VERDICT_DECLARED,
            VerdictState::Proven => ONEBUF_VERDICT_PROVEN,
            VerdictState::Refuted => ONEBUF_VERDICT_REFUTED,
        },
        zero_copy: verdict.zero_copy.map_or(-1, i32::from),
        sync: verdict.sync.map_or(words::ONEBUF_SYNC_ANY, words::sync_method_number),
        guaranteed: guaranteed.into(),
        handoff_us: verdict.handoff_us.unwrap_or(0.0),
        gb_per_s: verdict.gb_per_s.unwrap_or(0.0),
        min_bytes: sizes.map_or(0, |sizes| sizes.min_bytes),
        max_bytes: sizes.map_or(0, |sizes| sizes.max_bytes),
    }
}

/// # Safety
/// As for [`give`].
unsafe fn tell(
    verdict: &Verdict,
    guaranteed: bool,
    to: *mut onebuf_verdict,
    why: Slot<'_, onebuf_string>,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { give(plain(verdict, guaranteed), to, "verdict")? };
    match why {
        Some(why) => string::give(Some(why), || Ok(verdict.why.clone().into_bytes())),
        None => Ok(()),
    }
}

/// The verdict on the route by which `to` accesses memory that is allocated on `from`. `why`, unless NULL, gets the reason in a
/// sentence. ONEBUF_UNSUPPORTED if there is no such route.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_route_query(
    from: onebuf_device,
    to: onebuf_device,
    route: onebuf_route,
    verdict: *mut onebuf_verdict,
    why: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        let (from, to) = (from.get()?, to.get()?);
        let kind = words::route(route)?.ok_or_else(|| Fault::invalid("route 0: name a route"))?;
        if !from.hub().is(to.hub()) {
            return Err(Fault::invalid("two devices of different hubs"));
        }
        let routes = from.hub().topology().between(from.index(), to.index());
        let found = routes.iter().find(|route| route.kind == kind).ok_or_else(|| {
            let what = format!("{kind} from {} to {}", from.id(), to.id());
            let kinds: Vec<String> = routes.iter().map(|route| route.kind.to_string()).collect();
            let has = if kinds.is_empty() { "none".into() } else { kinds.join(", ") };
            Error::unsupported(what, format!("one of the routes that there are: {has}"))
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { tell(&found.verdict, found.guaranteed, verdict, why) }
    })
}

/// The doctor's verdict on grafting OpenCL programs of `from` onto `to`, a CUDA or HIP device of the same chip: see
/// onebuf_program_graft(). `why`, unless NULL, gets the reason. `possible` says whether the two devices could graft at all, and
/// may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_graft_query(
    from: onebuf_device,
    to: onebuf_device,
    verdict: *mut onebuf_verdict,
    why: Slot<'_, onebuf_string>,
    possible: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        let (from, to) = (from.get()?, to.get()?);
        let found = from.hub().graft_verdict(&from, &to);
        possible.map(|possible| possible.write(from.hub().could_graft(&from, &to)));
        // SAFETY: guaranteed by the caller.
        unsafe { tell(&found, false, verdict, why) }
    })
}

/// All devices of the hub, and all routes between them with their verdicts, as JSON: `{"schema":2,"devices":["host",…],
/// "routes":[{"from","to","kind","guaranteed","state","zero_copy","why",…}]}`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_hub_topology_json(
    hub: onebuf_hub,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || Ok(hub.get()?.hub.topology().to_json().to_string().into_bytes()))
    })
}
