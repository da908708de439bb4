//! Tests the doctor: its verdicts on drivers with known faults.

use onebuf::{
    RouteKind,
    doctor::{Doctor, Verdicts},
    topology::VerdictState,
};
use onebuf_conformance::{Watchdog, absent, helper, note, stub};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// One run of the doctor with the stub driver.
struct Run<'r> {
    mode: &'r str,
    cache: &'r Path,
    silence_ms: u32,
    words: &'r [&'r str],
    environment: &'r [(&'r str, &'r str)],
}

impl Run<'_> {
    /// Returns what it printed, or its error message.
    fn answer(&self) -> Option<Result<Answer, String>> {
        let mut command = Command::new(helper("doctor-helper"));
        command.arg(self.cache).arg(self.silence_ms.to_string()).args(self.words);
        command.env("ONEBUF_OPENCL_LIB", stub()?).env("ONEBUF_STUB", self.mode);
        command.env("ONEBUF_CUDA_LIB", "none").env("ONEBUF_HIP_LIB", "none");
        command.env("ONEBUF_VULKAN_LIB", "none").env("ONEBUF_EGL_LIB", "none");
        command.envs(self.environment.iter().copied());
        let output = command.output().expect("the helper starts");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Some(Err(err));
        }
        let json = serde_json::from_slice(&output.stdout).expect("one JSON object");
        Some(Ok(Answer(json)))
    }
}

/// The doctor's report.
#[derive(Debug)]
struct Answer(Value);

impl Answer {
    /// The verdict on one route.
    #[track_caller]
    fn route(&self, from: &str, to: &str, kind: &str) -> &Value {
        let routes = self.0["routes"].as_array().expect("routes");
        let fits = |r: &&Value| r["from"] == from && r["to"] == to && r["kind"] == kind;
        routes.iter().find(fits).unwrap_or_else(|| panic!("no {from} -> {to} {kind}: {self:?}"))
    }

    #[track_caller]
    fn proven(&self, from: &str, to: &str, kind: &str, zero_copy: bool) {
        let route = self.route(from, to, kind);
        assert_eq!(
            (&route["state"], &route["zero_copy"]),
            (&"proven".into(), &zero_copy.into()),
            "{route}"
        );
        assert!(route["envelope"]["max_bytes"].as_u64() >= Some(64 << 20), "{route}");
    }

    #[track_caller]
    fn refuted(&self, from: &str, to: &str, kind: &str, why: &str) {
        self.found(from, to, kind, "refuted", why);
    }

    /// Neither proven nor refuted: the route could not be tried.
    fn not_tried(&self, from: &str, to: &str, kind: &str, why: &str) {
        self.found(from, to, kind, "declared", why);
    }

    fn found(&self, from: &str, to: &str, kind: &str, state: &str, why: &str) {
        let route = self.route(from, to, kind);
        assert_eq!(route["state"], state, "{route}");
        let text = route["why"].as_str().expect("a reason");
        assert!(text.contains(why), "`{why}` is not in: {text}");
    }

    fn experiments(&self) -> u64 {
        self.0["experiments"].as_u64().expect("a number")
    }

    fn devices(&self) -> usize {
        self.0["devices"].as_array().map_or(0, Vec::len)
    }
}

/// Runs in a new cache, and must succeed; `None` without a C compiler.
fn doctor(mode: &str, words: &[&str], environment: &[(&str, &str)]) -> Option<Answer> {
    timed(mode, 10_000, words, environment)
}

fn timed(
    mode: &str,
    silence_ms: u32,
    words: &[&str],
    environment: &[(&str, &str)],
) -> Option<Answer> {
    let _quiet = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new("the doctor", Duration::from_secs(300));
    let cache = private_folder();
    // By default the doctor touches a gigabyte on each route, which is long on a busy machine.
    let words = [words, &["reach=67108864"]].concat();
    let run = Run { mode, cache: cache.path(), silence_ms, words: &words, environment };
    run.answer().map(|answer| answer.unwrap_or_else(|err| panic!("{mode}: {err}")))
}

fn private_folder() -> TempDir {
    tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir()
        .expect("a folder")
}

#[test]
fn good_is_proven_and_copies_nothing() {
    let Some(answer) = doctor("good", &["staged", "use"], &[]) else { return };
    answer.proven("host", "opencl:0", "host_pointer", true);
    answer.proven("opencl:0", "host", "host_pointer", true);
    answer.proven("opencl:0", "host", "svm_pointer", true);
    answer.proven("host", "opencl:0", "staged", false);
    answer.proven("opencl:0", "host", "staged", false);
    // Two contexts of one device.
    answer.proven("opencl:0", "opencl:0", "host_pointer", true);
    answer.proven("opencl:0", "opencl:0", "svm_pointer", true);
    assert_eq!(answer.experiments(), 7);
    assert_eq!(answer.0["use"]["forbidden"], Value::Null, "{answer:?}");
    assert_eq!(answer.0["use"]["route"], "host_pointer", "{answer:?}");
    assert_eq!(answer.0["use"]["implied_bytes"], 0, "{answer:?}");
}

#[test]
fn shadow_shares_but_copies() {
    let Some(answer) = doctor("shadow", &["use"], &[]) else { return };
    answer.proven("host", "opencl:0", "host_pointer", false);
    answer.proven("opencl:0", "host", "host_pointer", false);
    let used = &answer.0["use"];
    let forbidden = used["forbidden"].as_str().expect("forbidden");
    assert!(forbidden.contains("host -> opencl:0") && forbidden.contains("copies"), "{forbidden}");
    // Each map and unmap copies: back before the host writes, to the device, and back.
    assert_eq!(used["implied_bytes"], 3 * 40_000, "{used}");
}

#[test]
fn moving_has_a_copy_behind_its_maps() {
    let Some(answer) = doctor("moving", &[], &[]) else { return };
    answer.proven("opencl:0", "host", "host_pointer", false);
    let why = answer.route("opencl:0", "host", "host_pointer")["why"].as_str().expect("a reason");
    // Both statements are true of this driver, and either is accepted.
    assert!(why.contains("address moves") || why.contains("the hand-over copies"), "{why}");
    // Imported pages do not move, so that route is proven.
    answer.proven("host", "opencl:0", "host_pointer", true);
}

#[test]
fn one_page_left_behind_is_found() {
    let Some(answer) = doctor("last_page", &[], &[]) else { return };
    answer.refuted("host", "opencl:0", "host_pointer", "page 0 of 1 differs");
    answer.proven("opencl:0", "host", "host_pointer", true);
}

#[test]
fn memory_that_is_not_shared_is_refuted() {
    let Some(answer) = doctor("separate", &[], &[]) else { return };
    answer.refuted("host", "opencl:0", "host_pointer", "differs");
    let Some(answer) = doctor("stale_read", &[], &[]) else { return };
    answer.refuted("host", "opencl:0", "host_pointer", "differs");
    answer.refuted("opencl:0", "host", "host_pointer", "differs");
}

#[test]
fn a_crash_refutes_what_crashes() {
    let Some(answer) = doctor("crash", &[], &[]) else { return };
    answer.refuted("host", "opencl:0", "host_pointer", "signal 11");
    answer.refuted("opencl:0", "host", "host_pointer", "signal 11");
    answer.proven("opencl:0", "host", "svm_pointer", true); // fine-grained: nothing is mapped
    let Some(answer) = doctor("crash_kernel", &["staged"], &[]) else { return };
    for kind in ["host_pointer", "staged"] {
        answer.refuted("host", "opencl:0", kind, "signal 11");
        answer.refuted("opencl:0", "host", kind, "signal 11");
    }
}

#[test]
fn a_hang_is_refuted_in_time() {
    for mode in ["hang", "hang_map"] {
        let start = Instant::now();
        let Some(answer) = timed(mode, 3_000, &[], &[]) else { return };
        for (from, to) in [("host", "opencl:0"), ("opencl:0", "host")] {
            let route = answer.route(from, to, "host_pointer");
            assert_eq!(route["state"], "refuted", "{mode}: {route}");
            let why = route["why"].as_str().expect("a reason");
            assert!(why.contains("hung") || why.contains("timed out"), "{mode}: {why}");
        }
        // Three routes, each abandoned after 3 s of silence, and each tried again in a fresh helper, beside the other tests.
        assert!(start.elapsed() < Duration::from_secs(180), "{mode}: {:?}", start.elapsed());
    }
}

/// Held for writing beside a load, and for reading by tests that measure.
static QUIET: RwLock<()> = RwLock::new(());

/// Threads that compute for as long as this lives, several for each processor.
struct Load(Arc<AtomicBool>);

impl Load {
    fn new() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..4 * thread::available_parallelism().map_or(1, usize::from) {
            let ended = ended.clone();
            thread::spawn(move || {
                let mut x = 1u64;
                while !ended.load(Ordering::Relaxed) {
                    x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005) | 1);
                }
            });
        }
        Self(ended)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What cannot be measured beside a load stays declared, with the reason. It is neither refuted nor judged wrong.
#[test]
fn a_busy_machine_is_no_verdict() {
    let _watchdog = Watchdog::new("the doctor beside a load", Duration::from_secs(1200));
    let _alone = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let _load = Load::new();
    for (mode, zero_copy) in [("good", true), ("shadow", false)] {
        let cache = private_folder();
        // Small buffers: this is about timings.
        let words = &["from=host,opencl:0", "to=host,opencl:0", "reach=1048576"][..];
        let environment = &[][..];
        let run = Run { mode, cache: cache.path(), silence_ms: 10_000, words, environment };
        let Some(answer) = run.answer() else { return };
        let answer = answer.unwrap_or_else(|err| panic!("{mode}: {err}"));
        for (from, to) in [("host", "opencl:0"), ("opencl:0", "host")] {
            let route = answer.route(from, to, "host_pointer");
            let why = route["why"].as_str().expect("a reason");
            match route["state"].as_str() {
                Some("proven") => assert_eq!(route["zero_copy"], zero_copy, "{mode}: {route}"),
                Some("declared") => {
                    note(&format!("{mode}, {from} -> {to} beside a load: {why}"));
                    assert!(
                        ["not measured", "not known"].iter().any(|w| why.contains(w)),
                        "{route}"
                    );
                    let saved = Verdicts::load(cache.path()).unwrap().len();
                    assert!(saved < answer.experiments() as usize, "{mode}: it is not saved");
                }
                _ => panic!("{mode}: {route}"),
            }
        }
    }
}

#[test]
fn a_liar_is_found_out_and_harms_nobody() {
    let Some(answer) = doctor("liar", &[], &[]) else { return };
    assert_eq!(answer.devices(), 2, "{answer:?}");
    answer.refuted("opencl:0", "host", "svm_pointer", "");
    answer.proven("host", "opencl:0", "host_pointer", true);
}

#[test]
fn too_little_memory_and_a_lost_device_are_reasons() {
    let Some(answer) = doctor("oom", &[], &[]) else { return };
    answer.not_tried("host", "opencl:0", "host_pointer", "out of memory");
    answer.not_tried("opencl:0", "host", "host_pointer", "out of memory");
    answer.not_tried("opencl:0", "host", "svm_pointer", "out of memory");
    let Some(answer) = doctor("lost", &[], &[]) else { return };
    for (from, to) in [("host", "opencl:0"), ("opencl:0", "host")] {
        answer.refuted(from, to, "host_pointer", "CL_OUT_OF_RESOURCES");
    }
}

#[test]
fn nothing_there_is_a_fact_with_a_reason() {
    for mode in ["no_platforms", "no_devices"] {
        let Some(answer) = doctor(mode, &[], &[]) else { return };
        assert_eq!((answer.devices(), answer.experiments()), (1, 0), "{answer:?}");
        let missing = &answer.0["unavailable"][0];
        assert_eq!((&missing["api"], &missing["loaded"]), (&"opencl".into(), &true.into()));
        let reason = missing["reason"].as_str().expect("a reason");
        assert!(reason.contains("no platform"), "{mode}: {reason}");
        assert!(missing["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{mode}");
    }
}

#[test]
fn a_bad_driver_beside_a_good_one_harms_only_itself() {
    let two = [("ONEBUF_STUB_PLATFORMS", "2")];
    let Some(answer) = doctor("crash", &[], &two) else { return };
    assert_eq!(answer.devices(), 3, "{answer:?}");
    answer.proven("host", "opencl:0", "host_pointer", true);
    answer.proven("opencl:0", "host", "host_pointer", true);
    answer.refuted("host", "opencl:1", "host_pointer", "signal 11");
    answer.refuted("opencl:1", "host", "host_pointer", "signal 11");
    answer.refuted("opencl:0", "opencl:1", "host_pointer", "signal 11");
}

/// Runs the doctor until it has nothing left to try. A busy machine leaves routes declared, and they are tried again; a doctor that
/// remembers nothing would try all of them forever.
fn settled(run: impl Fn() -> Answer) -> Answer {
    let settled = (0..6).map(|_| run()).find(|answer| answer.experiments() == 0);
    settled.expect("verdicts are remembered")
}

#[test]
fn verdicts_are_remembered_until_something_changes() {
    let cache = private_folder();
    let quick = |words: &[&str], environment: &[(&str, &str)]| {
        // Refuted immediately, so that the cache dominates the time.
        let run =
            Run { mode: "separate", cache: cache.path(), silence_ms: 10_000, words, environment };
        run.answer()
    };
    let Some(first) = quick(&[], &[]) else { return };
    let first = first.unwrap();
    let experiments = first.experiments();
    assert_eq!(experiments, 5);
    let plain = || quick(&[], &[]).unwrap().unwrap();
    let routes = |answer: &Answer| answer.0["routes"].as_array().expect("routes").clone();
    let whole = routes(&settled(plain));
    assert_eq!(routes(&settled(plain)), whole);
    let is_found = |route: &&Value| route["state"] != "declared";
    assert!(routes(&first).iter().filter(is_found).all(|route| whole.contains(route)), "{first:?}");
    let newer = quick(&[], &[("ONEBUF_STUB_VERSION", "1.1")]).unwrap().unwrap();
    assert_eq!(newer.experiments(), experiments, "another driver version");
    let older = plain();
    assert_eq!(older.experiments(), 0, "the first driver's verdicts are still there");
    let fresh = quick(&["fresh"], &[]).unwrap().unwrap();
    assert_eq!(fresh.experiments(), experiments, "asked to try again");

    assert!(fresh.0["not_read"].is_null() && fresh.0["not_saved"].is_null(), "{fresh:?}");
}

/// A problem with the cache is reported and stops nothing; a damaged file is replaced.
#[test]
fn a_cache_that_cannot_be_used_stops_nothing() {
    let (cache, words, environment) = (private_folder(), &[][..], &[][..]);
    let (path, mode, silence_ms) = (cache.path(), "separate", 10_000);
    let quick = |cache: &Path| Run { mode, cache, silence_ms, words, environment }.answer();
    let Some(first) = quick(path) else { return };
    let experiments = first.unwrap().experiments();
    let file = path.join("verdicts.json");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let answer = quick(path).unwrap().unwrap();
    assert_eq!(answer.experiments(), experiments, "{answer:?}");
    let not_read = answer.0["not_read"].as_str().expect("a reason");
    assert!(not_read.contains("verdicts.json") && not_read.contains("doctor"), "{not_read}");
    assert!(answer.0["not_saved"].is_null(), "{answer:?}");
    settled(|| quick(path).unwrap().unwrap()); // it was replaced
    assert!(Verdicts::clear(path).unwrap() && !file.exists());

    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    let not_saved = |cache: &Path| {
        let answer = quick(cache).unwrap().unwrap();
        assert_eq!(answer.experiments(), experiments, "{answer:?}");
        answer.0["not_saved"].as_str().expect("a reason").to_owned()
    };
    let error = not_saved(path);
    assert!(error.contains("not private") && error.contains("chmod 700"), "{error}");
    assert!(!file.exists());
    // No folder can be created in /proc, not even by root.
    let error = not_saved(Path::new("/proc/onebuf"));
    assert!(error.contains("/proc/onebuf") && error.contains("not saved"), "{error}");
}

/// A driver that is slow during discovery proves nothing about the route: it is tried again.
#[test]
fn a_helper_that_is_silent_before_its_experiment_refutes_nothing() {
    let _quiet = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let Some(library) = stub() else { return };
    let builder = onebuf::builder().only(["host", "opencl"]).verdicts(Verdicts::default());
    let hub =
        builder.library("opencl", library.to_str().expect("a path in UTF-8")).build().unwrap();
    let cache = private_folder();
    let slow = cache.path().join("slow-helper");
    let exec = format!("exec '{}' \"$@\"", helper("doctor-helper").display());
    let script = format!("#!/bin/sh\nONEBUF_STUB_SLEEP_S=600 {exec}\n");
    fs::write(&slow, script).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o700)).unwrap();
    let host_pages = |route: &onebuf::topology::Route| {
        route.from == hub.host().index() && route.kind == RouteKind::HostPointer
    };
    let _watchdog = Watchdog::new("the doctor", Duration::from_secs(300));
    let examine = |helper: &Path, silence| {
        let doctor = Doctor::new(helper).unwrap().cache(cache.path()).silence(silence);
        doctor.run_where(&hub, host_pages, &mut |_| ()).unwrap()
    };
    let report = examine(&slow, Duration::from_millis(500));
    let verdict = &report.routes[0].verdict;
    assert_eq!(verdict.state, VerdictState::Declared, "{}", verdict.why);
    assert!(
        verdict.why.contains("not known") && verdict.why.contains("discovering"),
        "{}",
        verdict.why
    );
    assert_eq!(Verdicts::load(cache.path()).unwrap().len(), 0);
    let report = examine(&helper("doctor-helper"), Duration::from_secs(60));
    let verdict = &report.routes[0].verdict;
    assert_eq!((report.experiments, verdict.state), (1, VerdictState::Proven), "{}", verdict.why);
}

#[test]
fn a_helper_that_cannot_start_is_an_error() {
    let hub = onebuf::builder()
        .without(["opencl", "vulkan", "gl"])
        .fake(Default::default())
        .build()
        .unwrap();
    let cache = private_folder();
    let doctor = Doctor::new("/nowhere/onebuf").unwrap().cache(cache.path());
    let error = doctor.run(&hub, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("/nowhere/onebuf"), "{error}");
}

#[test]
fn a_real_driver_is_examined() {
    let _quiet = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let hub =
        onebuf::builder().without(["vulkan", "gl"]).verdicts(Verdicts::default()).build().unwrap();
    let Ok(pocl) = hub.device("Portable Computing Language") else {
        return absent("PoCL", "not found");
    };
    let cache = private_folder();
    let doctor = Doctor::new(helper("doctor-helper"))
        .unwrap()
        .cache(cache.path())
        .silence(Duration::from_secs(60));
    let pair = |route: &onebuf::topology::Route| {
        let ends = (route.from == hub.host().index(), route.to == pocl.index());
        ends == (true, true) && route.kind == RouteKind::HostPointer
    };
    let mut told = Vec::new();
    let report = doctor.run_where(&hub, pair, &mut |p| told.push((p.done, p.total))).unwrap();
    assert_eq!((report.routes.len(), report.experiments), (1, 1));
    let verdict = &report.routes[0].verdict;
    note(&format!("host -> PoCL host_pointer: {:?}, {}", verdict.state, verdict.why));
    assert_eq!(verdict.state, VerdictState::Proven, "{}", verdict.why);
    // Before it is looked up, tried and timed, and at the end.
    assert_eq!(told, [(0, 1), (0, 1), (0, 1), (1, 1)]);
    // A hub that loads the cache uses the verdict.
    let hub = onebuf::builder().without(["vulkan", "gl"]).cache(cache.path()).build().unwrap();
    let known = hub.topology().routes().iter().filter(|r| r.verdict.state == VerdictState::Proven);
    assert_eq!(known.count(), 1);
}

#[test]
fn a_hub_with_a_library_of_its_own_is_examined_with_it() {
    let _quiet = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let Some(library) = stub() else { return };
    let builder = onebuf::builder().only(["host", "opencl"]).verdicts(Verdicts::default());
    let hub =
        builder.library("opencl", library.to_str().expect("a path in UTF-8")).build().unwrap();
    let cache = private_folder();
    let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path());
    let host_pages = |route: &onebuf::topology::Route| {
        route.from == hub.host().index() && route.kind == RouteKind::HostPointer
    };
    let report = doctor.run_where(&hub, host_pages, &mut |_| ()).unwrap();
    let states: Vec<VerdictState> = report.routes.iter().map(|route| route.verdict.state).collect();
    assert_eq!(states, [VerdictState::Proven], "{:?}", report.routes);
}
