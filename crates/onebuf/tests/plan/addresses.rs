//! Two APIs whose kernels work in one address space: which routes that gives, on one chip and on others, and who must ask.

use crate::{
    forbidden, kinds,
    machines::{A, B, HOST, caps, forbid, host, machine, node, proven, verdict, works},
};
use onebuf::{
    hal::{
        AddressSpace, DeviceKind, FdKind, PciAddress, PhysicalId, RouteKind,
        RouteKind::{DmaBuf, RawAddress, Same, Staged, SvmPointer},
        Strategy,
        Strategy::{CoarseSvm, Device, Exportable, FineSvm, MappedDevice},
    },
    plan::{Request, plan},
    topology::{DeviceIx, Node, State, Topology},
};

const ROCR: AddressSpace = AddressSpace::Runtime("ROCr");

fn on(bus: u8, mut node: Node, space: Option<AddressSpace>) -> Node {
    let pci = Some(PciAddress { domain: 0, bus, device: 0, function: 0 });
    node.info.physical = PhysicalId { uuid: None, pci };
    node.info.caps.imports_host_pages = true;
    node.info.caps.address_space = space;
    node
}

/// OpenCL and HIP on one AMD GPU: OpenCL imports no descriptors, HIP does and exports.
fn amd() -> Vec<Node> {
    let gpu = |id, api, forms: &[Strategy]| node(id, api, DeviceKind::Gpu, caps(forms, false));
    let opencl = gpu("opencl:0", "opencl", &[FineSvm, CoarseSvm, MappedDevice, Device]);
    let mut hip = gpu("hip:0", "hip", &[MappedDevice, Exportable, Device]);
    (hip.info.caps.exports, hip.info.caps.imports) = (vec![FdKind::DmaBuf], vec![FdKind::DmaBuf]);
    vec![host(), on(0xc1, opencl, Some(ROCR)), on(0xc1, hip, Some(ROCR))]
}

/// Kinds and forms of the routes that go by an address, and whether any is promised.
fn by_address(topology: &Topology, from: DeviceIx, to: DeviceIx) -> Vec<(RouteKind, Strategy)> {
    let ours = |needs: &str| needs.contains("one address space");
    let routes = topology.between(from, to).iter().filter(|route| ours(&route.needs));
    routes
        .map(|route| {
            assert!(!route.guaranteed && route.verdict.zero_copy.is_none(), "{route:?}");
            (route.kind, route.strategy.unwrap())
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

/// On a CPU there is one address space, whatever the APIs say of the chip.
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
    assert!(why.contains("unproven: run `onebuf doctor`"), "{why}");
    let refuted = machine(amd(), |route| {
        (route.kind != Staged).then(|| verdict(State::Refuted, true, "page 3 differs"))
    });
    let trusting = Request { trust_declared: true, raw_addresses: true, ..forbid(&[A, B]) };
    let (_, why) = forbidden(&refuted, &trusting);
    assert!(why.contains("page 3 differs"), "{why}");
}

/// The chip's own memory, by the better kind: not host pages, though they are proven too.
#[test]
fn proven_they_are_the_chips_own_memory() {
    let plan = plan(&proven(amd()), &forbid(&[A, B])).unwrap();
    assert!([CoarseSvm, Device].contains(&plan.strategy), "{plan:?}");
    let mut found = kinds(&plan);
    found.sort();
    assert_eq!(found, [Same, SvmPointer], "{plan:?}");
}

#[test]
fn raw_addresses_are_asked_for() {
    let only = |kind| machine(amd(), move |route| (route.kind == kind).then(works));
    let topology = only(RawAddress);
    let request = Request { allocate_on: Some(A), strategy: Some(Device), ..forbid(&[A, B]) };
    let (_, why) = forbidden(&topology, &request);
    assert_eq!(why, "raw_address: opt-in: ask for `raw_addresses`");
    let asked = Request { raw_addresses: true, ..request.clone() };
    assert_eq!(kinds(&plan(&topology, &asked).unwrap()), [Same, RawAddress]);
    let ordered = Request { route: Some(RawAddress), ..request };
    assert_eq!(kinds(&plan(&topology, &ordered).unwrap()), [Same, RawAddress]);
}
