//! Two GPUs of one API, with and without access to each other's memory.

use crate::{
    forbidden, kinds,
    machines::{A, B, allow, caps, forbid, host, node, proven},
};
use onebuf::{
    hal::{
        DeviceKind, FdKind, MemoryKind,
        MemoryKind::{Device, Exportable, MappedDevice},
        PhysicalId, RouteKind, SyncMethod,
    },
    plan::{Request, plan},
    topology::{DeviceIx, Node, Topology},
};

fn chip(n: u8) -> PhysicalId {
    PhysicalId { uuid: Some([n; 16]), pci: None }
}

fn gpu(id: &str, api: &'static str, n: u8, reaches: &[u8]) -> Node {
    let mut node = node(id, api, DeviceKind::Gpu, caps(&[MappedDevice, Exportable, Device], false));
    node.info.caps.imports_host_pages = true;
    node.info.physical = chip(n);
    node.info.caps.peers = reaches.iter().copied().map(chip).collect();
    (node.info.caps.exports, node.info.caps.imports) =
        (vec![FdKind::OpaqueFd], vec![FdKind::OpaqueFd]);
    node
}

fn two() -> Vec<Node> {
    vec![host(), gpu("cuda:0", "cuda", 1, &[2]), gpu("cuda:1", "cuda", 2, &[1])]
}

fn peers(topology: &Topology) -> Vec<(DeviceIx, DeviceIx)> {
    let routes = topology.routes().iter().filter(|route| route.kind == RouteKind::Peer);
    routes.map(|route| (route.from, route.to)).collect()
}

#[test]
fn a_device_says_whom_it_reaches() {
    assert_eq!(peers(&Topology::declared(two())), [(A, B), (B, A)]);
    // Access in one direction only, none at all, and another API: a peer route exists only if the second device can reach A.
    let mut one_way = two();
    one_way[1].info.caps.peers.clear();
    assert_eq!(peers(&Topology::declared(one_way)), [(A, B)]);
    let apart = [gpu("cuda:0", "cuda", 1, &[]), gpu("cuda:1", "cuda", 2, &[3])];
    assert!(peers(&Topology::declared([vec![host()], apart.to_vec()].concat())).is_empty());
    let mixed = [gpu("cuda:0", "cuda", 1, &[2]), gpu("hip:0", "hip", 2, &[1])];
    assert!(peers(&Topology::declared([vec![host()], mixed.to_vec()].concat())).is_empty());
}

#[test]
fn nothing_but_proof_vouches_for_a_link() {
    let topology = Topology::declared(two());
    let declared =
        plan(&topology, &Request { memory_kind: Some(Device), ..allow(&[A, B]) }).unwrap();
    assert_eq!(kinds(&declared), [RouteKind::Same, RouteKind::Staged]);
    let request = Request { memory_kind: Some(Device), ..forbid(&[A, B]) };
    assert!(forbidden(&topology, &request).1.contains("peer: unproven"));
    let trusted = Request { trust_declared: true, ..forbid(&[A, B]) };
    assert_eq!(kinds(&plan(&topology, &trusted).unwrap()), [RouteKind::Same, RouteKind::Peer]);

    let topology = proven(two());
    let found = plan(&topology, &forbid(&[A, B])).unwrap();
    assert_eq!(kinds(&found), [RouteKind::Same, RouteKind::Peer]);
    assert_eq!((found.memory_kind, found.routes[1].sync), (Device, SyncMethod::Event));
}

#[test]
fn both_kinds_of_device_memory_are_reached_and_no_other() {
    let topology = proven(two());
    for memory_kind in [Device, Exportable] {
        let request = Request { memory_kind: Some(memory_kind), ..forbid(&[A, B]) };
        assert_eq!(kinds(&plan(&topology, &request).unwrap())[1], RouteKind::Peer, "{memory_kind}");
    }
    let pinned = Request { memory_kind: Some(MappedDevice), ..forbid(&[A, B]) };
    assert_eq!(kinds(&plan(&topology, &pinned).unwrap())[1], RouteKind::HostPointer);
    let ordered = Request { route: Some(RouteKind::Peer), ..pinned };
    let error = plan(&topology, &ordered).unwrap_err().to_string();
    assert!(error.contains("device or exportable"), "{error}");
}

/// A third API on the first chip imports a descriptor: the memory kind must then suit both routes.
#[test]
fn a_link_and_a_descriptor_go_together() {
    let mut nodes = two();
    let mut opencl = gpu("opencl:0", "opencl", 1, &[]);
    opencl.info.caps.exports.clear();
    opencl.info.caps.memory_kinds = vec![Device];
    nodes.push(opencl);
    let found = plan(&proven(nodes), &forbid(&[A, B, DeviceIx(3)])).unwrap();
    assert_eq!((found.allocate_on, found.memory_kind), (A, Exportable));
    assert_eq!(kinds(&found), [RouteKind::Same, RouteKind::Peer, RouteKind::OpaqueFd]);
}

#[test]
fn gpus_that_are_apart_are_named() {
    let mut nodes = two();
    nodes.iter_mut().for_each(|node| node.info.caps.peers.clear());
    let request = Request { memory_kind: Some(MemoryKind::Device), ..forbid(&[A, B]) };
    let (route, why) = forbidden(&proven(nodes.clone()), &request);
    assert!(["cuda:0", "cuda:1"].iter().all(|id| route.contains(id)), "{route}");
    assert!(why.contains("no peer access"), "{why}");
    let staged = plan(&proven(nodes), &Request { memory_kind: Some(Device), ..allow(&[A, B]) });
    assert_eq!(kinds(&staged.unwrap()), [RouteKind::Same, RouteKind::Staged]);
}
