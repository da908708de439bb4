//! OpenGL buffers that CUDA and HIP share by their own calls (OpenCL: `share_opencl.rs`). With the stub, which copies inside
//! those calls as some drivers do; and with a real driver if available.

use super::{N, alone, foreign::Owner, gl_of};
use onebuf::{
    Buffer, CopyPolicy, Error, Hub, HubBuilder, MemoryKind, Probe, RouteKind, SyncMethod,
    doctor::Doctor,
    prelude::*,
    topology::{Route, VerdictState},
};
use onebuf_conformance::{
    Hardware, Side, Step, absent, assert_same, helper, kinds, lacking, note, pages_apart, play,
    random_words, shared, step_model,
};
use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

/// OpenGL, with CUDA and HIP as set in the environment.
fn builder() -> HubBuilder {
    onebuf::builder().without(["opencl", "vulkan"]).timeout(Duration::from_secs(30))
}

/// One side for OpenGL and one for a device that shares its buffers; `None` if there is none.
pub(super) fn sides(hub: &Hub) -> Option<(Side, Side)> {
    let gl = gl_of(hub)?;
    let shares = |route: &&Route| route.from == gl.index() && route.kind == RouteKind::ApiShare;
    let to = hub.topology().routes().iter().find(shares)?.to;
    let other = hub.devices().into_iter().find(|device| device.index() == to)?;
    Some((Side::open(&gl).unwrap(), Side::open(&other).unwrap()))
}

/// Runs a test again with the stub as that API, on OpenGL's chip.
fn over_the_stub(test: &str, api: &str) {
    on_its_chip(&format!("share::{test}"), api, "", &[]);
}

/// As `over_the_stub`, with OpenCL's stub in the mode `part`.
pub(super) fn on_its_chip(test: &str, api: &str, part: &str, more: &[(&str, &str)]) {
    let hub = onebuf::builder().without(["opencl", "cuda", "hip", "vulkan"]);
    let hub = hub.verdicts(Default::default()).build().unwrap();
    let Some(gl) = gl_of(&hub) else { return };
    let Some(uuid) = gl.info().physical.uuid_text() else {
        return absent("OpenGL", "it does not say which chip it is on");
    };
    drop((gl, hub));
    let digits = uuid.replace('-', "");
    let chip = [("ONEBUF_CUDA_STUB_UUID", &*uuid), ("ONEBUF_STUB_UUID", &*digits)];
    play(test, api, part, &[&chip, more].concat());
}

/// The two take turns, and each sees every element that the other wrote.
pub(super) fn take_turns(gl: &Side, other: &Side, buffer: &Buffer<u32>, model: &mut [u32]) {
    for (n, side) in (0..).zip([gl, other, gl, other, other, gl, gl]) {
        let (step, before) = (Step::nth(n), model.to_vec());
        side.step(buffer, step).unwrap();
        step_model(model, step);
        let look = if std::ptr::eq(side, gl) { other } else { gl };
        assert_same(&look.look(buffer).unwrap(), model, "by a sharing call");
        // The control: if the step had not arrived, every page would differ.
        assert_eq!(pages_apart(&before, model).len(), model.len().div_ceil(1024));
    }
    // Both read, then one writes.
    let reads = (buffer.read_on(&gl.queue).unwrap(), buffer.read_on(&other.queue).unwrap());
    assert!(matches!(buffer.write_on(&other.queue), Err(Error::Busy { .. })));
    drop(reads);
    other.step(buffer, Step::nth(99)).unwrap();
    step_model(model, Step::nth(99));
    assert_same(&buffer.to_vec().unwrap(), model, "as the host reads it");
}

pub(super) fn they_share(hub: &Hub, gl: &Side, other: &Side) {
    assert!(kinds(hub, gl, other).contains(&RouteKind::ApiShare));
    let buffer = shared(gl, other, RouteKind::ApiShare, SyncMethod::HostWait, N).unwrap();
    assert_eq!(buffer.plan().memory_kind, MemoryKind::Device);
    let mut model = random_words(5, N);
    buffer.write(&model).unwrap();
    let before = hub.ledger().implied_bytes();
    take_turns(gl, other, &buffer, &mut model);
    assert!(
        hub.ledger().implied_bytes() > before,
        "what is not proven to be free counts as a copy"
    );
    drop(buffer);
    // The route is not proven to be free of copies.
    let forbidden = hub.buffer::<u32>(N).shared_with([&gl.device, &other.device]);
    let forbidden = forbidden.allocate_on(&gl.device).route(RouteKind::ApiShare);
    let refused = forbidden.copies(CopyPolicy::Forbid).build();
    assert!(refused.is_err(), "{refused:?}");
}

/// NVIDIA's driver does not share buffers of foreign contexts, which onebuf knows by its name. No other driver may be refused.
pub(super) fn refused_by_nvidia(gl: &Side, what: &str) {
    let (platform, here) = (&gl.device.info().platform, Hardware::Nvidia.is_here());
    assert!(platform.contains("NVIDIA") && here, "{platform}: {what}");
    lacking(&[], what);
}

/// A buffer of a foreign context, in place, shared with `other`.
fn they_share_a_strangers(hub: &Hub, other: &Side) {
    let Some(owner) = Owner::new() else { return };
    let mut model = random_words(6, N);
    let name = owner.make(&model, None);
    // SAFETY: the owner's context and its buffer live until the end, and the owner does not use the buffer meanwhile.
    let context = unsafe { hub.foreign_gl() }.unwrap();
    let gl = Side::open(&context.device()).unwrap();
    // SAFETY: as above.
    let wrap = unsafe { hub.wrap_gl_buffer::<u32>(&context, name) };
    let wrap = wrap.shared_with([&other.device]).route(RouteKind::ApiShare).trust_declared(true);
    let buffer = match wrap.build() {
        Err(Error::Unsupported { what, .. }) if what.contains("NVIDIA") => {
            refused_by_nvidia(&gl, &what);
            drop((gl, context));
            return owner.end(&[name]);
        }
        built => built.unwrap(),
    };
    take_turns(&gl, other, &buffer, &mut model);
    drop((buffer, gl, context));
    assert_same(&owner.words(name, N), &model, "what the owner finds");
    owner.end(&[name]);
}

#[test]
#[ignore = "for the process that has the stub"]
fn shared_by_calls() {
    let probe = Probe::new();
    let hub = builder().verdicts(Default::default()).probe(probe.clone()).build().unwrap();
    let (gl, other) = sides(&hub).unwrap();
    they_share(&hub, &gl, &other);
    they_share_a_strangers(&hub, &other);
    drop((gl, other, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
fn cuda_and_hip_share_buffers_of_opengl() {
    let _alone = alone();
    over_the_stub("shared_by_calls", "CUDA");
    over_the_stub("shared_by_calls", "HIP");
}

/// The stub's calls copy: the doctor proves the contents, and detects the copies by their time.
#[test]
#[ignore = "for the process that has the stub"]
fn proven_and_found_to_copy() {
    let cache =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap();
    let hub = builder().cache(cache.path()).build().unwrap();
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(60));
    // Up to the size to which every byte is checked.
    let doctor = doctor.reach(64 << 20).fresh(true);
    let wanted = |route: &Route| route.kind == RouteKind::ApiShare;
    // A busy machine sometimes hides the growth with size.
    let found_to_copy = |_| {
        let report = doctor.run_where(&hub, wanted, &mut |_| ()).unwrap();
        let verdict = &report.routes.iter().find(|route| wanted(route)).unwrap().verdict;
        note(&format!("{:?}, {:?}: {}", verdict.state, verdict.zero_copy, verdict.why));
        assert_eq!(verdict.state, VerdictState::Proven, "{verdict:?}");
        verdict.zero_copy == Some(false)
    };
    assert!((0..3).any(found_to_copy), "the copies were not found");
    drop(hub);
    let hub = builder().cache(cache.path()).build().unwrap();
    let (gl, other) = sides(&hub).unwrap();
    they_share(&hub, &gl, &other);
}

#[test]
fn a_driver_that_copies_behind_its_calls_is_found_out() {
    let _alone = alone();
    over_the_stub("proven_and_found_to_copy", "CUDA");
}

/// Shares with the real devices of this machine; the doctor reports what the driver does.
#[test]
fn a_real_driver_shares_them() {
    let _alone = alone();
    let hub = builder().verdicts(Default::default()).build().unwrap();
    match sides(&hub) {
        None => lacking(&[Hardware::Nvidia], "nothing here shares OpenGL's buffers"),
        Some((gl, other)) => {
            note(&format!("{} -> {} api_share", gl.device, other.device));
            they_share(&hub, &gl, &other);
            they_share_a_strangers(&hub, &other);
        }
    }
}
