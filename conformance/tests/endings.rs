//! How processes end: with work pending, forked, or with a driver that hangs. Each is a process of its own, an ignored test
//! of this program.

use onebuf::{
    Error, Hub,
    fake::{Delay, FakeConfig},
};
use onebuf_conformance::{Watchdog, absent, stub};
use std::{
    env, fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Another process, which runs one ignored test of this program.
fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

fn text(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}: {}", output.status, texts.join("\n"))
}

fn own_opencl() -> onebuf::HubBuilder {
    Hub::builder().without_cuda().without_hip().without_graphics().verdicts(Default::default())
}

/// PoCL compiles a kernel when it is first launched, and crashes when the process ends meanwhile.
#[test]
fn a_process_ends_well_with_work_pending() {
    const RUNS: usize = 6;
    let _watchdog = Watchdog::new("processes that end with work pending", Duration::from_secs(300));
    let mut crashed = Vec::new();
    for run in 0..RUNS {
        let cache = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pending-work"));
        command.env("POCL_CACHE_DIR", cache.path()).arg(["forget", "drop", "thread"][run % 3]);
        let output = command.output().unwrap();
        match output.status.code() {
            Some(0) => {}
            Some(77) => return absent("PoCL", "no device of its"),
            _ => crashed.push(text(&output)),
        }
    }
    assert!(crashed.is_empty(), "{} of {RUNS} runs: {}", crashed.len(), crashed[0]);
}

/// What a forked child of a process with that hub sees: an exit status, by the kernel.
fn forked(inside: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs the closure and ends without unwinding or handlers; it uses what this thread has.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork");
        if pid == 0 {
            libc::_exit(inside());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        std::process::ExitStatus::from_raw(status).code().unwrap_or(-1)
    }
}

fn is_lost<T>(answer: onebuf::Result<T>) -> bool {
    matches!(answer, Err(Error::DeviceLost { reason, .. }) if reason.contains("fork"))
}

/// In a child nothing of the hub works, nothing waits, and all of it can be dropped. The parent does not notice.
#[test]
#[ignore = "started by `a_forked_child_is_told_so`"]
fn forks() {
    let slow =
        FakeConfig { delay: Delay::Fixed(Duration::from_millis(200)), ..FakeConfig::default() };
    let hub = own_opencl().fake(slow).build().unwrap();
    for device in hub.devices().into_iter().filter(|device| device.id() != "host") {
        let queue = device.queue().unwrap();
        let buffer = hub.buffer::<u32>(4096).shared_with([&device]).allocate_on(&device);
        let buffer = buffer.build().unwrap();
        buffer.write(&[7; 4096]).unwrap();
        let pending = buffer.read_async(.., vec![0; 4096]).unwrap();
        let start = Instant::now();
        let code = forked(|| {
            let answers = [
                is_lost(queue.finish()),
                is_lost(device.queue()),
                is_lost(Hub::discover()),
                is_lost(
                    hub.buffer::<u32>(4096).shared_with([&device]).allocate_on(&device).build(),
                ),
                // What the host sees without the driver's help it still sees.
                buffer
                    .to_vec()
                    .map_or_else(|error| is_lost::<()>(Err(error)), |all| all == [7; 4096]),
                // The host alone needs no driver.
                Hub::builder()
                    .without_opencl()
                    .without_cuda()
                    .without_hip()
                    .without_graphics()
                    .build()
                    .is_ok(),
            ];
            drop((pending, buffer, queue, device.clone()));
            answers.iter().position(|told| !told).map_or(0, |at| at as i32 + 1)
        });
        assert_eq!(code, 0, "{device}: the answer with this number");
        assert!(start.elapsed() < Duration::from_secs(20), "{device}: {:?}", start.elapsed());
    }
    // The parent's hub is as it was.
    for device in hub.devices() {
        let buffer = hub.buffer::<u32>(16).shared_with([&device]).build().unwrap();
        buffer.write(&[3; 16]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; 16], "{device}");
    }
}

#[test]
fn a_forked_child_is_told_so() {
    let _watchdog = Watchdog::new("forks", Duration::from_secs(120));
    let output = child("forks").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// Maps a buffer of the stub, which hangs there in one of its parts; with the log on standard error.
#[test]
#[ignore = "started by `a_driver_call_that_hangs_is_named`"]
fn maps() {
    let limit = Duration::from_millis(300);
    let hub = own_opencl().timeout(limit).build().unwrap();
    let device = hub.device("opencl:0").unwrap();
    tracing::subscriber::set_global_default(Log).unwrap();
    let buffer = hub.buffer::<u32>(1024).shared_with([&device]).allocate_on(&device);
    let buffer = buffer.strategy(onebuf::Strategy::MappedDevice).build().unwrap();
    thread::Builder::new()
        .name("the mapper".into())
        .spawn(move || buffer.map().map(|map| map[0]))
        .unwrap();
    thread::sleep(limit * 8);
    std::process::exit(0);
}

/// Writes warnings to standard error.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Words(String);
        impl tracing::field::Visit for Words {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut words = Words(String::new());
        event.record(&mut words);
        eprintln!("warning: {}", words.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_driver_call_that_hangs_is_named() {
    let Some(library) = stub() else { return };
    let _watchdog = Watchdog::new("a driver call that hangs", Duration::from_secs(60));
    let run = |part: &str| {
        let mut command = child("maps");
        let output = command.env("ONEBUF_OPENCL_LIB", &library).env("ONEBUF_STUB", part).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{part}: {}", text(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run("hang_map");
    let named = said.matches("clEnqueueMapBuffer on opencl:0").count();
    assert!(
        named >= 2 && said.contains("has not returned for 0.") && said.contains("the mapper"),
        "{said}"
    );
    // Twice as late each time: at 0.3, 0.6, 1.2 and 2.4 s.
    assert!(named <= 4, "{said}");
    let quiet = run("good");
    assert!(!quiet.contains("has not returned"), "{quiet}");
}

/// The processes that are this program's helper, by their parents' cache.
fn helpers_of(cache: &Path) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    let mine = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mark = format!("ONEBUF_TEST_MARK={}", cache.display());
        let is_helper = fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("onebuf-doctor-helper"));
        is_helper && String::from_utf8_lossy(&environment).contains(&mark)
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(mine).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A helper that hangs in its driver is gone soon after the doctor, however that ended.
#[test]
fn a_helper_does_not_outlive_its_doctor() {
    let Some(library) = stub() else { return };
    let _watchdog = Watchdog::new("helpers of a doctor that is gone", Duration::from_secs(90));
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
        let cache =
            tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir();
        let cache = cache.unwrap();
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_doctor-helper"));
        doctor.arg(cache.path()).arg("600000").env("ONEBUF_OPENCL_LIB", &library);
        doctor.env("ONEBUF_STUB", "hang_map").env("ONEBUF_TEST_MARK", cache.path());
        for api in ["CUDA", "HIP", "VULKAN", "EGL"] {
            doctor.env(format!("ONEBUF_{api}_LIB"), "none");
        }
        let mut doctor = doctor.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("no helper was started", || !helpers_of(cache.path()).is_empty());
        // Time to get into the driver that hangs.
        thread::sleep(Duration::from_millis(300));
        // SAFETY: a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(doctor.id() as i32, signal) }, 0);
        assert_eq!(doctor.wait().unwrap().signal(), Some(signal));
        wait_until("a helper outlives its doctor", || helpers_of(cache.path()).is_empty());
    }
}
