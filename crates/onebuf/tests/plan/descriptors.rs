//! Memory that one API exports as a descriptor and another imports: one chip, two APIs.

use crate::{
    forbidden, kinds,
    machines::{A, B, HOST, allow, caps, forbid, host, machine, node, proven, verdict, works},
};
use onebuf::{
    Error,
    hal::{
        DeviceKind, FdKind, Hint, MemoryKind,
        MemoryKind::{CoarseSvm, Device, Exportable, HostPages, MappedDevice},
        PciAddress, PhysicalId, RouteKind, SyncMethod,
    },
    plan::{Request, plan},
    topology::{DeviceIx, Envelope, Node, Route, Topology, Verdict, VerdictState},
};

fn chip(n: u8) -> PhysicalId {
    PhysicalId { uuid: Some([n; 16]), pci: None }
}

fn discrete(id: &str, api: &'static str, memory_kinds: &[MemoryKind]) -> Node {
    let mut node = node(id, api, DeviceKind::Gpu, caps(memory_kinds, false));
    node.info.caps.imports_host_pages = true;
    node.info.physical = chip(1);
    node
}

/// OpenCL and CUDA on one discrete GPU, as NVIDIA's drivers report it: OpenCL imports, CUDA imports and exports.
fn two_apis(kinds: &[FdKind]) -> Vec<Node> {
    let mut opencl = discrete("opencl:0", "opencl", &[CoarseSvm, MappedDevice, Device]);
    opencl.info.caps.imports = kinds.to_vec();
    let mut cuda = discrete("cuda:0", "cuda", &[MappedDevice, Exportable, Device]);
    cuda.info.caps.imports = kinds.to_vec();
    cuda.info.caps.exports = kinds.to_vec();
    cuda.info.caps.callbacks = false;
    vec![host(), opencl, cuda]
}

fn nvidia() -> Vec<Node> {
    two_apis(&[FdKind::OpaqueFd])
}

fn by_descriptor(topology: &Topology, from: DeviceIx, to: DeviceIx) -> Vec<&Route> {
    let is_fd = |r: &&Route| [RouteKind::OpaqueFd, RouteKind::DmaBuf].contains(&r.kind);
    topology.between(from, to).iter().filter(is_fd).collect()
}

#[test]
fn a_descriptor_goes_from_who_exports_to_who_imports() {
    let topology = Topology::declared(nvidia());
    let [route] = by_descriptor(&topology, B, A)[..] else { panic!("{topology:?}") };
    assert_eq!((route.kind, route.memory_kind), (RouteKind::OpaqueFd, Some(Exportable)));
    // Both APIs guarantee that it is the same memory.
    assert!(route.guaranteed && route.verdict.zero_copy == Some(true), "{route:?}");
    assert_eq!(route.verdict.state, VerdictState::Declared);
    for (from, to) in [(A, B), (HOST, A), (HOST, B), (A, HOST), (B, HOST), (B, B)] {
        assert!(by_descriptor(&topology, from, to).is_empty(), "{from:?} -> {to:?}");
    }
}

/// As Arm's import in OpenCL: the driver has no calls that acquire and release.
#[test]
fn an_import_without_acquire_needs_an_experiment() {
    let nodes = || {
        let mut nodes = two_apis(&[FdKind::DmaBuf]);
        nodes[1].info.caps.imports_without_acquire = true;
        nodes
    };
    let topology = Topology::declared(nodes());
    let [route] = by_descriptor(&topology, B, A)[..] else { panic!("{topology:?}") };
    assert!(!route.guaranteed && route.verdict.zero_copy.is_none(), "{route:?}");
    let refused = plan(&topology, &forbid(&[A, B])).unwrap_err();
    assert!(matches!(refused, Error::CopyForbidden { .. }), "{refused}");
    let proof = verdict(VerdictState::Proven, true, "every page");
    let proven = machine(nodes(), move |r| (r.kind == RouteKind::DmaBuf).then(|| proof.clone()));
    assert_eq!(kinds(&plan(&proven, &forbid(&[A, B])).unwrap())[0], RouteKind::DmaBuf);
}

#[test]
fn descriptors_are_for_one_chip() {
    let pci = |bus| PciAddress { domain: 0, bus, device: 0, function: 0 };
    let at = |uuid: Option<u8>, bus: Option<u8>| PhysicalId {
        uuid: uuid.map(|n| [n; 16]),
        pci: bus.map(pci),
    };
    let cases = [
        (at(Some(1), None), at(Some(1), None), true),
        (at(Some(1), None), at(Some(2), None), false),
        // A UUID takes precedence over a PCI address.
        (at(Some(1), Some(3)), at(Some(2), Some(3)), false),
        (at(None, Some(3)), at(Some(1), Some(3)), true),
        (at(None, Some(3)), at(None, Some(4)), false),
        // Unknown chips do not count as the same.
        (at(None, None), at(None, None), false),
    ];
    for (opencl, cuda, same) in cases {
        let mut nodes = nvidia();
        nodes[1].info.physical = opencl;
        nodes[2].info.physical = cuda;
        let routes = by_descriptor(&Topology::declared(nodes), B, A).len();
        assert_eq!(routes, usize::from(same), "{opencl:?} {cuda:?}");
    }
}

#[test]
fn one_chip_shares_its_own_memory_without_a_doctor() {
    let topology = Topology::declared(nvidia());
    let plan = plan(&topology, &forbid(&[A, B])).unwrap();
    assert_eq!((plan.allocate_on, plan.memory_kind), (B, Exportable));
    assert_eq!(kinds(&plan), [RouteKind::OpaqueFd, RouteKind::Same]);
    assert_eq!((plan.score.copies, plan.score.on_trust, plan.score.over_bus), (0, 0, 0));
    assert!(!plan.host_sees());
    assert_eq!(plan.routes[0].sync, SyncMethod::HostWait, "CUDA's side has no callbacks here");
    let text = plan.explain(&topology);
    assert!(text.starts_with("allocated on cuda:0 as exportable\n"), "{text}");
    assert!(text.contains("opencl:0: opaque_fd, no copies, joined by host_wait"), "{text}");
    assert!(text.contains("(by contract: an imported descriptor is the same memory"), "{text}");
    assert_eq!(plan.to_json(&topology)["routes"][0]["kind"], "opaque_fd");
}

/// Host pages are a better kind of route, but would reduce the chip's bandwidth.
#[test]
fn its_own_memory_comes_before_proven_host_pages() {
    let topology = proven(nvidia());
    let best = plan(&topology, &forbid(&[A, B])).unwrap();
    assert_eq!((best.memory_kind, best.score.over_bus), (Exportable, 0));
    let pages = Request { memory_kind: Some(HostPages), ..forbid(&[A, B]) };
    let pages = plan(&topology, &pages).unwrap();
    assert_eq!((pages.allocate_on, pages.score.over_bus), (HOST, 2));
    assert!(pages.score.kinds < best.score.kinds && pages.score > best.score);
    assert_eq!(kinds(&pages), [RouteKind::HostPointer; 2]);
}

#[test]
fn a_chip_alone_gets_plain_memory() {
    for topology in [proven(nvidia()), Topology::declared(nvidia())] {
        let alone = plan(&topology, &allow(&[B])).unwrap();
        assert_eq!(
            (alone.allocate_on, alone.memory_kind),
            (B, Device),
            "no other device imports it"
        );
    }
}

#[test]
fn hints_still_get_what_they_wish_for() {
    let topology = proven(nvidia());
    let memory_kind = |hint| {
        let plan = plan(&topology, &Request { hint: Some(hint), ..forbid(&[A, B]) }).unwrap();
        assert_eq!(plan.score.over_bus, 0, "host memory was wished for, or not taken");
        (plan.memory_kind, plan.host_sees())
    };
    assert_eq!(memory_kind(Hint::GpuPreferred), (Exportable, false));
    assert_eq!(memory_kind(Hint::Coherent), (HostPages, true));
    assert!(memory_kind(Hint::CpuPreferred).1);
    let (streaming, seen) = memory_kind(Hint::Streaming);
    assert!(seen && [HostPages, MappedDevice].contains(&streaming), "{streaming}");
}

/// Avoiding copies comes first: if the host also uses the buffer, host pages that all devices access are better.
#[test]
fn who_shares_with_the_host_too_gets_host_pages() {
    let plan = plan(&proven(nvidia()), &forbid(&[HOST, A, B])).unwrap();
    assert_ne!(plan.memory_kind, Exportable);
    assert!(plan.host_sees() && plan.score.copies == 0);
    let (_, why) = forbidden(&Topology::declared(nvidia()), &forbid(&[HOST, A, B]));
    assert!(why.contains("run `onebuf doctor --devices "), "{why}");
}

/// A chip without its own memory loses nothing by host pages, and the host can access them.
#[test]
fn an_integrated_chip_shares_host_pages() {
    let mut nodes = nvidia();
    nodes[1..].iter_mut().for_each(|node| node.info.caps.unified_memory = true);
    let plan = plan(&proven(nodes), &forbid(&[A, B])).unwrap();
    assert!(plan.host_sees() && plan.memory_kind != Exportable, "{}", plan.memory_kind);
}

#[test]
fn a_dma_buf_is_as_good() {
    let topology = Topology::declared(two_apis(&[FdKind::DmaBuf]));
    let only = plan(&topology, &forbid(&[A, B])).unwrap();
    assert_eq!(kinds(&only), [RouteKind::DmaBuf, RouteKind::Same]);
    assert_eq!(only.memory_kind, Exportable);
    let both = Topology::declared(two_apis(&[FdKind::DmaBuf, FdKind::OpaqueFd]));
    assert_eq!(by_descriptor(&both, B, A).len(), 2);
    let best = plan(&both, &forbid(&[A, B])).unwrap();
    assert_eq!(kinds(&best)[0], RouteKind::OpaqueFd, "the better kind of the two");
    let asked = Request { route: Some(RouteKind::DmaBuf), ..forbid(&[A, B]) };
    assert_eq!(kinds(&plan(&both, &asked).unwrap())[0], RouteKind::DmaBuf);
    // An exported descriptor is useless if the other API imports another kind.
    let mut nodes = nvidia();
    nodes[2].info.caps.exports = vec![FdKind::DmaBuf];
    assert!(by_descriptor(&Topology::declared(nodes), B, A).is_empty());
}

#[test]
fn two_chips_have_no_such_route() {
    let mut nodes = nvidia();
    nodes[1].info.physical = chip(2);
    let topology = Topology::declared(nodes);
    let (_, why) = forbidden(&topology, &forbid(&[A, B]));
    assert!(why.starts_with("host_pointer: unproven: run `onebuf doctor --devices "), "{why}");
    let staged = plan(&topology, &allow(&[A, B])).unwrap();
    assert!(kinds(&staged).contains(&RouteKind::Staged));
    assert_ne!(staged.memory_kind, Exportable);
    let asked = Request { route: Some(RouteKind::OpaqueFd), ..allow(&[A, B]) };
    let error = plan(&topology, &asked).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("opaque_fd for "), "{error}");
}

/// An experiment on this machine overrides the APIs' contract.
#[test]
fn a_refuted_descriptor_is_not_used() {
    let refute = |r: &Route| match r.kind {
        RouteKind::OpaqueFd => Some(verdict(VerdictState::Refuted, false, "page 1 of 512 differs")),
        RouteKind::Staged => None,
        _ => Some(works()),
    };
    let around = plan(&machine(nvidia(), refute), &forbid(&[A, B])).unwrap();
    assert!(around.host_sees() && around.memory_kind != Exportable, "{}", around.memory_kind);
    let pinned = Request { allocate_on: Some(B), memory_kind: Some(Exportable), ..forbid(&[A, B]) };
    let (route, why) = forbidden(&machine(nvidia(), refute), &pinned);
    assert_eq!(
        (&*route, &*why),
        ("cuda:0 -> opencl:0", "opaque_fd: refuted: page 1 of 512 differs")
    );
}

/// A proof for some sizes leaves the contract for other sizes. A measured copy does not.
#[test]
fn outside_of_the_envelope_the_contract_holds() {
    let envelope = Envelope { min_bytes: 4096, max_bytes: 8192, sizes: Vec::new() };
    let judged = |zero_copy| {
        let proof = Verdict { envelope: Some(envelope.clone()), ..works() };
        let proof = Verdict { zero_copy: Some(zero_copy), ..proof };
        machine(nvidia(), move |r| (r.kind == RouteKind::OpaqueFd).then(|| proof.clone()))
    };
    let plan = plan(&judged(true), &forbid(&[A, B])).unwrap();
    assert_eq!((kinds(&plan)[0], plan.routes[0].zero_copy), (RouteKind::OpaqueFd, Some(true)));
    assert!(plan.routes[0].why.starts_with("by contract"), "{}", plan.routes[0].why);
    forbidden(&judged(false), &forbid(&[A, B]));
}

/// The sync method between OpenCL and CUDA's memory; unmeasured methods are trusted.
fn sync_method(nodes: Vec<Node>, measured: Option<SyncMethod>) -> SyncMethod {
    planned_sync(nodes, measured, measured.is_none())
}

fn planned_sync(
    nodes: Vec<Node>,
    measured: Option<SyncMethod>,
    trust_declared: bool,
) -> SyncMethod {
    let topology = machine(nodes, |route| {
        let judged = measured.is_some() && route.kind == RouteKind::OpaqueFd;
        judged.then(|| Verdict { sync: measured, ..works() })
    });
    let request = Request { trust_declared, ..forbid(&[A, B]) };
    let plan = plan(&topology, &request).unwrap();
    plan.routes.iter().find(|hop| hop.to == A).unwrap().sync
}

#[test]
fn semaphores_join_two_apis_where_a_third_makes_them() {
    let with = |change: fn(&mut [Node])| {
        let mut nodes = nvidia();
        let mut vulkan = discrete("vulkan:0", "vulkan", &[MappedDevice, Device]);
        vulkan.info.caps.exports_semaphores = true;
        nodes.push(vulkan);
        nodes[1].info.caps.imports_semaphores = true;
        nodes[2].info.caps.imports_semaphores = true;
        nodes[2].info.caps.wait_values = true;
        nodes[2].info.caps.callbacks = true;
        change(&mut nodes);
        nodes
    };
    assert_eq!(sync_method(with(|_| ()), None), SyncMethod::Semaphore);
    let lacks: [fn(&mut [Node]); 4] = [
        |nodes| nodes[1].info.caps.imports_semaphores = false,
        |nodes| nodes[2].info.caps.imports_semaphores = false,
        |nodes| nodes[3].info.caps.exports_semaphores = false,
        // On another chip.
        |nodes| nodes[3].info.physical = chip(2),
    ];
    for lack in lacks {
        assert_eq!(sync_method(with(lack), None), SyncMethod::WaitValue);
        // A verdict from when semaphores were available.
        assert_eq!(sync_method(with(lack), Some(SyncMethod::Semaphore)), SyncMethod::WaitValue);
    }
    // A method that the doctor measured to be slow is not chosen again.
    assert_eq!(sync_method(with(|_| ()), Some(SyncMethod::Callback)), SyncMethod::Callback);
    assert_eq!(sync_method(with(|_| ()), Some(SyncMethod::Semaphore)), SyncMethod::Semaphore);
    // No contract guarantees that semaphores of two drivers work together.
    assert_eq!(planned_sync(with(|_| ()), None, false), SyncMethod::HostWait);
}

/// A device with OpenGL's buffers, and CUDA on the same chip with sharing calls for them.
fn with_gl() -> Vec<Node> {
    let gl = discrete("gl:0", "gl", &[MappedDevice, Device]);
    let mut cuda = discrete("cuda:0", "cuda", &[MappedDevice, Exportable, Device]);
    cuda.info.caps.shares_objects_of = vec![gl.info.api];
    vec![host(), gl, cuda]
}

#[test]
fn a_sharing_call_is_one_way_and_only_hoped_for() {
    let shares = |topology: &Topology, from, to| {
        let routes = topology.between(from, to).iter();
        routes.filter(|route| route.kind == RouteKind::ApiShare).cloned().collect::<Vec<_>>()
    };
    let topology = Topology::declared(with_gl());
    let [route] = &shares(&topology, A, B)[..] else { panic!("{topology:?}") };
    assert_eq!(route.memory_kind, Some(Device), "a map of OpenGL's does not see what CUDA writes");
    assert!(!route.guaranteed && route.verdict.zero_copy.is_none(), "{route:?}");
    assert!(shares(&topology, B, A).is_empty() && shares(&topology, HOST, B).is_empty());
    // The sharing calls do not apply to objects of another chip.
    let mut apart = with_gl();
    apart[1].info.physical = chip(2);
    assert!(shares(&Topology::declared(apart), A, B).is_empty());

    // The route is used if it is proven, and counts as copy-free only if that is proven, too.
    let on_gl = |request: Request| Request { allocate_on: Some(A), ..request };
    let copies = |zero_copy| {
        let verdict = verdict(VerdictState::Proven, zero_copy, "every page, both ways");
        machine(with_gl(), |route| (route.kind == RouteKind::ApiShare).then(|| verdict.clone()))
    };
    let free = plan(&copies(true), &on_gl(forbid(&[A, B]))).unwrap();
    assert_eq!(
        (free.memory_kind, kinds(&free)),
        (Device, vec![RouteKind::Same, RouteKind::ApiShare])
    );
    let refused = plan(&copies(false), &on_gl(forbid(&[A, B])));
    assert!(matches!(refused, Err(Error::CopyForbidden { .. })), "{refused:?}");
    let unproven = plan(&Topology::declared(with_gl()), &on_gl(forbid(&[A, B])));
    assert!(matches!(unproven, Err(Error::CopyForbidden { .. })), "{unproven:?}");
}
