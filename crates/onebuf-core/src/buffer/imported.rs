//! Cores around memory that was imported by a descriptor or by another process's handle. The planner is not used: the exporter
//! has already chosen where the memory is.

use super::{
    Core,
    make::{Maker, Shape, assemble},
};
use crate::{
    Hub,
    plan::{Hop, Plan, Score},
    sync,
    topology::{DeviceIx, Route, VerdictState},
};
use onebuf_hal::{
    CopyPolicy, Error, Export, FdKind, MemoryKind, Result, RouteKind, SyncMethod, locks::Arc,
};

/// Creates the core around imported memory. Other devices of the same chip that import the same kind of descriptor use it, too.
/// A handle is opened once: all other devices get staged copies.
pub(crate) fn make_imported(hub: &Hub, shape: &Shape, from: &Export) -> Result<Core> {
    let came_by = match from {
        Export::Fd(range) => Some(range),
        _ => None,
    };
    let plan = plan_imported(hub, shape, came_by.map(|range| range.kind));
    check_copies(hub, shape, &plan)?;
    let maker = Maker { hub, shape, plan: &plan, came_by };
    let home = hub.hal(plan.allocate_on).import(from, shape.access)?;
    let bytes = home.bytes();
    let aliases = maker.aliases(home, &maker.spec(bytes))?;
    Ok(assemble(hub, shape, bytes, Arc::new(plan), aliases, None))
}

fn plan_imported(hub: &Hub, shape: &Shape, sort: Option<FdKind>) -> Plan {
    let topology = hub.topology();
    let allocate_on = shape.allocate_on.unwrap_or(hub.host_index());
    let home = &topology.node(allocate_on).info.physical;
    let by = sort.map_or(RouteKind::Ipc, FdKind::route);
    let ordered = shape.route.is_none_or(|route| route == by);
    let refuted = |route: &Route| route.kind == by && route.verdict.state == VerdictState::Refuted;
    let takes = |to: DeviceIx| {
        let (info, Some(kind)) = (&topology.node(to).info, sort) else { return false };
        let able = info.caps.imports.contains(&kind) && info.physical.same_chip(home);
        ordered && able && !topology.between(allocate_on, to).iter().any(refuted)
    };
    let hop = |&to: &DeviceIx| {
        let (kind, zero_copy, why) = match () {
            () if to == allocate_on => (RouteKind::Same, true, "one device"),
            () if takes(to) => (by, true, "by contract: the same descriptor"),
            () => (RouteKind::Staged, false, "by contract: copies through the host"),
        };
        let known = topology.between(allocate_on, to).iter().find(|route| route.kind == kind);
        let sync = match to == allocate_on {
            true => SyncMethod::SameQueue,
            false => sync::planned(topology, [allocate_on, to], known, shape.trust_declared),
        };
        let why = why.into();
        Hop { to, kind, sync, zero_copy: Some(zero_copy), why }
    };
    // The host has no mapping of memory that another process may write.
    let score = Score { host_blind_late: true, ..Score::default() };
    let routes = shape.devices.iter().map(hop).collect();
    let memory_kind = if sort.is_some() { MemoryKind::Exportable } else { MemoryKind::Device };
    Plan { allocate_on, memory_kind, routes, rejected: Vec::new(), score }
}

/// Checks the copy policy, which the planner does for other buffers.
fn check_copies(hub: &Hub, shape: &Shape, plan: &Plan) -> Result<()> {
    let copies = plan.routes.iter().find(|hop| hop.kind == RouteKind::Staged);
    match copies.filter(|_| shape.policy == CopyPolicy::Forbid) {
        None => Ok(()),
        Some(hop) => {
            let id = |device| &hub.topology().node(device).id;
            Err(Error::CopyForbidden {
                route: format!("{} -> {}", id(plan.allocate_on), id(hop.to)),
                why: "it does not import the descriptor, or is another chip".into(),
            })
        }
    }
}
