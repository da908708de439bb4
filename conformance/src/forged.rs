//! Verdicts that no experiment has given. They are for tests of what the library does with a verdict; `docs/testing.md` lists the
//! tests in which the doctor gives the same one.

use crate::machine::moves;
use onebuf::{
    Hub, RouteKind, SyncMethod, Verdicts,
    topology::{Route, Verdict, VerdictState},
};

/// Returns that verdict for each route of some kinds, except where its driver is known not to do it.
pub fn forged_verdicts(
    hub: &Hub,
    verdict: &Verdict,
    which: impl Fn(RouteKind) -> bool,
) -> Verdicts {
    let (topology, mut verdicts) = (hub.topology(), Verdicts::default());
    let wanted = |route: &&Route| which(route.kind) && !moves(topology, route);
    for route in topology.routes().iter().filter(wanted) {
        let [from, to] = [route.from, route.to].map(|device| topology.node(device));
        verdicts.insert(from, to, route.kind, verdict.clone());
    }
    verdicts
}

/// Returns the verdict that a route works, with or without copies, joined by this method.
pub fn forged(zero_copy: Option<bool>, sync: Option<SyncMethod>) -> Verdict {
    Verdict { state: VerdictState::Proven, zero_copy, sync, ..Verdict::default() }
}

/// Returns verdicts that every route is free of copies, except staged ones. The ledger then counts only real copies.
pub fn forged_zero_copy(hub: &Hub) -> Verdicts {
    forged_verdicts(hub, &forged(Some(true), Some(SyncMethod::HostWait)), is_shared)
}

/// Whether both devices access the same bytes by such a route.
pub fn is_shared(kind: RouteKind) -> bool {
    kind != RouteKind::Staged
}
