//! OpenCL kernels in HIP's streams: AMD code objects, made by hand and, if available, by a real compiler. This has never
//! run on an AMD GPU; a stub of HIP fills arguments as AMD's runtime does.

mod object;
mod path;
mod refused;

use object::{Part, argument, buffer, described, file, kernel, local};
use onebuf::graft::rewrite_code_object;
use onebuf_conformance::{Random, note};
use std::{fs, process::Command};

const TARGET: &str = "gfx90a:sramecc+:xnack-";

/// The hidden arguments of a kernel of that version: offset and size of each.
fn hidden(version: u8, at: u64) -> Vec<Part> {
    let offsets = |at: u64| {
        let each = ["x", "y", "z"].into_iter().zip(0..);
        each.map(move |(d, i)| argument(&format!("hidden_global_offset_{d}"), at + 8 * i, 8))
    };
    if version < 5 {
        let none =
            (3..7).map(|i| argument("hidden_none", at + 8 * i, 8).with(".address_space", "global"));
        return offsets(at).chain(none).collect();
    }
    let each = |what: &str, at: u64, size: u64| {
        let each = ["x", "y", "z"].into_iter().zip(0..);
        each.map(|(d, i)| argument(&format!("hidden_{what}_{d}"), at + size * i, size))
            .collect::<Vec<_>>()
    };
    let mut all = each("block_count", at, 4);
    all.extend(each("group_size", at + 12, 2));
    all.extend(each("remainder", at + 18, 2));
    all.extend(offsets(at + 40));
    all.push(argument("hidden_grid_dims", at + 64, 2));
    all
}

/// A kernel with arguments of every kind; two are local memory, in addition to static local memory.
fn parts(version: u8) -> Part {
    let mut arguments = vec![
        buffer("global", 0),
        argument("by_value", 8, 12).with(".name", "by"),
        local(20, 4),
        buffer("constant", 24),
        local(32, 64).with(".type_name", "struct a_type_with_a_very_long_name *"),
    ];
    arguments.extend(hidden(version, 40));
    kernel("parts", 296, 40, arguments)
}

/// A kernel with hidden arguments only, besides its buffer.
fn told(version: u8) -> Part {
    let arguments = [vec![buffer("global", 0)], hidden(version, 8)].concat();
    kernel("told", 264, 0, arguments)
}

fn whole(version: u8) -> Vec<u8> {
    file(version, &described(version, TARGET, vec![parts(version), told(version)]))
}

/// The comments before an image, and the code object after them.
fn image(object: &[u8]) -> (String, Vec<u8>) {
    let image = rewrite_code_object(object).unwrap();
    let at = image.windows(4).position(|bytes| bytes == b"\x7fELF").expect("an object");
    (String::from_utf8(image[..at].to_vec()).unwrap(), image[at..].to_vec())
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn launches_pass_what_the_runtime_would_fill() {
    let offsets = "offset:0 offset:1 offset:2";
    for (version, dims, three) in [(3, "", " three-dims"), (4, "", " three-dims"), (5, " dims", "")]
    {
        let object = whole(version);
        let (comments, code) = image(&object);
        assert_eq!(
            comments,
            format!(
                "// onebuf packing 1\n\
                 // kernel parts memory value:12 local:16 memory local:64 {offsets}{dims} static:40{three}\n\
                 // kernel told memory {offsets}{dims}{three}\n\
                 // target {TARGET}\n"
            )
        );
        assert_eq!(code.len(), object.len(), "nothing moves");
        assert_eq!(code[..object::NOTES_AT], object[..object::NOTES_AT]);
        for gone in ["dynamic_shared_pointer", "hidden_global_offset", "hidden_grid_dims"] {
            assert!(!has(&code, gone), "{gone}");
            assert!(has(&object, gone) || version < 5, "the control: {gone}");
        }
    }
}

#[test]
fn groups_and_targets_are_kept() {
    let sizes = Part::List(vec![32.into(), 2.into(), 1.into()]);
    let fixed =
        kernel("fixed", 8, 0, vec![buffer("global", 0)]).with(".reqd_workgroup_size", sizes);
    let (comments, _) = image(&file(5, &described(5, "gfx1100", vec![fixed])));
    assert_eq!(
        comments,
        "// onebuf packing 1\n// kernel fixed memory group:32:2:1\n// target gfx1100\n"
    );
}

/// Never a panic or a read out of bounds. An accepted object keeps its length and has no hidden arguments left.
#[test]
fn broken_objects_are_refused_or_rewritten_whole() {
    const ROUNDS: usize = 4000;
    let (mut random, mut accepted) = (Random::new(24), 0);
    for round in 0..ROUNDS {
        let mut object = whole(3 + (round % 3) as u8);
        for _ in 0..1 + random.below(3) {
            let at = random.below(object.len());
            match random.below(4) {
                0 => object[at] = random.word() as u8,
                1 => object[at] ^= 1 << random.below(8),
                2 => object.truncate(at.max(1)),
                _ => drop(object.remove(at)),
            }
            if object.len() < 2 {
                break;
            }
        }
        let Ok(image) = rewrite_code_object(&object) else { continue };
        accepted += 1;
        assert!(image.ends_with(&object[object.len() - 64..]), "round {round}");
        assert!(!has(&image, "dynamic_shared_pointer"), "round {round}");
    }
    assert!(
        accepted > ROUNDS / 50 && accepted < ROUNDS * 9 / 10,
        "{accepted} of {ROUNDS} accepted"
    );
}

/// The index functions of AMD's device library, which a compiler alone does not have.
const TEXT: &str = "
typedef unsigned long size_t;
#if VERSION < 5
#define SIZE ((constant unsigned short *)__builtin_amdgcn_dispatch_ptr())[2]
#define FIRST ((constant size_t *)__builtin_amdgcn_implicitarg_ptr())[0]
#else
#define SIZE ((constant unsigned short *)__builtin_amdgcn_implicitarg_ptr())[6]
#define FIRST ((constant size_t *)__builtin_amdgcn_implicitarg_ptr())[5]
#endif
#define ID (__builtin_amdgcn_workgroup_id_x() * (unsigned)SIZE + __builtin_amdgcn_workitem_id_x() + FIRST)
kernel void parts(global float *x, float by, local float *part, constant float *t, local double *q) {
    local int own[4];
    size_t i = ID;
    own[i & 3] = i, part[i & 63] = x[i], q[i & 63] = by;
    __builtin_amdgcn_s_barrier();
    x[i] *= by * t[1] * q[0] * own[1] * part[0];
}
__attribute__((reqd_work_group_size(64, 2, 1))) kernel void fixed(global int *x) {
    x[__builtin_amdgcn_workitem_id_x()] = 7;
}";

/// Compiles and links a code object; skipped without a compiler.
fn compiled(version: u8) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let [text, object] = ["text.cl", "object"].map(|name| folder.path().join(name));
    fs::write(&text, TEXT).unwrap();
    let names = std::env::var("ONEBUF_CLANG").unwrap_or("clang clang-15 clang-14".into());
    names.split(' ').find_map(|name| {
        let mut clang = Command::new(name);
        clang.args([
            "-x",
            "cl",
            "-target",
            "amdgcn-amd-amdhsa",
            "-mcpu=gfx90a",
            "-nogpulib",
            "-O2",
            "-w",
        ]);
        clang.arg(format!("-DVERSION={version}")).arg(format!("-mcode-object-version={version}"));
        let ran = clang.arg("-o").args([&object, &text]).output().ok()?;
        ran.status.success().then(|| fs::read(&object).unwrap())
    })
}

#[test]
fn what_a_real_compiler_made_is_rewritten() {
    for version in [3, 4, 5] {
        let Some(object) = compiled(version) else {
            return note(
                "skip: code objects of a real compiler: no clang for AMD's GPUs with its linker",
            );
        };
        let (comments, code) = image(&object);
        let parts =
            "// kernel parts memory value:4 local:16 memory local:16 offset:0 offset:1 offset:2";
        let [dims, three] = if version < 5 { ["", " three-dims"] } else { [" dims", ""] };
        assert!(comments.contains(&format!("{parts}{dims} static:16{three}\n")), "{comments}");
        assert!(
            comments.contains(&format!("// kernel fixed memory group:64:2:1{three}\n")),
            "{comments}"
        );
        assert_eq!(comments.contains("// target gfx90a\n"), version > 3, "{comments}");
        let changed: Vec<usize> = (0..code.len()).filter(|at| code[*at] != object[*at]).collect();
        assert!(code.len() == object.len() && !changed.is_empty());
        assert!(
            changed.iter().all(|at| (0x200..0xa00).contains(at)),
            "only in the notes: {changed:?}"
        );
    }
}
