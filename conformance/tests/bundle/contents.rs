//! No test program is forgotten: each is in the bundle, or left out for a reason.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Test programs that a bundle does not contain.
const LEFT_OUT: [(&str, &str); 4] = [
    ("bundle", "tests the runner"),
    ("leak", "needs Valgrind"),
    ("oclgrind", "needs Oclgrind"),
    ("suite", "its cases are run by `conformance`"),
];

/// The adapters of neighbours, whose test programs are in the bundle, too.
const NEIGHBOURS: [&str; 5] = ["ash", "cudarc", "glow", "opencl3", "wgpu"];

/// The test programs of a folder.
fn programs(folder: &Path) -> Vec<String> {
    let is_program = |path: &Path| {
        path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").exists()
    };
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let programs = all.filter(|path| is_program(path));
    programs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_test_program_is_in_the_bundle_or_left_out_for_a_reason() {
    let output = Command::new(env!("CARGO_BIN_EXE_onebuf-conformance")).arg("--contents").output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let bundled = output.lines().filter_map(|file| file.strip_prefix("tests/")).map(str::to_owned);
    let bundled: BTreeSet<String> = bundled.collect();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let neighbours = NEIGHBOURS.map(|name| here.join(format!("../crates/onebuf-{name}/tests")));
    let folders = neighbours.into_iter().chain([here.join("tests")]);
    let programs: BTreeSet<String> = folders.flat_map(|folder| programs(&folder)).collect();
    let left_out: BTreeSet<String> = LEFT_OUT.iter().map(|(name, _)| (*name).to_owned()).collect();
    let known: BTreeSet<String> = bundled.union(&left_out).cloned().collect();
    assert_eq!(programs, known, "conformance/src/bin/onebuf-conformance/chapters.rs, TESTS");
    assert!(bundled.is_disjoint(&left_out));
}
