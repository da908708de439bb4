//! The toy is as CONTRIBUTING.md describes it: small, and with the same files as every backend.

use std::{fs, path::Path};

const FILES: [&str; 7] =
    ["lib.rs", "backend.rs", "device.rs", "memory.rs", "queue.rs", "event.rs", "program.rs"];

#[test]
fn every_backend_has_the_same_files() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = here.join("../../crates");
    let backends = ["host", "opencl", "cuda", "gl", "vulkan"];
    let mut all: Vec<_> = backends.iter().map(|b| crates.join(format!("onebuf-{b}"))).collect();
    all.push(here.to_owned());
    for file in all.iter().flat_map(|one| FILES.map(|name| one.join("src").join(name))) {
        assert!(file.is_file(), "{} is missing", file.display());
    }
}

#[test]
fn the_template_has_no_other_files_and_at_most_500_lines() {
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let mut lines = 0;
    for file in folder.map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(FILES.contains(&name), "{name} is in no list");
        lines += fs::read_to_string(&file).unwrap().lines().count();
    }
    assert!(lines <= 500, "{lines} lines");
}
