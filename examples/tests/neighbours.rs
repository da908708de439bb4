//! Runs the examples for users of other crates. What they compute is checked, not only that they end.

use onebuf_conformance::{absent, cuda_stub, stub};
use std::{fs::File, io::BufReader, path::PathBuf, process::Command};

/// Cargo builds the examples before the tests, into a folder beside the tests' folder.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test's path");
    let folders = test.parent().and_then(|deps| deps.parent()).expect("target/debug/deps");
    let path: PathBuf = folders.join("examples").join(name);
    assert!(path.exists(), "{path:?} was not built");
    let mut command = Command::new(path);
    // The tests of other suites run without Vulkan. The user's cache stays as it is.
    command.env_remove("ONEBUF_VULKAN_LIB").env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs an example to its end. `None`, after a skip, if it says that something is missing.
fn run(command: &mut Command, missing: &str) -> Option<String> {
    let output = command.output().expect("the example starts");
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    if out.contains(missing) {
        absent(&format!("{command:?}"), missing);
        return None;
    }
    Some(out)
}

#[test]
fn ash_draws_what_opencl_computes() {
    let Some(out) = run(&mut example("ash-vertices"), "no Vulkan here") else { return };
    assert!(out.contains("ash drew 10 frames that opencl:"), "{out}");
    assert!(out.contains("  opencl:0: host_pointer"), "not in place: {out}");
}

#[test]
fn opencl3_reads_what_another_device_computed() {
    let Some(out) = run(&mut example("opencl3-saxpy"), "no OpenCL here") else { return };
    assert!(out.contains("opencl3 reads what") && out.contains("computed: 35"), "{out}");
}

/// A picture: its width, and four bytes for each pixel.
struct Picture {
    width: usize,
    rgba: Vec<u8>,
}

impl Picture {
    fn read(path: &PathBuf) -> Picture {
        let file = BufReader::new(File::open(path).expect("the picture"));
        let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
        let mut rgba = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut rgba).expect("its pixels");
        assert_eq!(info.color_type, png::ColorType::Rgba);
        Picture { width: info.width as usize, rgba }
    }

    fn at(&self, x: usize, y: usize) -> [u8; 4] {
        let at = 4 * (y * self.width + x);
        self.rgba[at..at + 4].try_into().expect("four bytes")
    }

    fn height(&self) -> usize {
        self.rgba.len() / 4 / self.width
    }
}

fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn glow_draws_the_points_that_opencl_places() {
    let path = picture("points.png");
    let _ = std::fs::remove_file(&path);
    let Some(out) = run(example("glow-points").arg(&path), "no OpenGL here") else { return };
    assert!(out.contains("points of opencl:") && !out.contains("staged,"), "not in place: {out}");
    let picture = Picture::read(&path);
    assert_eq!((picture.width, picture.height()), (128, 128));
    for y in 0..128 {
        for x in 0..128 {
            let expected = if x < 64 { [0, 0, 0, 255] } else { [255, 128, 0, 255] };
            assert_eq!(picture.at(x, y), expected, "pixel {x}, {y}");
        }
    }
}

/// Gliders of Conway's Game of Life move by one cell in four generations. Every pixel of two pictures is compared, on both of
/// wgpu's backends.
#[test]
fn wgpu_draws_what_opencl_simulates() {
    for backend in ["vulkan", "gl"] {
        let draw = |generations: &str| {
            let path = picture(&format!("life-{backend}-{generations}.png"));
            let _ = std::fs::remove_file(&path);
            let mut command = example("wgpu-simulation");
            command.args(["--generations", generations]).arg(&path).env("WGPU_BACKEND", backend);
            let out = run(&mut command, "nothing for wgpu to draw")?;
            assert!(out.contains("  opencl:0: host_pointer") && !out.contains("staged,"), "{out}");
            assert!(out.contains(&format!("Gpu({backend}:0@1)")), "{out}");
            Some(Picture::read(&path))
        };
        let (Some(first), Some(last)) = (draw("0"), draw("64")) else { continue };
        let (alive, dead) = ([255, 153, 0, 255], [0, 0, 51, 255]);
        let mut count = 0;
        for (x, y) in (0..128 * 128).map(|at| (at % 128, at / 128)) {
            let cell = first.at(x, y);
            assert!([alive, dead].contains(&cell), "{backend}: pixel {x}, {y} is {cell:?}");
            assert_eq!(last.at((x + 16) % 128, (y + 16) % 128), cell, "{backend}: pixel {x}, {y}");
            count += usize::from(cell == alive);
        }
        assert_eq!(count, 16 * 5, "sixteen gliders of five cells");
    }
}

/// On the stub of CUDA, which cudarc finds as `libcuda.so`.
#[test]
fn cudarc_computes_in_memory_that_the_host_reads() {
    let Some(stub) = cuda_stub() else { return };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cudarc");
    std::fs::create_dir_all(&folder).expect("a folder");
    let link = folder.join("libcuda.so");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&stub, &link).expect("a link");
    let mut command = example("cudarc-stream");
    command.env("LD_LIBRARY_PATH", &folder).env("ONEBUF_OPENCL_LIB", "none");
    command.env("ONEBUF_CUDA_LIB", &stub).env("ONEBUF_NVRTC_LIB", &stub);
    let Some(out) = run(&mut command, "no CUDA device here") else { return };
    assert!(out.contains("the host sums 786432, which cudarc computed"), "{out}");
    assert!(out.contains("implied: 0 bytes"), "{out}");
}

/// A device on the CPU works in the mapped pages of each frame, and the stub of OpenCL imports the descriptors.
#[test]
fn frames_in_dma_bufs_are_processed_in_place() {
    let Some(out) = run(&mut example("dma-buf-frames"), "no frames here") else { return };
    assert!(out.contains("made 12 negatives") && out.contains("; 0 bytes copied"), "{out}");
    let Some(stub) = stub() else { return };
    // The example compares every byte: with a driver that copies, the display gets what the camera saw.
    for (part, succeeds) in [("dma_buf,cached", true), ("arm", true), ("dma_buf,separate", false)] {
        let mut command = example("dma-buf-frames");
        command.env("ONEBUF_OPENCL_LIB", &stub).env("ONEBUF_STUB", part);
        let output = command.output().expect("the example starts");
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!(output.status.success(), succeeds, "{part}: {out}{err}");
        let said = if succeeds {
            "imported by their descriptors; 0 bytes copied"
        } else {
            "not the negative"
        };
        assert!(format!("{out}{err}").contains(said), "{part}: {out}{err}");
    }
}
