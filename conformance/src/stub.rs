//! The stub drivers, built with the C compiler, or already built in a conformance bundle.

use crate::{Watchdog, absent, bundle, note};
use std::{
    env, fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stub");
const OPENCL: &[&str] = &["opencl_stub.c"];
const OPENCL_HEADERS: &[&str] = &["graphics_stub.h", "semaphore_stub.h"];
/// The sources of the stub of CUDA and HIP; a file, because other builds read it too.
const CUDA: &str = include_str!("../stub/cuda_stub.sources");
/// With this source the stub is a runtime layered on OpenCL, recognised by symbols that the plain stub must not have.
const LAYERED: &str = "layered_stub.c";
const CUDA_HEADERS: &[&str] =
    &["cuda_stub.h", "code_object_stub.h", "math_stub.h", "semaphore_stub.h"];
const FLAGS: [&str; 7] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"];
const LIBRARY: &[&str] = &["-fPIC", "-shared", "-lm"];

/// Returns the path of the built OpenCL stub; `None`, after a printed skip, without a C compiler.
///
/// # Panics
/// If there is a compiler and the stub does not build.
pub fn stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build("libonebuf_stub.so", OPENCL, OPENCL_HEADERS, LIBRARY)).clone()
}

/// Builds the program that tests the OpenCL stub: it misbehaves as documented, and only so. It takes the library's path.
///
/// # Panics
/// If there is a compiler and the program does not build.
pub fn selftest() -> Option<PathBuf> {
    build("onebuf_selftest", &["selftest.c"], &[], &["-ldl"])
}

/// Returns the path of the stub of CUDA, HIP, their compilers, HSA and their math libraries; `None` as for `stub`.
///
/// # Panics
/// If there is a compiler and the stub does not build.
pub fn cuda_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let sources: Vec<&str> = CUDA.lines().collect();
    BUILT.get_or_init(|| build("libonebuf_cuda_stub.so", &sources, CUDA_HEADERS, LIBRARY)).clone()
}

/// Returns the path of `cuda_stub`'s library built as a HIP runtime layered on OpenCL; `None` as for `stub`.
///
/// # Panics
/// If there is a compiler and the stub does not build.
pub fn layered_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let sources: Vec<&str> = CUDA.lines().chain([LAYERED]).collect();
    let flags = [LIBRARY, &["-ldl"]].concat();
    BUILT.get_or_init(|| build("libonebuf_layered_stub.so", &sources, CUDA_HEADERS, &flags)).clone()
}

/// Returns the path of a wrapper of the installed EGL and OpenGL that adds semaphores, for `ONEBUF_EGL_LIB`.
///
/// # Panics
/// If there is a compiler and the stub does not build.
pub fn gl_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let (sources, headers) = (["gl_stub.c"], ["semaphore_stub.h"]);
    let flags = [LIBRARY, &["-ldl"]].concat();
    BUILT.get_or_init(|| build("libonebuf_gl_stub.so", &sources, &headers, &flags)).clone()
}

/// Builds the program that tests how the CUDA stub shares memory; it takes the library's path.
///
/// # Panics
/// If there is a compiler and the program does not build.
pub fn share_selftest() -> Option<PathBuf> {
    build("onebuf_share_selftest", &["share_selftest.c"], &[], &["-ldl"])
}

/// Runs an ignored test of this program in a new process with both stubs: OpenCL's with the behaviour `part`, and that of
/// CUDA or HIP as `api` says (`CUDA`, `HIP`). The stubs read their behaviour when they are loaded, hence the new process.
///
/// # Panics
/// If the test fails there.
pub fn play(test: &str, api: &str, part: &str, environment: &[(&str, &str)]) {
    let (Some(opencl), Some(cuda)) = (stub(), cuda_stub()) else { return };
    let _watchdog = Watchdog::new("a test with the stubs", Duration::from_secs(240));
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env("ONEBUF_STUB", part).env("ONEBUF_OPENCL_LIB", opencl);
    let [other, compiler] = match api {
        "CUDA" => ["HIP", "ONEBUF_NVRTC_LIB"],
        _ => ["CUDA", "ONEBUF_HIPRTC_LIB"],
    };
    command.env(format!("ONEBUF_{api}_LIB"), &cuda).env(compiler, &cuda);
    command.env(format!("ONEBUF_{other}_LIB"), "none").env("ONEBUF_HSA_LIB", "none");
    let output = command.envs(environment.iter().copied()).output().expect("it starts");
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let passed = output.status.success() && text[0].contains("1 passed");
    assert!(passed, "{part}: {}: {}", output.status, text.join("\n"));
    text[1].lines().filter(|line| line.starts_with("skip:")).for_each(note);
}

/// Locks the stub of CUDA and HIP, which supports one API at a time.
pub fn one_api() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds every stub and the programs that test them into a folder, for a bundle. `CC` is the compiler, with its options.
///
/// # Panics
/// If one of them does not build.
pub fn build_stubs(folder: &Path) {
    BUILT_IN.set(folder.to_owned()).expect("one folder of stubs in a process");
    let all = [stub(), cuda_stub(), layered_stub(), gl_stub(), selftest(), share_selftest()];
    assert!(all.iter().all(Option::is_some), "a C compiler is needed: set CC");
}

/// The folder that [`build_stubs`] builds in.
static BUILT_IN: OnceLock<PathBuf> = OnceLock::new();

/// Returns what the bundle contains. In the build tree, builds beside the test programs, and only if a source is newer: verdicts
/// depend on the library's modification time.
fn build(name: &str, sources: &[&str], headers: &[&str], flags: &[&str]) -> Option<PathBuf> {
    let folder = BUILT_IN.get();
    if let (Some(bundle), None) = (bundle(), folder) {
        let built = bundle.join("stub").join(name);
        assert!(built.is_file(), "{built:?} is missing in this bundle");
        return Some(built);
    }
    let program = env::current_exe().expect("the path of this program");
    let built = folder.map_or_else(|| program.with_file_name(name), |folder| folder.join(name));
    let _turn = only_builder(&built);
    let in_folder = |name: &&str| Path::new(FOLDER).join(name);
    if sources.iter().chain(headers).map(in_folder).all(|source| is_newer(&built, &source)) {
        return Some(built);
    }
    let scratch = built.with_extension(std::process::id().to_string());
    let sources = sources.iter().map(in_folder);
    let mut compile = compiler();
    match compile.args(FLAGS).arg("-o").arg(&scratch).args(sources).args(flags).status() {
        Ok(status) => assert!(status.success(), "{name} does not build"),
        Err(why) => {
            absent(name, &format!("{:?}: {why}", compile.get_program()));
            return None;
        }
    }
    fs::rename(&scratch, &built).expect("what was built in its place");
    Some(built)
}

/// The C compiler: `cc`, unless a bundle is built with another one.
fn compiler() -> Command {
    let named = BUILT_IN.get().and_then(|_| env::var("CC").ok()).unwrap_or_default();
    let mut words = named.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command.args(words);
    command
}

/// Returns a lock that is held while one process builds, so that the next uses the result and does not replace a library
/// in use.
fn only_builder(built: &Path) -> fs::File {
    let lock = fs::File::create(built.with_extension("lock")).expect("a lock file");
    // SAFETY: the descriptor is open during the call.
    let locked = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{built:?}: {}", std::io::Error::last_os_error());
    lock
}

fn is_newer(file: &Path, than: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    matches!((time(file), time(than)), (Some(file), Some(than)) if file > than)
}
