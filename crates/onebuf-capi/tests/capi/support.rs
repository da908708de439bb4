//! Compiles and runs C and C++ programs against the built library.

use onebuf_conformance::absent;
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, OnceLock, PoisonError},
};

/// The path of a file that cargo built beside this test.
pub fn built(name: &str) -> PathBuf {
    let path = env::current_exe().expect("this test's path").with_file_name(name);
    assert!(path.exists(), "{path:?} was not built");
    path
}

/// The crate's folder.
pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder in which programs of this test are built, with the library under the names that programs look for.
pub fn workshop() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        fs::create_dir_all(&folder).expect("a folder for programs");
        for name in ["libonebuf.so", env!("ONEBUF_SONAME")] {
            // A link, because cargo replaces the file.
            let link = folder.join(name);
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(built("libonebuf_capi.so"), link).expect("a link");
        }
        folder
    })
}

/// How a program is built.
#[derive(Clone, Copy, PartialEq)]
pub enum Build {
    /// Against the shared library.
    Shared,
    /// Against the static library.
    Static,
    /// Against the shared library, with the address and undefined-behaviour sanitizers in the program.
    Sanitized,
}

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];
/// The system libraries that the Rust standard library needs.
const SYSTEM: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lgcc_s"];

/// For programs that call OpenCL themselves: links to the loader by its soname, so that no development package is needed.
pub const OPENCL: [&str; 2] = ["-Wl,--no-as-needed", "-l:libOpenCL.so.1"];
/// For programs that call Vulkan themselves.
pub const VULKAN: [&str; 2] = ["-Wl,--no-as-needed", "-l:libvulkan.so.1"];
/// For programs that call EGL themselves, and start threads.
pub const EGL: [&str; 3] = ["-Wl,--no-as-needed", "-l:libEGL.so.1", "-pthread"];

/// Whether a system header is installed; prints a skip if it is not.
pub fn has_header(name: &str) -> bool {
    let found = Path::new("/usr/include").join(name).exists();
    if !found {
        absent(name, "its development package is not installed");
    }
    found
}

/// Makes a program, and onebuf in it, use that OpenCL driver alone, instead of the system's loader.
pub fn on_driver(mut command: Command, driver: &Path) -> Command {
    let folder = workshop().join("driver");
    fs::create_dir_all(&folder).expect("a folder for the driver");
    let scratch = folder.join(format!("{:?}", std::thread::current().id()));
    // Replaced atomically, because another test may be using it.
    let _ = fs::remove_file(&scratch);
    std::os::unix::fs::symlink(driver, &scratch).expect("a link");
    fs::rename(&scratch, folder.join("libOpenCL.so.1")).expect("a link");
    let library_path = format!("{}:{}", folder.display(), workshop().display());
    command.env("LD_LIBRARY_PATH", library_path).env("ONEBUF_OPENCL_LIB", "libOpenCL.so.1");
    command
}

/// Compiles a source file once; `None`, after a printed skip, if there is no compiler.
pub fn compile(source: &Path, build: Build, more: &[&str]) -> Option<PathBuf> {
    static DONE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    // One at a time, because a program that another test runs must not be overwritten.
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = program(source, build, more);
    if !done.contains(&program) {
        compile_to(&program, source, build, more)?;
        done.insert(program.clone());
    }
    Some(program)
}

/// The path of the program; each combination of build and flags has its own.
fn program(source: &Path, build: Build, more: &[&str]) -> PathBuf {
    let name = source.file_name().and_then(|name| name.to_str()).expect("a name").replace('.', "-");
    let kind = ["shared", "static", "sanitized"][build as usize];
    let more: String = more.concat().chars().filter(char::is_ascii_alphanumeric).collect();
    workshop().join(format!("{name}-{kind}{more}"))
}

fn compile_to(program: &Path, source: &Path, build: Build, more: &[&str]) -> Option<()> {
    let is_c = source.extension().is_some_and(|end| end == "c");
    let (compiler, standard) = if is_c { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
    let mut command = Command::new(compiler);
    command.arg(standard).args(WARNINGS).args(more).arg("-I").arg(crate_folder().join("include"));
    if build == Build::Sanitized {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    command.arg(source).arg("-o").arg(program);
    match build {
        Build::Static => command.arg(built("libonebuf_capi.a")).args(SYSTEM),
        _ => command.arg("-L").arg(workshop()).args(["-lonebuf", "-lpthread", "-lm"]),
    };
    let Ok(Output { status, stderr, .. }) = command.output() else {
        absent(compiler, "not installed");
        return None;
    };
    assert!(status.success(), "{command:?}\n{}", String::from_utf8_lossy(&stderr));
    Some(())
}

/// A command that runs a program with the built library and a separate cache folder.
pub fn command(program: &Path) -> Command {
    with_surroundings(Command::new(program))
}

/// A command that runs the program under valgrind, which fails for errors and for memory that is definitely lost; `None`, after a
/// printed skip, if valgrind is not installed. Uses the host alone, because initialising the drivers under valgrind takes
/// seconds. [`on_driver`] adds one driver, [`with_drivers`] all of them.
pub fn under_valgrind(program: &Path) -> Option<Command> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        absent("valgrind", "not installed");
        return None;
    }
    let mut command = Command::new("valgrind");
    command.args(["-q", "--fair-sched=yes", "--leak-check=full", "--error-exitcode=9"]);
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]).arg(program);
    let mut command = with_surroundings(command);
    command.env("ONEBUF_OPENCL_LIB", "none");
    Some(command)
}

/// Makes a run use the drivers of this machine, whatever the environment says.
pub fn with_drivers(mut command: Command) -> Command {
    command.env_remove("ONEBUF_OPENCL_LIB");
    command
}

fn with_surroundings(mut command: Command) -> Command {
    command.env("LD_LIBRARY_PATH", workshop()).env("XDG_CACHE_HOME", workshop().join("cache"));
    // C programs use OpenCL; graphics drivers would only slow valgrind down.
    command.env("ONEBUF_EGL_LIB", "none").env("ONEBUF_VULKAN_LIB", "none");
    if !Path::new("/dev/kfd").exists() {
        // Without an AMD GPU every program would load its runtime in vain.
        command.env("ONEBUF_HIP_LIB", "none");
    }
    // Drivers keep memory until exit; valgrind finds real leaks.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

/// Runs the command and returns its standard output.
pub fn said(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out
}
