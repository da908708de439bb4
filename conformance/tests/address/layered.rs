//! HIP built on OpenCL, as chipStar is: both share one context, so each API's queues can wait for the other's events.

use super::*;
use onebuf::{
    Access, Error, ForeignQueueInfo, Program, Signature, Source, SyncMethod, UserEvent, args,
    doctor::Doctor,
    prelude::*,
    topology::{Route, Verdict, VerdictState},
};
use onebuf_conformance::{class_a::ClassA, helper, is_held, layered_stub};
use std::os::unix::fs::PermissionsExt;

const KIND: RouteKind = RouteKind::HostPointer;

/// Runs an ignored test with HIP's stub layered on OpenCL's, both with the given behaviour.
fn play_layered(test: &str, opencl: &str, hip: &str) {
    let Some(library) = layered_stub() else { return };
    // The module that the stub reports as the source of foreign programs.
    let module = tempfile::NamedTempFile::new().unwrap();
    fs::write(&module, step_module()).unwrap();
    let [library, module] = [&library, module.path()].map(|path| path.to_str().expect("a path"));
    let all = [
        ("ONEBUF_HIP_LIB", library),
        ("ONEBUF_LAYERED_STUB", hip),
        ("ONEBUF_STUB_BINARY", module),
        // These drivers take longer to start than all of these tests.
        ("ONEBUF_VULKAN_LIB", "none"),
        ("ONEBUF_EGL_LIB", "none"),
    ];
    play(&format!("layered::{test}"), "HIP", opencl, &all);
}

#[test]
fn each_waits_for_the_others_events() {
    play_layered("joined", "good", "good");
    play_layered("failed", "good", "good");
    play_layered("mute", "good", "good");
}

#[test]
fn the_controls_do_not_wait() {
    play_layered("deaf", "good", "deaf");
    play_layered("loose", "good", "loose");
}

#[test]
fn the_doctor_finds_a_lower_sync_method_where_events_lie() {
    play_layered("refuted", "good", "deaf");
}

#[test]
fn the_doctor_refutes_a_runtime_whose_streams_cannot_wait() {
    play_layered("captured", "good", "captured");
}

/// The control: the same experiments prove the runtime without that fault.
#[test]
fn the_doctor_proves_a_runtime_whose_streams_wait() {
    play_layered("healthy", "good", "good");
}

#[test]
fn each_call_fails() {
    play_layered("swept", "good", "good");
}

#[test]
fn programs_of_spirv_are_grafted() {
    play_layered("grafted", "good", "good");
}

#[test]
fn what_cannot_be_shared_stays_apart() {
    play_layered("apart", "good", "other");
    play_layered("crowded", "crowded", "good");
}

/// Two OpenCL queues and one HIP queue on one buffer; the first queue waits for a user event.
struct Chain {
    rig: Rig,
    second: Side,
    host_signal: UserEvent,
    buffer: Buffer<u32>,
    model: Vec<u32>,
}

impl Chain {
    /// OpenCL writes, then HIP, then OpenCL again, ordered by events only.
    fn new() -> Chain {
        let rig = Rig::new();
        assert_eq!(rig.hip.device.info().caps.built_on.as_deref(), Some("opencl:0"));
        let second = Side::open(&rig.cl.device).unwrap();
        let buffer = rig.builder(&rig.hip.device, KIND, N).build().unwrap();
        let mut model = random_words(3, N);
        buffer.write(&model).unwrap();
        // Every queue uses the buffer first, so that no further map is needed before the user event.
        for (turn, side) in (0..).zip([&rig.hip, &second, &rig.cl]) {
            side.step(&buffer, Step::nth(turn)).unwrap();
            step_model(&mut model, Step::nth(turn));
        }
        let host_signal = user_event(&rig.cl);
        assert_eq!(rig.cl.queue.wait_for(&host_signal.fence()).unwrap(), SyncMethod::Event);
        Chain { rig, second, host_signal, buffer, model }
    }

    /// Enqueues a step of one side, and returns the sync method of its view.
    fn step(&mut self, of: fn(&Chain) -> &Side, turn: u32) -> SyncMethod {
        let side = of(self);
        let view = self.buffer.write_on(&side.queue).unwrap();
        let sync_method = view.sync_method();
        side.step_view(view, N, Step::nth(turn)).unwrap();
        step_model(&mut self.model, Step::nth(turn));
        sync_method
    }

    fn end(self) {
        let Chain { rig, second, host_signal, buffer, .. } = self;
        drop((second, host_signal, buffer));
        rig.end();
    }
}

/// A user event in the context that both APIs use.
fn user_event(cl: &Side) -> UserEvent {
    let hub = cl.device.hub();
    // SAFETY: a live queue of the hub, and its context.
    let context = unsafe {
        let info = ForeignQueueInfo::query(hub, cl.queue.raw() as *mut _).unwrap();
        hub.foreign_context(info.context as *mut _).unwrap()
    };
    context.user_event().unwrap()
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn joined() {
    let mut chain = Chain::new();
    assert_eq!(chain.step(|c| &c.rig.cl, 10), SyncMethod::SameQueue);
    assert_eq!(chain.step(|c| &c.rig.hip, 11), SyncMethod::Event);
    assert_eq!(chain.step(|c| &c.second, 12), SyncMethod::Event);
    assert_eq!(chain.step(|c| &c.rig.hip, 13), SyncMethod::Event);
    let fences = [&chain.rig.hip, &chain.second].map(|side| side.queue.fence());
    assert!(fences.iter().all(is_held), "somebody did not wait");
    assert!(matches!(fences[0].cl_events(), Err(Error::Unsupported { .. })), "HIP's own handle");
    drop(fences);
    chain.host_signal.complete();
    assert_same(&chain.buffer.to_vec().unwrap(), &chain.model, "in turn, all enqueued at once");
    let calls = chain.rig.probe.trace();
    let made = |call: &str| calls.iter().filter(|made| made.contains(call)).count();
    assert!(made("hipGetNativeEventFromHipEvent") > 0, "{calls:?}");
    assert_eq!(made("hipStreamWaitEvent"), 0, "{calls:?}");
    assert_eq!(made("clCreateUserEvent"), 1, "the test's own: {calls:?}");
    chain.end();
}

/// HIP's events are always complete: OpenCL continues while HIP is held.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn deaf() {
    let mut chain = Chain::new();
    chain.step(|c| &c.rig.cl, 10);
    assert_eq!(chain.step(|c| &c.rig.hip, 11), SyncMethod::Event);
    assert_eq!(chain.step(|c| &c.second, 12), SyncMethod::Event);
    chain.second.queue.finish().unwrap();
    assert!(is_held(&chain.rig.hip.queue.fence()), "HIP's own waits hold in this part");
    chain.host_signal.complete();
    chain.rig.hip.queue.finish().unwrap();
    assert_ne!(chain.buffer.to_vec().unwrap(), chain.model);
    chain.end();
}

/// HIP's streams ignore their OpenCL queue: HIP continues while OpenCL is held.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn loose() {
    let mut chain = Chain::new();
    chain.step(|c| &c.rig.cl, 10);
    assert_eq!(chain.step(|c| &c.rig.hip, 11), SyncMethod::Event);
    chain.rig.hip.queue.finish().unwrap();
    assert!(is_held(&chain.rig.cl.queue.fence()), "OpenCL's own waits hold in this part");
    chain.host_signal.complete();
    chain.rig.cl.queue.finish().unwrap();
    assert_ne!(chain.buffer.to_vec().unwrap(), chain.model);
    chain.end();
}

/// The memory is still shared: the route is proven with a lower sync method, never with events.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn refuted() {
    let verdict = verdict_of_events();
    assert_shared(&verdict);
    assert!(verdict.why.contains("not by event"), "{verdict:?}");
}

/// The route itself works: two queues of HIP by themselves do not.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn captured() {
    let verdict = verdict_of_pair();
    assert_eq!(verdict.state, VerdictState::Refuted, "{verdict:?}");
    let why = &verdict.why;
    assert!(why.contains("hip:0 by itself: crashed: signal 6 (SIGABRT) while two"), "{why}");
    let graft = verdict_of_graft();
    assert!(graft.state == VerdictState::Refuted && graft.why.contains("by itself"), "{graft:?}");
    // The fault is in the streams' own waits alone: with those of OpenCL both take turns.
    let mut chain = Chain::new();
    chain.step(|c| &c.rig.cl, 10);
    assert_eq!(chain.step(|c| &c.rig.hip, 11), SyncMethod::Event);
    chain.host_signal.complete();
    assert_same(&chain.buffer.to_vec().unwrap(), &chain.model, "in turn");
    chain.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn healthy() {
    assert_shared(&verdict_of_pair());
    assert!(!verdict_of_graft().why.contains("by itself"));
}

/// The bytes were right. Beside busy processors the timings may not agree, and the route stays declared with that reason.
fn assert_shared(verdict: &Verdict) {
    let busy =
        verdict.state == VerdictState::Declared && verdict.why.contains("timings do not agree");
    let holds = verdict.state == VerdictState::Proven || busy;
    assert!(holds && verdict.why.starts_with("every page, both directions"), "{verdict:?}");
}

fn verdict_of_events() -> Verdict {
    let verdict = verdict_of_pair();
    let by_events =
        verdict.state == VerdictState::Proven && verdict.sync <= Some(SyncMethod::Event);
    assert!(!by_events, "{verdict:?}");
    verdict
}

fn verdict_of_pair() -> Verdict {
    examine(|hub, doctor| {
        let pair = ["hip:0", "opencl:0"].map(|id| hub.device(id).unwrap().index());
        let wanted = |route: &Route| pair == [route.from, route.to] && route.kind == KIND;
        let routes = doctor.run_where(hub, wanted, &mut |_| ()).unwrap().routes;
        let [route] = &routes[..] else { panic!("{routes:?}") };
        route.verdict.clone()
    })
}

/// The verdict on OpenCL's kernels in HIP's streams.
fn verdict_of_graft() -> Verdict {
    examine(|hub, doctor| {
        let found = doctor.grafts(hub, |_, _| true, &mut |_| ()).unwrap().found;
        let [graft] = &found[..] else { panic!("{found:?}") };
        graft.verdict.clone()
    })
}

/// Lets a doctor without verdicts examine a new hub.
fn examine(examination: impl FnOnce(&Hub, &Doctor) -> Verdict) -> Verdict {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let hub = onebuf::builder().cache(cache.path()).build().unwrap();
    let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path());
    examination(&hub, &doctor.silence(Duration::from_secs(90)).reach(1 << 20))
}

/// A runtime that is not built on our OpenCL.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn apart() {
    let rig = Rig::new();
    assert_eq!(rig.hip.device.info().caps.built_on, None);
    assert!(!rig.probe.trace().iter().any(|call| call.contains("clRetainContext")));
    rig.end();
}

/// A context with two devices is not used as ours, and the hub has a note about it.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn crowded() {
    let rig = Rig::new();
    assert_eq!(rig.hip.device.info().caps.built_on, None);
    let told = |note: &Error| note.to_string().contains("a context of this device alone");
    assert!(rig.hub.notes().iter().any(told), "{:?}", rig.hub.notes());
    rig.end();
}

/// HIP waits for OpenCL work that fails. The runtime does not report the failure, so onebuf reports it to waiters for HIP.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn failed() {
    let mut chain = Chain::new();
    chain.step(|c| &c.rig.cl, 10);
    assert_eq!(chain.step(|c| &c.rig.hip, 11), SyncMethod::Event);
    let fence = chain.rig.hip.queue.fence();
    assert!(is_held(&fence));
    // A user event that is dropped before completion fails.
    let Chain { rig, second, host_signal, buffer, .. } = chain;
    drop(host_signal);
    let told = fence.wait(Duration::from_secs(20)).unwrap_err();
    assert!(matches!(told, Error::Driver { api: "opencl", .. }), "{told}");
    drop((second, buffer, fence));
    rig.end();
}

/// A stream that does not report its OpenCL queue is refused and destroyed. An event that does not report its OpenCL event is
/// waited for by a lower sync method.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn mute() {
    let mut chain = Chain::new();
    // Only from here on: the existing queues are open already.
    chain.rig.probe.fail_always("hipGetBackendNativeHandles", 801);
    let refused = chain.rig.hip.device.queue().unwrap_err().to_string();
    assert!(refused.contains("hipGetBackendNativeHandles"), "{refused}");
    chain.step(|c| &c.rig.cl, 10);
    assert_eq!(chain.step(|c| &c.rig.hip, 11), SyncMethod::Event);
    chain.rig.probe.fail_always("hipGetNativeEventFromHipEvent", 801);
    assert!(chain.step(|c| &c.second, 12) > SyncMethod::Event);
    chain.host_signal.complete();
    assert_same(&chain.buffer.to_vec().unwrap(), &chain.model, "by a lower sync method");
    chain.end();
}

/// `onebuf_step` as SPIR-V, without a body: the stub compiles nothing and needs only the parameters.
#[rustfmt::skip]
const STEP: &[u32] = &[
    0x0723_0203, 0x0001_0000, 0, 20, 0,
    3 << 16 | 14, 2, 2,                  // OpMemoryModel Physical64 OpenCL
    6 << 16 | 15, 6, 1, u32::from_le_bytes(*b"oneb"), u32::from_le_bytes(*b"uf_s"), u32::from_le_bytes(*b"tep\0"),
    2 << 16 | 19, 2,                     // %2 = OpTypeVoid
    4 << 16 | 21, 3, 32, 0,              // %3 = OpTypeInt 32 0
    4 << 16 | 32, 4, 5, 3,               // %4 = OpTypePointer CrossWorkgroup %3
    8 << 16 | 33, 5, 2, 4, 3, 3, 3, 3,   // %5 = OpTypeFunction %2 %4 %3 %3 %3 %3
    5 << 16 | 54, 2, 1, 0, 5,            // %1 = OpFunction %2 None %5
    3 << 16 | 55, 4, 6, 3 << 16 | 55, 3, 7, 3 << 16 | 55, 3, 8, 3 << 16 | 55, 3, 9, 3 << 16 | 55, 3, 10,
    1 << 16 | 56,                        // OpFunctionEnd
];

fn step_module() -> Vec<u8> {
    STEP.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// An OpenCL program with SPIR-V in its source runs in HIP's stream, with the same arguments; a program without is refused.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn grafted() {
    let rig = Rig::new();
    // Exported calls are not support: without a UUID no other process could find the device.
    assert!(rig.hip.device.info().physical.uuid.is_none() && !rig.hip.device.info().caps.ipc);
    let text = Source::opencl_c("kernel void onebuf_step(global uint *p) {}");
    let refused = rig.cl.device.program(&text).unwrap().graft(&rig.hip.device).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("made from SPIR-V"), "{refused}");
    let native = rig.cl.device.program(&text.with_spirv(step_module())).unwrap();
    let app = ClassA::all().into_iter().next().expect("a program of somebody else's");
    // SAFETY: the program is the application's, and alive.
    let foreign = unsafe { rig.hub.graft_foreign(app.program.raw(), &rig.hip.device) }.unwrap();
    // SAFETY: null is allowed.
    let null = unsafe { rig.hub.graft_foreign(std::ptr::null_mut(), &rig.hip.device) };
    assert!(matches!(null, Err(Error::InvalidArgument(_))), "{null:?}");
    refused_by_the_driver(&rig, app.program.raw());
    for program in [native.graft(&rig.hip.device).unwrap(), foreign] {
        step_by(&program, &rig);
    }
    drop((native, app));
    rig.end();
}

/// A driver without the query has no SPIR-V to return; a driver whose query fails returns its error.
fn refused_by_the_driver(rig: &Rig, theirs: *mut std::ffi::c_void) {
    let graft = |status| {
        rig.probe.fail_always("clGetProgramInfo", status);
        // SAFETY: the program is the application's, and alive.
        let refused = unsafe { rig.hub.graft_foreign(theirs, &rig.hip.device) }.unwrap_err();
        assert_eq!(rig.probe.failed(), Some("clGetProgramInfo"));
        rig.probe.reset();
        refused
    };
    let (unknown, no_program, broken) = (graft(-30), graft(-44), graft(-5));
    assert!(unknown.to_string().contains("made from SPIR-V"), "{unknown}");
    assert!(matches!(no_program, Error::InvalidArgument(_)), "{no_program}");
    assert!(!matches!(broken, Error::Unsupported { .. } | Error::InvalidArgument(_)), "{broken}");
    assert!(broken.to_string().contains("clGetProgramInfo"), "{broken}");
}

/// Launches the kernel and checks every element, then tries a signature that does not match.
fn step_by(program: &Program, rig: &Rig) {
    let word = |s: Signature| s.value::<u32>();
    let takes = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel touches the first n elements, which is the whole buffer.
    let kernel = unsafe { program.kernel("onebuf_step", word(word(word(word(takes))))) }.unwrap();
    let (mut model, step) = (random_words(8, N), Step::nth(4));
    let buffer = rig.hub.buffer::<u32>(N).shared_with([&rig.hip.device]).build().unwrap();
    buffer.write(&model).unwrap();
    let queue = &rig.hip.queue;
    let view = buffer.write_on(queue).unwrap();
    queue.launch(&kernel, [N], args![view, 0u32, N as u32, step.mul, step.add]).unwrap();
    step_model(&mut model, step);
    assert_same(&buffer.to_vec().unwrap(), &model, "grafted");
    // A name that the module does not have is no lost device.
    // SAFETY: the kernel is refused, so never launched.
    let refused = unsafe { program.kernel("nothing", Signature::new()) }.unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    assert!(refused.to_string().contains("no kernel `nothing`"), "{refused}");
    buffer.fill(7).unwrap();
    assert_same(&buffer.to_vec().unwrap(), &[7; N], "afterwards");
    let wrong = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel is refused, so never launched.
    let refused = unsafe { program.kernel("onebuf_step", wrong) }.unwrap_err().to_string();
    assert!(refused.contains("takes 5 arguments, 1 given"), "{refused}");
}

/// Both APIs' kernels take turns on one buffer; the stream is new, so its OpenCL queue is queried.
fn life(rig: &Rig) -> onebuf::Result<()> {
    let hip = Side::open(&rig.hip.device)?;
    let buffer = rig.builder(&rig.hip.device, KIND, N).build()?;
    let mut model = random_words(5, N);
    buffer.write(&model)?;
    for (turn, side) in (0..).zip([&rig.cl, &hip, &rig.cl, &hip]) {
        side.step(&buffer, Step::nth(turn))?;
        step_model(&mut model, Step::nth(turn));
    }
    assert_same(&buffer.to_vec()?, &model, "in turn");
    Ok(())
}

/// Each call of the scenario fails in turn, and so does each call of discovery.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn swept() {
    let (mut n, mut past_the_end) = (0, 0);
    while past_the_end < 2 {
        n += 1;
        let rig = Rig::new();
        rig.probe.fail_nth(n, -5);
        let outcome = life(&rig);
        let failed = rig.probe.failed();
        let what = format!("call {n}, {failed:?}, failed: {outcome:?}");
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        assert!(failed.is_some() || outcome.is_ok(), "{what}");
        rig.probe.reset();
        life(&rig).unwrap_or_else(|e| panic!("{what}; then it does not work: {e}"));
        rig.end();
        past_the_end += u32::from(failed.is_none());
    }
    assert!(n > 40, "{n} calls are no life");
    let mut found = 0;
    for n in 1.. {
        let probe = Probe::new();
        probe.fail_nth(n, -5);
        let hub =
            onebuf::builder().verdicts(Default::default()).probe(probe.clone()).build().unwrap();
        let built_on = |device: Device| device.info().caps.built_on.is_some();
        found += u32::from(hub.select("hip").into_iter().any(built_on));
        drop(hub);
        assert_settled(&probe, &format!("discovery, call {n}: {:?}", probe.failed()));
        if probe.failed().is_none() {
            break;
        }
    }
    assert!(found > 0, "never found");
}
