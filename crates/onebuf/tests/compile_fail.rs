//! Misuse that the types rule out: each file of `compile_fail/` must not compile, and for its reason.
//!
//! The whole messages are compared with the compiler version that wrote them, since their wording
//! changes from one to the next. With any other, each file must still fail, and with the same error
//! codes. After a change: `TRYBUILD=overwrite cargo test -p onebuf --test compile_fail`.
#![cfg(not(onebuf_shuttle))]

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// The minor version of the compiler that wrote the `.stderr` files.
const WRITTEN_BY: &str = "rustc 1.95.";

#[test]
fn misuse_does_not_compile() {
    if compiler().starts_with(WRITTEN_BY) {
        trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
        return;
    }
    let mut out = std::io::stderr();
    let why =
        format!("only error codes are compared: written by {WRITTEN_BY}x, not {}", compiler());
    writeln!(out, "skip: messages of compile-fail tests: {why}").expect("stderr");
    cases().iter().for_each(|case| assert_eq!(codes_now(case), codes_written(case), "{case:?}"));
}

/// The same by error codes alone, always, so that a change of compiler finds it working.
#[test]
fn error_codes_tell_the_reasons() {
    let cases = cases();
    assert!(cases.len() >= 12, "{cases:?}");
    for case in &cases {
        assert!(!codes_written(case).is_empty(), "{case:?} fails for no reason with a name");
    }
    let first = &cases[0];
    assert_eq!(codes_now(first), codes_written(first), "{first:?}");
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let entries = fs::read_dir(folder).expect("the folder of cases");
    let paths = entries.map(|entry| entry.expect("a case").path());
    let mut cases: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ext| ext == "rs")).collect();
    cases.sort();
    cases
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

fn compiler() -> String {
    let output = rustc().arg("--version").output().expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Compiles a case against the library that this test is linked with.
fn codes_now(case: &Path) -> BTreeSet<String> {
    let test = std::env::current_exe().expect("this test's path");
    let deps = test.parent().expect("the folder of dependencies");
    let library = newest_library(deps);
    let out = tempfile::tempdir().expect("a scratch folder");
    let mut command = rustc();
    command.args(["--edition", "2024", "--emit", "metadata", "--out-dir"]).arg(out.path());
    command.arg("--extern").arg(format!("onebuf={}", library.display())).arg("-L").arg(deps);
    let output = command.arg(case).output().expect("rustc runs");
    assert!(!output.status.success(), "{case:?} compiles");
    codes(&String::from_utf8_lossy(&output.stderr))
}

/// Cargo keeps older builds beside the newest.
fn newest_library(deps: &Path) -> PathBuf {
    let entries = fs::read_dir(deps).expect("the folder of dependencies").flatten();
    let named = |name: &str| name.starts_with("libonebuf-") && name.ends_with(".rlib");
    let ours = entries.filter(|entry| named(&entry.file_name().to_string_lossy()));
    let newest = ours.max_by_key(|entry| entry.metadata().and_then(|meta| meta.modified()).ok());
    newest.expect("the library beside this test").path()
}

fn codes_written(case: &Path) -> BTreeSet<String> {
    let path = case.with_extension("stderr");
    codes(&fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}")))
}

/// Every `E0123` that heads an error.
fn codes(messages: &str) -> BTreeSet<String> {
    let heads = messages.lines().filter_map(|line| line.strip_prefix("error["));
    heads.filter_map(|rest| rest.split(']').next()).map(str::to_owned).collect()
}
