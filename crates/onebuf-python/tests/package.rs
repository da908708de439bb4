//! The native module as a file: what the interpreter looks for is there, and nothing that it does not have is needed. `./dev test`
//! installs the package and runs the tests in Python that lie beside this file.

use std::{env, fs, path::PathBuf, process::Command};

/// The module that was built with this test.
fn module() -> PathBuf {
    let test = env::current_exe().expect("the test's own path");
    test.with_file_name("libonebuf_python.so")
}

fn readelf(option: &str) -> Option<String> {
    let told = Command::new("readelf").args([option, "--wide"]).arg(module()).output().ok()?;
    told.status.success().then(|| String::from_utf8_lossy(&told.stdout).into_owned())
}

#[test]
fn the_module_has_its_entry_point() {
    let bytes = fs::read(module()).expect("cargo builds the module before its tests");
    let has = |name: &[u8]| bytes.windows(name.len()).any(|at| at == name);
    assert!(has(b"PyInit__onebuf\0"));
    assert!(!has(b"PyInit__another\0"), "the control");
}

#[test]
fn the_module_needs_no_library_of_python() {
    let Some(needed) = readelf("-d") else {
        assert!(env::var_os("ONEBUF_STRICT").is_none(), "readelf does not run");
        eprintln!("skip: readelf: not installed");
        return;
    };
    assert!(needed.contains("libc.so"), "the control: {needed}");
    assert!(!needed.contains("libpython"), "{needed}");
}
