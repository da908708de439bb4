//! The stub drivers, built with the C compiler.

use crate::{Watchdog, absent, note};
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
/// What the stub of CUDA and HIP is made of, for whoever builds it.
const CUDA: &str = include_str!("../stub/cuda_stub.sources");
/// With that it is a runtime over OpenCL, known by symbols that the other must not have.
const BENEATH: &str = "beneath_stub.c";
const CUDA_HEADERS: &[&str] =
    &["cuda_stub.h", "code_object_stub.h", "math_stub.h", "semaphore_stub.h"];
const FLAGS: [&str; 7] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"];
const LIBRARY: &[&str] = &["-fPIC", "-shared", "-lm"];

/// The path of the built OpenCL library; `None`, after a printed skip, without a C compiler.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build("libonebuf_stub.so", OPENCL, OPENCL_HEADERS, LIBRARY)).clone()
}

/// The program that tests whether the OpenCL stub misbehaves as it promises, and only so; it takes the library's path.
///
/// # Panics
/// When there is a compiler and the program does not build.
pub fn selftest() -> Option<PathBuf> {
    build("onebuf_selftest", &["selftest.c"], &[], &["-ldl"])
}

/// The same of the library that plays CUDA, HIP, their compilers, HSA, and their libraries for mathematics.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn cuda_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let sources: Vec<&str> = CUDA.lines().collect();
    BUILT.get_or_init(|| build("libonebuf_cuda_stub.so", &sources, CUDA_HEADERS, LIBRARY)).clone()
}

/// The same library as a HIP runtime over OpenCL's.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn beneath_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let sources: Vec<&str> = CUDA.lines().chain([BENEATH]).collect();
    let flags = [LIBRARY, &["-ldl"]].concat();
    BUILT.get_or_init(|| build("libonebuf_beneath_stub.so", &sources, CUDA_HEADERS, &flags)).clone()
}

/// EGL and OpenGL as installed, with semaphores added: for `ONEBUF_EGL_LIB`.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn gl_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let (sources, headers) = (["gl_stub.c"], ["semaphore_stub.h"]);
    let flags = [LIBRARY, &["-ldl"]].concat();
    BUILT.get_or_init(|| build("libonebuf_gl_stub.so", &sources, &headers, &flags)).clone()
}

/// The program that tests what that library does with memory that others see; it takes the library's path.
///
/// # Panics
/// When there is a compiler and the program does not build.
pub fn share_selftest() -> Option<PathBuf> {
    build("onebuf_share_selftest", &["share_selftest.c"], &[], &["-ldl"])
}

/// Runs an ignored test of this program again, with both stubs: OpenCL's in that part, and the one of CUDA or HIP as `api`
/// says (`CUDA`, `HIP`). They read their parts when they are loaded, so each is a process of its own.
///
/// # Panics
/// When the test does not pass there.
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

/// The stub of CUDA and HIP knows one API at a time.
pub fn one_api() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Beside the test programs, and only when a source is newer: a library's time is a part of what
/// verdicts depend on.
fn build(name: &str, sources: &[&str], headers: &[&str], flags: &[&str]) -> Option<PathBuf> {
    let program = env::current_exe().expect("the path of this program");
    let built = program.with_file_name(name);
    let _turn = only_builder(&built);
    let in_folder = |name: &&str| Path::new(FOLDER).join(name);
    if sources.iter().chain(headers).map(in_folder).all(|source| is_newer(&built, &source)) {
        return Some(built);
    }
    let scratch = built.with_extension(std::process::id().to_string());
    let sources = sources.iter().map(in_folder);
    let mut compile = Command::new("cc");
    match compile.args(FLAGS).arg("-o").arg(&scratch).args(sources).args(flags).status() {
        Ok(status) => assert!(status.success(), "{name} does not build"),
        Err(why) => {
            absent(name, &format!("cc: {why}"));
            return None;
        }
    }
    fs::rename(&scratch, &built).expect("what was built in its place");
    Some(built)
}

/// Held while one process builds: the next finds what was built, and does not replace it under those who use it.
fn only_builder(built: &Path) -> fs::File {
    let lock = fs::File::create(built.with_extension("lock")).expect("a lock file");
    // SAFETY: a descriptor that is open during the call.
    let locked = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{built:?}: {}", std::io::Error::last_os_error());
    lock
}

fn is_newer(file: &Path, than: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    matches!((time(file), time(than)), (Some(file), Some(than)) if file > than)
}
