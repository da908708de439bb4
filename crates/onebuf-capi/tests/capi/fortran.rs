//! Fortran programs: the modules of `bindings/fortran`, and the examples.

use crate::{
    programs::found,
    support::{OPENCL, command, crate_folder, said, under_valgrind, workshop},
};
use onebuf_conformance::{absent, cuda_stub, note};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Stages of pipelines run on threads of their own: with `-frecursive` no local variable is shared by the callers of a procedure, and the
/// check for recursion, which takes a second thread for a recursive call, is off.
const FLAGS: [&str; 7] =
    ["-std=f2008", "-Wall", "-Wextra", "-Werror", "-fimplicit-none", "-frecursive", "-g"];
/// Run-time checks of gfortran, and the sanitizers. Without the alignment check, because gfortran 12 finalizes array components
/// at invalid addresses.
const CHECKED: [&str; 4] = [
    "-fcheck=all",
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
];

pub fn root() -> PathBuf {
    crate_folder().join("../..")
}

/// Names of LLVM's compiler. The first that is installed is used.
const FLANGS: [&str; 5] = ["flang-new-19", "flang-19", "flang-20", "flang-new", "flang"];

/// How programs are built.
#[derive(Clone, Copy, PartialEq)]
pub enum How {
    /// Without checks, as users build them.
    Plain,
    /// With run-time checks and sanitizers.
    Checked,
    /// By LLVM's compiler.
    Flang,
}

/// One way for each compiler.
pub const BOTH: [How; 2] = [How::Plain, How::Flang];

/// A program, built as users build it.
pub fn plain(source: &str) -> Option<PathBuf> {
    How::Plain.program(source)
}

/// Whether a compiler starts.
fn starts(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok()
}

impl How {
    fn folder(self) -> PathBuf {
        workshop().join(["fortran", "fortran-checked", "fortran-flang"][self as usize])
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            How::Plain => &["-O2"],
            How::Checked => &CHECKED,
            How::Flang => &["-O1", "-Werror", "-std=f2018", "-module-dir", ".", "-I."],
        }
    }

    /// The compiler; `None`, after a printed skip, if it is not installed.
    fn compiler(self) -> Option<Command> {
        let name = match self {
            How::Flang => FLANGS.into_iter().find(|name| starts(name)),
            _ => Some("gfortran").filter(|name| starts(name)),
        };
        let Some(name) = name else {
            match self {
                // Not every distribution has it.
                How::Flang => note("skip: flang: not installed"),
                _ => absent("gfortran", "not installed"),
            }
            return None;
        };
        let mut command = Command::new(name);
        command.current_dir(self.folder());
        if self != How::Flang {
            command.args(FLAGS).args(["-J.", "-I."]);
        }
        command.args(self.flags());
        Some(command)
    }

    /// The object files of the modules and of code that tests and examples share. `None`, after a printed skip, if there is no
    /// compiler.
    fn objects(self) -> Option<&'static [PathBuf]> {
        static DONE: [OnceLock<Option<Vec<PathBuf>>>; 3] = [const { OnceLock::new() }; 3];
        DONE[self as usize].get_or_init(|| self.build()).as_deref()
    }

    fn build(self) -> Option<Vec<PathBuf>> {
        fs::create_dir_all(self.folder()).expect("a folder for modules");
        let modules = order().into_iter().map(|name| sources().join(format!("{name}.f90")));
        let shared = ["bindings/fortran/tests/checks.f90", "examples/fortran/gain.f90"];
        let sources = modules.chain(shared.map(|name| root().join(name)));
        sources.map(|source| self.object(&source)).collect()
    }

    fn object(self, source: &Path) -> Option<PathBuf> {
        let object = self.folder().join(source.with_extension("o").file_name().expect("a name"));
        run(self.compiler()?.arg("-c").arg(source).arg("-o").arg(&object));
        Some(object)
    }

    pub fn program(self, source: &str) -> Option<PathBuf> {
        self.program_with(source, &[])
    }

    pub fn program_with(self, source: &str, more: &[&str]) -> Option<PathBuf> {
        // One at a time, and once: another test may be running the program.
        static DONE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        let objects = self.objects()?;
        let source = root().join(source);
        let program = self.folder().join(source.file_stem().expect("a name"));
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !done.contains(&program) {
            let mut command = self.compiler()?;
            command.arg(&source).args(objects).arg("-L").arg(workshop()).arg("-lonebuf").args(more);
            run(command.arg("-o").arg(&program));
            done.insert(program.clone());
        }
        Some(program)
    }
}

pub fn sources() -> PathBuf {
    root().join("bindings/fortran/src")
}

/// The modules' files, in the order of compiling.
pub fn order() -> Vec<String> {
    let text = fs::read_to_string(sources().join("order.txt")).expect("the order of modules");
    text.lines().map(str::to_owned).collect()
}

fn run(command: &mut Command) {
    let Output { status, stderr, .. } = command.output().expect("the compiler starts");
    assert!(status.success(), "{command:?}\n{}", String::from_utf8_lossy(&stderr));
}

/// The devices whose kernel language these programs have.
pub fn speaking() -> impl Iterator<Item = &'static String> {
    let known = ["host", "opencl", "gl", "vulkan"];
    found().iter().filter(move |id| known.contains(&id.split(':').next().unwrap_or_default()))
}

/// A command that runs the program on that device, of any API.
pub fn at(program: &Path, device: &str) -> Command {
    let mut run = command(program);
    run.env("ONEBUF_DEVICE", device);
    run.env_remove("ONEBUF_EGL_LIB").env_remove("ONEBUF_VULKAN_LIB");
    run
}

pub fn on(program: &Path, device: &str) -> String {
    let mut run = at(program, device);
    run.arg(device);
    said(run)
}

/// Runs without drivers, which leak memory and have errors.
pub fn alone(mut command: Command) -> Command {
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

/// The forms of the interface that users write, one program for each.
const ROWS: [&str; 15] = [
    "bind",
    "constants",
    "cpu_pointer",
    "create",
    "fallback",
    "fence_create",
    "fence_wait_call",
    "fence_wait_function",
    "flush",
    "own_gpu_compute",
    "state",
    "sync_destroy",
    "valid",
    "write_read",
    "write_safe",
];

fn row(name: &str) -> String {
    format!("bindings/fortran/tests/rows/{name}.f90")
}

#[test]
fn every_form_of_the_interface_compiles_as_users_write_it() {
    let folder = fs::read_dir(root().join("bindings/fortran/tests/rows")).expect("the rows");
    let files: BTreeSet<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
    let stems: Vec<_> = files.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
    assert_eq!(stems, ROWS, "every program of the folder runs here");
    for name in ROWS {
        let Some(program) = How::Plain.program(&row(name)) else { return };
        for device in speaking() {
            let said = on(&program, device);
            assert!(said.contains(&format!("row {name} works")), "{device}: {said}");
        }
    }
}

/// Needs no flag beyond the standard's: the second compiler takes the same files.
#[test]
fn a_second_compiler_builds_everything() {
    for name in ROWS {
        let Some(program) = How::Flang.program(&row(name)) else { return };
        assert!(on(&program, "host").contains(&format!("row {name} works")), "{name}");
    }
    let mut devices = speaking();
    let device = devices.find(|id| id.starts_with("opencl")).map_or("host", String::as_str);
    for name in
        ["buffers", "compute", "owners", "pools", "batches", "rings", "every_stat", "messages"]
    {
        let source = format!("bindings/fortran/tests/{name}.f90");
        on(&How::Flang.program(&source).expect("a compiler"), device);
    }
    for name in [
        "01-drop-in",
        "02-pointers",
        "03-pipeline",
        "04-conv2d",
        "05-ring",
        "06-stages",
        "07-c-interface",
        "08-without-waiting",
    ] {
        let source = format!("examples/fortran/{name}.f90");
        let program = How::Flang.program(&source).expect("a compiler");
        if name != "04-conv2d" {
            on(&program, device);
        }
    }
}

/// Runs a test program on the devices, and once more with run-time checks on the host if it runs there.
pub fn works(name: &str, on_host: bool, phrase: &str) {
    let source = format!("bindings/fortran/tests/{name}.f90");
    let Some(program) = How::Plain.program(&source) else { return };
    for device in speaking().filter(|id| on_host || id.starts_with("opencl")) {
        let said = on(&program, device);
        assert!(said.contains(phrase), "{name} on {device}: {said}");
    }
    if on_host {
        let checked = How::Checked.program(&source).expect("a compiler");
        let mut run = alone(command(&checked));
        run.arg("host");
        assert!(said(run).contains(phrase), "{name}");
    }
}

#[test]
fn pools_reuse_buffers_and_alignments_are_kept() {
    works("pools", true, "pools work on ");
}

#[test]
fn rings_give_each_frame_a_slot() {
    works("rings", true, "rings work on ");
}

#[test]
fn small_writes_are_made_at_once() {
    works("batches", true, "batches work on ");
}

#[test]
fn scalars_of_any_size_and_local_memory_go_in_any_order() {
    works("arguments", false, "arguments work on ");
}

#[test]
fn maths_libraries_agree_with_fortran() {
    works("libraries", true, "libraries work");
}

#[test]
fn every_procedure_succeeds_with_stat() {
    works("every_stat", true, "every procedure takes stat=");
}

#[test]
fn messages_speak_fortran() {
    works("messages", true, "messages speak Fortran on ");
}

#[test]
fn several_devices_take_turns_on_one_buffer() {
    let Some(program) = How::Plain.program("bindings/fortran/tests/devices.f90") else { return };
    let all: Vec<&String> = speaking().collect();
    for (first, second) in all.iter().zip(all.iter().skip(1).chain(all.first())) {
        if first == second {
            return;
        }
        let mut run = at(&program, first);
        run.env_remove("ONEBUF_DEVICE").args([first, second]);
        let said = said(run);
        assert!(said.contains(&format!("devices take turns: {first} and {second}")), "{said}");
    }
}

/// The stub's kernels are C functions: this tests that sources, arguments and devices of both APIs arrive.
#[test]
fn sources_in_cuda_c_and_hip_c_reach_their_devices() {
    let Some(library) = cuda_stub() else { return };
    let Some(program) = How::Plain.program("bindings/fortran/tests/cuda.f90") else { return };
    for (api, device) in [("CUDA", "cuda:0"), ("HIP", "hip:0")] {
        let mut run = command(&program);
        run.arg(device).env(format!("ONEBUF_{api}_LIB"), &library);
        run.env("ONEBUF_NVRTC_LIB", &library).env("ONEBUF_HIPRTC_LIB", &library);
        let said = said(run);
        assert!(said.contains(&format!("sources work on {device}")), "{said}");
    }
}

#[test]
fn opencl_objects_of_the_program_are_used_and_released() {
    if !found().iter().any(|id| id == "opencl:0") {
        return absent("OpenCL for a Fortran program", "none found");
    }
    let source = "bindings/fortran/tests/foreign.f90";
    let Some(program) = How::Plain.program_with(source, &OPENCL) else { return };
    assert!(on(&program, "opencl:0").contains("foreign objects work"));
}

/// What the program writes to standard error when it opens the default device.
fn default_device(program: &Path, without: &[&str]) -> String {
    let mut run = command(program);
    run.env_remove("ONEBUF_DEVICE").env_remove("ONEBUF_EGL_LIB");
    for library in without {
        run.env(library, "none");
    }
    let Output { status, stderr, .. } = run.output().expect("it starts");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stderr).into_owned()
}

#[test]
fn a_default_device_that_is_not_opencls_is_said_plainly() {
    let Some(program) = How::Plain.program("examples/fortran/01-drop-in.f90") else { return };
    let has = |api: &str| found().iter().any(|id| id.starts_with(api));
    if has("opencl:") {
        assert!(!default_device(&program, &[]).contains("found, using"), "the control");
    }
    if has("gl:") {
        let told = default_device(&program, &["ONEBUF_OPENCL_LIB"]);
        assert!(told.contains("onebuf: no OpenCL found, using OpenGL\n"), "{told}");
    }
    let told =
        default_device(&program, &["ONEBUF_OPENCL_LIB", "ONEBUF_EGL_LIB", "ONEBUF_VULKAN_LIB"]);
    assert!(told.contains("onebuf: no OpenCL, OpenGL or Vulkan found, using the CPU\n"), "{told}");
}

#[test]
fn functions_stop_the_program_if_it_says_so() {
    let Some(program) = How::Plain.program("bindings/fortran/tests/stops_always.f90") else {
        return;
    };
    let Output { status, stdout, .. } = command(&program).output().expect("it starts");
    let said = String::from_utf8_lossy(&stdout);
    assert!(!status.success() && said == "went on so far\n", "{status}: {said}");
}

/// `./dev fortran` writes these files.
#[test]
fn generated_sources_are_current() {
    for name in ["typed.inc", "generics.inc"] {
        let script = root().join("bindings/fortran/typed.sh");
        let made = Command::new("bash").arg(script).arg(name).output().expect("bash starts");
        assert!(made.status.success(), "{name}");
        let kept = fs::read(sources().join(name)).expect("the file");
        assert!(made.stdout == kept, "{name} is not current: run `./dev fortran`");
    }
}

#[test]
fn examples_in_fortran_run_on_every_device() {
    let phrases = [
        ("01-drop-in", "the last element is  20.0"),
        ("02-pointers", "the last element is  20.0"),
        ("03-pipeline", "20 frames"),
        ("05-ring", "the last element is  40.0"),
        ("06-stages", "50 frames, in total 2450.0"),
        ("07-c-interface", "4096 bytes asked in 1 operation"),
        ("08-without-waiting", "the last element is  20.0"),
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
