//! The one policy: which methods may join two queues, best first.

use super::{METHODS, Method};
use crate::{
    identity,
    topology::{DeviceIx, Route, Topology},
};
use onebuf_hal::{DeviceInfo, RouteKind, SyncMethod};

/// Two queues, as far as the choice of a method depends on them. One made of devices alone stands for any two queues of theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'t> {
    pub(crate) topology: &'t Topology,
    /// The device whose work is waited for.
    pub sender: DeviceIx,
    /// The device whose queue waits.
    pub receiver: DeviceIx,
    /// Both are the same in-order queue.
    pub one_queue: bool,
    /// Whether the receiver's queue can wait for the sender's events.
    pub(crate) events: Events,
    /// The route by which both see the memory; none where the two are joined for no memory in particular.
    pub route: Option<&'t Route>,
}

/// Whether one queue can wait for another's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Events {
    /// It cannot.
    Foreign,
    /// By contract, though the contexts differ: one runtime is built on the other, or both devices are one API's peers.
    Taken,
    /// Both belong to one context.
    OneContext,
}

impl<'t> Pair<'t> {
    /// Two queues of these devices.
    pub fn between(topology: &'t Topology, sender: DeviceIx, receiver: DeviceIx) -> Self {
        let (one_queue, route) = (false, None);
        let pair = Self { topology, sender, receiver, one_queue, events: Events::Foreign, route };
        let events = match () {
            () if sender == receiver => Events::OneContext,
            () if pair.is_layered() => Events::Taken,
            () => Events::Foreign,
        };
        Self { events, ..pair }
    }

    /// The same for memory that both see by this route.
    pub fn over(self, route: Option<&'t Route>) -> Self {
        let are_peers = route.is_some_and(|route| route.kind == RouteKind::Peer);
        let events = match self.events {
            // One API's streams wait for the events of all its devices.
            Events::Foreign if are_peers => Events::Taken,
            known => known,
        };
        Self { route, events, ..self }
    }

    /// The other direction.
    fn back(self) -> Self {
        Self { sender: self.receiver, receiver: self.sender, ..self }
    }

    /// What is known of both devices, the sender's first; nothing where one belongs to another hub.
    pub(super) fn infos(&self) -> Option<[&'t DeviceInfo; 2]> {
        let nodes = self.topology.nodes();
        let info = |device: DeviceIx| nodes.get(device.get()).map(|node| &node.info);
        Some([info(self.sender)?, info(self.receiver)?])
    }

    /// Whether one of the devices is of a foreign context: nothing is made there that its owner did not ask for.
    pub(super) fn is_foreign(&self) -> bool {
        let nodes = self.topology.nodes();
        let is_foreign = |device: DeviceIx| {
            nodes.get(device.get()).is_none_or(|node| identity::is_foreign(&node.id))
        };
        is_foreign(self.sender) || is_foreign(self.receiver)
    }

    /// Whether the one's runtime is built on the other, in one context: then each one's queues wait for the other's events.
    pub(super) fn is_layered(&self) -> bool {
        let nodes = self.topology.nodes();
        let node = |device: DeviceIx| nodes.get(device.get());
        let (Some(a), Some(b)) = (node(self.sender), node(self.receiver)) else { return false };
        a.info.caps.built_on.as_ref() == Some(&b.id) || b.info.caps.built_on.as_ref() == Some(&a.id)
    }

    /// Whether the memory, if any is meant, is seen by a descriptor.
    pub(super) fn is_by_descriptor(&self) -> bool {
        let by_fd = |route: &Route| matches!(route.kind, RouteKind::OpaqueFd | RouteKind::DmaBuf);
        self.route.is_none_or(by_fd)
    }
}

/// What whoever joins two queues allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// No method better than this, across contexts.
    pub best: SyncMethod,
    /// Also methods that no experiment has proven: the caller vouches for them (`trust_declared`), or is the experiment.
    pub unproven: bool,
}

impl Terms {
    /// Whatever is proven or guaranteed.
    pub const PROVEN: Terms = Terms { best: SyncMethod::SameQueue, unproven: false };
    /// Whatever the devices say they can.
    pub const DECLARED: Terms = Terms { best: SyncMethod::SameQueue, unproven: true };

    /// Whatever is proven or guaranteed, and no better than what an experiment chose for this route.
    pub fn proven_over(route: Option<&Route>) -> Terms {
        let measured = route.and_then(|route| route.verdict.sync);
        Terms { best: measured.unwrap_or(SyncMethod::SameQueue), unproven: false }
    }
}

/// The methods that may join the queues, best first; the host's wait is always the last.
pub(super) fn methods(pair: Pair<'_>, terms: Terms) -> impl Iterator<Item = &'static dyn Method> {
    METHODS.iter().copied().filter(move |method| allows(*method, &pair, terms))
}

/// A method is allowed if it is not better than the caller's limit and the route's verdict, the devices say that they can, and
/// it rests on a contract, on an experiment, or on the caller's word.
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

/// The method that a plan names for a device that sees a buffer's home by this route: the best that joins the two in one direction
/// at least. A caller that trusts what drivers declare needs no experiment.
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

/// Every method that could join the two, proven or not, best first: what the doctor tries.
pub fn declared(
    topology: &Topology,
    [home, device]: [DeviceIx; 2],
    kind: RouteKind,
) -> impl Iterator<Item = SyncMethod> {
    let route = topology.between(home, device).iter().find(|route| route.kind == kind);
    either_way(Pair::between(topology, device, home).over(route), Terms::DECLARED)
}

/// The methods that may join queues of two devices in one direction at least, best first.
pub(super) fn either_way(pair: Pair<'_>, terms: Terms) -> impl Iterator<Item = SyncMethod> {
    let pairs = [pair, pair.back()];
    let allowed =
        move |method: &&'static dyn Method| pairs.iter().any(|pair| allows(*method, pair, terms));
    METHODS.iter().copied().filter(allowed).map(Method::word)
}
