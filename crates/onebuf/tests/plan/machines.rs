//! Machines and requests for planning tests.

use onebuf::{
    hal::{Api, Caps, CopyPolicy, DeviceInfo, DeviceKind, MemoryKind, PhysicalId, RouteKind},
    plan::Request,
    topology::{DeviceIx, Node, Route, Topology, Verdict, VerdictState},
};

pub const MIB: u64 = 1 << 20;
pub const HOST: DeviceIx = DeviceIx(0);
pub const A: DeviceIx = DeviceIx(1);
pub const B: DeviceIx = DeviceIx(2);
pub const C: DeviceIx = DeviceIx(3);

pub const CPU_KINDS: &[MemoryKind] = &[MemoryKind::HostPages, MemoryKind::MappedDevice];
pub const SVM_KINDS: &[MemoryKind] =
    &[MemoryKind::HostPages, MemoryKind::FineSvm, MemoryKind::CoarseSvm, MemoryKind::MappedDevice];

pub fn caps(memory_kinds: &[MemoryKind], unified_memory: bool) -> Caps {
    Caps {
        memory_kinds: memory_kinds.to_vec(),
        imports_host_pages: unified_memory,
        exports: Vec::new(),
        imports: Vec::new(),
        align_bytes: 4096,
        unified_memory,
        max_alloc_bytes: 1 << 40,
        local_memory_bytes: 0,
        max_group_size: 1,
        max_group_sizes: [1; 3],
        max_loop_iterations: None,
        compute_units: 1,
        out_of_order: false,
        callbacks: true,
        host_signals: true,
        wait_values: false,
        exports_semaphores: false,
        imports_semaphores: false,
        one_thread: false,
        svm_atomics: false,
        svm_system: false,
        built_on: None,
        address_space: None,
        il_versions: Vec::new(),
        shares_objects_of: Vec::new(),
        peers: Vec::new(),
        ipc: false,
        parses_fds: false,
        imports_without_acquire: false,
    }
}

pub fn node(id: &str, api: &'static str, kind: DeviceKind, caps: Caps) -> Node {
    let text = String::new;
    let info = DeviceInfo {
        api: Api(api),
        name: id.into(),
        platform: text(),
        version: text(),
        driver: text(),
        library: text(),
        kind,
        physical: PhysicalId::default(),
        memory_bytes: 1 << 40,
        extensions: Vec::new(),
        caps,
    };
    Node { id: id.into(), info }
}

pub fn host() -> Node {
    node("host", "host", DeviceKind::Cpu, caps(&[MemoryKind::HostPages], true))
}

pub fn cpu(id: &str, memory_kinds: &[MemoryKind]) -> Node {
    node(id, "opencl", DeviceKind::Cpu, caps(memory_kinds, true))
}

pub fn gpu(id: &str, api: &'static str) -> Node {
    node(id, api, DeviceKind::Gpu, caps(&[MemoryKind::Device], false))
}

/// Plain Debian: three OpenCL platforms on one CPU, only the first with SVM.
pub fn debian() -> Vec<Node> {
    vec![host(), cpu("opencl:0", SVM_KINDS), cpu("opencl:1", CPU_KINDS), cpu("opencl:2", CPU_KINDS)]
}

pub fn verdict(state: VerdictState, zero_copy: bool, why: &str) -> Verdict {
    Verdict { state, zero_copy: Some(zero_copy), why: why.into(), ..Verdict::default() }
}

pub fn works() -> Verdict {
    verdict(VerdictState::Proven, true, "every page, both ways")
}

/// A machine with verdicts on some routes.
pub fn machine(nodes: Vec<Node>, judge: impl Fn(&Route) -> Option<Verdict>) -> Topology {
    let judged = |mut route: Route| {
        route.verdict = judge(&route).unwrap_or(route.verdict);
        route
    };
    let routes = Topology::declared(nodes.clone()).routes().iter().cloned().map(judged).collect();
    Topology::new(nodes, routes)
}

pub fn proven(nodes: Vec<Node>) -> Topology {
    machine(nodes, |route| (route.kind != RouteKind::Staged).then(works))
}

pub fn edge(from: DeviceIx, to: DeviceIx, kind: RouteKind, verdict: Verdict) -> Route {
    let memory_kind = Some(MemoryKind::Device).filter(|_| kind != RouteKind::Staged);
    let guaranteed = kind == RouteKind::Staged;
    Route { from, to, kind, memory_kind, needs: String::new(), guaranteed, cost: 1, verdict }
}

/// A topology of the declared routes and of these.
pub fn with_edges(nodes: Vec<Node>, edges: Vec<Route>) -> Topology {
    let declared = Topology::declared(nodes.clone()).routes().to_vec();
    Topology::new(nodes, [declared, edges].concat())
}

pub fn ask(devices: &[DeviceIx], policy: CopyPolicy) -> Request {
    Request { devices: devices.to_vec(), bytes: MIB, policy, ..Request::default() }
}

pub fn allow(devices: &[DeviceIx]) -> Request {
    ask(devices, CopyPolicy::Allow)
}

pub fn forbid(devices: &[DeviceIx]) -> Request {
    ask(devices, CopyPolicy::Forbid)
}
