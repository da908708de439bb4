//! A bundle whose programs are scripts.

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, ExitStatus, Output},
};
use tempfile::TempDir;

const RUNNER: &str = env!("CARGO_BIN_EXE_onebuf-conformance");

/// A test program that passes two tests.
pub const PASSES: &str = "echo 'running 2 tests'
echo 'test a ... ok'
echo 'test b ... ok'
echo
echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'
exit 0";

/// A program that writes its number and that of a child to a file, and does not end.
pub const HANGS: &str = "sleep 600 &
echo $! >'MARK'
echo $$ >>'MARK'
wait";

/// `conformance`: the devices of an API, or two checks that pass and one that is skipped.
const CONFORMANCE: &str = r#"
host='{"id":"host","api":"host","name":"CPU","platform":"host","version":"1","driver":"1"}'
case $* in
    *'--devices --apis opencl'*) more=',{"id":"opencl:0","api":"opencl","name":"A device","platform":"A platform"}' ;;
    *'--devices --apis vulkan'*) more=',{"id":"vulkan:0","api":"vulkan","name":"Another","platform":"Vulkan"}' ;;
esac
case $* in
    *--devices*) echo "{\"devices\":[$host$more],\"unavailable\":[]}"; exit 0 ;;
esac
for case in a b; do echo "{\"case\":\"$case\",\"devices\":[],\"detail\":\"\",\"result\":\"passed\",\"why\":\"\"}"; done
echo '{"case":"c","devices":[],"detail":"","result":"not_applicable","why":"no local memory"}'
echo '{"checks":3}'
"#;

const DOCTOR: &str = r#"
echo '{"routes":[{"from":"host","to":"opencl:0","kind":"host_pointer","state":"proven","zero_copy":true,"why":"every page"}]}'
"#;

/// An unpacked bundle of scripts.
pub struct Bundle {
    folder: TempDir,
}

/// What a run did.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The report that was written; empty if there is none.
    pub report: String,
}

impl Bundle {
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let bundle = Self { folder };
        ["bin", "tests", "stub", "tmp", "cwd"]
            .iter()
            .for_each(|name| fs::create_dir(bundle.folder().join(name)).unwrap());
        fs::write(bundle.folder().join("onebuf-bundle"), "9.9.9\n").unwrap();
        let contents = Command::new(RUNNER).arg("--contents").output().unwrap();
        let contents = String::from_utf8(contents.stdout).unwrap();
        contents
            .lines()
            .filter(|file| file.starts_with("tests/"))
            .for_each(|file| bundle.script(file, PASSES));
        bundle.conformance("");
        bundle.script("bin/doctor-helper", DOCTOR);
        bundle
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces a program.
    pub fn script(&self, program: &str, text: &str) {
        let path = self.folder().join(program);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Replaces `conformance` by one that does something first.
    pub fn conformance(&self, first: &str) {
        self.script("bin/conformance", &format!("{first}\n{CONFORMANCE}"));
    }

    pub fn command(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(RUNNER);
        command.args(arguments).current_dir(self.folder().join("cwd"));
        command.env("ONEBUF_BUNDLE", self.folder()).env("TMPDIR", self.folder().join("tmp"));
        command.env_remove("ONEBUF_VULKAN_LIB").envs(environment.iter().copied());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[])
    }

    pub fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
        let Output { status, stdout, stderr } =
            self.command(arguments, environment).output().unwrap();
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
        assert_eq!(self.scratch_folders(), 0, "the folder of the run is left");
        Ran { status, stdout, stderr, report: self.report() }
    }

    pub fn report(&self) -> String {
        fs::read_to_string(self.folder().join("cwd/onebuf-conformance-report.txt"))
            .unwrap_or_default()
    }

    /// Folders for files of a run that were not removed.
    pub fn scratch_folders(&self) -> usize {
        fs::read_dir(self.folder().join("tmp")).unwrap().count()
    }
}

impl Ran {
    /// The one object on standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn rows(&self) -> Vec<Value> {
        self.json()["chapters"].as_array().expect("chapters").clone()
    }

    #[track_caller]
    pub fn row(&self, chapter: &str, device: &str) -> Value {
        let rows = self.rows();
        let found = rows.iter().find(|row| row["name"] == chapter && row["device"] == device);
        found.unwrap_or_else(|| panic!("no {chapter} on {device}: {self:?}")).clone()
    }
}
