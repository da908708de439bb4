//! Fortran programs: the modules of `bindings/fortran`, and the examples.

use crate::{
    programs::found,
    support::{command, crate_folder, said, under_valgrind, workshop},
};
use onebuf_conformance::absent;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

const FLAGS: [&str; 6] = ["-std=f2008", "-Wall", "-Wextra", "-Werror", "-fimplicit-none", "-g"];
/// Run-time checks of gfortran, and the sanitizers. Without the alignment check, because gfortran 12 finalizes array components
/// at invalid addresses.
const CHECKED: [&str; 4] = [
    "-fcheck=all",
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
];

fn root() -> PathBuf {
    crate_folder().join("../..")
}

/// How programs are built.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Without checks, as users build them.
    Plain,
    /// With run-time checks and sanitizers.
    Checked,
}

/// A program, built as users build it.
pub fn plain(source: &str) -> Option<PathBuf> {
    How::Plain.program(source)
}

impl How {
    fn folder(self) -> PathBuf {
        workshop().join(if self == How::Plain { "fortran" } else { "fortran-checked" })
    }

    fn flags(self) -> &'static [&'static str] {
        if self == How::Plain { &["-O2"] } else { &CHECKED }
    }

    fn compiler(self) -> Command {
        let mut command = Command::new("gfortran");
        command.current_dir(self.folder()).args(FLAGS).args(self.flags()).args(["-J.", "-I."]);
        command
    }

    /// The object files of the modules and of code that tests and examples share. `None`, after a printed skip, if there is no
    /// compiler.
    fn objects(self) -> Option<&'static [PathBuf]> {
        static DONE: [OnceLock<Option<Vec<PathBuf>>>; 2] = [const { OnceLock::new() }; 2];
        DONE[self as usize].get_or_init(|| self.build()).as_deref()
    }

    fn build(self) -> Option<Vec<PathBuf>> {
        if Command::new("gfortran").arg("--version").output().is_err() {
            absent("gfortran", "not installed");
            return None;
        }
        fs::create_dir_all(self.folder()).expect("a folder for modules");
        let source = root().join("bindings/fortran/src");
        let order = fs::read_to_string(source.join("order.txt")).expect("the order of modules");
        let modules = order.lines().map(|name| source.join(format!("{name}.f90")));
        let shared = ["bindings/fortran/tests/checks.f90", "examples/fortran/gain.f90"];
        let sources = modules.chain(shared.map(|name| root().join(name)));
        Some(sources.map(|source| self.object(&source)).collect())
    }

    fn object(self, source: &Path) -> PathBuf {
        let object = self.folder().join(source.with_extension("o").file_name().expect("a name"));
        run(self.compiler().arg("-c").arg(source).arg("-o").arg(&object));
        object
    }

    fn program(self, source: &str) -> Option<PathBuf> {
        let objects = self.objects()?;
        let source = root().join(source);
        let program = self.folder().join(source.file_stem().expect("a name"));
        let mut command = self.compiler();
        command.arg(&source).args(objects).arg("-L").arg(workshop()).arg("-lonebuf");
        run(command.arg("-o").arg(&program));
        Some(program)
    }
}

fn run(command: &mut Command) {
    let Output { status, stderr, .. } = command.output().expect("gfortran starts");
    assert!(status.success(), "{command:?}\n{}", String::from_utf8_lossy(&stderr));
}

/// The devices whose kernel language these programs have.
fn speaking() -> impl Iterator<Item = &'static String> {
    let known = ["host", "opencl", "gl", "vulkan"];
    found().iter().filter(move |id| known.contains(&id.split(':').next().unwrap_or_default()))
}

/// A command that runs the program on that device, of any API.
fn at(program: &Path, device: &str) -> Command {
    let mut run = command(program);
    run.env("ONEBUF_DEVICE", device);
    run.env_remove("ONEBUF_EGL_LIB").env_remove("ONEBUF_VULKAN_LIB");
    run
}

fn on(program: &Path, device: &str) -> String {
    let mut run = at(program, device);
    run.arg(device);
    said(run)
}

/// Runs without drivers, which leak memory and have errors.
fn alone(mut command: Command) -> Command {
    command.env("ONEBUF_OPENCL_LIB", "none").env("ONEBUF_DEVICE", "host");
    command
}

#[test]
fn buffers_are_shared_and_freed_once() {
    let Some(plain) = How::Plain.program("bindings/fortran/tests/owners.f90") else { return };
    assert!(said(command(&plain)).contains("owners work"));
    let checked = How::Checked.program("bindings/fortran/tests/owners.f90").expect("a compiler");
    assert!(said(alone(command(&checked))).contains("owners work"));
    let Some(run) = under_valgrind(&plain) else { return };
    assert!(said(alone(run)).contains("owners work"));
}

#[test]
fn every_type_and_rank_on_every_device() {
    let Some(program) = How::Plain.program("bindings/fortran/tests/buffers.f90") else { return };
    for device in speaking() {
        assert!(on(&program, device).contains(&format!("buffers work on {device}")));
    }
    let checked = How::Checked.program("bindings/fortran/tests/buffers.f90").expect("a compiler");
    let mut run = alone(command(&checked));
    run.arg("host");
    assert!(said(run).contains("buffers work on host"));
}

#[test]
fn kernels_and_the_cpu_take_turns_on_every_device() {
    let Some(program) = How::Plain.program("bindings/fortran/tests/compute.f90") else { return };
    let told: Vec<String> = speaking().map(|device| on(&program, device)).collect();
    for (device, told) in speaking().zip(&told) {
        assert!(told.contains(&format!("compute works on {device}")), "{told}");
    }
    // PoCL runs kernels asynchronously, so that there is something to wait for.
    let waits = told.iter().any(|told| told.contains("timeouts are tried"));
    assert!(waits || told.len() == 1, "no driver let a wait time out");
    let checked = How::Checked.program("bindings/fortran/tests/compute.f90").expect("a compiler");
    let mut run = alone(command(&checked));
    run.arg("host");
    assert!(said(run).contains("compute works on host"));
}

#[test]
fn a_failure_without_stat_stops_the_program() {
    let Some(program) = How::Plain.program("bindings/fortran/tests/stops.f90") else { return };
    let Output { status, stdout, stderr } = command(&program).output().expect("it starts");
    let told = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && stdout.is_empty(), "{status}: it went on");
    assert!(told.contains("read_buffer: ") && told.contains("32 bytes at offset 0"), "{told}");
}

#[test]
fn examples_in_fortran_run_on_every_device() {
    let phrases = [
        ("01-drop-in", "the last element is  20.0"),
        ("02-pointers", "the last element is  20.0"),
        ("03-pipeline", "20 frames"),
    ];
    for (name, phrase) in phrases {
        let Some(program) = How::Plain.program(&format!("examples/fortran/{name}.f90")) else {
            return;
        };
        for device in speaking() {
            let said = on(&program, device);
            assert!(said.contains(phrase) && said.contains(device.as_str()), "{name}: {said}");
        }
    }
}

/// The number that follows a text.
fn number(said: &str, before: &str) -> u64 {
    let rest = said.split_once(before).unwrap_or_else(|| panic!("no `{before}`: {said}")).1;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().unwrap_or_else(|_| panic!("no number behind `{before}`: {said}"))
}

fn conv2d(program: &Path, mode: &str, device: &str) -> String {
    let mut run = at(program, device);
    run.args([mode, "1024", "2"]);
    said(run)
}

#[test]
fn a_convolution_with_unified_buffers_needs_half_the_memory() {
    let Some(program) = How::Plain.program("examples/fortran/04-conv2d.f90") else { return };
    for device in speaking() {
        let said = conv2d(&program, "both", device);
        assert!(said.contains("both agree"), "{said}");
        let (classic, unified) = said.split_once("unified: ").expect("two parts");
        let peak = [number(classic, "peak bytes "), number(unified, "peak bytes ")];
        assert_eq!(peak[0], 2 * peak[1]);
        assert!(number(classic, "asked to be moved ") >= 2 * 4 * 1024 * 1024);
        assert_eq!(number(unified, "asked to be moved "), 0);
    }
    // Host memory is shared by contract, so no copy is made even without verdicts.
    let free_of_copies = |said: &str| number(said, "implied ") == 0;
    assert!(free_of_copies(&conv2d(&program, "unified", "host")));
    // The system reports the difference too: two images of 4 MiB less, all pages of which were touched.
    let resident = |mode| number(&conv2d(&program, mode, "host"), "the process had ");
    let (classic, unified) = (resident("classic"), resident("unified"));
    assert!(unified + 6 * 1024 < classic, "{unified} KiB and {classic} KiB");
}

/// The page's code is part of an example that runs.
#[test]
fn the_page_shows_what_the_examples_do() {
    let text =
        |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let page = text(root().join("docs/fortran.md"));
    let folder = fs::read_dir(root().join("examples/fortran")).expect("the examples");
    let code: Vec<String> = folder.map(|entry| text(entry.expect("an entry").path())).collect();
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = squeezed(&code.join("\n"));
    let blocks = page.split("```fortran\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<&str> = blocks.filter(|block| !block.starts_with("! before")).collect();
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    for block in blocks {
        assert!(code.contains(&squeezed(block)), "no example has:\n{block}");
    }
}
