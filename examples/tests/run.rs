//! Runs every example, with the devices of this machine and without OpenCL.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output},
};

/// In the order of running: example 2 plans with the verdicts that example 6 stores.
const EXAMPLES: [(&str, &str); 18] = [
    ("06-own-helper", "without a copy"),
    ("01-one-buffer", "the last square is"),
    ("02-two-platforms", "both took their turn"),
    ("03-explain-and-forbid", "refused, "),
    ("04-own-kernels-on-the-host", "host agrees"),
    ("05-async", "the sum is 549755289600"),
    ("07-sub-buffers", "two halves, two queues: 32767 and 1000000"),
    ("08-queues-and-profiles", "and the sum is 55"),
    ("09-buffer-flags", "its first number is 2"),
    ("10-local-memory", "local memory"),
    ("11-pool", "after 4 frames"),
    ("12-programs", "in steady state a launch takes"),
    ("13-wrap-foreign", "the caller's"),
    ("14-clfft-to-second-platform", "clFFT"),
    ("15-libraries", "the solution is [1.0, 2.0]"),
    ("16-cudarc", "cudarc"),
    ("17-two-processes", "made 3 of it"),
    ("18-graft", "graft"),
];

/// Cargo builds the examples before the tests, into a folder beside the tests' folder.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test's path");
    let folders = test.parent().and_then(|deps| deps.parent()).expect("target/debug/deps");
    let path: PathBuf = folders.join("examples").join(name);
    assert!(path.exists(), "{path:?} was not built");
    let mut command = Command::new(path);
    // Keeps the tests' verdicts out of the user's cache.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn said(command: &mut Command, phrase: &str) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the example starts");
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    assert!(out.contains(phrase), "{command:?} does not say `{phrase}`:\n{out}{err}");
    out
}

#[test]
fn examples_run_with_what_is_here() {
    let said = EXAMPLES.map(|(name, phrase)| said(&mut example(name), phrase));
    let [helper, _, platforms, ..] = &said;
    let two = !platforms.contains("the host stands in");
    // Example 2 must use the routes that example 6 proved. Drivers that do copy are not a failure of an example.
    if two && helper.contains("planned without a copy") {
        assert!(platforms.contains("implied: 0 bytes"), "proven, yet copied:\n{platforms}");
    } else {
        let line = "skip: zero copies between two OpenCL platforms: none were proven here";
        writeln!(std::io::stderr(), "{line}").expect("stderr");
    }
}

#[test]
fn examples_run_without_opencl() {
    for (name, phrase) in EXAMPLES {
        said(example(name).env("ONEBUF_OPENCL_LIB", "none"), phrase);
    }
}
