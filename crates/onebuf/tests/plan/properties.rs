//! Properties of plans on every machine. `PROPTEST_CASES` sets the number of machines.

use crate::machines::{MIB, caps, gpu, node};
use onebuf::{
    Error,
    hal::{Api, CopyPolicy, DeviceKind, Hint, MemoryKind, RouteKind},
    plan::{Request, Score, plan},
    topology::{DeviceIx, Envelope, Node, Route, Topology, Verdict, VerdictState},
};
use proptest::{
    prelude::{any, prop, prop_assert, prop_assert_eq, proptest},
    sample::{select, subsequence},
    strategy::Strategy as Gen,
};

/// Whether a route accepts memory of that kind: a peer link accepts what a device allocates for itself.
fn serves(route: &Route, memory_kind: MemoryKind) -> bool {
    let own = [MemoryKind::Device, MemoryKind::Exportable].contains(&memory_kind);
    match route.memory_kind {
        None => route.kind != RouteKind::Peer || own,
        Some(only) => only == memory_kind,
    }
}

fn any_verdict() -> impl Gen<Value = Verdict> {
    let state = select(vec![VerdictState::Proven, VerdictState::Declared, VerdictState::Refuted]);
    let sizes = prop::option::of((0..MIB, MIB / 2..4 * MIB));
    let measured = (any::<Option<bool>>(), prop::option::of(0.0..100.0));
    (state, sizes, measured).prop_map(|(state, sizes, (zero_copy, handoff_us))| {
        let envelope = sizes.map(|(min_bytes, max_bytes)| Envelope {
            min_bytes,
            max_bytes,
            ..Envelope::default()
        });
        Verdict { state, envelope, zero_copy, handoff_us, ..Verdict::default() }
    })
}

fn any_edge(n: u16) -> impl Gen<Value = Route> {
    let ends = (0..n, 1..n).prop_map(move |(from, step)| (from, (from + step) % n));
    let memory_kind = prop::option::of(select(&MemoryKind::ALL[..]));
    let kind = select(&RouteKind::ALL[1..]);
    let parts = (ends, kind, memory_kind, any::<bool>(), 0..50u32, any_verdict());
    parts.prop_map(|((from, to), kind, memory_kind, guaranteed, cost, verdict)| {
        let (from, to) = (DeviceIx(from), DeviceIx(to));
        Route { from, to, kind, memory_kind, needs: String::new(), guaranteed, cost, verdict }
    })
}

fn any_node() -> impl Gen<Value = Node> {
    // Some memory kinds are never chosen automatically, so every device has others.
    let chosen: Vec<_> =
        MemoryKind::ALL.into_iter().filter(|memory_kind| !memory_kind.is_asked_for()).collect();
    let memory_kinds = subsequence(chosen, 1..=5);
    let api = select(vec!["host", "opencl", "cuda"]);
    let kind = select(vec![DeviceKind::Cpu, DeviceKind::Gpu]);
    (memory_kinds, api, kind, any::<bool>()).prop_map(|(memory_kinds, api, kind, unified)| {
        node("d", api, kind, caps(&memory_kinds, unified))
    })
}

fn any_request(n: u16) -> impl Gen<Value = Request> {
    let devices = subsequence((0..n).map(DeviceIx).collect::<Vec<_>>(), 1..=usize::from(n));
    let policy = select(vec![CopyPolicy::Allow, CopyPolicy::Warn, CopyPolicy::Forbid]);
    let hints = vec![Hint::CpuPreferred, Hint::GpuPreferred, Hint::Coherent, Hint::Streaming];
    let hint = prop::option::of(select(hints));
    let words = (any::<bool>(), any::<bool>());
    let parts = (devices.prop_shuffle(), 1..4 * MIB, policy, hint, words);
    parts.prop_map(|(devices, bytes, policy, hint, (trust_declared, raw_addresses))| Request {
        devices,
        bytes,
        policy,
        hint,
        trust_declared,
        raw_addresses,
        ..Request::default()
    })
}

/// Devices, routes and a request.
fn any_case() -> impl Gen<Value = (Vec<Node>, Vec<Route>, Request)> {
    (2..=6u16).prop_flat_map(|n| {
        let nodes = prop::collection::vec(any_node(), usize::from(n));
        let routes = prop::collection::vec(any_edge(n), 1..50);
        (nodes, routes, any_request(n))
    })
}

fn staged_everywhere(n: usize) -> Vec<Route> {
    let topology = Topology::declared(vec![gpu("d", "cuda"); n]);
    topology.routes().iter().filter(|r| r.kind == RouteKind::Staged).cloned().collect()
}

/// An independent formulation of the rule: whether this route may be used at all.
fn usable(route: &Route, request: &Request) -> bool {
    let verdict = &route.verdict;
    let covered = verdict.envelope.as_ref().is_none_or(|e| e.covers(request.bytes));
    match verdict.state {
        VerdictState::Refuted => false,
        _ if route.kind == RouteKind::RawAddress && !request.raw_addresses => false,
        VerdictState::Proven if covered => true,
        _ => route.guaranteed || request.trust_declared,
    }
}

/// Whether this usable route is certain, or trusted, not to copy.
fn copy_free(route: &Route, request: &Request) -> bool {
    let verdict = &route.verdict;
    let covered = verdict.envelope.as_ref().is_none_or(|e| e.covers(request.bytes));
    let fine_svm =
        route.kind == RouteKind::SvmPointer && route.memory_kind == Some(MemoryKind::FineSvm);
    let descriptor = matches!(route.kind, RouteKind::OpaqueFd | RouteKind::DmaBuf);
    let by_contract = route.guaranteed && (fine_svm || descriptor);
    let known = verdict.state == VerdictState::Declared || covered || by_contract;
    let unknown = verdict.zero_copy.is_none() || !known;
    let sure = verdict.zero_copy == Some(true) && known;
    let vouched = unknown && request.trust_declared && verdict.zero_copy != Some(false);
    let moves = route.kind == RouteKind::Staged || route.memory_kind == Some(MemoryKind::Managed);
    !moves && (sure || vouched)
}

/// The smallest number of copying devices over all allocators and memory kinds.
fn fewest_copies(topology: &Topology, request: &Request) -> Option<u64> {
    let is_host = |d: DeviceIx| topology.node(d).info.api == Api("host");
    let allocators = topology.indices().filter(|d| request.devices.contains(d) || is_host(*d));
    let memory_kinds =
        |d: DeviceIx| topology.node(d).info.caps.memory_kinds.iter().map(move |&f| (d, f));
    allocators
        .flat_map(memory_kinds)
        .filter_map(|(on, memory_kind)| copies_from(topology, request, on, memory_kind))
        .min()
}

fn copies_from(
    t: &Topology,
    request: &Request,
    on: DeviceIx,
    memory_kind: MemoryKind,
) -> Option<u64> {
    let fits = |r: &&Route| serves(r, memory_kind) && usable(r, request);
    let copies = |&to: &DeviceIx| {
        let routes = t.between(on, to).iter().filter(fits);
        let best = routes.map(|r| u64::from(!copy_free(r, request))).min();
        if on == to { Some(0) } else { best }
    };
    request.devices.iter().map(copies).sum()
}

/// Improves a route without changing its kind or its cost.
fn improve(route: &mut Route, how: u8) {
    let verdict = &mut route.verdict;
    match how {
        0 if verdict.state == VerdictState::Refuted => verdict.state = VerdictState::Declared,
        1 => (verdict.state, verdict.envelope) = (VerdictState::Proven, None),
        2 => verdict.zero_copy = verdict.zero_copy.map_or(Some(true), |free| free.then_some(true)),
        3 => verdict.handoff_us = verdict.handoff_us.map(|us| us / 2.0),
        _ => route.guaranteed = true,
    }
}

fn score(nodes: &[Node], routes: &[Route], request: &Request) -> Option<Score> {
    let topology = Topology::new(nodes.to_vec(), routes.to_vec());
    plan(&topology, request).ok().map(|plan| plan.score)
}

/// A plan that existed still exists, and its score does not rise.
fn no_worse(before: Option<Score>, after: Option<Score>) -> bool {
    before.is_none_or(|before| after.is_some_and(|after| after <= before))
}

proptest! {
    #[test]
    fn every_hop_is_a_usable_edge((nodes, routes, request) in any_case()) {
        let topology = Topology::new(nodes, routes);
        let Ok(plan) = plan(&topology, &request) else { return Ok(()) };
        prop_assert_eq!(plan.routes.len(), request.devices.len());
        for hop in &plan.routes {
            let taken = |r: &Route| r.kind == hop.kind
                && serves(r, plan.memory_kind)
                && usable(r, &request);
            let edge = topology.between(plan.allocate_on, hop.to).iter().any(taken);
            let same = hop.to == plan.allocate_on && hop.kind == RouteKind::Same;
            prop_assert!(request.devices.contains(&hop.to) && (edge || same), "{:?}", hop);
        }
    }

    #[test]
    fn forbid_never_implies_a_copy((nodes, routes, request) in any_case()) {
        let request = Request { policy: CopyPolicy::Forbid, ..request };
        let topology = Topology::new(nodes, routes);
        let Ok(plan) = plan(&topology, &request) else { return Ok(()) };
        prop_assert_eq!(fewest_copies(&topology, &request), Some(0));
        for hop in &plan.routes {
            let vouched = hop.zero_copy.is_none() && request.trust_declared;
            prop_assert!(hop.kind != RouteKind::Staged && (hop.zero_copy == Some(true) || vouched));
        }
    }

    #[test]
    fn copies_are_the_fewest_possible((nodes, routes, request) in any_case()) {
        let topology = Topology::new(nodes, routes);
        let fewest = fewest_copies(&topology, &request);
        let allowed = fewest.filter(|&n| n == 0 || request.policy != CopyPolicy::Forbid);
        prop_assert_eq!(plan(&topology, &request).ok().map(|plan| plan.score.copies), allowed);
    }

    #[test]
    fn staging_always_leaves_a_plan((nodes, mut routes, request) in any_case(), warn: bool) {
        let policy = if warn { CopyPolicy::Warn } else { CopyPolicy::Allow };
        let request = Request { policy, ..request };
        routes.extend(staged_everywhere(nodes.len()));
        prop_assert!(plan(&Topology::new(nodes, routes), &request).is_ok());
    }

    #[test]
    fn one_more_route_never_hurts((nodes, routes, request) in any_case()) {
        let planned = |n: usize| score(&nodes, &routes[..n], &request);
        for (n, extra) in routes.iter().enumerate() {
            prop_assert!(no_worse(planned(n), planned(n + 1)), "{:?}", extra);
        }
    }

    #[test]
    fn a_better_verdict_never_hurts((nodes, mut routes, request) in any_case(), skip: u8) {
        let mut before = score(&nodes, &routes, &request);
        for (i, how) in (0..routes.len()).zip((0..5).cycle().skip(skip.into())) {
            improve(&mut routes[i], how);
            let after = score(&nodes, &routes, &request);
            prop_assert!(no_worse(before, after), "{:?}", routes[i]);
            before = after;
        }
    }

    #[test]
    fn the_order_of_devices_has_no_say((nodes, routes, request) in any_case()) {
        let topology = Topology::new(nodes, routes);
        let mut turned = request.clone();
        turned.devices.reverse();
        prop_assert_eq!(plan(&topology, &request), plan(&topology, &turned));
    }

    #[test]
    fn the_order_of_routes_has_no_say((nodes, mut routes, request) in any_case()) {
        let before = score(&nodes, &routes, &request);
        routes.reverse();
        prop_assert_eq!(before, score(&nodes, &routes, &request));
    }

    #[test]
    fn rejections_are_better_kinds_with_a_reason((nodes, routes, request) in any_case()) {
        let Ok(plan) = plan(&Topology::new(nodes, routes), &request) else { return Ok(()) };
        for no in &plan.rejected {
            let hop = plan.routes.iter().find(|hop| hop.to == no.to);
            prop_assert!(no.from == plan.allocate_on && !no.why.is_empty());
            prop_assert!(hop.is_some_and(|hop| no.kind < hop.kind));
        }
    }

    #[test]
    fn too_small_a_device_is_named((mut nodes, routes, request) in any_case(), i: usize) {
        let small = request.devices[i % request.devices.len()];
        nodes[small.get()].info.caps.max_alloc_bytes = request.bytes - 1;
        nodes[small.get()].id = "small".into();
        let limit = Some(request.bytes - 1);
        let full = Error::OutOfMemory { device: "small".into(), asked: request.bytes, limit };
        prop_assert_eq!(plan(&Topology::new(nodes, routes), &request).unwrap_err(), full);
    }
}
