//! How processes end: with work pending, forked, or with a driver that hangs. Each runs in a separate process, as an
//! ignored test of this program.

use onebuf::{
    Error, MemoryKind,
    fake::{Delay, FakeConfig},
};
use onebuf_conformance::{Watchdog, absent, helper, on_message, stub};
use std::{
    env, fs,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Starts another process that runs one ignored test of this program.
fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    obeys_signals(&mut command);
    command
}

/// Restores default signals: a shell ignores SIGINT for background tests, `nohup` ignores SIGHUP, and children inherit that.
fn obeys_signals(command: &mut Command) {
    let obey = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: restores the default action of signals that have one.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: only `signal`, which is async-signal-safe, is called between fork and exec.
    unsafe { command.pre_exec(obey) };
}

/// A folder that is closed to other users, as sockets and caches require.
fn private_folder() -> tempfile::TempDir {
    let mut builder = tempfile::Builder::new();
    builder.permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

fn text(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}: {}", output.status, texts.join("\n"))
}

fn own_opencl() -> onebuf::HubBuilder {
    onebuf::builder().without(["cuda", "hip", "vulkan", "gl"]).verdicts(Default::default())
}

/// PoCL compiles a kernel at its first launch, and crashes if the process ends meanwhile.
#[test]
fn a_process_ends_well_with_work_pending() {
    const RUNS: usize = 6;
    let _watchdog = Watchdog::new("processes that end with work pending", Duration::from_secs(300));
    let mut crashed = Vec::new();
    for run in 0..RUNS {
        let cache = tempfile::tempdir().unwrap();
        let mut command = Command::new(helper("pending-work"));
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

/// Runs a closure in a forked child and returns how the child ended; SIGALRM ends a child that blocks.
fn forked(inside: impl FnOnce() -> i32) -> ExitStatus {
    // SAFETY: the child runs the closure and ends without unwinding or handlers; it uses only what this thread has.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork");
        if pid == 0 {
            libc::alarm(20);
            libc::_exit(inside());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        ExitStatus::from_raw(status)
    }
}

fn is_lost<T>(answer: onebuf::Result<T>) -> bool {
    matches!(answer, Err(Error::DeviceLost { reason, .. }) if reason.contains("fork"))
}

/// In a child no device of the hub works, nothing waits, and everything can be dropped. The parent's hub still works.
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
        let status = forked(|| {
            let answers = [
                is_lost(queue.finish()),
                is_lost(device.queue()),
                is_lost(onebuf::discover()),
                is_lost(
                    hub.buffer::<u32>(4096).shared_with([&device]).allocate_on(&device).build(),
                ),
                // Memory that the host accesses without the driver is still readable.
                buffer
                    .to_vec()
                    .map_or_else(|error| is_lost::<()>(Err(error)), |all| all == [7; 4096]),
                // The host backend needs no driver.
                onebuf::builder().only(["host"]).build().is_ok(),
            ];
            drop((pending, buffer, queue, device.clone()));
            answers.iter().position(|told| !told).map_or(0, |at| at as i32 + 1)
        });
        assert_eq!(status.code(), Some(0), "{device}: the answer with this number; {status}");
    }
    // Host pages are shared by parent and child, as `docs/threads.md` says.
    let pages = hub.buffer::<u32>(16).memory_kind(MemoryKind::HostPages).allocate_on(&hub.host());
    let pages = pages.build().unwrap();
    let status = forked(|| i32::from(pages.fill(2).is_err()));
    assert_eq!((status.code(), pages.to_vec().unwrap()), (Some(0), vec![2; 16]));
    // The parent's hub still works.
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

/// Forks while another thread is inside the driver and holds the queue's locks. No child waits for them.
#[test]
#[ignore = "started by `a_fork_amid_another_threads_calls_blocks_no_queue`"]
fn forks_amid_calls() {
    const FORKS: usize = 200;
    let hub = own_opencl().build().unwrap();
    let queue = hub.device("opencl:0").unwrap().queue().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                queue.finish().unwrap();
            }
        });
        let child = || i32::from(!is_lost(queue.finish()));
        let status = (0..FORKS).map(|_| forked(child)).find(|status| !status.success());
        over.store(true, Ordering::Relaxed);
        assert_eq!(status, None);
    });
}

#[test]
fn a_fork_amid_another_threads_calls_blocks_no_queue() {
    let Some(library) = stub() else { return };
    let _watchdog = Watchdog::new("forks amid calls", Duration::from_secs(120));
    let output = child("forks_amid_calls").env("ONEBUF_OPENCL_LIB", &library).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// Sends itself SIGTERM, which must end it.
#[test]
#[ignore = "started by `a_signal_ends_the_first_process_of_a_container_too`"]
fn is_signalled() {
    onebuf::peer::remove_sockets_on_signals().unwrap();
    // SAFETY: the signal goes to this process.
    assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
    thread::sleep(Duration::from_secs(20));
    std::process::exit(0);
}

/// Says something before a signal ends it.
#[test]
#[ignore = "started by `a_process_has_last_words`"]
fn is_signalled_with_words() {
    onebuf::peer::remove_sockets_on_signals().unwrap();
    onebuf::peer::before_signals_end(|| println!("replaced"));
    onebuf::peer::before_signals_end(|| println!("last words"));
    // SAFETY: the signal goes to this process.
    assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
    thread::sleep(Duration::from_secs(20));
    std::process::exit(0);
}

#[test]
fn a_process_has_last_words() {
    let _watchdog = Watchdog::new("a process that a signal ends", Duration::from_secs(90));
    let output = child("is_signalled_with_words").output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("last words") && !said.contains("replaced"), "{}", text(&output));
}

#[test]
fn a_signal_ends_the_first_process_of_a_container_too() {
    let _watchdog = Watchdog::new("processes that signals end", Duration::from_secs(90));
    let alone = child("is_signalled").output().unwrap();
    assert_eq!(alone.status.signal(), Some(libc::SIGTERM), "{}", text(&alone));
    let contained = ["--user", "--pid", "--fork"];
    match Command::new("unshare").args(contained).arg("true").output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => return absent("a namespace of processes", &text(&output)),
        Err(error) => return absent("unshare", &error.to_string()),
    }
    let mut command = Command::new("unshare");
    let process = child("is_signalled");
    command.args(contained).arg(process.get_program()).args(process.get_args());
    obeys_signals(&mut command);
    let first = command.output().unwrap();
    // The kernel drops a signal that the first process sends to itself, unless the main thread is still in the handler and
    // blocks it. Then another thread takes the signal, which ends the process, and `unshare` ends the same way.
    let ended = (first.status.code(), first.status.signal());
    let exited = (Some(128 + libc::SIGTERM), None);
    assert!(ended == exited || ended == (None, Some(libc::SIGTERM)), "{}", text(&first));
}

/// Sends signals to children of a process that has a socket.
#[test]
#[ignore = "started by `a_signal_to_a_forked_child_is_none_to_its_parent`"]
fn forks_with_a_socket() {
    onebuf::peer::remove_sockets_on_signals().unwrap();
    let folder = private_folder();
    let hub = onebuf::builder().only(["host"]);
    let hub = hub.build().unwrap();
    let buffer = hub.buffer::<u32>(16).memory_kind(MemoryKind::HostPages).allocate_on(&hub.host());
    let buffer = buffer.build().unwrap();
    let name = folder.path().join("name.sock");
    let offer = onebuf::peer::Offer::open(&buffer, name.to_str().unwrap()).unwrap();
    let files = || fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files(), 2, "a socket and its lock");
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let status = forked(|| {
            onebuf::peer::remove_sockets();
            // SAFETY: the signal goes to this process.
            unsafe { libc::raise(signal) }
        });
        assert_eq!(status.signal(), Some(signal), "{status}");
    }
    // The child installs the handler too.
    let status = forked(|| {
        onebuf::peer::remove_sockets_on_signals().unwrap();
        // SAFETY: as above; the handler's thread ends the process.
        unsafe { libc::raise(libc::SIGTERM) };
        thread::sleep(Duration::from_secs(15));
        0
    });
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
    // Gives a thread time to end this process, if it wrongly did.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(files(), 2, "the parent's");
    drop(offer);
    assert_eq!(files(), 0);
}

#[test]
fn a_signal_to_a_forked_child_is_none_to_its_parent() {
    let _watchdog = Watchdog::new("signals to a forked child", Duration::from_secs(90));
    let output = child("forks_with_a_socket").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// Creates a hub after the main thread's thread-locals, which a first hub had used, are gone.
#[test]
#[ignore = "started by `a_hub_can_be_made_in_an_exit_handler`"]
fn exits_with_a_new_hub() {
    extern "C" fn late() {
        let hub = own_opencl().build().unwrap();
        let device = hub.device("opencl:0").unwrap();
        device.queue().unwrap().finish().unwrap();
        eprintln!("made late");
    }
    // The child's only thread is its main thread; a test's thread is not. No driver was loaded before.
    let status = forked(|| {
        drop(own_opencl().build().unwrap());
        // SAFETY: the function takes no arguments, and aborts instead of unwinding.
        assert_eq!(unsafe { libc::atexit(late) }, 0);
        std::process::exit(0);
    });
    assert!(status.success(), "{status}");
}

#[test]
fn a_hub_can_be_made_in_an_exit_handler() {
    let Some(library) = stub() else { return };
    let _watchdog = Watchdog::new("a hub of an exit handler", Duration::from_secs(90));
    let mut command = child("exits_with_a_new_hub");
    let output = command.env("ONEBUF_OPENCL_LIB", &library).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("made late"), "{said}");
}

/// The number of voluntary context switches of the thread that watches driver calls; `None` before it has begun.
fn watchdogs_switches() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "onebuf-watchdog")
    };
    let task = tasks.into_iter().find(named)?;
    let status = fs::read_to_string(task.join("status")).unwrap();
    let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Some(switches.unwrap().trim().parse().unwrap())
}

/// Calls the driver, then does nothing.
#[test]
#[ignore = "started by `the_watchdog_of_an_idle_process_sleeps`"]
fn idles() {
    let hub = own_opencl().build().unwrap();
    let queue = hub.device("opencl:0").unwrap().queue().unwrap();
    queue.finish().unwrap();
    wait_until("nothing watches", || watchdogs_switches().is_some());
    let mut before = watchdogs_switches();
    wait_until("it wakes up all the time", || {
        thread::sleep(Duration::from_secs(2));
        std::mem::replace(&mut before, watchdogs_switches()) == before
    });
    // The next call wakes it again.
    queue.finish().unwrap();
    wait_until("it does not wake up", || watchdogs_switches() > before);
}

#[test]
fn the_watchdog_of_an_idle_process_sleeps() {
    let Some(library) = stub() else { return };
    let _watchdog = Watchdog::new("an idle process", Duration::from_secs(90));
    let output = child("idles").env("ONEBUF_OPENCL_LIB", &library).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// Maps a buffer of the stub, which hangs there in one mode; logs to standard error.
#[test]
#[ignore = "started by `a_driver_call_that_hangs_is_named`"]
fn maps() {
    let limit = Duration::from_millis(300);
    let hub = own_opencl().timeout(limit).build().unwrap();
    let device = hub.device("opencl:0").unwrap();
    on_message(tracing::Level::WARN, |message| eprintln!("warning: {message}"));
    let buffer = hub.buffer::<u32>(1024).shared_with([&device]).allocate_on(&device);
    let buffer = buffer.memory_kind(MemoryKind::MappedDevice).build().unwrap();
    thread::Builder::new()
        .name("the mapper".into())
        .spawn(move || buffer.map().map(|map| map[0]))
        .unwrap();
    thread::sleep(limit * 8);
    std::process::exit(0);
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
    // Each warning comes after twice the time: at 0.3, 0.6, 1.2 and 2.4 s.
    assert!(named <= 4, "{said}");
    let quiet = run("good");
    assert!(!quiet.contains("has not returned"), "{quiet}");
}

/// Returns the helper processes that were started with this cache.
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

/// A process that is killed at the end of its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A helper that hangs in its driver ends soon after the doctor, however the doctor ended.
#[test]
fn a_helper_does_not_outlive_its_doctor() {
    let Some(library) = stub() else { return };
    let _watchdog = Watchdog::new("helpers of a doctor that is gone", Duration::from_secs(200));
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
        let cache = private_folder();
        let mut doctor = Command::new(helper("doctor-helper"));
        doctor.arg(cache.path()).arg("600000").env("ONEBUF_OPENCL_LIB", &library);
        doctor.env("ONEBUF_STUB", "hang_map").env("ONEBUF_TEST_MARK", cache.path());
        for api in ["CUDA", "HIP", "VULKAN", "EGL"] {
            doctor.env(format!("ONEBUF_{api}_LIB"), "none");
        }
        obeys_signals(&mut doctor);
        let mut doctor = Ends(doctor.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait_until("no helper was started", || !helpers_of(cache.path()).is_empty());
        // Gives the helper time to enter the driver call that hangs.
        thread::sleep(Duration::from_millis(300));
        // SAFETY: the signal goes to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(doctor.0.id() as i32, signal) }, 0);
        let mut ended = None;
        wait_until("the doctor does not end by its signal", || {
            ended = doctor.0.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.signal()), Some(signal));
        wait_until("a helper outlives its doctor", || helpers_of(cache.path()).is_empty());
    }
}
