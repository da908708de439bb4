//! Tests of `source.rs`.

use super::*;
use onebuf_hal::Shader;

/// A source and a device agree on a language only by its name.
#[test]
fn languages_have_the_names_that_backends_know() {
    let known =
        [onebuf_opencl::OPENCL_C, onebuf_cuda::CUDA_C, onebuf_cuda::HIP_C, onebuf_cuda::PTX];
    assert_eq!([OPENCL_C, CUDA_C, HIP_C, PTX], known);
}

#[test]
fn includes_are_seen() {
    for text in [
        "#include \"a.h\"",
        "int x;\n  #  include <a.h>\n",
        "#/* why */include <a.h>",
        "#inc\\\nlude \"a.h\"",
        "#inc\\\r\nlude \"a.h\"",
        "%:include \"a.h\"",
        "??=include \"a.h\"",
        "#include_next <a.h>",
        "#import \"a.h\"",
        "#if __has_include(\"a.h\")",
        "#embed \"table.bin\"",
        "#/*\n*/include \"a.h\"",
        "#inc\\ \nlude \"a.h\"",
    ] {
        assert!(reads_files(Source::opencl_c(text).hal()), "{text}");
    }
    for text in ["", "#define N 4", "// includes nothing\nkernel void f() {}", "int include;"] {
        assert!(!reads_files(Source::opencl_c(text).hal()), "{text}");
    }
}

#[test]
fn include_options_are_seen() {
    let with = |options: &str| reads_files(Source::opencl_c("").with_options(options).hal());
    for options in
        ["-I.", "-I .", "-DX -I/usr", "\"-I/my dir\"", "-include a.h", "--include=a.h", "@args"]
    {
        assert!(with(options), "{options}");
    }
    for options in ["", "-DINCLUDE=1", "-cl-fast-relaxed-math -w", "-D I=2"] {
        assert!(!with(options), "{options}");
    }
}

#[test]
fn files_are_what_they_contain() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: &[u8]| {
        fs::write(path(name), bytes).unwrap();
        Source::from_file(path(name))
    };
    let module = [0x0723_0203u32, 0x0001_0000, 0, 1, 0].map(u32::to_be_bytes).concat();
    for name in ["a.spv", "a.SPV", "a.cl", "a"] {
        assert_eq!(write(name, &module).unwrap().0.spirv.as_deref(), Some(&module[..]), "{name}");
    }
    for (name, language) in
        [("b.cl", OPENCL_C), ("b.cu", CUDA_C), ("b.HIP", HIP_C), ("b.ptx", PTX), ("b", OPENCL_C)]
    {
        let text = write(name, b"kernel void f() {}").unwrap();
        assert_eq!(text.0.texts, [(language, "kernel void f() {}".into())], "{name}");
    }
    for name in ["twice.comp", "twice.GLSL"] {
        let shader = Shader { name: "twice".into(), text: "void main() {}".into() };
        assert_eq!(write(name, b"void main() {}").unwrap().0.shaders, [shader], "{name}");
    }
    for (name, bytes) in [("c.spv", &b"kernel void f() {}"[..]), ("d.spv", &module[..19])] {
        let Err(Error::InvalidArgument(why)) = write(name, bytes) else { panic!("{name}") };
        assert!(why.contains(name) && why.contains("SPIR-V"), "{why}");
    }
    let Err(Error::InvalidArgument(why)) = write("e.cl", b"\x7fELF\xff\xfe") else { panic!() };
    assert!(why.contains("e.cl: neither SPIR-V nor text"), "{why}");
    let missing = Source::from_file(path("none.cl")).unwrap_err();
    assert!(matches!(&missing, Error::Unavailable { what, .. } if what.contains("none.cl")));
}
