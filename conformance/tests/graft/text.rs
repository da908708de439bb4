//! The rewriter on a real compiler's output.

use crate::{GRAFTED, REFUSED};
use onebuf::graft::rewrite;
use onebuf_conformance::{Hardware, lacking};
use std::{fs, process::Command};

#[test]
fn nothing_of_opencls_own_is_left() {
    for (name, ptx) in GRAFTED {
        let text = rewrite(ptx).unwrap_or_else(|error| panic!("{name}: {error}"));
        for gone in ["%envreg", "texmode", ".ptr .shared", ".ptr .const", ".metadata_section {"] {
            assert!(!text.contains(gone), "{name}: {gone}");
        }
        assert!(text.starts_with("// onebuf packing 1\n// kernel "), "{name}");
    }
}

/// The first lines describe the arguments of each kernel.
#[test]
fn kernels_say_what_they_take() {
    let says = |name: &str, line: &str| {
        let (_, ptx) = GRAFTED.iter().find(|(known, _)| *known == name).expect("one of them");
        let text = rewrite(ptx).unwrap();
        let line = format!("// kernel {line}");
        let heads: Vec<_> =
            text.lines().skip(1).take_while(|l| l.starts_with("// kernel")).collect();
        assert!(heads.contains(&line.as_str()), "{line}\n{}", heads.join("\n"));
    };
    says("index", "index_all memory value:4 value:4 offset:0 offset:1 offset:2 dims");
    says("local", "local_many memory local:16 local:16 local:16 local:16 local:16 offset:0");
    says("local", "local_address memory local:16 local:64 local:16 offset:0");
    says("constant", "constant_both memory memory local:16 memory offset:0");
    says("groups", "groups_required memory offset:1 offset:0 group:32:2:1");
    says("values", "values_none");
    says("values", "values_struct memory value:96 value:1 offset:0");
    // Not inlined, so the functions cannot receive the launch offset.
    says("local.opt0", "local_one memory memory local:16 from-zero");
}

#[test]
fn what_is_not_the_same_there_is_refused_with_its_line() {
    let why = [
        ("index.opt0", "`get_work_dim` inside a function"),
        ("refused_image", "images and samplers are not grafted"),
        ("refused_printf", "`printf` is not grafted"),
        ("refused_sampler", "images and samplers are not grafted"),
    ];
    for ((name, ptx), (same, why)) in REFUSED.into_iter().zip(why) {
        let error = rewrite(ptx).expect_err(name).to_string();
        assert!(name == same && error.contains(why), "{error}");
        assert!(error.contains("its PTX, line "), "{error}");
    }
}

/// Constants move to another address space only if necessary.
#[test]
fn tables_stay_constant_without_constant_arguments() {
    let numbers = GRAFTED.iter().find(|(name, _)| *name == "numbers").expect("one of them").1;
    let count = |text: &str, what: &str| text.matches(what).count();
    let text = rewrite(numbers).unwrap();
    assert_eq!(count(&text, "ld.const"), count(numbers, "ld.const"));
    let constant = GRAFTED.iter().find(|(name, _)| *name == "constant").expect("one of them").1;
    let text = rewrite(constant).unwrap();
    assert_eq!((count(&text, ".const"), count(constant, "ld.const")), (0, 8));
    assert_eq!(count(&text, "ld.global.nc."), 8);
}

/// NVIDIA's assembler accepts the text: `ONEBUF_PTXAS`, or the one in the path.
#[test]
fn the_assembler_takes_it() {
    let ptxas = std::env::var("ONEBUF_PTXAS").unwrap_or_else(|_| "ptxas".into());
    if let Err(why) = Command::new(&ptxas).arg("--version").output() {
        return lacking(&[Hardware::Nvidia], &format!("{ptxas}: {why}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let assemble = |text: &str| {
        let path = folder.path().join("text.ptx");
        fs::write(&path, text).unwrap();
        let args = ["-arch=sm_90", "-o", "/dev/null"];
        Command::new(&ptxas).args(args).arg(&path).output().unwrap()
    };
    for (name, ptx) in GRAFTED {
        let ran = assemble(&rewrite(ptx).unwrap());
        assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    assert!(!assemble(".version 8.0\n.target sm_90\nnonsense").status.success(), "the control");
}
