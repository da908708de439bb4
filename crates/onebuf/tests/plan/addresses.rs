//! Two APIs whose kernels work in one address space: the resulting routes, on one chip and on others, and which are opt-in.

use crate::{
    forbidden, kinds,
    machines::{A, B, HOST, allow, caps, forbid, host, machine, node, proven, verdict, works},
};
use onebuf::{
    hal::{
        AddressSpace, CopyPolicy, DeviceKind, FdKind, Hint, MemoryKind,
        MemoryKind::{CoarseSvm, Device, Exportable, FineSvm, Managed, MappedDevice},
        PciAddress, PhysicalId, RouteKind,
        RouteKind::{DmaBuf, RawAddress, Same, Staged, SvmPointer},
    },
    plan::{Request, plan},
    topology::{DeviceIx, Node, Topology, VerdictState},
};

const ROCR: AddressSpace = AddressSpace::Runtime("ROCr");

fn on(bus: u8, mut node: Node, space: Option<AddressSpace>) -> Node {
    let pci = Some(PciAddress { domain: 0, bus, device: 0, function: 0 });
    node.info.physical = PhysicalId { uuid: None, pci };
    node.info.caps.imports_host_pages = true;
    node.info.caps.address_space = space;
    node
}

/// OpenCL and HIP on one AMD GPU: OpenCL cannot import descriptors, HIP imports and exports them.
fn amd() -> Vec<Node> {
    let gpu = |id, api, memory_kinds: &[MemoryKind]| {
        node(id, api, DeviceKind::Gpu, caps(memory_kinds, false))
    };
    let opencl = gpu("opencl:0", "opencl", &[FineSvm, CoarseSvm, MappedDevice, Device]);
    let mut hip = gpu("hip:0", "hip", &[MappedDevice, Exportable, Device]);
    (hip.info.caps.exports, hip.info.caps.imports) = (vec![FdKind::DmaBuf], vec![FdKind::DmaBuf]);
    vec![host(), on(0xc1, opencl, Some(ROCR)), on(0xc1, hip, Some(ROCR))]
}

/// The route kinds and memory kinds of the routes by address, none of which is guaranteed.
fn by_address(topology: &Topology, from: DeviceIx, to: DeviceIx) -> Vec<(RouteKind, MemoryKind)> {
    let ours = |needs: &str| needs.contains("one address space");
    let routes = topology.between(from, to).iter().filter(|route| ours(&route.needs));
    routes
        .map(|route| {
            assert!(!route.guaranteed && route.verdict.zero_copy.is_none(), "{route:?}");
            (route.kind, route.memory_kind.unwrap())
        })
        .collect()
}

#[test]
fn one_chip_and_one_space_make_candidates() {
    let topology = Topology::declared(amd());
    let there = [(SvmPointer, CoarseSvm), (RawAddress, Device), (DmaBuf, CoarseSvm)];
    assert_eq!(by_address(&topology, A, B), there);
    assert_eq!(by_address(&topology, B, A), [(SvmPointer, Device)]);
    for (from, to) in [(HOST, A), (A, HOST), (HOST, B), (B, HOST), (A, A), (B, B)] {
        assert!(by_address(&topology, from, to).is_empty(), "{from:?} -> {to:?}");
    }
}

#[test]
fn another_chip_another_space_or_one_api_make_none() {
    let none = |change: &dyn Fn(&mut Node)| {
        let mut nodes = amd();
        change(&mut nodes[2]);
        let topology = Topology::declared(nodes);
        let routes = [by_address(&topology, A, B), by_address(&topology, B, A)].concat();
        assert!(routes.is_empty(), "{routes:?}");
    };
    none(&|hip| hip.info.physical.pci.as_mut().unwrap().bus = 7);
    none(&|hip| hip.info.physical.pci = None);
    none(&|hip| hip.info.caps.address_space = None);
    none(&|hip| hip.info.caps.address_space = Some(AddressSpace::Runtime("another")));
    none(&|hip| hip.info.caps.address_space = Some(AddressSpace::Process));
    none(&|hip| hip.info.api = onebuf::hal::Api("opencl"));
}

/// On a CPU there is one address space, even if the APIs do not identify the chip.
#[test]
fn the_process_is_one_space() {
    let mut nodes = amd();
    for node in &mut nodes[1..] {
        node.info.physical = PhysicalId::default();
        node.info.caps.address_space = Some(AddressSpace::Process);
        node.info.caps.exports.clear();
    }
    let topology = Topology::declared(nodes);
    assert_eq!(by_address(&topology, A, B), [(SvmPointer, CoarseSvm), (RawAddress, Device)]);
    assert_eq!(by_address(&topology, B, A), [(SvmPointer, Device)]);
}

#[test]
fn unproven_they_are_not_used_and_refuted_never() {
    let (_, why) = forbidden(&Topology::declared(amd()), &forbid(&[A, B]));
    assert!(why.contains("unproven: run `onebuf doctor --devices "), "{why}");
    let refuted = machine(amd(), |route| {
        (route.kind != Staged).then(|| verdict(VerdictState::Refuted, true, "page 3 differs"))
    });
    let trusting = Request { trust_declared: true, raw_addresses: true, ..forbid(&[A, B]) };
    let (_, why) = forbidden(&refuted, &trusting);
    assert!(why.contains("page 3 differs"), "{why}");
}

/// The plan uses the chip's own memory and not host pages, although those are proven too.
#[test]
fn proven_they_are_the_chips_own_memory() {
    let plan = plan(&proven(amd()), &forbid(&[A, B])).unwrap();
    assert!([CoarseSvm, Device].contains(&plan.memory_kind), "{plan:?}");
    let mut found = kinds(&plan);
    found.sort();
    assert_eq!(found, [Same, SvmPointer], "{plan:?}");
}

#[test]
fn raw_addresses_are_asked_for() {
    let only = |kind| machine(amd(), move |route| (route.kind == kind).then(works));
    let topology = only(RawAddress);
    let request = Request { allocate_on: Some(A), memory_kind: Some(Device), ..forbid(&[A, B]) };
    let (_, why) = forbidden(&topology, &request);
    assert_eq!(why, "raw_address: opt-in: ask for `raw_addresses`");
    let asked = Request { raw_addresses: true, ..request.clone() };
    assert_eq!(kinds(&plan(&topology, &asked).unwrap()), [Same, RawAddress]);
    let ordered = Request { route: Some(RawAddress), ..request };
    assert_eq!(kinds(&plan(&topology, &ordered).unwrap()), [Same, RawAddress]);
}

/// Managed memory counts as a copy, regardless of measurements, and is used only if the caller requests it.
#[test]
fn managed_memory_is_named_and_never_free() {
    let memory_kinds = [Managed, MappedDevice, Device];
    let cuda = node("cuda:0", "cuda", DeviceKind::Gpu, caps(&memory_kinds, false));
    let other = node("opencl:0", "opencl", DeviceKind::Gpu, caps(&[Device], false));
    let nodes = vec![host(), on(0xc1, cuda, None), on(0xc2, other, None)];
    let topology = machine(nodes, |_| Some(works()));
    let routes = topology.routes().iter().filter(|route| route.memory_kind == Some(Managed));
    let ends: Vec<_> = routes.map(|route| (route.from, route.to, route.kind)).collect();
    assert_eq!(ends, [(A, HOST, SvmPointer)], "for the host alone");

    let hints = [Hint::CpuPreferred, Hint::GpuPreferred, Hint::Coherent, Hint::Streaming];
    for hint in hints.map(Some).into_iter().chain([None]) {
        let request = Request { hint, allocate_on: Some(A), ..allow(&[HOST, A]) };
        assert_ne!(plan(&topology, &request).unwrap().memory_kind, Managed, "{hint:?}");
    }
    let named = Request { memory_kind: Some(Managed), ..allow(&[HOST, A]) };
    let planned = plan(&topology, &named).unwrap();
    assert_eq!((planned.allocate_on, kinds(&planned)), (A, vec![SvmPointer, Same]));
    assert_eq!((planned.routes[0].zero_copy, planned.host_sees()), (Some(false), false));
    let text = planned.explain(&topology);
    assert!(text.contains("host: svm_pointer, copies (pages move), joined by"), "{text}");
    let (route, why) = forbidden(&topology, &Request { policy: CopyPolicy::Forbid, ..named });
    assert_eq!(route, "cuda:0 -> host");
    assert_eq!(why, "svm_pointer: it copies (pages move at every hand-over)");
    let alone = Request { memory_kind: Some(Managed), ..forbid(&[A]) };
    assert_eq!(plan(&topology, &alone).unwrap().memory_kind, Managed);
    let elsewhere = plan(&topology, &Request { memory_kind: Some(Managed), ..allow(&[B]) });
    assert!(elsewhere.unwrap_err().to_string().contains("ONEBUF_MANAGED=1"));
}
