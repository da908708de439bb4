//! The planner on realistic and on random machines.

mod addresses;
mod descriptors;
mod machines;
mod peers;
mod properties;
mod scores;

use machines::{
    A, B, C, HOST, MIB, allow, cpu, debian, edge, forbid, gpu, host, machine, proven, verdict,
    with_edges, works,
};
use onebuf::{
    Error,
    hal::{CopyPolicy, DeviceKind, Hint, MemoryKind, RouteKind, SyncMethod},
    plan::{Plan, Request, plan},
    topology::{DeviceIx, Envelope, Route, Topology, Verdict, VerdictState},
};

fn kinds(plan: &Plan) -> Vec<RouteKind> {
    plan.routes.iter().map(|hop| hop.kind).collect()
}

fn forbidden(topology: &Topology, request: &Request) -> (String, String) {
    match plan(topology, request) {
        Err(Error::CopyForbidden { route, why }) => (route, why),
        other => panic!("expected CopyForbidden, got {other:?}"),
    }
}

#[test]
fn proven_debian_shares_without_a_copy() {
    let plan = plan(&proven(debian()), &forbid(&[A, B, C])).unwrap();
    assert_eq!(plan.memory_kind, MemoryKind::HostPages);
    assert_eq!(plan.routes.len(), 3);
    assert!(plan.routes.iter().all(|hop| hop.zero_copy == Some(true)));
    assert!(plan.rejected.is_empty());
}

#[test]
fn two_platforms_share_pages_that_the_host_sees_too() {
    let plan = plan(&proven(debian()), &forbid(&[B, C])).unwrap();
    assert_eq!((plan.allocate_on, plan.memory_kind), (B, MemoryKind::HostPages));
    assert_eq!(kinds(&plan), [RouteKind::Same, RouteKind::HostPointer]);
    assert!(plan.host_sees());
}

/// No API guarantees that callbacks order it after another API: they are used if an experiment succeeded with them, or if the
/// caller trusts them.
#[test]
fn callbacks_need_an_experiment_or_the_callers_word() {
    let judged = |sync: Option<SyncMethod>| {
        machine(debian(), move |route| {
            let shares = route.kind != RouteKind::Staged;
            shares.then(|| Verdict { sync, ..works() })
        })
    };
    let (word, none) = (Request { trust_declared: true, ..allow(&[B, C]) }, allow(&[B, C]));
    let sync_method =
        |topology: &Topology, request: &Request| plan(topology, request).unwrap().routes[1].sync;
    assert_eq!(sync_method(&judged(Some(SyncMethod::Callback)), &none), SyncMethod::Callback);
    assert_eq!(
        sync_method(&judged(Some(SyncMethod::HostWait)), &word),
        SyncMethod::HostWait,
        "refuted"
    );
    for unproven in [judged(None), machine(debian(), |_| None)] {
        assert_eq!(sync_method(&unproven, &none), SyncMethod::HostWait);
        assert_eq!(sync_method(&unproven, &word), SyncMethod::Callback);
        assert!(!unproven.proves([B, C], SyncMethod::Callback));
    }
    // The proof counts in both directions. Events of one API prove nothing about callbacks.
    let one_way = |sync| {
        machine(debian(), move |route| {
            let forth = (route.from, route.to) == (B, C) && route.kind != RouteKind::Staged;
            forth.then(|| Verdict { sync: Some(sync), ..works() })
        })
    };
    let seen = |sync, ends| one_way(sync).proves(ends, SyncMethod::Callback);
    assert!(seen(SyncMethod::Callback, [B, C]) && seen(SyncMethod::Callback, [C, B]));
    assert!(seen(SyncMethod::WaitValue, [B, C]), "the way back");
    assert!(!seen(SyncMethod::Event, [B, C]) && !seen(SyncMethod::HostWait, [B, C]));
    assert!(!seen(SyncMethod::Callback, [A, C]), "of another pair");
}

#[test]
fn unproven_debian_says_run_the_doctor() {
    let topology = machine(debian(), |_| None);
    let (route, why) = forbidden(&topology, &forbid(&[A, B]));
    assert_eq!((&*route, &*why), ("opencl:0 -> opencl:1", UNPROVEN_POINTER));
    let staged = plan(&topology, &allow(&[A, B])).unwrap();
    assert_eq!(kinds(&staged), [RouteKind::Same, RouteKind::Staged]);
    assert!(
        staged
            .rejected
            .iter()
            .any(|r| r.why.starts_with("unproven: run `onebuf doctor --devices opencl:"))
    );
}

const UNPROVEN_POINTER: &str =
    "host_pointer: unproven: run `onebuf doctor --devices opencl:0,opencl:1`";

#[test]
fn the_callers_word_is_enough_for_what_is_declared() {
    let request = Request { trust_declared: true, ..forbid(&[A, B]) };
    let plan = plan(&machine(debian(), |_| None), &request).unwrap();
    assert!(!kinds(&plan).contains(&RouteKind::Staged));
    assert!(plan.routes.iter().any(|hop| hop.why.starts_with("on the caller's word")));
}

#[test]
fn proof_beats_the_callers_word() {
    let svm_only = |r: &Route| (r.kind == RouteKind::SvmPointer).then(works);
    let request = Request { trust_declared: true, allocate_on: Some(A), ..forbid(&[A, B]) };
    let plan = plan(&machine(debian(), svm_only), &request).unwrap();
    assert_eq!(kinds(&plan), [RouteKind::Same, RouteKind::SvmPointer]);
}

#[test]
fn one_refuted_route_is_walked_around() {
    let nodes = || debian()[..3].to_vec();
    let broken = |r: &Route| r.from == A && r.to == B;
    let judge = |r: &Route| match r.kind {
        RouteKind::Staged => None,
        _ if broken(r) => Some(verdict(VerdictState::Refuted, false, "page 3 differs")),
        _ => Some(works()),
    };
    let around = plan(&machine(nodes(), judge), &forbid(&[A, B])).unwrap();
    assert_ne!(around.allocate_on, A);
    let pinned = Request { allocate_on: Some(A), ..forbid(&[A, B]) };
    let (route, why) = forbidden(&machine(nodes(), judge), &pinned);
    assert_eq!((&*route, &*why), ("opencl:0 -> opencl:1", "host_pointer: refuted: page 3 differs"));
}

#[test]
fn a_shadow_copy_is_a_copy() {
    let shadow = |r: &Route| match r.kind {
        RouteKind::Staged => None,
        _ if r.to == B || r.from == B => {
            Some(verdict(VerdictState::Proven, false, "grows with size"))
        }
        _ => Some(works()),
    };
    let topology = machine(debian(), shadow);
    let (_, why) = forbidden(&topology, &forbid(&[A, B]));
    assert_eq!(why, "host_pointer: it copies (grows with size)");
    let plan = plan(&topology, &allow(&[A, B])).unwrap();
    assert_eq!((plan.score.copies, plan.routes.len()), (1, 2));
    assert!(!kinds(&plan).contains(&RouteKind::Staged), "sharing still beats staging");
}

#[test]
fn a_discrete_gpu_keeps_its_memory() {
    let topology = proven(vec![host(), gpu("cuda:0", "cuda")]);
    let alone = plan(&topology, &allow(&[A])).unwrap();
    assert_eq!((alone.allocate_on, alone.memory_kind), (A, MemoryKind::Device));
    assert_eq!(alone.routes[0].sync, SyncMethod::SameQueue);
    let both = plan(&topology, &allow(&[HOST, A])).unwrap();
    assert!(kinds(&both).contains(&RouteKind::Staged));
    assert_eq!(forbidden(&topology, &forbid(&[HOST, A])).0, "host -> cuda:0");
}

#[test]
fn two_gpus_are_peers() {
    let nodes = vec![host(), gpu("cuda:0", "cuda"), gpu("cuda:1", "cuda")];
    let slow = Verdict { handoff_us: Some(9.0), ..works() };
    let fast = Verdict { handoff_us: Some(2.0), sync: Some(SyncMethod::Event), ..works() };
    let edges = vec![edge(A, B, RouteKind::Peer, slow), edge(B, A, RouteKind::Peer, fast)];
    let plan = plan(&with_edges(nodes, edges), &forbid(&[A, B])).unwrap();
    assert_eq!((plan.allocate_on, kinds(&plan)), (B, vec![RouteKind::Peer, RouteKind::Same]));
    assert_eq!(plan.routes[0].sync, SyncMethod::Event);
}

#[test]
fn an_exported_descriptor_joins_two_apis_on_one_chip() {
    let nodes = vec![host(), gpu("opencl:0", "opencl"), gpu("cuda:0", "cuda")];
    let envelope = Envelope { min_bytes: 4096, max_bytes: 64 * MIB, sizes: Vec::new() };
    let proof = Verdict { envelope: Some(envelope), ..works() };
    let topology = with_edges(nodes, vec![edge(B, A, RouteKind::OpaqueFd, proof)]);
    let inside = plan(&topology, &forbid(&[A, B])).unwrap();
    assert_eq!((inside.allocate_on, kinds(&inside)[0]), (B, RouteKind::OpaqueFd));
    let (_, why) = forbidden(&topology, &Request { bytes: 65 * MIB, ..forbid(&[A, B]) });
    assert!(why.starts_with("opaque_fd: unproven at this size: 68157440 bytes"), "{why}");
    assert!(why.ends_with("run `onebuf doctor --reach 68157440`"), "{why}");
}

#[test]
fn one_device_gets_a_memory_kind_that_the_host_sees() {
    let memory_kind = |topology: &Topology| plan(topology, &allow(&[A])).unwrap().memory_kind;
    assert_eq!(memory_kind(&proven(debian())), MemoryKind::MappedDevice);
    let only_pages = |r: &Route| (r.from == HOST && r.kind == RouteKind::HostPointer).then(works);
    let unseen = || vec![host(), cpu("opencl:0", &[MemoryKind::Device, MemoryKind::MappedDevice])];
    assert_eq!(memory_kind(&machine(unseen(), only_pages)), MemoryKind::HostPages);
    let refuted = |_: &Route| Some(verdict(VerdictState::Refuted, false, "no"));
    assert_eq!(memory_kind(&machine(unseen(), refuted)), MemoryKind::MappedDevice);
}

#[test]
fn fine_grained_svm_needs_no_doctor() {
    let plan = plan(&machine(debian(), |_| None), &forbid(&[HOST, A])).unwrap();
    assert_eq!((plan.allocate_on, plan.memory_kind), (A, MemoryKind::FineSvm));
    assert_eq!(plan.routes[0].sync, SyncMethod::HostWait);
}

#[test]
fn hints_choose_among_equals() {
    let mut nodes = debian();
    nodes[1].info.kind = DeviceKind::Gpu;
    let topology = proven(nodes);
    let memory_kind = |hint| {
        plan(&topology, &Request { hint: Some(hint), ..allow(&[HOST, A]) }).unwrap().memory_kind
    };
    assert_eq!(memory_kind(Hint::Coherent), MemoryKind::FineSvm);
    assert_eq!(memory_kind(Hint::GpuPreferred), MemoryKind::MappedDevice);
    assert!(matches!(
        memory_kind(Hint::Streaming),
        MemoryKind::HostPages | MemoryKind::MappedDevice
    ));
    assert_ne!(memory_kind(Hint::CpuPreferred), MemoryKind::Device);
}

#[test]
fn forced_things_are_done_or_refused_by_name() {
    let topology = proven(debian());
    let staged = Request { route: Some(RouteKind::Staged), ..allow(&[A, B]) };
    let copied = plan(&topology, &staged).unwrap();
    assert!(kinds(&copied).contains(&RouteKind::Staged) && copied.host_sees());
    let impossible = [
        Request { route: Some(RouteKind::Peer), ..forbid(&[A, B]) },
        Request { memory_kind: Some(MemoryKind::Device), ..allow(&[A, B]) },
        Request { memory_kind: Some(MemoryKind::FineSvm), allocate_on: Some(B), ..allow(&[B]) },
    ];
    for request in impossible {
        let error = plan(&topology, &request).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    }
    let copying = Request { policy: CopyPolicy::Forbid, ..staged };
    forbidden(&topology, &copying);
}

#[test]
fn nonsense_is_an_invalid_argument() {
    let topology = proven(debian());
    let nowhere = Some(DeviceIx(9));
    let nonsense = [
        allow(&[]),
        allow(&[A, A]),
        allow(&[DeviceIx(9)]),
        Request { bytes: 0, ..allow(&[A]) },
        Request { allocate_on: nowhere, ..allow(&[A]) },
    ];
    for request in nonsense {
        assert!(matches!(plan(&topology, &request), Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn a_plan_explains_itself() {
    let topology = machine(debian(), |_| None);
    let plan = plan(&topology, &allow(&[A, B])).unwrap();
    let text = plan.explain(&topology);
    assert!(text.starts_with("allocated on opencl:"), "{text}");
    assert!(text.contains("staged, copies, joined by host_wait"), "{text}");
    assert!(text.contains("unproven: run `onebuf doctor --devices opencl:"), "{text}");
    let json = plan.to_json(&topology);
    assert_eq!(json["schema"], 2);
    assert_eq!(json["routes"][1]["kind"], "staged");
    assert_eq!(json["rejected"][0]["kind"], "host_pointer");
}

#[test]
fn candidates_are_one_per_pair_and_kind() {
    let topology = Topology::declared(debian());
    let routes = topology.routes();
    let mut keys: Vec<_> = routes.iter().map(|r| (r.from, r.to, r.kind)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), routes.len());
    let staged = routes.iter().filter(|r| r.kind == RouteKind::Staged && r.from != r.to);
    assert_eq!(staged.count(), 4 * 3);
    let risky = |r: &&Route| r.kind == RouteKind::HostPointer && r.from != HOST && r.to != HOST;
    assert!(routes.iter().filter(risky).all(|r| !r.guaranteed && r.verdict.zero_copy.is_none()));
}
