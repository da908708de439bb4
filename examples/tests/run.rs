//! Runs every example, with the devices of this machine and without OpenCL.
//!
//! An example that cannot compute on a machine says so with a sentence of its own. Only that sentence counts as a skip; everything
//! else must be the computed result.

use onebuf_conformance::{Hardware, absent, lacking, measured};
use std::{
    path::PathBuf,
    process::{Command, Output},
};

/// What an example cannot do without.
enum Needs {
    /// Devices that every machine has.
    Nothing,
    /// OpenCL, or a library that uses it. `./dev` installs both.
    OpenCl,
    /// An NVIDIA GPU.
    Nvidia,
}

/// An example.
struct Example {
    name: &'static str,
    /// A part of the result that it prints.
    result: &'static str,
    needs: Needs,
    /// What it prints if that is missing.
    missing: &'static str,
}

const fn anywhere(name: &'static str, result: &'static str) -> Example {
    Example { name, result, needs: Needs::Nothing, missing: "" }
}

const fn with_opencl(name: &'static str, result: &'static str, missing: &'static str) -> Example {
    Example { name, result, needs: Needs::OpenCl, missing }
}

const fn on_nvidia(name: &'static str, result: &'static str, missing: &'static str) -> Example {
    Example { name, result, needs: Needs::Nvidia, missing }
}

/// In the order of running: example 2 plans with the verdicts that example 6 stores.
const EXAMPLES: [Example; 19] = [
    with_opencl(
        "06-own-helper",
        ": Proven, zero-copy Some(",
        "no OpenCL here: the host needs no proof",
    ),
    anywhere("01-one-buffer", "the last square is"),
    anywhere("02-two-platforms", "both took their turn"),
    anywhere("03-explain-and-forbid", "refused, "),
    anywhere("04-own-kernels-on-the-host", "host agrees"),
    anywhere("05-async", "the sum is 549755289600"),
    anywhere("07-sub-buffers", "two halves, two queues: 32767 and 1000000"),
    anywhere("08-queues-and-profiles", "and the sum is 55"),
    anywhere("09-buffer-flags", "its first number is 2"),
    with_opencl(
        "10-local-memory",
        "numbers round, twice",
        "local memory needs an OpenCL device, and there is none here",
    ),
    anywhere("11-pool", "after 4 frames"),
    anywhere("12-programs", "in steady state a launch takes"),
    with_opencl(
        "13-wrap-foreign",
        "the caller waits for us by",
        "no OpenCL here: none of the caller's memory to wrap",
    ),
    with_opencl(
        "14-clfft-to-second-platform",
        "and transformed back: every sample is twice what it was",
        "clFFT or OpenCL is not here: nothing to transform",
    ),
    anywhere("15-libraries", "the solution is [1.0, 2.0]"),
    on_nvidia("16-cudarc", "cudarc multiplied on", "here: nothing for cudarc to do"),
    anywhere("17-two-processes", "made 3 of it"),
    on_nvidia(
        "18-graft",
        "ran in one stream of",
        "nothing to graft: no GPU that both OpenCL and CUDA see",
    ),
    anywhere("19-opencl-to-libraries", "16 channels, and each peak is in its bin"),
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

fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the example starts");
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out
}

/// Runs an example, which computes its result, or else lacks what it needs.
fn result(one: &Example) -> String {
    let out = said(&mut example(one.name));
    let computed = out.contains(one.result);
    match one.needs {
        _ if computed => {}
        Needs::OpenCl if out.contains(one.missing) => absent(one.name, one.missing),
        Needs::Nvidia if out.contains(one.missing) => {
            lacking(&[Hardware::Nvidia], &format!("{}: {}", one.name, one.missing));
        }
        _ => panic!("{} does not say `{}`:\n{out}", one.name, one.result),
    }
    out
}

#[test]
fn examples_run_with_what_is_here() {
    let said = EXAMPLES.each_ref().map(result);
    let [helper, _, platforms, ..] = &said;
    let turns = Turns { proof: helper.clone(), told: platforms.clone() };
    // Example 2 must use the routes that example 6 proved.
    if turns.are_proven() {
        return turns.assert_without_copies();
    }
    // These two drivers use host pages in place, so a proof is missing only because a measurement was disturbed.
    if ["Portable Computing Language", "rusticl"].iter().all(|name| platforms.contains(name)) {
        let again = measured(Turns::new, Turns::are_proven);
        assert!(again.are_proven(), "PoCL and rusticl share without a copy:\n{}", again.proof);
        return again.assert_without_copies();
    }
    let what = "zero copies between two OpenCL platforms";
    match Hardware::Nvidia.is_here() || Hardware::Amd.is_here() {
        // The drivers of a GPU may copy.
        true => lacking(&[], &format!("{what}: none were proven here")),
        false => absent(what, "PoCL and rusticl are not both here"),
    }
}

/// What example 6 says, and then example 2.
struct Turns {
    proof: String,
    told: String,
}

impl Turns {
    /// Without earlier verdicts.
    fn new() -> Turns {
        let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/again");
        let _ = std::fs::remove_dir_all(cache);
        let run = |name| said(example(name).env("XDG_CACHE_HOME", cache));
        Turns { proof: run("06-own-helper"), told: run("02-two-platforms") }
    }

    fn are_proven(&self) -> bool {
        self.proof.contains("planned without a copy") && !self.told.contains("the host stands in")
    }

    fn assert_without_copies(&self) {
        assert!(self.told.contains("implied: 0 bytes"), "proven, yet copied:\n{}", self.told);
    }
}

#[test]
fn examples_run_without_opencl() {
    for one in &EXAMPLES {
        let out = said(example(one.name).env("ONEBUF_OPENCL_LIB", "none"));
        let computed = out.contains(one.result);
        match one.needs {
            Needs::Nothing => assert!(computed, "{} without OpenCL:\n{out}", one.name),
            Needs::OpenCl => {
                assert!(!computed && out.contains(one.missing), "{}:\n{out}", one.name);
            }
            // CUDA alone may be enough.
            Needs::Nvidia => assert!(computed || out.contains(one.missing), "{}:\n{out}", one.name),
        }
    }
}
