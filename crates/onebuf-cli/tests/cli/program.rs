//! Every command, its JSON field by field, and its exit status.

use crate::support::{Cli, Ran, assert_fields, assert_has, skip};
use serde_json::{Value, json};
use std::fs;

const DEVICE: [&str; 8] =
    ["id", "api", "name", "driver", "physical", "memory_bytes", "max_loop_iterations", "features"];
const MISSING: [&str; 6] = ["api", "tried", "loaded", "code", "reason", "hint"];
const ROUTE: [&str; 10] = [
    "from",
    "to",
    "kind",
    "state",
    "zero_copy",
    "why",
    "sync",
    "handoff_us",
    "gb_per_s",
    "envelope",
];
const DEMO: [&str; 23] = [
    "stages",
    "routes",
    "sync",
    "frames",
    "lost_packets",
    "incomplete_frames",
    "frame_us",
    "staged_frame_us",
    "handoff_us",
    "staged_handoff_us",
    "bytes_copied",
    "staged_bytes_copied",
    "speedup",
    "max_rel_error",
    "batch",
    "beams",
    "grafted",
    "not_grafted_why",
    "channels",
    "order",
    "dropped_frames",
    "stream",
    "detections",
];
const SYNC_METHODS: [&str; 6] =
    ["same_queue", "semaphore", "event", "wait_value", "callback", "host_wait"];

#[track_caller]
fn assert_device_lists(value: &Value) {
    assert_fields(&value["devices"], &DEVICE);
    assert_fields(&value["unavailable"], &MISSING);
    for device in value["devices"].as_array().unwrap() {
        assert_has(&device["physical"], &["uuid", "pci"]);
        let features = device["features"].as_array().unwrap();
        assert!(features.iter().all(Value::is_string), "{device:#}");
    }
    assert_eq!(value["devices"][0]["id"], "host");
    assert_eq!(value["devices"][0]["api"], "host");
}

#[track_caller]
fn assert_sync_method(value: &Value) {
    assert!(
        SYNC_METHODS.iter().any(|sync_method| value == sync_method),
        "not a sync method: {value}"
    );
}

#[test]
fn help_has_examples_everywhere() {
    let cli = Cli::new();
    for command in [
        "",
        "devices",
        "doctor",
        "plan",
        "demo",
        "send",
        "bench",
        "share",
        "attach",
        "cache",
        "completions",
    ] {
        let help = cli.run(&format!("{command} --help")).ok().stdout;
        assert!(help.contains("Examples:") && help.contains("onebuf "), "{command}: {help}");
        assert!(help.contains("--json"), "{command}");
    }
}

#[test]
fn version_names_the_drivers_and_what_is_missing() {
    let text = Cli::new().run_bare("--version").ok().stdout;
    assert!(text.starts_with(concat!("onebuf ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
    assert!(text.contains("host ") && text.contains("not available: opencl"), "{text}");
    let value = Cli::new().run_bare("--version --json").json();
    assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(value["drivers"][0]["device"], "host");
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = Cli::new().run(&format!("completions {shell}")).ok().stdout;
        for word in ["doctor", "forbid-copies", "samples", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(Cli::new().run("completions bash --json").json()["shell"], "bash");
}

#[test]
fn wrong_usage_is_status_2() {
    let cli = Cli::new();
    for (args, why) in [
        ("", "Usage"),
        ("--json", "name a command"),
        ("divices", "divices"),
        ("plan", "--devices"),
        ("plan --devices host --size 3apples", "3apples"),
        ("plan --devices host --bytes 0", "0"),
        ("plan --devices host --bytes 1 --size 1k", "--size"),
        ("plan --devices host --hint lucky", "cpu_preferred"),
        ("plan --devices host --memory-kind magic", "host_pages"),
        ("demo --devices host", "two devices"),
        ("demo --samples 1", "samples"),
        ("demo --samples 4097", "4096 or 4160"),
        ("demo --samples 2147483648", "at most"),
        ("demo --samples 4096 --channels 3", "power of two"),
        ("demo --samples 8388608 --channels 1", "from 2 to 4194304"),
        ("demo --channels 0", "channels"),
        ("demo --order 2", "3..=5"),
        ("demo --ring 0", "ring"),
        ("demo --ring 2 --batch 3", "no room"),
        ("demo --beams 0", "beams"),
        ("demo --batch 0", "batch"),
        ("demo --frames 0", "frames"),
        ("demo --source udp", "file:PATH"),
        ("bench nonsuch", "there are route_lookup_ns, "),
        ("bench --size 0", "0"),
        ("share --bytes 0", "0"),
        ("share --bytes 4k --elements 9", "--elements"),
        ("share --peers 0", "peers"),
        ("attach", "NAME|PATH"),
        ("attach x --rounds 0", "rounds"),
        ("cache", "clear"),
        ("completions brainfish", "bash"),
    ] {
        cli.run(args).failed(2, why);
    }
}

#[test]
fn devices_are_listed_as_the_contract_says() {
    let cli = Cli::new();
    let value = cli.run("devices --json").json();
    assert_device_lists(&value);
    let text = cli.run("devices").ok().stdout;
    assert!(text.contains("\nhost "));
    // Only Mesa's software rasteriser has this limit.
    for device in value["devices"].as_array().unwrap() {
        let (id, name) = (device["id"].as_str().unwrap(), device["name"].as_str().unwrap());
        let limit = name.starts_with("llvmpipe").then_some(65_535);
        assert_eq!(device["max_loop_iterations"].as_u64(), limit, "{device:#}");
        let note = format!("note: {id}: the driver ends all loops of a kernel after 65535 ");
        assert_eq!(text.contains(&note), limit.is_some(), "{text}");
    }
}

#[test]
fn an_api_that_is_switched_off_is_a_fact_with_a_reason() {
    let cli = Cli::new();
    let value = cli.run_bare("devices --json").json();
    assert_device_lists(&value);
    assert_eq!(value["devices"].as_array().unwrap().len(), 1);
    let missing = &value["unavailable"][0];
    assert_eq!((&missing["api"], &missing["loaded"]), (&json!("opencl"), &json!(false)));
    assert!(missing["reason"].as_str().unwrap().contains("ONEBUF_OPENCL_LIB"), "{missing}");
    let missing = value["unavailable"].as_array().unwrap();
    let apis: Vec<_> = missing.iter().map(|api| &api["api"]).collect();
    assert_eq!(apis, ["opencl", "cuda", "hip", "vulkan", "gl"]);
    assert!(cli.run_bare("devices").ok().stdout.contains("not available: opencl"));
}

#[test]
fn an_unknown_device_is_status_1_with_a_list() {
    let cli = Cli::new();
    for args in
        ["plan --devices nonsuch", "doctor --devices nonsuch", "demo --devices host,nonsuch"]
    {
        cli.run_bare(args)
            .failed(1, "onebuf: device `nonsuch`")
            .failed(1, "these were found: host (");
        cli.run_bare(&format!("{args} --json")).failed(1, "nonsuch");
    }
}

#[test]
fn a_plan_for_the_host_alone() {
    let cli = Cli::new();
    let value = cli.run("plan --devices host --size 1MiB --forbid-copies --json").json();
    assert_eq!(value["allocate_on"], "host");
    assert_eq!(value["routes"][0]["to"], "host");
    assert_fields(&value["routes"], &["to", "kind", "sync"]);
    assert_fields(&value["rejected"], &["to", "kind", "why"]);
    assert!(cli.run("plan --devices host").ok().stdout.starts_with("32 MiB on host"));
    assert!(cli.run("plan --devices host --explain").ok().stdout.contains("host: same"));
}

#[test]
fn the_cache_is_found_and_cleared() {
    let cli = Cli::new();
    let folder = cli.verdicts().parent().unwrap().to_owned();
    assert_eq!(cli.run("cache path --json").json()["path"], folder.to_str().unwrap());
    assert_eq!(cli.run("cache path").ok().stdout.trim_end(), folder.to_str().unwrap());
    assert_eq!(cli.run("cache clear --json").json()["cleared"], false);
    spoil(&cli);
    let cleared = cli.run("cache clear --json").json();
    assert_eq!((&cleared["cleared"], &cleared["path"]), (&json!(true), &json!(folder)));
    assert!(!cli.verdicts().exists());
}

#[test]
fn the_cache_is_counted_programs_too() {
    let cli = Cli::new();
    let folder = cli.verdicts().parent().unwrap().to_owned();
    let empty = cli.run("cache info --json").json();
    let held = |verdicts: Value, programs, bytes| json!({ "schema": 2, "path": folder, "verdicts": verdicts, "programs": programs, "bytes": bytes });
    assert_eq!(empty, held(json!(0), 0, 0));
    spoil(&cli);
    let programs = folder.join("programs");
    fs::create_dir(&programs).unwrap();
    fs::write(programs.join("0123456789abcdef.bin"), [0; 2048]).unwrap();
    fs::write(programs.join("my notes"), "not of this cache").unwrap();
    assert_eq!(cli.run("cache info --json").json(), held(Value::Null, 1, 2048 + 10));
    assert!(cli.run("cache info").ok().stdout.contains("1 program, 2.0 KiB"));
    let text = cli.run("cache clear").ok().stdout;
    assert!(text.starts_with("cleared ") && text.contains("1 program, 2.0 KiB"), "{text}");
    assert_eq!(cli.run("cache info --json").json(), held(json!(0), 0, 0));
    assert!(programs.join("my notes").exists() && !cli.verdicts().exists());
}

/// Writes an invalid file of verdicts.
fn spoil(cli: &Cli) {
    use std::os::unix::fs::PermissionsExt;
    let folder = cli.verdicts().parent().unwrap().to_owned();
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(cli.verdicts(), "{ not json").unwrap();
}

#[test]
fn a_spoilt_cache_is_told_and_replaced_by_the_doctor_alone() {
    let cli = Cli::new();
    spoil(&cli);
    let listed = cli.run_bare("devices --json");
    assert!(listed.stderr.contains("warning") && listed.stderr.contains("onebuf cache clear"));
    assert_device_lists(&listed.json());
    assert_eq!(fs::read(cli.verdicts()).unwrap(), b"{ not json");
    let report = cli.run_bare("doctor").ok();
    assert!(report.stderr.contains("verdicts.json") && report.stdout.contains("only one device"));
    assert_eq!(cli.run_bare("doctor --fresh").ok().stderr, "");
}

#[test]
fn the_log_is_silent_until_asked_for() {
    let cli = Cli::new();
    spoil(&cli);
    let log = |filter: &str| {
        let mut command = cli.command("plan --devices host --json");
        let output = command.env("ONEBUF_OPENCL_LIB", "none").env("ONEBUF_LOG", filter).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    assert!(!log("").contains("WARN"));
    assert!(log("warn").contains("WARN"));
    assert!(log("error,onebuf=warn").contains("WARN"));
    assert!(!log("warn,onebuf=error").contains("WARN"));
    let refused = log("no such=level=here");
    assert!(refused.contains("ONEBUF_LOG is invalid") && !refused.contains("WARN"));
}

#[test]
fn the_demo_runs_on_the_host_alone() {
    let cli = Cli::new();
    let value = cli.run_bare("demo --json --samples 4096 --frames 3 --beams 5").json();
    assert_has(&value, &DEMO);
    assert_eq!(value["stages"][0], json!({ "name": "delay+fft", "device": "host" }));
    assert_eq!(value["stages"][1], json!({ "name": "beams", "device": "host" }));
    assert_eq!((&value["batch"], &value["beams"]), (&json!(1), &json!(5)), "nothing to switch");
    assert_eq!((&value["frames"], &value["bytes_copied"]), (&json!(3), &json!(0)));
    assert!(value["staged_frame_us"].is_null() && value["speedup"].is_null());
    assert!(value["max_rel_error"].as_f64().unwrap() < 1e-5);
    assert!(cli.run_bare("demo --samples 64").ok().stdout.contains("Both stages ran on host"));
    cli.run_bare("demo --staged").failed(1, "two devices");
}

/// Full batches and a partial one: every frame is processed and checked.
#[test]
fn the_demo_runs_in_batches() {
    let cli = Cli::new();
    let value = cli.run_bare("demo --json --samples 1024 --frames 5 --batch 2").json();
    assert_eq!((&value["batch"], &value["frames"]), (&json!(2), &json!(5)));
    assert_eq!(value["batch_why"], "as asked");
    let text = cli.run_bare("demo --samples 64 --frames 8 --batch 8").ok().stdout;
    assert!(text.contains("8 frames per switch: as asked"), "{text}");
    cli.run_bare("demo --samples 64 --frames 2 --batch 3").failed(2, "--batch needs");
}

#[test]
fn the_demo_reads_files() {
    let cli = Cli::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let samples: Vec<u8> = (0..512u16).flat_map(|i| f32::from(i % 7).to_le_bytes()).collect();
    fs::write(file.path(), samples).unwrap();
    let source = format!("--source file:{}", file.path().display());
    cli.run_bare(&format!("demo --samples 96 {source}")).ok();
    cli.run_bare(&format!("demo --samples 272 {source}")).failed(1, "256 samples");
    cli.run_bare("demo --source file:/nonexistent").failed(1, "/nonexistent: No such file");
}

/// Drivers may print to standard output; with `--json` only the answer goes there.
#[test]
fn a_driver_that_prints_does_not_spoil_the_json() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("loud.c"), folder.path().join("libloud.so"));
    let text = "#include <unistd.h>\n__attribute__((constructor)) static void hello(void) \
                { if (write(1, \"LOUD\\n\", 5)) {} }\n";
    fs::write(&source, text).unwrap();
    let compiler = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    if !compiler.is_ok_and(|status| status.success()) {
        return skip("a_driver_that_prints: no C compiler");
    }
    let cli = Cli::new();
    let mut command = cli.command("devices --json");
    let ran = Ran::from(command.env("ONEBUF_OPENCL_LIB", &library).output().unwrap());
    assert!(ran.stderr.contains("LOUD"), "{}", ran.stderr);
    assert_device_lists(&ran.json());
}

/// The other commands on the real devices of this machine, in one test because experiments are slow.
#[test]
fn demo_doctor_and_plan_on_what_is_there() {
    let cli = Cli::new();
    let devices = cli.run("devices --json").json();
    if !devices["devices"].as_array().unwrap().iter().any(|device| device["api"] == "opencl") {
        return skip("demo_doctor_and_plan: no OpenCL device");
    }
    let demo = cli.run("demo --json --samples 4096 --frames 2").json();
    assert_demo(&demo);
    let batched = cli.run("demo --json --samples 4096 --frames 2 --batch 2").json();
    assert_demo(&batched);
    assert_eq!(batched["batch"], 2);
    let staged = cli.run("demo --json --samples 4096 --frames 2 --staged").json();
    assert!(staged["frame_us"].is_null() && staged["bytes_copied"].is_null());
    assert_eq!(staged["staged_bytes_copied"], 2 * 4096 * 8);

    let pair = [0, 1].map(|stage| demo["stages"][stage]["device"].as_str().unwrap().to_owned());
    let pair = pair.join(",");
    let report = cli.run(&format!("doctor --json --devices {pair}")).json();
    assert_device_lists(&report);
    assert_fields(&report["routes"], &ROUTE);
    assert_has(&report, &["experiments", "seconds"]);
    assert_fields(&report["grafts"], &["from", "to", "state", "why"]);
    let again = cli.run(&format!("doctor --devices {pair}")).ok().stdout;
    assert!(again.contains("proven") && again.contains("(0 experiments"), "{again}");

    let plan = cli.run(&format!("plan --devices {pair} --json")).json();
    assert_has(&plan, &["allocate_on", "routes", "rejected", "grafts"]);
    assert_fields(&plan["routes"], &["to", "kind", "sync"]);
}

#[track_caller]
fn assert_demo(demo: &Value) {
    assert_has(demo, &DEMO);
    assert_fields(&demo["stages"], &["name", "device"]);
    assert_fields(&demo["routes"], &["to", "kind", "sync"]);
    demo["sync"].as_array().unwrap().iter().for_each(assert_sync_method);
    for time in ["frame_us", "staged_frame_us", "speedup"] {
        assert!(demo[time].as_f64().unwrap() > 0.0, "{time} in {demo:#}");
    }
    assert_eq!(demo["frames"], 2);
    assert_eq!((&demo["lost_packets"], &demo["incomplete_frames"]), (&json!(0), &json!(0)));
    // Control: the ledger that reports no copies does count the staged bytes.
    assert_eq!(demo["staged_bytes_copied"], 2 * 4096 * 8);
    assert_has(demo, &["io_bytes_copied", "staged_io_bytes_copied"]);
    assert!(demo["max_rel_error"].as_f64().unwrap() < 1e-4);
}
