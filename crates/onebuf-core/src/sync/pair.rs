//! Two queues, as the choice of a sync method sees them.

use crate::{
    identity,
    topology::{DeviceIx, Route, Topology},
};
use onebuf_hal::{DeviceInfo, RouteKind};

/// What the choice of a method needs to know about two queues. A pair made from devices alone stands for any two queues of
/// theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'t> {
    pub(crate) topology: &'t Topology,
    /// The device whose work is waited for.
    pub sender: DeviceIx,
    /// The device whose queue waits.
    pub receiver: DeviceIx,
    /// Whether both are the same in-order queue.
    pub one_queue: bool,
    /// Whether the receiver's queue can wait for the sender's events.
    pub(crate) events: Events,
    /// The route by which both access the memory; `None` if the queues are joined for no particular memory.
    pub route: Option<&'t Route>,
}

/// Whether one queue can wait for another's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Events {
    /// No.
    Foreign,
    /// Yes, by contract, although the contexts differ: one runtime is built on the other, or both devices are peers of one API.
    Taken,
    /// Yes, because both belong to one context.
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

    /// The same pair, for memory that both access by this route.
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
    pub fn back(self) -> Self {
        Self { sender: self.receiver, receiver: self.sender, ..self }
    }

    /// The descriptions of both devices, the sender's first. `None` if one belongs to another hub.
    pub(super) fn infos(&self) -> Option<[&'t DeviceInfo; 2]> {
        let nodes = self.topology.nodes();
        let info = |device: DeviceIx| nodes.get(device.get()).map(|node| &node.info);
        Some([info(self.sender)?, info(self.receiver)?])
    }

    /// Whether one of the devices belongs to a foreign context. No objects are created there that its owner did not request.
    pub(super) fn is_foreign(&self) -> bool {
        let nodes = self.topology.nodes();
        let is_foreign = |device: DeviceIx| {
            nodes.get(device.get()).is_none_or(|node| identity::is_foreign(&node.id))
        };
        is_foreign(self.sender) || is_foreign(self.receiver)
    }

    /// Whether the runtime of one device is built on the other, in one context: then their queues can wait for each other's
    /// events.
    pub(super) fn is_layered(&self) -> bool {
        let nodes = self.topology.nodes();
        let node = |device: DeviceIx| nodes.get(device.get());
        let (Some(a), Some(b)) = (node(self.sender), node(self.receiver)) else { return false };
        a.info.caps.built_on.as_ref() == Some(&b.id) || b.info.caps.built_on.as_ref() == Some(&a.id)
    }

    /// Whether the memory, if there is one, is shared by a descriptor.
    pub(super) fn is_by_descriptor(&self) -> bool {
        let by_fd = |route: &Route| matches!(route.kind, RouteKind::OpaqueFd | RouteKind::DmaBuf);
        self.route.is_none_or(by_fd)
    }
}
