//! Misuse that the types rule out: each file of `compile_fail/` must not compile, and for its reason.
//!
//! Each is compiled against the library that this test is linked with, so that nothing is built for it. The messages
//! are compared with the compiler version that wrote them, since their wording changes from one to the next. With any
//! other, each file must still fail, and with the same error codes. After a change:
//! `ONEBUF_WRITE_MESSAGES=1 cargo test -p onebuf --test compile_fail`.
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
const FOLDER: &str = "tests/compile_fail";

#[test]
fn misuse_does_not_compile() {
    if compiler().starts_with(WRITTEN_BY) {
        return in_threads(&cases(), compare_messages);
    }
    let mut out = std::io::stderr();
    let why =
        format!("only error codes are compared: written by {WRITTEN_BY}x, not {}", compiler());
    writeln!(out, "skip: messages of compile-fail tests: {why}").expect("stderr");
    in_threads(&cases(), |case| assert_eq!(codes_now(case), codes_written(case), "{case:?}"));
}

/// Each is a process of the compiler, so as many as there are processors.
fn in_threads(cases: &[PathBuf], test: fn(&Path)) {
    let lanes = std::thread::available_parallelism().map_or(2, Into::into);
    std::thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(lanes)) {
            scope.spawn(|| part.iter().for_each(|case| test(case)));
        }
    });
}

fn compare_messages(case: &Path) {
    let path = case.with_extension("stderr");
    let now = essence(&messages(case));
    if std::env::var_os("ONEBUF_WRITE_MESSAGES").is_some() {
        return fs::write(&path, now).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    }
    let written = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert!(now == written, "{case:?}: expected\n{written}\nbut the compiler says\n{now}");
}

/// What messages say of the case: without the compiler's summary, without lines of other files, which change with those,
/// and without lists of types, which change with what else is linked.
fn essence(messages: &str) -> String {
    const SUMMARY: [&str; 4] =
        ["error: aborting due to", "Some errors have", "For more information", "warning: "];
    let (mut kept, mut elsewhere, mut listing) = (String::new(), false, false);
    for line in messages.lines() {
        let place =
            line.trim_start().strip_prefix("--> ").or(line.trim_start().strip_prefix("::: "));
        let quoted = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
        let is_quoted = quoted.trim_start().starts_with('|') || line == "...";
        listing = listing && line.starts_with("        ");
        elsewhere = elsewhere && is_quoted;
        let is_summary = SUMMARY.iter().any(|words| line.starts_with(words))
            && (!line.starts_with("warning: ") || line.ends_with("emitted"));
        match place.filter(|place| !place.starts_with(FOLDER)) {
            Some(place) => {
                elsewhere = true;
                kept += &format!(" --> {}\n", owner(place));
            }
            None if elsewhere || listing || is_summary => (),
            None => kept += &format!("{}\n", narrow(line)),
        }
        listing |= line.ends_with("other types implement trait `Pod`:");
    }
    kept.trim_end().to_owned() + "\n"
}

/// A line with the margin that it would have without the numbers of other files' lines.
fn narrow(line: &str) -> String {
    let (text, margin) = (line.trim(), line.starts_with(' '));
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    match text.split_at(digits) {
        (number, rest) if digits > 0 && rest.trim_start().starts_with('|') => {
            format!("{number} {}", rest.trim_start())
        }
        _ if margin && text.starts_with("-->") => format!(" {text}"),
        _ if margin && text.starts_with(['|', '=']) => format!("  {text}"),
        _ => line.trim_end().to_owned(),
    }
}

/// Whose source a message points to.
fn owner(place: &str) -> &'static str {
    match place {
        _ if place.contains("/rustc/") || place.contains("/rustlib/") => "$RUST",
        _ if place.contains("/registry/") => "$CARGO",
        _ => "$ONEBUF",
    }
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
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

/// What the compiler says of a case; it must not compile.
fn messages(case: &Path) -> String {
    let test = std::env::current_exe().expect("this test's path");
    let deps = test.parent().expect("the folder of dependencies");
    let library = newest_library(deps);
    let out = tempfile::tempdir().expect("a scratch folder");
    let mut command = rustc();
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["--color", "never"]);
    command.args(["--edition", "2024", "--emit", "metadata", "--out-dir"]).arg(out.path());
    command.arg("--extern").arg(format!("onebuf={}", library.display())).arg("-L").arg(deps);
    let name = Path::new(FOLDER).join(case.file_name().expect("a case's name"));
    let output = command.arg(name).output().expect("rustc runs");
    assert!(!output.status.success(), "{case:?} compiles");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn codes_now(case: &Path) -> BTreeSet<String> {
    codes(&messages(case))
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
