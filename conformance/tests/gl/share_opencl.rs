//! OpenGL buffers that OpenCL shares (`cl_khr_gl_sharing`). With the stub, which accesses OpenGL's buffers through its own
//! context and copies inside the calls; and with a real driver if available.

use super::{
    N, alone,
    foreign::Owner,
    gl_of,
    share::{on_its_chip, refused_by_nvidia, sides, take_turns, they_share},
};
use onebuf::{
    Error, Hub, HubBuilder, Probe, RouteKind,
    doctor::Doctor,
    prelude::*,
    topology::{Route, Verdict, VerdictState},
};
use onebuf_conformance::{
    Hardware, Side, Step, assert_same, helper, lacking, note, opencl_devices, random_words,
    step_model,
};
use std::{fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

/// OpenGL and OpenCL.
fn builder() -> HubBuilder {
    let builder = onebuf::builder().without(["cuda", "hip", "vulkan"]);
    builder.timeout(Duration::from_secs(30))
}

/// Runs a test again with the stub in that mode. Its commands are slow, so a missing wait is visible.
fn over_the_stub(test: &str, part: &str) {
    let late = [("ONEBUF_STUB_DELAY_US", "300")];
    on_its_chip(&format!("share_opencl::{test}"), "CUDA", part, &late);
}

fn hub(probe: &Arc<Probe>) -> Hub {
    builder().verdicts(Default::default()).probe(probe.clone()).build().unwrap()
}

#[test]
#[ignore = "for the process that has the stub"]
fn shared_by_calls() {
    let probe = Probe::new();
    let hub = hub(&probe);
    let (gl, opencl) = sides(&hub).unwrap();
    assert_eq!(opencl.device.info().api.0, "opencl");
    they_share(&hub, &gl, &opencl);
    // OpenCL is the first user, right after OpenGL received the contents.
    let mut model = random_words(4, N);
    let builder =
        hub.buffer::<u32>(N).shared_with([&gl.device, &opencl.device]).allocate_on(&gl.device);
    let builder = builder.route(RouteKind::ApiShare).trust_declared(true).init(&model[..]);
    let filled = builder.build().unwrap();
    opencl.step(&filled, Step::nth(3)).unwrap();
    step_model(&mut model, Step::nth(3));
    assert_same(&filled.to_vec().unwrap(), &model, "what OpenCL made of the first contents");
    drop(filled);
    // A foreign context is too late: OpenCL's context was created with the hub's OpenGL context.
    let owner = Owner::new().unwrap();
    let name = owner.make(&random_words(3, N), None);
    // SAFETY: the owner's context and its buffer live until the end, and the owner does not use the buffer meanwhile.
    let context = unsafe { hub.foreign_gl() }.unwrap();
    // SAFETY: as above.
    let wrap = unsafe { hub.wrap_gl_buffer::<u32>(&context, name) };
    let wrap = wrap.shared_with([&opencl.device]).route(RouteKind::ApiShare).trust_declared(true);
    match wrap.build().unwrap_err() {
        Error::Unsupported { what, .. } if what.contains("NVIDIA") => {
            refused_by_nvidia(&gl, &what);
        }
        late => assert!(late.to_string().contains("register yours before that"), "{late}"),
    }
    drop((context, gl, opencl, hub));
    owner.end(&[name]);
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

/// A foreign context that was registered before OpenCL's was created.
#[test]
#[ignore = "for the process that has the stub"]
fn a_strangers_is_shared() {
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new().unwrap();
    let mut model = random_words(6, N);
    let name = owner.make(&model, None);
    // SAFETY: as above.
    let context = unsafe { hub.foreign_gl() }.unwrap();
    let gl = Side::open(&context.device()).unwrap();
    let opencl = Side::open(&hub.device("opencl").unwrap()).unwrap();
    let wrap = || {
        // SAFETY: as above.
        let wrap = unsafe { hub.wrap_gl_buffer::<u32>(&context, name) };
        wrap.shared_with([&opencl.device]).route(RouteKind::ApiShare).trust_declared(true)
    };
    let buffer = match wrap().build() {
        Err(Error::Unsupported { what, .. }) if what.contains("NVIDIA") => {
            refused_by_nvidia(&gl, &what);
            drop((gl, context));
            return owner.end(&[name]);
        }
        built => built.unwrap(),
    };
    take_turns(&gl, &opencl, &buffer, &mut model);
    // OpenCL is the last user, writing and reading: either way, the owner gets the buffer back immediately.
    opencl.step(&buffer, Step::nth(7)).unwrap();
    step_model(&mut model, Step::nth(7));
    drop(buffer);
    assert_same(&owner.words(name, N), &model, "what the owner finds");
    let buffer = wrap().build().unwrap();
    drop(buffer.read_on(&opencl.queue).unwrap());
    drop(buffer);
    owner.delete(name);
    // The hub's own OpenGL context is not the one that OpenCL's was created with.
    let own = gl_of(&hub).unwrap();
    let ours = hub.buffer::<u32>(N).shared_with([&own, &opencl.device]).allocate_on(&own);
    let refused = ours.route(RouteKind::ApiShare).trust_declared(true).build();
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    // The foreign context may be dropped before OpenCL's.
    drop((gl, context));
    owner.end(&[]);
    drop((opencl, own, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

/// AMD's OpenCL reports a PCI address and OpenGL a UUID: only the sharing calls show that both are one chip.
#[test]
#[ignore = "for the process that has the stub"]
fn the_driver_says_which_chip() {
    let hub = hub(&Probe::new());
    let [gl, opencl] = ["gl", "opencl"].map(|api| hub.device(api).unwrap().info().physical);
    assert!(opencl.uuid.is_none() && opencl.pci.is_some(), "{opencl:?}");
    assert_eq!(gl.pci, opencl.pci);
    let (gl, opencl) = sides(&hub).unwrap();
    they_share(&hub, &gl, &opencl);
}

/// A driver that accepts no OpenGL context: OpenCL still works, and a request to share returns the reason.
#[test]
#[ignore = "for the process that has the stub"]
fn refused_by_the_driver() {
    let hub = hub(&Probe::new());
    let (gl, opencl) = sides(&hub).unwrap();
    let shape = || hub.buffer::<u32>(N).shared_with([&gl.device, &opencl.device]);
    let asked = shape().allocate_on(&gl.device).route(RouteKind::ApiShare).trust_declared(true);
    let why = asked.build().unwrap_err().to_string();
    assert!(why.contains("clCreateContext") && why.contains("-1000"), "{why}");
    let (buffer, mut model) = (shape().build().unwrap(), random_words(8, N));
    buffer.write(&model).unwrap();
    take_turns(&gl, &opencl, &buffer, &mut model);
}

#[test]
fn opencl_shares_buffers_of_opengl() {
    let _alone = alone();
    over_the_stub("shared_by_calls", "graphics");
    over_the_stub("a_strangers_is_shared", "graphics");
    over_the_stub("the_driver_says_which_chip", "graphics,amd");
    over_the_stub("refused_by_the_driver", "graphics,refuses");
    over_the_stub("refused_on_another_device", "graphics,elsewhere");
}

/// OpenGL's context is on none of the platform's devices, although the UUIDs match.
#[test]
#[ignore = "for the process that has the stub"]
fn refused_on_another_device() {
    let hub = hub(&Probe::new());
    let (gl, opencl) = sides(&hub).unwrap();
    let asked = hub.buffer::<u32>(N).shared_with([&gl.device, &opencl.device]);
    let asked = asked.allocate_on(&gl.device).route(RouteKind::ApiShare).trust_declared(true);
    let why = asked.build().unwrap_err().to_string();
    assert!(why.contains("an OpenGL context on the same device"), "{why}");
}

/// Returns the doctor's verdict on the route, in a new cache.
fn doctors_verdict() -> (tempfile::TempDir, Verdict) {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let hub = builder().cache(cache.path()).build().unwrap();
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(60));
    // Up to the size to which every byte is checked.
    let doctor = doctor.reach(64 << 20);
    let to_opencl = |route: &Route| hub.devices()[route.to.get()].info().api.0 == "opencl";
    let wanted = |route: &Route| route.kind == RouteKind::ApiShare && to_opencl(route);
    let report = doctor.run_where(&hub, wanted, &mut |_| ()).unwrap();
    let verdict = report.routes.first().unwrap().verdict.clone();
    note(&format!("{:?}, {:?}: {}", verdict.state, verdict.zero_copy, verdict.why));
    (cache, verdict)
}

/// The stub's calls copy: the doctor proves the contents, and detects the copies by their time.
#[test]
#[ignore = "for the process that has the stub"]
fn proven_and_found_to_copy() {
    // A busy machine sometimes hides the growth with size.
    let mut found = (0..3).map(|_| doctors_verdict());
    let copies = found.find(|(_, verdict)| verdict.zero_copy == Some(false));
    let (cache, verdict) = copies.expect("the copies were not found");
    assert_eq!(verdict.state, VerdictState::Proven, "{verdict:?}");
    let hub = builder().cache(cache.path()).build().unwrap();
    let (gl, opencl) = sides(&hub).unwrap();
    they_share(&hub, &gl, &opencl);
}

/// A driver that accepts every call and hands nothing over; afterwards OpenCL's contexts are created without OpenGL's.
#[test]
#[ignore = "for the process that has the stub"]
fn refuted() {
    let (cache, verdict) = doctors_verdict();
    assert_eq!(verdict.state, VerdictState::Refuted, "{verdict:?}");
    let probe = Probe::new();
    let hub = builder().cache(cache.path()).probe(probe.clone()).build().unwrap();
    probe.reset();
    let _queue = hub.device("opencl").unwrap().queue().unwrap();
    let calls = probe.trace();
    assert!(!calls.iter().any(|call| call.contains("GL") || call.starts_with("egl")), "{calls:?}");
}

#[test]
fn the_doctor_tells_drivers_apart() {
    let _alone = alone();
    over_the_stub("proven_and_found_to_copy", "graphics");
    over_the_stub("refuted", "graphics,separate");
}

/// Shares with the real devices of this machine.
#[test]
fn a_real_driver_shares_them() {
    let _alone = alone();
    let hub = builder().verdicts(Default::default()).build().unwrap();
    match sides(&hub) {
        None => {
            // NVIDIA's driver has the extension only on GPUs that drive displays.
            let shares = opencl_devices()
                .iter()
                .any(|one| one.platform == "NVIDIA CUDA" && one.declares("cl_khr_gl_sharing"));
            let needs: &[Hardware] = if shares { &[Hardware::Nvidia] } else { &[] };
            lacking(needs, "no OpenCL here shares OpenGL's buffers");
        }
        Some((gl, opencl)) => {
            note(&format!("{} -> {} api_share", gl.device, opencl.device));
            they_share(&hub, &gl, &opencl);
        }
    }
}
