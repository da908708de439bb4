//! PTX that tries to exhaust memory, and the comments that the rewriter writes itself.

use super::rewrite;
use onebuf_hal::{
    packing,
    testing::{
        fuzz::{Bound, Form, Target},
        meter::measure,
    },
};

/// The bound that `docs/graft.md` promises.
const BOUND: Bound = Bound { per_byte: 96, fixed: 1 << 20 };

const HEAD: &str = ".version 8.8\n.target sm_90, texmode_independent\n.address_size 64\n";

/// Inputs that take the most memory for their length, one after another.
#[test]
fn short_words_take_no_more_than_their_share() {
    let body = |body: &str, times: usize| {
        format!(
            "{HEAD}.entry k(.param .u64 .ptr .shared .align 4 p)\n{{\n.reg .b64 %r<9>;\n{}ret;\n}}\n",
            body.repeat(times)
        )
    };
    let texts = [
        body("a;", 50_000),
        body("a,,,,,,,,,,,,,,,;", 10_000),
        body("ld.param.u64 %r1,[p];", 10_000),
        body("mov.b32 %r1,%envreg3;", 10_000),
        HEAD.to_owned() + &".entry a{}".repeat(10_000),
        HEAD.to_owned() + &".func a;".repeat(10_000) + ".entry a{}",
        HEAD.to_owned() + &".const;".repeat(10_000) + ".entry a{}",
        format!("{HEAD}.entry a(.param .b8 a{}){{}}", ",.param .b8 a".repeat(10_000)),
    ];
    for text in texts {
        let (answer, taken) = measure(|| rewrite(&text));
        BOUND.check("PTX", text.as_bytes(), taken);
        assert!(answer.is_ok(), "{} {:?}", &text[..200], answer.err());
    }
}

#[test]
fn fuzz_ptx() {
    let kernel = format!(
        "{HEAD}.visible .entry k(.param .u64 .ptr .global .align 4 p, .param .u64 .ptr .shared .align 8 l, .param .align 4 .b8 v[12])\n\
         .reqntid 32, 2, 1\n{{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .pred %p<2>;\nmov.b32 %r1, %envreg4;\n\
         mov.u32 %r2, %envreg0;\nld.param.u64 %rd1, [l];\n@%p1 bra $L;\nst.shared.u32 [%rd1], %r1;\n$L:\ncall.uni f, ();\nret;\n}}\n\
         .func f()\n{{\n.reg .b32 %r<9>;\n{{ mov.b32 %r1, %nctaid.x; }}\nret;\n}}\n"
    );
    let tables = format!(
        "{HEAD}// a comment\n.const .align 4 .b8 t[4] = {{1, 2, 3, 4}};\n.entry c(.param .u64 .ptr .const .align 4 p)\n{{\n\
         .reg .b32 %r<9>;\n.loc 1 2 3\nld.const.u32 %r3, [t];\nret;\n}}\n.metadata_section {{ a {{ b }} }}\n"
    );
    let seeds = [kernel.into_bytes(), tables.into_bytes()];
    Target {
        name: "PTX",
        bound: BOUND,
        input: &|random, most| Form::Text.changed(random, &seeds, most),
        parse: &|text| std::str::from_utf8(text).is_ok_and(|text| rewrite(text).is_ok()),
    }
    .run();
}

/// The comments before an image are untrusted too, because images are stored in files.
#[test]
fn fuzz_packings() {
    let text = "// onebuf packing 1\n// kernel k memory value:12 local:16 offset:2 dims group:32:2:1 from-zero static:48\n\
                // kernel j three-dims locals-apart\n// target gfx90a\n\x7fELF";
    let seeds = [text.as_bytes().to_vec()];
    Target {
        name: "packings",
        bound: Bound { per_byte: 64, fixed: 64 << 10 },
        input: &|random, most| Form::Text.changed(random, &seeds, most),
        parse: &|image| {
            packing::read(image).is_ok_and(|found| found.is_some())
                | packing::object(image).is_some()
        },
    }
    .run();
}
