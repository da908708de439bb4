//! What a plan's score counts, and what its reasons say, one rule at a time.

use crate::machines::{
    A, B, C, HOST, MIB, allow, caps, edge, gpu, host, node, verdict, with_edges, works,
};
use onebuf::{
    Error,
    hal::{DeviceKind, Hint, MemoryKind, RouteKind},
    plan::{Plan, Request, Score, plan},
    topology::{DeviceIx, Envelope, Node, Route, Topology, Verdict, VerdictState},
};

fn score(topology: &Topology, request: &Request) -> Score {
    plan(topology, request).unwrap().score
}

/// A host, and one device with these kinds of memory.
fn one(kind: DeviceKind, kinds: &[MemoryKind], unified: bool) -> Vec<Node> {
    vec![host(), node("x:0", "x", kind, caps(kinds, unified))]
}

/// The plan for one device's memory of one kind.
fn alone(topology: &Topology, memory_kind: MemoryKind) -> Plan {
    let (memory_kind, allocate_on) = (Some(memory_kind), Some(A));
    plan(topology, &Request { memory_kind, allocate_on, ..allow(&[A]) }).unwrap()
}

#[test]
fn a_device_that_the_topology_does_not_have_is_named() {
    let topology = Topology::declared(vec![host(), gpu("cuda:0", "cuda")]);
    for wrong in [DeviceIx(2), DeviceIx(3)] {
        let outcome = plan(&topology, &allow(&[wrong]));
        assert!(matches!(&outcome, Err(Error::InvalidArgument(why)) if why.contains("devices:")));
        let request = Request { allocate_on: Some(wrong), ..allow(&[A]) };
        let outcome = plan(&topology, &request);
        assert!(
            matches!(&outcome, Err(Error::InvalidArgument(why)) if why.contains("allocate_on"))
        );
    }
}

#[test]
fn memory_that_no_device_has_is_refused_with_where_it_would_be() {
    let topology = Topology::declared(vec![host(), gpu("cuda:0", "cuda")]);
    let refusal = |memory_kind| {
        let request = Request { memory_kind: Some(memory_kind), ..allow(&[A]) };
        plan(&topology, &request).unwrap_err().to_string()
    };
    assert!(refusal(MemoryKind::OnChip).contains("MSMC"));
    assert!(refusal(MemoryKind::Managed).contains("ONEBUF_MANAGED=1"));
    assert!(refusal(MemoryKind::FineSvm).contains("a device that allocates this kind of memory"));
}

/// Trust is counted where the caller's word replaces an experiment: for the route itself, or for its copies.
#[test]
fn what_rests_on_the_callers_word_is_counted() {
    let nodes = || vec![host(), gpu("a:0", "a"), gpu("b:0", "b")];
    let on_trust = |verdict: Verdict| {
        let edges = vec![edge(A, B, RouteKind::OpaqueFd, verdict)];
        let request = Request { trust_declared: true, allocate_on: Some(A), ..allow(&[A, B]) };
        score(&with_edges(nodes(), edges), &request).on_trust
    };
    assert_eq!(on_trust(works()), 0);
    assert_eq!(on_trust(Verdict { zero_copy: None, ..works() }), 1, "its copies are unknown");
    assert_eq!(on_trust(verdict(VerdictState::Declared, true, "")), 1, "it is only declared");
    assert_eq!(on_trust(Verdict::default()), 1);
}

/// The host sees plain pages by a route in either direction, other memory only by a route to the host.
#[test]
fn the_host_sees_what_a_route_shows_it() {
    let nodes = || one(DeviceKind::Gpu, &[MemoryKind::HostPages, MemoryKind::Device], false);
    let sees = |from, to, memory_kind| {
        let route = Route { memory_kind: None, ..edge(from, to, RouteKind::HostPointer, works()) };
        alone(&Topology::new(nodes(), vec![route]), memory_kind).host_sees()
    };
    assert!(sees(A, HOST, MemoryKind::HostPages) && sees(A, HOST, MemoryKind::Device));
    assert!(sees(HOST, A, MemoryKind::HostPages), "its own pages, seen from there");
    assert!(!sees(HOST, A, MemoryKind::Device), "the device's memory stays the device's");
    let none = Topology::new(nodes(), Vec::new());
    assert!(!alone(&none, MemoryKind::HostPages).host_sees());
    assert!(!alone(&none, MemoryKind::Device).host_sees());
}

/// A processor has no memory of its own, whatever its driver says of it: its kernels cross no bus.
#[test]
fn only_chips_with_their_own_memory_cross_a_bus() {
    let over_bus = |kind, unified| {
        let nodes = one(kind, &[MemoryKind::MappedDevice], unified);
        alone(&Topology::declared(nodes), MemoryKind::MappedDevice).score.over_bus
    };
    assert_eq!(over_bus(DeviceKind::Gpu, false), 1);
    assert_eq!(over_bus(DeviceKind::Gpu, true), 0);
    assert_eq!(over_bus(DeviceKind::Cpu, false), 0);
    assert_eq!(over_bus(DeviceKind::Accelerator, false), 1);
}

#[test]
fn a_hint_is_a_distance() {
    use MemoryKind::{Device, FineSvm, HostPages, MappedDevice};
    let off = |hint, kind, memory_kind, seen: bool| {
        let nodes = one(kind, &[Device, FineSvm, HostPages, MappedDevice], false);
        let edges = [A, HOST].map(|end| {
            let to = if end == A { HOST } else { A };
            Route { memory_kind: None, ..edge(end, to, RouteKind::HostPointer, works()) }
        });
        let topology = Topology::new(nodes, if seen { edges.into() } else { Vec::new() });
        let (memory_kind, hint) = (Some(memory_kind), Some(hint));
        let request = Request { memory_kind, hint, allocate_on: Some(A), ..allow(&[A]) };
        score(&topology, &request).off_hint
    };
    let (cpu, gpu) = (DeviceKind::Cpu, DeviceKind::Gpu);
    assert_eq!(off(Hint::CpuPreferred, gpu, Device, true), 0);
    assert_eq!(off(Hint::CpuPreferred, gpu, Device, false), 1, "the host needs copies");
    assert_eq!(off(Hint::CpuPreferred, gpu, HostPages, false), 0);
    assert_eq!(off(Hint::CpuPreferred, gpu, HostPages, true), 0);
    assert_eq!(off(Hint::GpuPreferred, gpu, Device, true), 0);
    assert_eq!(off(Hint::GpuPreferred, cpu, Device, true), 1);
    assert_eq!(off(Hint::GpuPreferred, gpu, HostPages, true), 1);
    assert_eq!(off(Hint::GpuPreferred, gpu, FineSvm, true), 1);
    let coherent = [FineSvm, HostPages, MappedDevice, Device]
        .map(|memory_kind| off(Hint::Coherent, gpu, memory_kind, true));
    assert_eq!(coherent, [0, 1, 2, 2]);
    let streaming = [MappedDevice, HostPages, Device, FineSvm]
        .map(|memory_kind| off(Hint::Streaming, gpu, memory_kind, true));
    assert_eq!(streaming, [0, 0, 1, 1]);
}

#[test]
fn a_device_prefers_its_own_memory() {
    use MemoryKind::{CoarseSvm, Device, Exportable, FineSvm, HostPages, MappedDevice, OnChip};
    let kinds = [MappedDevice, Device, OnChip, Exportable, CoarseSvm, FineSvm, HostPages];
    let off = |unified| {
        let topology = Topology::declared(one(DeviceKind::Gpu, &kinds, unified));
        kinds.map(|memory_kind| alone(&topology, memory_kind).score.off_memory_kind)
    };
    assert_eq!(off(false), [1, 0, 0, 1, 2, 3, 4]);
    assert_eq!(off(true), [0, 1, 1, 2, 2, 3, 4]);
}

/// Why a route was taken, and why a better one was not.
#[test]
fn reasons_name_proof_contract_and_trust() {
    let nodes = || vec![host(), gpu("a:0", "a"), gpu("b:0", "b")];
    let planned = |edges: Vec<Route>, trust_declared| {
        let request = Request { trust_declared, allocate_on: Some(A), ..allow(&[A, B]) };
        plan(&with_edges(nodes(), edges), &request).unwrap()
    };
    let why = |plan: &Plan| plan.routes[1].why.to_string();
    let fd = |verdict| edge(A, B, RouteKind::OpaqueFd, verdict);
    assert!(why(&planned(vec![fd(works())], false)).starts_with("proven: every page"));
    let declared = || verdict(VerdictState::Declared, true, "says the driver");
    let promised = Route { guaranteed: true, ..fd(declared()) };
    assert!(why(&planned(vec![promised], false)).starts_with("by contract: says the driver"));
    assert!(why(&planned(vec![fd(declared())], true)).starts_with("on the caller's word"));

    let dma = |verdict| edge(A, B, RouteKind::DmaBuf, verdict);
    let rejected = |better: Verdict, trust| {
        let plan = planned(vec![fd(better), dma(works())], trust);
        assert_eq!((plan.routes[1].kind, plan.rejected.len()), (RouteKind::DmaBuf, 1));
        plan.rejected[0].why.clone()
    };
    let copies = rejected(verdict(VerdictState::Proven, false, "a shadow"), false);
    let unproven = rejected(declared(), true);
    assert_eq!(copies, "it copies (a shadow)");
    assert!(unproven.starts_with("unproven: run `onebuf doctor"), "{unproven}");
}

/// What was measured up to a size says nothing of larger buffers: there the contract alone holds.
#[test]
fn a_measurement_holds_within_its_envelope() {
    let nodes = || vec![host(), gpu("a:0", "a"), gpu("b:0", "b")];
    let envelope = Envelope { max_bytes: MIB, ..Envelope::default() };
    let measured = Verdict { envelope: Some(envelope), ..works() };
    let zero_copy = |kind, guaranteed, bytes| {
        let route = Route { guaranteed, ..edge(A, B, kind, measured.clone()) };
        let (allocate_on, route_kind) = (Some(A), Some(kind));
        let request = Request { allocate_on, bytes, route: route_kind, ..allow(&[A, B]) };
        plan(&with_edges(nodes(), vec![route]), &request).map(|plan| plan.routes[1].zero_copy)
    };
    assert_eq!(zero_copy(RouteKind::ApiShare, true, MIB).unwrap(), Some(true));
    assert_eq!(zero_copy(RouteKind::ApiShare, true, 2 * MIB).unwrap(), None);
    assert_eq!(zero_copy(RouteKind::OpaqueFd, true, 2 * MIB).unwrap(), Some(true));
    assert!(zero_copy(RouteKind::ApiShare, false, 2 * MIB).is_err(), "beyond what was proven");
}

/// Measured microseconds, or the route's cost in microseconds, for each device.
#[test]
fn hand_overs_are_added_up_in_nanoseconds() {
    let nodes = vec![host(), gpu("a:0", "a"), gpu("b:0", "b"), gpu("c:0", "c")];
    let timed = |handoff_us| Verdict { handoff_us, ..works() };
    let estimated = Route { cost: 7, ..edge(A, C, RouteKind::OpaqueFd, timed(None)) };
    let edges = vec![edge(A, B, RouteKind::OpaqueFd, timed(Some(2.5))), estimated];
    let request = Request { allocate_on: Some(A), ..allow(&[A, B, C]) };
    assert_eq!(score(&with_edges(nodes, edges), &request).handoff_ns, 2_500 + 7_000);
}

/// Coarse-grained memory is mapped and unmapped at each turn.
#[test]
fn fine_grained_memory_costs_the_host_less_than_coarse() {
    let cost = |memory_kind| {
        let topology = Topology::declared(one(DeviceKind::Cpu, &[memory_kind], true));
        let mut routes = topology.between(A, HOST).iter();
        routes.find(|route| route.kind == RouteKind::SvmPointer).unwrap().cost
    };
    assert!(cost(MemoryKind::FineSvm) < cost(MemoryKind::CoarseSvm));
}
