//! What the packages say agrees with the sources, and cargo builds with the crates that a source package contains.
//!
//! The scripts in `packaging` make the packages; each says what it could not do.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// What stands behind `key` on the first line that begins with it, up to a comment.
fn value(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(key));
    let line = line.unwrap_or_else(|| panic!("no line begins with {key}"));
    line.split(" #").next().unwrap_or(line).trim().trim_matches('"').to_owned()
}

#[test]
fn every_package_has_the_version_of_the_sources() {
    let version = env!("CARGO_PKG_VERSION");
    let python = version.replace("-dev", ".dev0");
    assert_eq!(value(&read("CITATION.cff"), "version: "), version);
    assert_eq!(value(&read("packaging/conda/recipe.yaml"), "version: "), python);
    assert_eq!(value("a\n  version: 1 # why", "version: "), "1", "the control");
}

#[test]
fn the_recipe_asks_for_the_rust_that_the_sources_need() {
    let rust = value(&read("Cargo.toml"), "rust-version = ");
    assert_eq!(value(&read("packaging/conda/recipe.yaml"), "- rust >="), rust);
}

/// The commands of a workflow, with those that a step's block has.
fn commands(workflow: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut lines = workflow.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((before, first)) = line.split_once("run: ") else { continue };
        found.extend((first != "|").then_some(first));
        let inside = |line: &&str| line.len() - line.trim_start().len() > before.len();
        while let Some(line) = lines.next_if(inside) {
            found.push(line.trim());
        }
    }
    found
}

#[test]
fn the_workflow_calls_the_projects_own_script_and_nothing_else() {
    let text = read(".github/workflows/ci.yml");
    let found = commands(&text);
    let of_ours: Vec<_> = found.iter().filter(|one| !is_preparation(one)).collect();
    assert_eq!(of_ours, [&".ci/run"], "{found:?}");
    let two = commands("- run: |\n    cargo test\n    .ci/run\n- run: ./dev test\n");
    assert_eq!(two, ["cargo test", ".ci/run", "./dev test"], "the control");
    assert!(two.iter().all(|one| !is_preparation(one)), "the control");
}

/// Installs what `.ci/run` needs before it can start.
fn is_preparation(command: &str) -> bool {
    ["apt-get ", "curl ", "echo "].iter().any(|one| command.starts_with(one))
}

/// Two crates in a folder as `cargo vendor` makes it, and a package that uses one of them on Linux and the other elsewhere.
struct Vendored {
    folder: TempDir,
}

impl Vendored {
    fn new() -> Self {
        let this = Self { folder: TempDir::new().expect("a folder") };
        this.write(
            "Cargo.toml",
            "[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[dependencies]\nhere = \"1\"\n\
             [target.'cfg(windows)'.dependencies]\nthere = \"1\"\n",
        );
        this.write("src/lib.rs", "pub fn two() -> u32 { here::one() + 1 }\n");
        this.write(
            ".cargo/config.toml",
            "[source.crates-io]\nreplace-with = \"v\"\n[source.v]\ndirectory = \"vendor\"\n",
        );
        let mut lock = String::from("version = 3\n");
        for (name, sum) in [("here", "1"), ("there", "2")] {
            this.add_crate(name, &sum.repeat(64));
            lock += &format!(
                "[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n\
                 source = \"registry+https://github.com/rust-lang/crates.io-index\"\nchecksum = \"{}\"\n",
                sum.repeat(64)
            );
        }
        lock += "[[package]]\nname = \"user\"\nversion = \"0.0.0\"\ndependencies = [\"here\", \"there\"]\n";
        this.write("Cargo.lock", &lock);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    /// A crate with a test that loads a prebuilt library, whose recorded checksum is wrong: cargo compares it.
    fn add_crate(&self, name: &str, sum: &str) {
        let at = format!("vendor/{name}-1.0.0");
        self.write(
            &format!("{at}/Cargo.toml"),
            &format!(
                "[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nlicense = \"MIT/Zlib\"\n[[bench]]\nname = \"b\"\npath = \"benches/b.rs\"\n"
            ),
        );
        self.write(&format!("{at}/src/lib.rs"), "pub fn one() -> u32 { 1 }\n");
        self.write(&format!("{at}/benches/b.rs"), "fn main() {}\n");
        self.write(&format!("{at}/tests/x.dll"), "MZ");
        self.write(
            &format!("{at}/.cargo-checksum.json"),
            &format!("{{\"files\":{{\"tests/x.dll\":\"00\"}},\"package\":\"{sum}\"}}"),
        );
    }

    /// Runs `vendored.py`, for a build that needs only these crates. None: there is no Python.
    fn reduce(&self, needed: &str) -> Option<Output> {
        self.write("needed", needed);
        let script = root().join("packaging/vendored.py");
        let mut python = Command::new("python3");
        python.arg(script).args([self.path("vendor"), self.path("needed")]);
        python.env("PYTHONDONTWRITEBYTECODE", "1").output().ok()
    }

    fn builds(&self) -> Output {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let home = self.path("home");
        let mut check = Command::new(cargo);
        check.args(["check", "--quiet", "--locked", "--offline", "--target-dir"]);
        check.arg(self.path("target")).current_dir(self.folder.path()).env("CARGO_HOME", home);
        check.output().expect("cargo runs")
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_source_package_builds_with_the_crates_that_it_contains() {
    let vendored = Vendored::new();
    // The control: cargo compares the files of a crate with their checksums.
    let before = vendored.builds();
    assert!(!before.status.success() && stderr(&before).contains("x.dll"), "{}", stderr(&before));
    let Some(done) = vendored.reduce("here v1.0.0\nuser v0.0.0 (/a/path)\n") else {
        assert!(env::var_os("ONEBUF_STRICT").is_none(), "python3 does not run");
        eprintln!("skip: packaging/vendored.py: python3 is not installed");
        return;
    };
    assert!(done.status.success(), "{}", stderr(&done));
    let after = vendored.builds();
    assert!(after.status.success(), "{}", stderr(&after));
    let size = |name: &str| fs::metadata(vendored.path(name)).map(|file| file.len()).ok();
    assert_ne!(size("vendor/here-1.0.0/src/lib.rs"), Some(0));
    assert_eq!(size("vendor/there-1.0.0/src/lib.rs"), Some(0));
    assert_eq!(size("vendor/there-1.0.0/benches/b.rs"), Some(0), "the manifest names it");
    assert_eq!(
        (size("vendor/here-1.0.0/tests/x.dll"), size("vendor/there-1.0.0/tests")),
        (None, None)
    );
    let about = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(about.contains(" vendor/here-1.0.0/*\n vendor/there-1.0.0/*\n"), "{about}");
    assert!(about.contains("\nLicense: MIT or Zlib\n"), "{about}");
}

#[test]
fn a_crate_that_is_needed_must_be_kept() {
    let vendored = Vendored::new();
    let Some(done) = vendored.reduce("there v1.0.0\n") else { return }; // the other test says so
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(stderr(&vendored.builds()).contains("cannot find function `one`"));
    let none = vendored.reduce("elsewhere v1.0.0\n").expect("python3 ran");
    assert!(!none.status.success(), "a list that names none of the crates is a mistake");
}
