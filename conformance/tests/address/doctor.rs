//! The doctor proves these routes if the addresses are shared, and refutes them if not.

use super::*;
use onebuf::{
    CopyPolicy,
    doctor::{Doctor, Verdicts},
    topology::{Route, VerdictState},
};
use onebuf_conformance::{helper, measured};
use std::os::unix::fs::PermissionsExt;

plays! {
    it_proves_what_works: proven("amd");
    it_refutes_what_does_not: refuted("amd,apart");
    it_refutes_what_rocr_does_not_confirm: unconfirmed("amd,wrong_address");
}

/// The verdicts on the routes between the chip's two APIs, and a hub with those verdicts.
fn examined(kinds: &[RouteKind]) -> (Vec<Route>, Hub) {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let hub = onebuf::builder().cache(cache.path()).build().unwrap();
    let pair = ["opencl:0", "hip:0"].map(|id| hub.device(id).unwrap().index());
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(90))
        .reach(1 << 20);
    let wanted = |route: &Route| {
        let between = [route.from, route.to].iter().all(|end| pair.contains(end));
        between && route.from != route.to && kinds.contains(&route.kind)
    };
    let report = doctor.run_where(&hub, wanted, &mut |_| ()).unwrap();
    let hub = onebuf::builder().verdicts(Verdicts::load(cache.path()).unwrap()).build().unwrap();
    (report.routes, hub)
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn proven() {
    let kinds = [RouteKind::SvmPointer, RouteKind::RawAddress, RouteKind::DmaBuf];
    let is_judged = |route: &Route| route.verdict.state != VerdictState::Declared;
    let (routes, hub) =
        measured(|| examined(&kinds), |(routes, _)| free(routes) && routes.iter().all(is_judged));
    assert_eq!(routes.len(), 4, "{routes:?}");
    for route in &routes {
        assert_eq!(route.verdict.state, VerdictState::Proven, "{route:?}");
        assert!(route.verdict.why.ends_with("; experimental: never run on hardware"), "{route:?}");
    }
    let [cl, hip] = ["opencl:0", "hip:0"].map(|id| hub.device(id).unwrap());
    assert!(free(&routes), "{routes:?}");
    let buffer = hub.buffer::<u32>(N).shared_with([&cl, &hip]).copies(CopyPolicy::Forbid).build();
    let text = buffer.unwrap().explain();
    assert!(text.contains("svm_pointer, no copies"), "{text}");
    assert!(text.contains("experimental: never run on hardware"), "{text}");
}

fn free(routes: &[Route]) -> bool {
    let svm = |route: &&Route| route.kind == RouteKind::SvmPointer;
    routes.iter().filter(svm).any(|route| route.verdict.zero_copy == Some(true))
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn refuted() {
    let (routes, hub) = examined(&[RouteKind::SvmPointer, RouteKind::RawAddress]);
    assert_eq!(routes.len(), 3, "{routes:?}");
    for route in &routes {
        assert_eq!(route.verdict.state, VerdictState::Refuted, "{route:?}");
        assert!(route.verdict.why.contains("differs"), "{route:?}");
    }
    let [cl, hip] = ["opencl:0", "hip:0"].map(|id| hub.device(id).unwrap());
    let forced = hub.buffer::<u32>(N).shared_with([&cl, &hip]).route(RouteKind::SvmPointer);
    let refused = forced.trust_declared(true).build().unwrap_err();
    assert!(refused.to_string().contains("refuted"), "whatever the caller says: {refused}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn unconfirmed() {
    let (routes, _) = examined(&[RouteKind::RawAddress]);
    let [route] = &routes[..] else { panic!("{routes:?}") };
    assert_eq!(route.verdict.state, VerdictState::Refuted, "{route:?}");
    assert!(route.verdict.why.contains("ROCr did not allocate it"), "{route:?}");
}
