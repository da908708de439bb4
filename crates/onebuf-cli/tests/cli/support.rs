//! Runs the built program with a separate cache folder.

use serde_json::Value;
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};
use tempfile::TempDir;

pub struct Cli {
    cache: TempDir,
}

pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Cli {
    pub fn new() -> Self {
        Self { cache: tempfile::tempdir().expect("a folder for the cache") }
    }

    /// The path of the file of verdicts.
    pub fn verdicts(&self) -> PathBuf {
        self.cache.path().join("onebuf/verdicts.json")
    }

    /// The command, not yet started. Enables Mesa's OpenCL devices on the CPU, which are off by default.
    pub fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onebuf"));
        command.args(args.split_whitespace()).env("XDG_CACHE_HOME", self.cache.path());
        command.env("RUSTICL_ENABLE", "llvmpipe").env("LP_CL", "1");
        command.env_remove("ONEBUF_LOG").env_remove("NO_COLOR");
        command
    }

    pub fn run(&self, args: &str) -> Ran {
        self.command(args).output().expect("the program starts").into()
    }

    /// Runs the program as on a machine without any driver.
    pub fn run_bare(&self, args: &str) -> Ran {
        self.bare_command(args).output().expect("the program starts").into()
    }

    /// The command with the host alone, not yet started.
    pub fn bare_command(&self, args: &str) -> Command {
        let mut command = self.command(args);
        for api in ["OPENCL", "CUDA", "HIP", "VULKAN", "EGL"] {
            command.env(format!("ONEBUF_{api}_LIB"), "none");
        }
        command
    }
}

/// A folder for sockets that only this user can enter.
pub fn private() -> TempDir {
    let rights = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(rights).tempdir().expect("a folder")
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Ran {
    /// Asserts that the program succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that the program failed with this status, gave this reason on stderr, and left stdout empty.
    #[track_caller]
    pub fn failed(self, code: i32, why: &str) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert!(self.stderr.contains(why), "no `{why}` in: {}", self.stderr);
        assert_eq!(self.stdout, "");
        self
    }

    /// The program's JSON object.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok().stdout;
        let value: Value = serde_json::from_str(&text).expect("one JSON object and nothing else");
        assert_eq!(value["schema"], 2, "{text}");
        value
    }
}

/// Asserts that every row of a list has these fields, known or null.
#[track_caller]
pub fn assert_fields(rows: &Value, fields: &[&str]) {
    let rows = rows.as_array().unwrap_or_else(|| panic!("a list, not {rows}"));
    for row in rows {
        assert_has(row, fields);
    }
}

#[track_caller]
pub fn assert_has(object: &Value, fields: &[&str]) {
    for field in fields {
        assert!(object.get(field).is_some(), "no `{field}` in {object:#}");
    }
}

/// Reports that a test did not run; in strict mode that is a failure.
pub fn skip(why: &str) {
    let strict =
        std::env::var("ONEBUF_STRICT").is_ok_and(|level| level != "0" && !level.is_empty());
    assert!(!strict, "{why} (ONEBUF_STRICT)");
    // Directly to standard error, because the test harness hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "skip: {why}");
}
