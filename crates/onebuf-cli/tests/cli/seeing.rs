//! Traces, HTML pages and `onebuf top`.

use crate::support::{Cli, private};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const HOST_ALONE: [&str; 5] = ["OPENCL", "CUDA", "HIP", "VULKAN", "EGL"];

/// The program on the host alone, with a folder for its sockets.
fn bare(cli: &Cli, args: &str, sockets: &Path) -> Command {
    let mut command = cli.command(args);
    for api in HOST_ALONE {
        command.env(format!("ONEBUF_{api}_LIB"), "none");
    }
    command.env("XDG_RUNTIME_DIR", sockets);
    command
}

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().expect("it can be ended");
        self.0.wait().expect("it ends");
    }
}

#[test]
fn the_demonstration_is_traced() {
    let (cli, folder) = (Cli::new(), private());
    let file = folder.path().join("out.json");
    let args = format!("demo --samples 64 --frames 4 --batch 1 --json --trace {}", file.display());
    let ran = bare(&cli, &args, folder.path()).output().expect("it starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let trace: Value = serde_json::from_slice(&fs::read(&file).expect("the file")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let of = |what: &str, name: &str| {
        events.iter().filter(|e| e["cat"] == what && e["name"] == name).count()
    };
    assert_eq!(
        (of("stage", "sink"), of("stage", "source")),
        (4, 5),
        "the source is asked once more"
    );
    assert!(of("copy", "write") >= 4 && trace["otherData"]["dropped"] == 0);
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let ways = report["account"].as_array().expect("where the time went");
    let sum = |parts: &Value| -> f64 {
        parts.as_array().into_iter().flatten().filter_map(|part| part["us"].as_f64()).sum()
    };
    for way in ways {
        let [work, idle] = [sum(&way["work"]), sum(&way["idle"])];
        let apart = way["frame_us"].as_f64().expect("a number") - work - idle;
        assert!(work > 0.0 && apart.abs() < 0.01, "the parts are the whole: {way}");
    }

    let absent = format!("demo --samples 64 --trace {}/absent/x.json", folder.path().display());
    let ran = bare(&cli, &absent, folder.path()).output().expect("it starts");
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("absent/x.json"));
}

#[test]
fn pages_are_written_where_they_are_wanted() {
    let (cli, folder) = (Cli::new(), private());
    for (command, title) in
        [("doctor", "onebuf doctor"), ("bench --quick route_lookup_ns", "onebuf bench")]
    {
        let page = folder.path().join("page.html");
        cli.run_bare(&format!("{command} --json --html {}", page.display())).json();
        let page = fs::read_to_string(&page).expect("the page");
        assert!(page.contains(&format!("<title>{title}</title>")), "{page}");
        cli.run_bare(&format!("{command} --html {}/absent/x", folder.path().display()))
            .failed(1, "absent/x");
    }
}

/// Names of a user and a host, in the environment and in the path of a library.
const PRIVATE: [&str; 4] = ["lovelace", "/home", "difference", "secret-project"];

/// The doctor on the host alone, where the loader's error names files of a user.
fn of_lovelace(cli: &Cli, args: &str) -> Command {
    let mut command = cli.bare_command(args);
    command.env("USER", "lovelace").env("HOME", "/home/lovelace");
    command.env("HOSTNAME", "difference.example.org");
    command.env("ONEBUF_CUDA_LIB", "/home/lovelace/secret-project/libcuda.so.1");
    command.env("ONEBUF_HIP_LIB", "lovelace-difference.so");
    command
}

#[test]
fn what_is_submitted_names_no_user_host_or_path() {
    let (cli, folder) = (Cli::new(), private());
    let file = folder.path().join("findings.json");
    let args = format!("doctor --json --submit {}", file.display());
    let ran = of_lovelace(&cli, &args).output().expect("it starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout).expect("JSON");
    let written = fs::read_to_string(&file).expect("the file");
    for name in PRIVATE {
        assert!(printed.contains(name), "the control: {name} in {printed}");
        assert!(!written.contains(name), "{name} in {written}");
    }
    assert!(
        written.contains("…/libcuda.so.1") && written.contains("<user>-<host>.so"),
        "{written}"
    );
    let findings = onebuf_verdicts::Findings::parse(&written).expect("findings");
    assert_eq!(findings.devices.len(), 1);
    assert_eq!(findings.unavailable.len(), 5);
    assert!(onebuf_verdicts::date::is_date(&findings.date) && findings.machine.kernel.is_some());
    // Every field of the doctor's object is there, but one that is about this machine's cache.
    let fields = |text: &str| -> Vec<String> {
        let value: Value = serde_json::from_str(text).expect("JSON");
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let mut wanted = fields(&printed);
    wanted.retain(|name| name != "saved");
    wanted.extend(["date", "machine", "onebuf"].map(str::to_owned));
    wanted.sort();
    assert_eq!(fields(&written), wanted);
}

#[test]
fn findings_that_cannot_be_written_are_a_failure() {
    let (cli, folder) = (Cli::new(), private());
    let absent = folder.path().join("absent/x.json");
    cli.run_bare(&format!("doctor --submit {}", absent.display())).failed(1, "absent/x.json");
    cli.run_bare(&format!("doctor --submit {}", folder.path().display())).failed(1, "directory");
}

#[test]
fn a_demonstration_can_be_looked_at() {
    let (cli, folder) = (Cli::new(), private());
    let run = |args: &str| bare(&cli, args, folder.path()).output().expect("it starts");
    let none = run("top");
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("no published program"));

    let mut demo = bare(&cli, "demo --samples 4096 --frames 4000000 --batch 1", folder.path());
    let demo =
        Running(demo.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    let start = Instant::now();
    let seen = loop {
        let ran = run("top --once --json");
        let seen: Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        if seen["pipelines"][0]["frames"].as_u64().is_some_and(|frames| frames > 0) {
            break seen;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{ran:?}");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!((&seen["schema"], &seen["pid"]), (&2.into(), &demo.0.id().into()));
    assert!(seen["buffers"].as_array().is_some_and(|all| all.iter().any(|b| b["name"] == "frame")));
    let text = run(&format!("top demo-{} --once", demo.0.id()));
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("pipeline demo:") && text.contains("hand-overs by sync method"),
        "{text}"
    );

    // `onebuf top` exits with the program that it shows.
    let mut top = bare(&cli, "top", folder.path());
    let mut top = top.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut out = BufReader::new(top.stdout.take().expect("its lines"));
    let mut lines = String::new();
    out.read_line(&mut lines).expect("the first");
    drop(demo);
    out.read_to_string(&mut lines).expect("the rest");
    assert!(top.wait().expect("it ends").success(), "{lines}");
    assert!(lines.contains(" frames, ") && lines.ends_with("has ended\n"), "{lines}");
}
