//! C and C++ programs: the examples, every function once, random calls, threads.

use crate::support::{
    Build, EGL, OPENCL, VULKAN, command, compile, crate_folder, has_header, on_driver, said,
    under_valgrind, with_drivers, workshop,
};
use onebuf_conformance::{absent, cuda_stub, note, stub};
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

pub fn source(name: &str) -> PathBuf {
    crate_folder().join("tests").join(name)
}

/// Runs the examples of a folder and checks that each prints its phrase.
fn examples(folder: &str, phrases: &[(&str, &str)]) {
    for (name, phrase) in phrases {
        let file = crate_folder().join("../../examples").join(folder).join(name);
        let more: &[&str] = match *name {
            "04-opencl-hpp.cpp" | "05-foreign.cpp" if !has_header("CL/opencl.hpp") => continue,
            "04-foreign.c" if !has_header("CL/cl.h") => continue,
            "04-opencl-hpp.cpp" | "05-foreign.cpp" | "04-foreign.c" => &OPENCL,
            _ => &[],
        };
        let Some(program) = compile(&file, Build::Shared, more) else { return };
        for opencl in ["", "none"] {
            let mut run = command(&program);
            if !opencl.is_empty() {
                run.env("ONEBUF_OPENCL_LIB", opencl);
            }
            let said = said(run);
            let without = !opencl.is_empty() && said.contains("no OpenCL here");
            assert!(said.contains(phrase) || without, "{name} does not say `{phrase}`:\n{said}");
        }
    }
}

#[test]
fn examples_in_c_run() {
    let phrases = [
        ("01-scale.c", "devices agree"),
        ("02-two-devices.c", "both took their turns"),
        ("03-errors.c", "all as expected"),
        ("04-foreign.c", "squared in place: element 99 is 9801"),
        ("05-libraries.c", "and the solution is 1, 2"),
        ("06-pipeline.c", "the sum is 39800"),
        ("07-sources.c", "all of them are accounted for: yes"),
    ];
    examples("c", &phrases);
}

#[test]
fn examples_in_cpp_run() {
    let phrases = [
        ("01-scale.cpp", "devices agree"),
        ("02-two-devices.cpp", "both took their turns"),
        ("03-errors.cpp", "all as expected"),
        ("04-opencl-hpp.cpp", "the last element is 42"),
        ("05-foreign.cpp", "squared in place, twice: element 3 is 81"),
        ("06-libraries.cpp", "and the solution is 1, 2"),
        ("07-pipeline.cpp", "the sum is 39800"),
    ];
    examples("cpp", &phrases);
}

/// Their libraries need a GPU, so they are run by hand there; here their text is checked against declarations of those
/// libraries.
#[test]
fn examples_with_the_programs_own_streams_compile() {
    let fake = source("fake").to_string_lossy().into_owned();
    let include = ["-fsyntax-only", "-I", &fake];
    let with_hip = ["-fsyntax-only", "-I", &fake, "-DUSE_HIP"];
    for (name, more) in [
        ("c/08-own-stream.c", &include[..]),
        ("cpp/08-own-stream.cpp", &include[..]),
        ("cpp/08-own-stream.cpp", &with_hip[..]),
    ] {
        compile(&crate_folder().join("../../examples").join(name), Build::Shared, more);
    }
}

/// The header for SYCL, with a stand-in for SYCL's own, which counts references and has objects of other backends.
#[test]
fn sycls_objects_are_shared() {
    if !has_header("CL/cl.h") {
        return absent("CL/cl.h", "not installed");
    }
    let fake = source("fake").to_string_lossy().into_owned();
    let more: Vec<&str> = ["-I", &fake].into_iter().chain(OPENCL).collect();
    let Some(program) = compile(&source("cpp/sycl.cpp"), Build::Shared, &more) else { return };
    let said = said(command(&program));
    match said.contains("skip: ") {
        true => absent("PoCL", "a C++ program does not find it"),
        false => assert!(said.contains("SYCL's objects are shared"), "{said}"),
    }
    let only = |flag| ["-I", &fake, "-fsyntax-only", flag].into_iter().chain(OPENCL).collect();
    let (plain, without): (Vec<&str>, Vec<&str>) = (only("-fexceptions"), only("-fno-exceptions"));
    compile(&first_block("neighbours/sycl.md", "sycl-page.cpp"), Build::Shared, &plain);
    compile(&crate_folder().join("include/onebuf_sycl.hpp"), Build::Shared, &without);
}

/// The header for SYCL, with SYCL's own and its library, which `./dev` installs: DPC++'s, from its packages for Python. They have no
/// compiler of programs, so the host's compiles them without kernels in C++. SYCL's library compiles those of the test.
#[test]
fn sycl_itself_shares() {
    let Some(sycl) = sycl() else { return };
    let [headers, libraries] = [sycl.join("include"), sycl.join("lib")];
    // In a file: all arguments are in the program's name.
    let options = workshop().join("sycl.options");
    let text = format!(
        "-isystem {} -L {libraries} -Wl,--no-as-needed -lsycl -l:libOpenCL.so.1 -Wl,-rpath-link,{libraries}",
        headers.display(),
        libraries = libraries.display()
    );
    fs::write(&options, text).expect("a file");
    let with_sycl = format!("@{}", options.display());
    let with_sycl = [with_sycl.as_str()];
    let program = compile(&source("cpp/sycl_runtime.cpp"), Build::Shared, &with_sycl);
    let Some(program) = program else { return };
    let mut run = with_drivers(command(&program));
    let found = format!("{}:{}", libraries.display(), workshop().display());
    run.env("LD_LIBRARY_PATH", found).env("OCL_ICD_FILENAMES", libraries.join("libintelocl.so"));
    let said = said(run);
    match said.contains("skip: ") {
        true => absent("SYCL with PoCL and Intel's OpenCL", &said),
        false => assert!(said.contains("SYCL's own objects are shared"), "{said}"),
    }
    let page = first_block("neighbours/sycl.md", "sycl-own-page.cpp");
    let checked = [with_sycl[0], "-fsyntax-only"];
    compile(&page, Build::Shared, &checked);
    compile(&crate_folder().join("../../examples/cpp/09-sycl.cpp"), Build::Shared, &with_sycl);
}

/// The environment with SYCL's packages; `None`, after a printed skip, if they are not installed.
fn sycl() -> Option<PathBuf> {
    let folder = env::var_os("ONEBUF_SYCL").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/sycl")),
        PathBuf::from,
    );
    if folder.join("include/sycl/sycl.hpp").exists() && folder.join("lib/libintelocl.so").exists() {
        return Some(folder);
    }
    absent("SYCL", "intel-sycl-rt and intel-opencl-rt are not installed: ./dev test does that");
    None
}

/// A real Kokkos, with its serial backend, runs the functions of its page.
#[test]
fn kokkos_views_are_shared() {
    const HEADERS: &str = "/usr/include/trilinos";
    if !has_header("trilinos/Kokkos_Core.hpp") {
        return absent(
            "Kokkos",
            "trilinos/Kokkos_Core.hpp is not installed (libtrilinos-kokkos-dev)",
        );
    }
    let page = first_block("neighbours/kokkos.md", "kokkos-page.cpp");
    let folder = page.parent().expect("a folder").to_string_lossy().into_owned();
    let more = ["-isystem", HEADERS, "-I", &folder, "-Wl,--no-as-needed", "-ltrilinos_kokkoscore"];
    let Some(program) = compile(&source("cpp/kokkos.cpp"), Build::Shared, &more) else { return };
    let said = said(command(&program));
    match said.contains("skip: ") {
        true => absent("OpenCL", "a C++ program with Kokkos finds no device"),
        false => assert!(said.contains("share views"), "{said}"),
    }
}

#[test]
fn the_program_on_the_page_runs() {
    let Some(program) = compile(&first_block("c.md", "page.cpp"), Build::Shared, &[]) else {
        return;
    };
    if devices().iter().any(|device| device == "opencl:0") {
        said(command(&program));
    }
}

/// The part of an OpenGL program on the page, with declarations of what the rest of that program has.
#[test]
fn the_opengl_part_on_the_page_compiles() {
    if !has_header("GL/glcorearb.h") {
        return;
    }
    let page = fs::read_to_string(crate_folder().join("../../docs/c.md")).expect("the page");
    let part = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let text = format!(
        "#define GL_GLEXT_PROTOTYPES\n#include <GL/glcorearb.h>\n#include <onebuf.h>\n\
        void page(onebuf_hub hub, onebuf_device opencl, onebuf_queue opencl_queue, onebuf_kernel kernel, onebuf_grid grid, \
        onebuf_buffer ours, GLuint name, GLuint n);\n\
        void page(onebuf_hub hub, onebuf_device opencl, onebuf_queue opencl_queue, onebuf_kernel kernel, onebuf_grid grid, \
        onebuf_buffer ours, GLuint name, GLuint n) {{\n{}}}\n",
        part.expect("a part of a program")
    );
    let file = workshop().join("page-gl.c");
    fs::write(&file, text).expect("a file");
    compile(&file, Build::Shared, &["-fsyntax-only"]);
}

/// The first block of C++ of a page, as a file.
fn first_block(page: &str, name: &str) -> PathBuf {
    let text = fs::read_to_string(crate_folder().join("../../docs").join(page)).expect("the page");
    let text = text.split("```cpp\n").nth(1).and_then(|rest| rest.split("```").next());
    let file = workshop().join(name);
    fs::write(&file, text.expect("a program")).expect("a file");
    file
}

/// All devices of this machine.
///
/// Discovered once, because some drivers crash when two threads initialise them.
pub fn found() -> &'static [String] {
    static FOUND: OnceLock<Vec<String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = onebuf::discover().expect("the host").devices();
        found.iter().map(|device| device.id().to_owned()).collect()
    })
}

/// The devices that `everything` runs on: the host, and each OpenCL platform that `./dev` installs.
pub fn devices() -> &'static [String] {
    static SPEAKING: OnceLock<Vec<String>> = OnceLock::new();
    SPEAKING.get_or_init(|| {
        let speaks = |id: &&String| *id == "host" || id.starts_with("opencl:");
        let found: Vec<String> = found().iter().filter(speaks).cloned().collect();
        if found.len() == 1 {
            absent("OpenCL devices for C programs", "none found");
        }
        found
    })
}

#[test]
fn everything_works_on_every_device() {
    let Some(program) = compile(&source("c/everything.c"), Build::Shared, &[]) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(device);
        let said = said(run);
        assert!(said.contains(&format!("everything works on {device}")), "{said}");
    }
}

#[test]
fn persistent_maps_and_owners_work() {
    let Some(program) = compile(&source("c/persistent.c"), Build::Shared, &[]) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains(&format!("owners work on {device}")));
    }
    let Some(checked) = compile(&source("c/persistent.c"), Build::Sanitized, &[]) else { return };
    assert!(said(command(&checked)).contains("owners work on host"));
    let Some(run) = under_valgrind(&program) else { return };
    assert!(said(run).contains("owners work on host"));
}

#[test]
fn pipelines_run_and_fail_with_their_cause() {
    let Some(program) = compile(&source("c/pipeline.c"), Build::Shared, &[]) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains(&format!("pipelines work on {device}")));
    }
    let Some(run) = under_valgrind(&program) else { return };
    assert!(said(run).contains("pipelines work on host"));
}

#[test]
fn sources_and_sinks_carry_frames() {
    let more = &["-D_GNU_SOURCE", "-pthread"][..];
    let folder = tempfile::tempdir().expect("a folder for files");
    for build in [Build::Shared, Build::Sanitized] {
        let Some(program) = compile(&source("c/ends.c"), build, more) else { return };
        let tried = if build == Build::Shared { devices() } else { &devices()[..1] };
        for device in tried {
            let mut run = command(&program);
            run.arg(folder.path()).arg(device);
            assert!(said(run).contains(&format!("sources and sinks work on {device}")));
        }
    }
    let program =
        compile(&source("c/ends.c"), Build::Shared, more).expect("it was compiled before");
    let Some(mut run) = under_valgrind(&program) else { return };
    run.arg(folder.path());
    assert!(said(run).contains("sources and sinks work on host"));
}

#[test]
fn pipelines_run_in_cpp() {
    let without = &["-fno-exceptions"][..];
    let checked = compile(&source("cpp/pipeline.cpp"), Build::Sanitized, without);
    let Some(checked) = checked else { return };
    assert!(said(command(&checked)).contains("pipelines work in C++"));
    let Some(run) = under_valgrind(&program_without_sanitizers("cpp/pipeline.cpp")) else { return };
    assert!(said(run).contains("pipelines work in C++"));
}

#[test]
fn processes_take_turns_and_notice_each_others_end() {
    let program = compile(&source("c/peer.c"), Build::Shared, &["-D_GNU_SOURCE"]);
    let Some(program) = program else { return };
    assert!(said(command(&program)).contains("processes take turns"));
    let Some(run) = under_valgrind(&program) else { return };
    assert!(said(run).contains("processes take turns"));
}

#[test]
fn launches_take_what_is_declared_and_calls_wait() {
    let more = &["-pthread"][..];
    let Some(program) = compile(&source("c/sharing.c"), Build::Shared, more) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains(&format!("sharing works on {device}")));
    }
    let Some(checked) = compile(&source("c/sharing.c"), Build::Sanitized, more) else { return };
    assert!(said(command(&checked)).contains("sharing works on host"));
    let Some(cpp) = compile(&source("cpp/sharing.cpp"), Build::Shared, more) else { return };
    for device in devices().iter().skip(1) {
        let mut run = command(&cpp);
        run.arg(device);
        assert!(said(run).contains(&format!("sharing works in C++ on {device}")));
    }
    let Some(run) = under_valgrind(&program) else { return };
    assert!(said(run).contains("sharing works on host"));
}

#[test]
fn maps_have_ranges_and_discard_and_wait() {
    let Some(program) = compile(&source("c/maps.c"), Build::Shared, &[]) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains(&format!("maps work on {device}")));
    }
    let Some(checked) = compile(&source("c/maps.c"), Build::Sanitized, &[]) else { return };
    assert!(said(command(&checked)).contains("maps work on host"));
    let Some(cpp) = compile(&source("cpp/maps.cpp"), Build::Shared, &[]) else { return };
    for device in devices().iter().skip(1) {
        let mut run = command(&cpp);
        run.arg(device);
        assert!(said(run).contains(&format!("maps work in C++ on {device}")));
    }
    let Some(run) = under_valgrind(&program) else { return };
    assert!(said(run).contains("maps work on host"));
}

#[test]
fn extras_work_on_every_device() {
    let folder = tempfile::tempdir().expect("a folder for traces");
    let Some(program) = compile(&source("c/extras.c"), Build::Shared, &[]) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(folder.path()).arg(device).env("XDG_RUNTIME_DIR", folder.path());
        assert!(said(run).contains(&format!("extras work on {device}")));
    }
    let Some(cpp) = compile(&source("cpp/extras.cpp"), Build::Shared, &[]) else { return };
    for device in devices().iter().skip(1) {
        let mut run = command(&cpp);
        run.arg(device).env("XDG_RUNTIME_DIR", folder.path());
        assert!(said(run).contains(&format!("extras work in C++ on {device}")));
    }
    let Some(checked) = compile(&source("c/extras.c"), Build::Sanitized, &[]) else { return };
    let mut run = command(&checked);
    run.arg(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    assert!(said(run).contains("extras work on host"));
    let Some(mut run) = under_valgrind(&program) else { return };
    run.arg(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    assert!(said(run).contains("extras work on host"));
}

#[test]
fn queries_are_answered_and_observers_told() {
    for (name, phrase) in [
        ("c/queries.c", "queries are answered"),
        ("cpp/queries.cpp", "queries are answered in C++"),
    ] {
        let folder = tempfile::tempdir().expect("a folder for files");
        let in_folder = |mut run: std::process::Command| {
            run.arg(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
            run
        };
        for build in [Build::Shared, Build::Sanitized] {
            let Some(program) = compile(&source(name), build, &[]) else { return };
            assert!(said(in_folder(command(&program))).contains(phrase), "{name}");
        }
        let Some(run) = under_valgrind(&program_without_sanitizers(name)) else { return };
        assert!(said(in_folder(run)).contains(phrase), "{name}");
    }
}

#[test]
fn the_rest_of_cpp_works_on_every_device() {
    let Some(program) = compile(&source("cpp/rest.cpp"), Build::Shared, &[]) else { return };
    for device in devices().iter().skip(1) {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains(&format!("the rest works in C++ on {device}")));
    }
}

/// The times depend on the machine: the program is also a benchmark, which is run by hand.
#[test]
fn launches_of_c_and_cpp_do_the_same() {
    let Some(program) = compile(&source("cpp/launch_cost.cpp"), Build::Shared, &["-O2"]) else {
        return;
    };
    for device in devices() {
        let mut run = command(&program);
        run.args([device, "2"]);
        let said = said(run);
        assert!(said.contains("ratio"), "{said}");
    }
}

#[test]
fn processes_and_the_doctor_in_cpp() {
    let (Some(driver), Some(program)) =
        (stub(), compile(&source("cpp/processes.cpp"), Build::Shared, &[]))
    else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder for verdicts");
    let mut run = command(&program);
    run.arg(folder.path()).env("ONEBUF_OPENCL_LIB", driver).env("XDG_RUNTIME_DIR", folder.path());
    assert!(said(run).contains("processes work in C++"));
}

#[test]
fn everything_works_statically_linked_and_sanitized() {
    for build in [Build::Static, Build::Sanitized] {
        let Some(program) = compile(&source("c/everything.c"), build, &[]) else { return };
        assert!(said(command(&program)).contains("everything works on host"));
    }
}

#[test]
fn cpp_works_with_exceptions_and_without() {
    for more in [&["-fexceptions"][..], &["-fno-exceptions"], &["-DONEBUF_NO_EXCEPTIONS"]] {
        let example = crate_folder().join("../../examples/cpp/03-errors.cpp");
        let Some(program) = compile(&example, Build::Sanitized, more) else { return };
        assert!(said(command(&program)).contains("all as expected"));
    }
    let Some(program) = compile(&source("cpp/owners.cpp"), Build::Sanitized, &[]) else { return };
    assert!(said(command(&program)).contains("owners work"));
    let Some(run) = under_valgrind(&program_without_sanitizers("cpp/owners.cpp")) else { return };
    assert!(said(run).contains("owners work"));
}

/// Environment variables of the math libraries that the CUDA and HIP stub replaces.
const MATHS: [&str; 6] = [
    "ONEBUF_CUBLAS_LIB",
    "ONEBUF_CUFFT_LIB",
    "ONEBUF_CUSOLVER_LIB",
    "ONEBUF_ROCBLAS_LIB",
    "ONEBUF_ROCFFT_LIB",
    "ONEBUF_ROCSOLVER_LIB",
];

#[test]
fn libraries_compute_on_the_host_and_on_gpus() {
    for build in [Build::Shared, Build::Sanitized] {
        let Some(program) = compile(&source("c/libs.c"), build, &[]) else { return };
        assert!(said(command(&program)).contains("libraries work on host"));
        let Some(library) = cuda_stub() else { return };
        for (api, device) in [("CUDA", "cuda:0"), ("HIP", "hip:1")] {
            let mut run = command(&program);
            run.arg(device).env(format!("ONEBUF_{api}_LIB"), &library);
            run.envs(MATHS.map(|name| (name, &library)));
            assert!(said(run).contains(&format!("libraries work on {device}")));
            let mut by_path = command(&program);
            by_path.arg(device).arg(&library).env(format!("ONEBUF_{api}_LIB"), &library);
            assert!(said(by_path).contains(&format!("libraries work on {device}")));
        }
    }
    let Some(run) = under_valgrind(&program_without_sanitizers("c/libs.c")) else { return };
    assert!(said(run).contains("libraries work on host"));
}

#[test]
fn descriptors_and_native_handles() {
    let Some(library) = cuda_stub() else { return };
    for build in [Build::Shared, Build::Sanitized] {
        let Some(program) = compile(&source("c/export.c"), build, &["-D_GNU_SOURCE"]) else {
            return;
        };
        for api in [&[][..], &["hip"]] {
            let mut run = command(&program);
            run.arg(&library).args(api);
            assert!(said(run).contains("descriptors work"), "{api:?}");
        }
    }
    let Some(program) = compile(&source("cpp/export.cpp"), Build::Sanitized, &[]) else { return };
    let mut run = command(&program);
    run.arg(&library);
    assert!(said(run).contains("descriptors work in C++"));
    let program = compile(&source("c/export.c"), Build::Shared, &["-D_GNU_SOURCE"]);
    let Some(mut run) = program.and_then(|program| under_valgrind(&program)) else { return };
    run.arg(&library);
    assert!(said(run).contains("descriptors work"));
}

#[test]
fn pointers_and_streams_of_the_application() {
    let Some(library) = cuda_stub() else { return };
    for build in [Build::Shared, Build::Sanitized] {
        let Some(program) = compile(&source("c/pointer.c"), build, &["-ldl"]) else { return };
        for api in [&[][..], &["hip"]] {
            let mut run = command(&program);
            run.arg(&library).args(api);
            assert!(said(run).contains("pointers and streams work"), "{api:?}");
        }
    }
    let program = compile(&source("cpp/pointer.cpp"), Build::Sanitized, &["-ldl"]);
    let Some(program) = program else { return };
    let mut run = command(&program);
    run.arg(&library);
    assert!(said(run).contains("pointers and streams work in C++"));
}

#[test]
fn what_the_map_from_older_names_shows_in_cpp_works() {
    let file = source("cpp/coming_from.cpp");
    let lines = |path: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        text.lines().map(|line| line.trim().to_owned()).collect()
    };
    let (page, code) = (lines(&crate_folder().join("../../docs/coming-from.md")), lines(&file));
    let blocks = page.split(|line| line == "```cpp").skip(1);
    let blocks = blocks.filter_map(|block| block.split(|line| line == "```").next());
    let after: Vec<_> = blocks.filter(|block| block[0] == "// after").collect();
    assert!(after.len() > 5, "{} blocks", after.len());
    for block in after {
        let found = code.windows(block.len() - 1).any(|extract| *extract == block[1..]);
        assert!(found, "not in {file:?}:\n{}", block.join("\n"));
    }
    let Some(program) = compile(&file, Build::Shared, &[]) else { return };
    let mut without = command(&program);
    without.env("ONEBUF_OPENCL_LIB", "none");
    assert!(said(without).contains("no OpenCL here"));
    for device in devices().iter().skip(1) {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains("all of it works"), "{device}");
    }
}

fn program_without_sanitizers(name: &str) -> PathBuf {
    compile(&source(name), Build::Shared, &[]).expect("it was compiled before")
}

/// The programs in which class A creates its own objects, and the header that each needs.
const FOREIGN: [(&str, &str); 2] =
    [("c/foreign.c", "CL/cl.h"), ("cpp/foreign.cpp", "CL/opencl.hpp")];

/// Prints each skip of a program once.
fn tell_skips(said: &str) {
    let skips: BTreeSet<&str> = said.lines().filter(|line| line.starts_with("skip:")).collect();
    skips.into_iter().for_each(note);
}

#[test]
fn foreign_objects_of_every_driver() {
    for (name, header) in FOREIGN {
        if !has_header(header) {
            continue;
        }
        let Some(program) = compile(&source(name), Build::Shared, &OPENCL) else { return };
        let said = said(command(&program));
        assert!(said.contains("foreign objects work on"), "{said}");
        if said.contains("work on 0 devices") {
            absent("OpenCL devices for foreign objects in C", "none found");
        }
        tell_skips(&said);
    }
}

/// The devices that take turns with OpenGL: the host, and the first OpenCL device.
fn beside_gl() -> &'static [String] {
    &devices()[..devices().len().min(2)]
}

/// Runs a program that prints the phrase, or why it could not run here.
fn works(run: std::process::Command, phrase: &str) {
    let said = said(run);
    match said.lines().find_map(|line| line.strip_prefix("skip: ")) {
        Some(why) => absent(phrase, why),
        None => assert!(said.contains(phrase), "{said}"),
    }
}

#[test]
fn programs_of_opengl_bind_buffers_to_their_own_shaders() {
    if !has_header("EGL/egl.h") || !has_header("GL/glcorearb.h") {
        return;
    }
    let Some(program) = compile(&source("c/foreign_gl.c"), Build::Shared, &EGL) else { return };
    for device in beside_gl() {
        let mut run = command(&program);
        run.arg(device);
        works(run, &format!("foreign OpenGL works with {device}"));
    }
    let Some(program) = compile(&source("cpp/foreign_gl.cpp"), Build::Shared, &EGL) else { return };
    for device in beside_gl().iter().skip(1) {
        let mut run = command(&program);
        run.arg(device);
        works(run, "foreign OpenGL works in C++");
    }
}

#[test]
fn programs_of_vulkan_share_their_buffers() {
    let loader =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    if !loader.iter().any(|folder| Path::new(folder).join("libvulkan.so.1").exists()) {
        return absent("Vulkan for C programs", "no loader");
    }
    let Some(program) = compile(&source("c/foreign_vulkan.c"), Build::Shared, &VULKAN) else {
        return;
    };
    for device in beside_gl() {
        let mut run = command(&program);
        run.arg(device);
        works(run, &format!("foreign Vulkan works with {device}"));
    }
    let program = compile(&source("cpp/foreign_vulkan.cpp"), Build::Shared, &VULKAN);
    let Some(program) = program else { return };
    works(command(&program), "foreign Vulkan works in C++");
}

#[test]
fn grafted_programs_compute() {
    if !has_header("CL/cl.h") {
        return;
    }
    let Some(program) = compile(&source("c/graft.c"), Build::Shared, &OPENCL) else { return };
    let said = said(command(&program));
    match said.lines().find_map(|line| line.strip_prefix("skip: ")) {
        Some(why) => note(&format!("skip: grafted programs in C: {why}")),
        None => assert!(said.contains("grafted programs compute"), "{said}"),
    }
}

/// Uses a driver whose memory sanitizers and Valgrind can observe completely.
#[test]
fn foreign_objects_are_neither_lost_nor_misread() {
    let Some(driver) = stub() else { return };
    for (name, _) in FOREIGN.into_iter().filter(|(_, header)| has_header(header)) {
        for build in [Build::Sanitized, Build::Shared] {
            let Some(program) = compile(&source(name), build, &OPENCL) else { return };
            for mode in ["good", "shadow", "moving"] {
                let mut run = on_driver(command(&program), &driver);
                run.env("ONEBUF_STUB", mode).env("ONEBUF_STUB_PLATFORMS", "2");
                let said = said(run);
                assert!(said.contains("foreign objects work on 2 devices"), "{mode}: {said}");
            }
        }
        let program =
            compile(&source(name), Build::Shared, &OPENCL).expect("it was compiled before");
        let Some(run) = under_valgrind(&program) else { return };
        assert!(said(on_driver(run, &driver)).contains("foreign objects work on 1 devices"));
    }
}

#[test]
fn raw_handles_need_no_header_of_opencls() {
    let Some(driver) = stub() else { return };
    for more in [&["-fno-exceptions"][..], &[]] {
        let Some(program) = compile(&source("cpp/raw.cpp"), Build::Sanitized, more) else { return };
        assert!(said(on_driver(command(&program), &driver)).contains("raw handles work"));
        let said = said(command(&program));
        assert!(said.contains("raw handles work") || said.contains("no OpenCL here"), "{said}");
    }
}

#[test]
fn random_calls_with_foreign_objects_are_answered() {
    let Some(driver) = stub() else { return };
    for build in [Build::Shared, Build::Sanitized] {
        let Some(program) = compile(&source("c/fuzz.c"), build, &[]) else { return };
        for seed in ["1", "2", "3"] {
            let mut run = on_driver(command(&program), &driver);
            run.args([seed, "10000", "opencl:0"]);
            said(run);
        }
    }
    let program = compile(&source("c/fuzz.c"), Build::Shared, &[]).expect("it was compiled before");
    let Some(run) = under_valgrind(&program) else { return };
    let mut run = on_driver(run, &driver);
    run.args(["5", "6000", "opencl:0"]);
    said(run);
}

fn fuzz(build: Build, seed: u64, steps: u32, device: &str) {
    let Some(program) = compile(&source("c/fuzz.c"), build, &[]) else { return };
    let mut run = command(&program);
    run.args([&seed.to_string(), &steps.to_string(), device]);
    said(run);
}

#[test]
fn random_calls_are_answered() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    note(&format!("the C interface is called at random from seed {seed}"));
    for seed in [1, 2, seed] {
        fuzz(Build::Shared, seed, 20_000, "host");
        fuzz(Build::Sanitized, seed, 10_000, "host");
    }
    if devices().len() > 1 {
        fuzz(Build::Shared, seed, 4_000, "opencl:0");
    }
}

/// Functions that the fuzzer does not call, and why.
const NOT_AT_RANDOM: [(&str, &str); 2] = [
    ("onebuf_doctor_helper_main", "it is the `main` of another process: c/doctor.c runs it"),
    ("onebuf_sockets_remove_on_signals", "it changes the process's signals: c/queries.c calls it"),
];

#[test]
fn every_function_is_called_at_random() {
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let words = |text: &str| -> BTreeSet<String> {
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.split(|c| !name(c)).map(str::to_owned).collect()
    };
    let called = words(&(text(&source("c/fuzz.c")) + &text(&source("c/fuzz_queries.h"))));
    let sources = fs::read_dir(crate_folder().join("src")).expect("the sources");
    let sources: String = sources.map(|entry| text(&entry.expect("an entry").path())).collect();
    let exported = sources.split("extern \"C\" fn onebuf_").skip(1);
    let exported: BTreeSet<String> =
        exported.filter_map(|rest| Some(format!("onebuf_{}", rest.split_once('(')?.0))).collect();
    assert!(exported.len() > 100, "{} functions", exported.len());
    let excused: BTreeSet<String> =
        NOT_AT_RANDOM.iter().map(|(name, _)| (*name).to_owned()).collect();
    let left: BTreeSet<String> = exported.difference(&called).cloned().collect();
    assert_eq!(left, excused, "c/fuzz.c calls everything else");
}

#[test]
fn threads_free_what_others_use() {
    for build in [Build::Shared, Build::Sanitized] {
        let Some(program) = compile(&source("c/threads.c"), build, &["-pthread"]) else { return };
        assert!(said(command(&program)).contains("came too late"));
    }
}

#[test]
fn nothing_is_lost_or_misread() {
    for (name, args) in [("c/everything.c", &[][..]), ("c/fuzz.c", &["5", "6000", "host"])] {
        let Some(program) = compile(&source(name), Build::Shared, &[]) else { return };
        let Some(mut run) = under_valgrind(&program).map(with_drivers) else { return };
        run.args(args);
        said(run);
    }
    let Some(program) = compile(&source("c/threads.c"), Build::Shared, &[]) else { return };
    let Some(run) = under_valgrind(&program) else { return };
    said(run);
}

#[test]
fn a_program_in_c_is_its_own_helper() {
    let (Some(driver), Some(program)) =
        (stub(), compile(&source("c/doctor.c"), Build::Shared, &[]))
    else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder for verdicts");
    let mut run = command(&program);
    run.arg(folder.path()).env("ONEBUF_OPENCL_LIB", driver);
    assert!(said(run).contains(r#""to":"opencl:0""#));
}
