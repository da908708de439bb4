//! Tests of the policy for every combination of its inputs, and that a queue uses the method that the plan names.

use super::{
    Events, Method, Pair, Terms,
    policy::{self, methods},
    table::METHODS,
};
use crate::{
    Buffer, Hub, HubBuilder, Queue, Verdicts,
    fake::FakeConfig,
    topology::{DeviceIx, Node, Topology, Verdict, VerdictState},
};
use onebuf_hal::{
    Api, Device as _, Error, FdKind, PhysicalId, Result, RouteKind,
    SyncMethod::{self, Callback, Event, HostWait, SameQueue, Semaphore, WaitValue},
    fake::FakeDevice,
    locks::thread,
};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const HOST: DeviceIx = DeviceIx(0);
const A: DeviceIx = DeviceIx(1);
const B: DeviceIx = DeviceIx(2);

#[test]
fn the_table_has_every_method_in_order() {
    assert_eq!(METHODS.map(Method::word), SyncMethod::ALL);
    let guaranteed: Vec<_> =
        SyncMethod::ALL.into_iter().filter(|method| method.is_guaranteed()).collect();
    assert_eq!(guaranteed, [SameQueue, Event, HostWait], "a new method needs proof");
}

/// The capabilities of two devices.
#[derive(Clone, Copy, Debug)]
struct Says {
    semaphores: bool,
    wait_values: bool,
    callbacks: bool,
    layered: bool,
}

impl Says {
    fn all() -> impl Iterator<Item = Says> {
        let bit = |n: u32, at: u32| n >> at & 1 == 1;
        (0..16).map(move |n| Says {
            semaphores: bit(n, 0),
            wait_values: bit(n, 1),
            callbacks: bit(n, 2),
            layered: bit(n, 3),
        })
    }

    /// The host, two devices of one chip, and one that creates semaphores; the descriptor route has the given verdict.
    fn topology(self, verdict: Option<&Verdict>) -> Topology {
        let nodes = ["host", "a", "b", "maker"].map(|name| {
            let mut info = FakeDevice::new(FakeConfig::default()).info().clone();
            let caps = &mut info.caps;
            (caps.callbacks, caps.host_signals) = (self.callbacks, self.callbacks);
            caps.imports_semaphores = self.semaphores;
            caps.exports_semaphores = name == "maker";
            caps.wait_values = self.wait_values;
            (caps.exports, caps.imports) = (vec![FdKind::OpaqueFd], vec![FdKind::OpaqueFd]);
            caps.built_on = (self.layered && name == "b").then(|| "a:0".to_owned());
            info.api = Api(name);
            info.physical = PhysicalId { uuid: Some([1; 16]), pci: None };
            Node { id: format!("{name}:0"), info }
        });
        let declared = Topology::declared(nodes.to_vec());
        let mut routes = declared.routes().to_vec();
        for route in routes.iter_mut().filter(|route| route.kind == RouteKind::OpaqueFd) {
            route.verdict = verdict.cloned().unwrap_or_default();
        }
        Topology::new(nodes.to_vec(), routes)
    }

    /// Whether the devices support the method.
    fn has(self, method: SyncMethod) -> bool {
        match method {
            SameQueue => false,
            Semaphore => self.semaphores && !self.layered,
            Event => self.layered,
            WaitValue => self.wait_values,
            Callback => self.callbacks,
            HostWait => true,
        }
    }
}

/// The rule: the first method that is no better than the limits, is supported, and needs no proof or is proven.
fn expected(says: Says, verdict: Option<&Verdict>, over_route: bool, terms: Terms) -> SyncMethod {
    let measured = verdict.and_then(|verdict| verdict.sync);
    let is_proven = |method: SyncMethod| match (verdict.map(|verdict| verdict.state), measured) {
        (Some(VerdictState::Proven), Some(Semaphore)) => true,
        (Some(VerdictState::Proven), Some(WaitValue)) => method >= WaitValue,
        (Some(VerdictState::Proven), Some(Callback)) => method >= Callback,
        _ => false,
    };
    let refuted = verdict.is_some_and(|verdict| verdict.state == VerdictState::Refuted);
    let limit = if over_route { measured.unwrap_or(SameQueue) } else { SameQueue };
    let may = |method: &SyncMethod| {
        let is_based = matches!(method, Event | HostWait) || terms.unproven || is_proven(*method);
        // Wait values need memory that both devices access.
        let lacks = *method == WaitValue && refuted;
        *method >= limit && *method >= terms.best && is_based && says.has(*method) && !lacks
    };
    SyncMethod::ALL.into_iter().find(may).unwrap()
}

#[test]
fn every_combination_has_the_one_answer() {
    let states = [VerdictState::Proven, VerdictState::Declared, VerdictState::Refuted];
    let judged = states.into_iter().flat_map(|state| {
        let measured = SyncMethod::ALL.into_iter().map(Some).chain([None]);
        measured.map(move |sync| Verdict { state, sync, ..Verdict::default() })
    });
    let verdicts: Vec<_> = judged.map(Some).chain([None]).collect();
    let mut asked = 0;
    for says in Says::all() {
        for verdict in &verdicts {
            let topology = says.topology(verdict.as_ref());
            let route = topology.between(A, B).iter().find(|r| r.kind == RouteKind::OpaqueFd);
            for (best, unproven) in
                SyncMethod::ALL.into_iter().flat_map(|best| [(best, false), (best, true)])
            {
                for over in [None, route] {
                    let terms = Terms { best, unproven };
                    let pair = Pair::between(&topology, A, B).over(over);
                    let what = format!("{says:?}, {verdict:?}, {terms:?}, {}", over.is_some());
                    let answer = expected(says, verdict.as_ref(), over.is_some(), terms);
                    assert_eq!(policy::best(pair, terms), answer, "{what}");
                    assert_eq!(methods(pair, terms).last().map(Method::word), Some(HostWait));
                    // Inside one context neither proof nor limits matter.
                    let inside = Pair { events: Events::OneContext, ..pair };
                    assert!(policy::best(inside, terms) <= Event, "{what}");
                    let own = Pair { one_queue: true, ..pair };
                    assert_eq!(policy::best(own, terms), SameQueue, "{what}");
                    asked += 1;
                }
            }
        }
    }
    assert_eq!(asked, 16 * 22 * 12 * 2);
}

/// Cases that the combinations above do not cover.
#[test]
fn hosts_foreign_contexts_other_hubs_and_other_memory_are_joined_by_waiting() {
    let says = Says { semaphores: true, wait_values: true, callbacks: true, layered: false };
    let topology = says.topology(None);
    let by = |pair: Pair<'_>| policy::best(pair, Terms::DECLARED);
    assert_eq!(by(Pair::between(&topology, A, B)), Semaphore, "the control");
    // A staged copy is joined neither by semaphores nor by wait values.
    let staged = topology.between(A, B).iter().find(|route| route.kind == RouteKind::Staged);
    assert_eq!(by(Pair::between(&topology, A, B).over(staged)), Callback);
    assert_eq!(by(Pair::between(&topology, A, DeviceIx(9))), HostWait, "another hub's");
    let nodes: Vec<_> = topology.nodes().to_vec();
    let change = |change: fn(&mut Vec<Node>)| {
        let mut nodes = nodes.clone();
        change(&mut nodes);
        Topology::declared(nodes)
    };
    let foreign = change(|nodes| nodes[2].id = "b:0@1".into());
    assert_eq!(by(Pair::between(&foreign, A, B)), Callback);
    let apart = change(|nodes| nodes[2].info.physical.uuid = Some([2; 16]));
    assert_eq!(by(Pair::between(&apart, A, B)), Callback);
    let peers = topology.between(A, B).iter().find(|route| route.kind == RouteKind::Staged);
    let peers =
        peers.map(|route| crate::topology::Route { kind: RouteKind::Peer, ..route.clone() });
    assert_eq!(by(Pair::between(&apart, A, B).over(peers.as_ref())), Event);
    // Callbacks are not used for the host; it waits.
    let host = change(|nodes| {
        for node in nodes {
            (node.info.caps.imports_semaphores, node.info.caps.wait_values) = (false, false);
        }
    });
    assert_eq!(by(Pair::between(&host, HOST, B)), HostWait);
}

/// A plan names a method that joins one direction only; the other direction uses the next one.
#[test]
fn a_plan_names_the_better_direction() {
    let says = Says { semaphores: false, wait_values: false, callbacks: false, layered: false };
    let mut nodes = says.topology(None).nodes().to_vec();
    nodes[1].info.caps.wait_values = true;
    let topology = Topology::declared(nodes);
    let [forth, back] = [(A, B), (B, A)].map(|(a, b)| Pair::between(&topology, a, b));
    assert_eq!(
        [forth, back].map(|pair| policy::best(pair, Terms::DECLARED)),
        [HostWait, WaitValue]
    );
    for pair in [forth, back] {
        let words: Vec<_> = policy::either_way(pair, Terms::DECLARED).collect();
        assert_eq!(words, [WaitValue, HostWait]);
    }
}

fn builder() -> HubBuilder {
    let builder = crate::builder().only(["host"]);
    builder.fake(FakeConfig::default()).fake(FakeConfig::default()).timeout(LONG)
}

fn queues(hub: &Hub) -> [Queue; 2] {
    ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap().queue().unwrap())
}

/// Two devices of two domains, and a queue of each.
fn two_apis() -> (Hub, [Queue; 2]) {
    let hub = builder().verdicts(Default::default()).build().unwrap();
    let queues = queues(&hub);
    (hub, queues)
}

/// Joins the second queue to work of the first that ends when a host signal is opened, some time later.
fn joined_by(terms: Terms, ends: Result<()>) -> (Result<SyncMethod>, Result<()>) {
    let (hub, [a, b]) = two_apis();
    let host_signal = a.queue_state.hal.host_signal().unwrap();
    let point = a.queue_state.note();
    let opens = thread::spawn(move || {
        thread::sleep(Duration::from_millis(25));
        host_signal.open(ends);
    });
    let sync_method = hub.sync().after(&b.queue_state, &point, terms);
    let outcome = b.finish();
    opens.join().unwrap();
    (sync_method, outcome)
}

#[test]
fn callbacks_join_queues_only_where_they_are_proven_or_trusted() {
    let by = |unproven| joined_by(Terms { best: Callback, unproven }, Ok(()));
    assert_eq!(by(false), (Ok(HostWait), Ok(())));
    assert_eq!(by(true), (Ok(Callback), Ok(())));
    // Nor if the limit allows better methods than the devices support.
    assert_eq!(joined_by(Terms::PROVEN, Ok(())).0, Ok(HostWait));
    let (hub, [a, b]) = two_apis();
    let [a, b] = [a, b].map(|queue| queue.queue_state.device);
    assert_eq!(hub.sync().best(a, b, Terms::PROVEN), HostWait);
}

/// A failure is also reported through the callback thread.
#[test]
fn failed_work_is_told_behind_a_callback_too() {
    let terms = Terms { best: Callback, unproven: true };
    let (sync_method, outcome) = joined_by(terms, Err(Error::invalid("failed")));
    assert_eq!(sync_method, Ok(Callback));
    let error = outcome.unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
}

/// A hub with this proven verdict on every route.
fn judged(sync: Option<SyncMethod>) -> Hub {
    let declared = builder().verdicts(Default::default()).build().unwrap();
    let (topology, mut verdicts) = (declared.topology(), Verdicts::default());
    let verdict =
        Verdict { state: VerdictState::Proven, zero_copy: Some(true), sync, ..Verdict::default() };
    for route in topology.routes() {
        let [from, to] = [route.from, route.to].map(|device| topology.node(device));
        verdicts.insert(from, to, route.kind, verdict.clone());
    }
    builder().verdicts(verdicts).build().unwrap()
}

/// The planned method of a hand-over between the two, and the one used while the first device's work is running.
fn planned_and_used(hub: &Hub, buffer: &Buffer<u32>) -> (String, SyncMethod) {
    let [a, b] = queues(hub);
    drop(buffer.write_on(&a).unwrap());
    a.finish().unwrap();
    let host_signal = a.queue_state.hal.host_signal().unwrap();
    let view = buffer.write_on(&a).unwrap();
    drop(view);
    let opens = thread::spawn(move || {
        thread::sleep(Duration::from_millis(25));
        host_signal.open(Ok(()));
    });
    let used = buffer.write_on(&b).unwrap().sync_method();
    opens.join().unwrap();
    b.finish().unwrap();
    let explained = buffer.explain();
    let hop = buffer.plan().routes.iter().find(|hop| hop.to != buffer.plan().allocate_on);
    assert!(explained.contains(&format!("joined by {}", hop.unwrap().sync)), "{explained}");
    (hop.unwrap().sync.to_string(), used)
}

#[test]
fn a_plan_names_the_method_that_the_queue_uses() {
    let cases = [
        (judged(None), false, HostWait),
        (judged(None), true, Callback),
        (judged(Some(HostWait)), true, HostWait),
        (judged(Some(Callback)), false, Callback),
        // Better methods were available at the measurement, and are not now.
        (judged(Some(WaitValue)), false, Callback),
        (judged(Some(Semaphore)), false, Callback),
        (judged(Some(Event)), false, HostWait),
    ];
    for (hub, trusts, method) in cases {
        let devices = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
        let buffer = hub.buffer::<u32>(64).shared_with(&devices).allocate_on(&devices[0]);
        let buffer = buffer.trust_declared(trusts).build().unwrap();
        assert_eq!(planned_and_used(&hub, &buffer), (method.to_string(), method));
    }
}

/// Two queues of one device need neither a plan nor a proof.
#[test]
fn queues_of_one_context_wait_for_events() {
    let (hub, [a, _]) = two_apis();
    let b = hub.device("fake:0").unwrap().queue().unwrap();
    let host_signal = a.queue_state.hal.host_signal().unwrap();
    let fence = a.fence();
    assert_eq!(b.wait_for(&fence), Ok(Event));
    assert_eq!(a.wait_for(&fence), Ok(SameQueue));
    let limit = Terms { best: HostWait, unproven: false };
    let device = a.queue_state.device;
    assert_eq!(hub.sync().best(device, device, limit), Event);
    host_signal.open(Ok(()));
    b.finish().unwrap();
    assert_eq!(b.wait_for(&fence), Ok(SameQueue), "it is over");
}
