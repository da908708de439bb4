//! The one policy: which methods may join two queues, best first.

use super::{Method, Pair, table::METHODS};
use crate::topology::{DeviceIx, Route, Topology};
use onebuf_hal::{RouteKind, SyncMethod};

/// The caller's limits on the methods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// No method better than this is used across contexts.
    pub best: SyncMethod,
    /// Whether unproven methods are allowed: the caller vouches for them (`trust_declared`), or is the experiment.
    pub unproven: bool,
}

impl Terms {
    /// Every method that is proven or guaranteed.
    pub const PROVEN: Terms = Terms { best: SyncMethod::SameQueue, unproven: false };
    /// Every method that the devices declare.
    pub const DECLARED: Terms = Terms { best: SyncMethod::SameQueue, unproven: true };

    /// Every method that is proven or guaranteed, and no better than the one that an experiment chose for this route.
    pub fn proven_over(route: Option<&Route>) -> Terms {
        let measured = route.and_then(|route| route.verdict.sync);
        Terms { best: measured.unwrap_or(SyncMethod::SameQueue), unproven: false }
    }
}

/// The methods that may join the queues, best first; `HostWait` is always the last.
pub(super) fn methods(pair: Pair<'_>, terms: Terms) -> impl Iterator<Item = &'static dyn Method> {
    METHODS.iter().copied().filter(move |method| allows(*method, &pair, terms))
}

/// Whether a method is allowed. It must not be better than the caller's limit and the route's verdict; the devices must support
/// it; and an API's contract, an experiment or the caller must vouch for it.
fn allows(method: &dyn Method, pair: &Pair<'_>, terms: Terms) -> bool {
    let word = method.word();
    let measured = pair.route.and_then(|route| route.verdict.sync);
    let best = measured.map_or(terms.best, |measured| terms.best.max(measured));
    let has_basis = || {
        let ends = [pair.sender, pair.receiver];
        word.is_guaranteed() || terms.unproven || pair.topology.proves(ends, word)
    };
    (word >= best || !method.is_limited(pair)) && has_basis() && method.can(pair)
}

/// The best method that may join the queues.
pub(super) fn best(pair: Pair<'_>, terms: Terms) -> SyncMethod {
    methods(pair, terms).next().map_or(SyncMethod::HostWait, Method::word)
}

/// The method that a plan names for a device that accesses a buffer's home by this route: the best one that joins the two in at
/// least one direction. If the caller trusts declared capabilities, no experiment is needed.
pub(crate) fn planned(
    topology: &Topology,
    [home, device]: [DeviceIx; 2],
    route: Option<&Route>,
    trusts: bool,
) -> SyncMethod {
    let terms = if trusts { Terms::DECLARED } else { Terms::PROVEN };
    let pair = Pair::between(topology, device, home).over(route);
    either_way(pair, terms).next().unwrap_or(SyncMethod::HostWait)
}

/// Every method that could join the two, proven or not, best first. These are the methods that the doctor tries.
pub fn declared(
    topology: &Topology,
    [home, device]: [DeviceIx; 2],
    kind: RouteKind,
) -> impl Iterator<Item = SyncMethod> {
    let route = topology.between(home, device).iter().find(|route| route.kind == kind);
    either_way(Pair::between(topology, device, home).over(route), Terms::DECLARED)
}

/// The methods that may join queues of the two devices in at least one direction, best first.
pub(super) fn either_way(pair: Pair<'_>, terms: Terms) -> impl Iterator<Item = SyncMethod> {
    let pairs = [pair, pair.back()];
    let allowed =
        move |method: &&'static dyn Method| pairs.iter().any(|pair| allows(*method, pair, terms));
    METHODS.iter().copied().filter(allowed).map(Method::word)
}
