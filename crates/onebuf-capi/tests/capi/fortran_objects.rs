//! Fortran programs with objects of their own, pipelines, two processes, and what a dispatch costs.

use crate::{
    fortran::{How, alone, at, on, plain, root, speaking},
    programs::found,
    support::{EGL, VULKAN, command, crate_folder, has_header, said, workshop},
};
use onebuf_conformance::{absent, cuda_stub, note, stub};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn source(name: &str) -> String {
    format!("bindings/fortran/tests/{name}.f90")
}

/// A program with a part in C, by the same name.
fn with_c(name: &str, libraries: &[&str]) -> Option<PathBuf> {
    let object = workshop().join(format!("{name}-part.o"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-c"]);
    compiler.arg("-I").arg(crate_folder().join("tests/c"));
    compiler.arg(root().join(format!("bindings/fortran/tests/{name}.c"))).arg("-o").arg(&object);
    let Ok(made) = compiler.output() else {
        absent("cc", "not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let more = [&[object.to_str().expect("a path")], libraries].concat();
    How::Plain.program_with(&source(name), &more)
}

/// Runs a program on a device, with a folder for its files.
fn in_folder(program: &Path, device: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = at(program, device);
    run.arg(device).arg(folder.path());
    said(run)
}

fn on_every_device(name: &str, phrase: &str) {
    let Some(program) = plain(&source(name)) else { return };
    for device in speaking() {
        let said = in_folder(&program, device);
        said.lines().filter(|line| line.starts_with("skip: ")).for_each(note);
        assert!(said.contains(phrase), "{name} on {device}: {said}");
    }
    if let Some(program) = How::Flang.program(&source(name)) {
        assert!(in_folder(&program, "host").contains(phrase), "{name}, by flang");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let checked = How::Checked.program(&source(name)).expect("a compiler");
    let mut run = alone(command(&checked));
    run.arg("host").arg(folder.path());
    assert!(said(run).contains(phrase), "{name}, with checks");
}

#[test]
fn pipelines_have_stages_in_fortran() {
    on_every_device("pipelines", "pipelines work on ");
}

#[test]
fn native_objects_plans_copies_and_traces() {
    on_every_device("objects", "objects work on ");
}

#[test]
fn regions_and_pending_maps_and_transfers() {
    on_every_device("pending", "pending work is waited for on ");
}

/// On lavapipe, and with a stub for each of the other APIs that export memory.
#[test]
fn fortran_programs_share_memory_by_descriptors() {
    let Some(program) = plain(&source("descriptors")) else { return };
    let vulkan = speaking().filter(|id| id.starts_with("vulkan")).map(|id| on(&program, id));
    let mut said: Vec<String> = vulkan.collect();
    if let Some(library) = cuda_stub() {
        let stubs = [("CUDA", "cuda:0"), ("HIP", "hip:0")];
        said.extend(stubs.map(|(api, device)| on_stub(&program, api, device, &library)));
    }
    for said in said {
        match said.lines().find_map(|line| line.strip_prefix("skip: ")) {
            Some(why) => note(&format!("skip: descriptors in Fortran: {why}")),
            None => assert!(said.contains("descriptors work on "), "{said}"),
        }
    }
}

/// Runs a program on a device of the stub for CUDA and HIP.
fn on_stub(program: &Path, api: &str, device: &str, library: &Path) -> String {
    let mut run = command(program);
    run.arg(device).env(format!("ONEBUF_{api}_LIB"), library);
    run.env("ONEBUF_NVRTC_LIB", library).env("ONEBUF_HIPRTC_LIB", library);
    said(run)
}

#[test]
fn two_fortran_programs_share_a_buffer() {
    let Some(program) = plain(&source("peers")) else { return };
    let mut run = command(&program);
    run.arg(format!("fortran-{}", std::process::id()));
    assert!(said(run).contains("processes take turns"));
}

#[test]
fn the_doctor_is_called_from_fortran() {
    let (Some(driver), Some(program)) = (stub(), plain(&source("doctor"))) else { return };
    let mut run = command(&program);
    run.env("ONEBUF_OPENCL_LIB", driver);
    let said = said(run);
    assert!(said.contains(r#""to":"opencl:0""#), "{said}");
}

/// A stub stands for the drivers.
#[test]
fn pointers_and_streams_of_a_fortran_program() {
    let Some(library) = cuda_stub() else { return };
    let Some(program) = with_c("streams", &["-ldl"]) else { return };
    for (api, device) in [("CUDA", "cuda:0"), ("HIP", "hip:0")] {
        let mut run = command(&program);
        run.arg(&library).arg(device).env(format!("ONEBUF_{api}_LIB"), &library);
        run.env("ONEBUF_NVRTC_LIB", &library).env("ONEBUF_HIPRTC_LIB", &library);
        let said = said(run);
        assert!(said.contains(&format!("streams work on {device}")), "{said}");
    }
}

/// What NVIDIA's OpenCL compiler makes of the kernel in `graft.f90`, without its code: the stub computes by the kernel's name.
const ADVANCE: &str = "//
.version 8.8
.target sm_90, texmode_independent
.address_size 64

.entry advance(
	.param .u64 .ptr .global .align 4 advance_param_0,
	.param .u32 advance_param_1,
	.param .u32 advance_param_2,
	.param .u32 advance_param_3,
	.param .u32 advance_param_4
)
{
	ret;
}
";

/// Stubs stand for the two drivers of one chip.
#[test]
fn kernels_move_from_opencl_to_cuda_in_fortran() {
    let (Some(opencl), Some(cuda)) = (stub(), cuda_stub()) else { return };
    let Some(program) = plain(&source("graft")) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("advance.ptx");
    fs::write(&text, ADVANCE).expect("a file");
    let mut run = command(&program);
    run.arg(&text).env("ONEBUF_STUB_BINARY", &text).env("ONEBUF_STUB", "imports,cached");
    run.env("ONEBUF_OPENCL_LIB", opencl).env("ONEBUF_HIP_LIB", "none");
    run.env("ONEBUF_CUDA_LIB", &cuda).env("ONEBUF_NVRTC_LIB", &cuda);
    assert!(said(run).contains("kernels were moved"));
}

/// Runs a program that prints a skip if its own API is unavailable.
fn beside(program: &Path, phrase: &str) {
    for device in
        ["host", "opencl:0"].into_iter().filter(|id| found().iter().any(|known| known == id))
    {
        let said = on(program, device);
        match said.lines().find_map(|line| line.strip_prefix("skip: ")) {
            Some(why) => absent(phrase, why),
            None => assert!(said.contains(phrase), "{device}: {said}"),
        }
    }
}

#[test]
fn fortran_programs_bind_buffers_in_their_own_shaders() {
    if !has_header("EGL/egl.h") || !has_header("GL/glcorearb.h") {
        return;
    }
    let Some(program) = with_c("opengl", &EGL) else { return };
    if !found().iter().any(|id| id.starts_with("gl:")) {
        return absent("OpenGL for Fortran programs", "no device");
    }
    beside(&program, "OpenGL programs work with ");
}

#[test]
fn fortran_programs_share_their_vulkan_memory() {
    let loader =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    if !loader.iter().any(|folder| PathBuf::from(folder).join("libvulkan.so.1").exists()) {
        return absent("Vulkan for Fortran programs", "no loader");
    }
    let Some(program) = with_c("vulkan", &VULKAN) else { return };
    beside(&program, "Vulkan programs work with ");
}

/// Prints the ratio: the time is not checked here, because the library is not optimised and the machine is busy.
#[test]
fn a_dispatch_is_compared_with_the_launch_in_c() {
    let Some(program) = plain(&source("overhead")) else { return };
    for device in
        ["host", "opencl:0"].into_iter().filter(|id| found().iter().any(|known| known == id))
    {
        let mut run = at(&program, device);
        run.args([device, "20"]);
        let said = said(run);
        assert!(said.contains("a dispatch over the launch in C: "), "{said}");
        note(said.lines().next().unwrap_or_default());
    }
}
