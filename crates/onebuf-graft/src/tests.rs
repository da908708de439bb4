//! Tests of the rewriter on small texts; `conformance/tests/graft` runs it on a real compiler's output.

use super::rewrite;

/// A kernel with one parameter and these statements.
fn kernel(param: &str, body: &str) -> String {
    format!(
        ".version 8.8\n.target sm_90, texmode_independent\n.address_size 64\n\
         .entry k(.param .u64 {param} p)\n{{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .pred %p<2>;\n{body}\nret;\n}}\n"
    )
}

fn global(body: &str) -> String {
    kernel(".ptr .global .align 4", body)
}

#[track_caller]
fn refuses(text: &str, line: usize, why: &str) {
    let error = rewrite(text).expect_err(text).to_string();
    assert!(error.contains(&format!("line {line}: ")) && error.contains(why), "{error}");
}

#[test]
fn a_launch_tells_what_registers_told() {
    let text = rewrite(&global(
        "mov.b32 %r1, %envreg4;\nmov.u32 %r2, %envreg0;\nmov.b32 %r3, %envreg7;\nmov.b32 %r4, %envreg9;\nmov.b32 %r5, %envreg4;",
    ))
    .unwrap();
    assert!(text.starts_with("// onebuf packing 1\n// kernel k memory offset:1 dims\n"), "{text}");
    assert!(text.contains("p, .param .u32 onebuf_told_0, .param .u32 onebuf_told_1)"), "{text}");
    for line in [
        "ld.param.u32 %r1, [onebuf_told_0];",
        "mov.u32 %r2, 0;",
        "mov.b32 %r3, %nctaid.y;",
        "ld.param.u32 %r4, [onebuf_told_1];",
        "ld.param.u32 %r5, [onebuf_told_0];",
        ".target sm_90\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn local_memory_is_found_by_its_offset() {
    let local = |body: &str| kernel(".ptr .shared .align 64", body);
    let text = rewrite(&local("ld.param.u64 %rd1, [p];\nst.shared.u32 [%rd1], %r1;")).unwrap();
    assert!(text.contains("// kernel k local:64\n") && text.contains(".param .u64  p)"), "{text}");
    assert!(text.contains("[p];\n\t{ .reg .b64 %onebuf_at;"), "{text}");
    assert_eq!(text.matches(".extern .shared .align 128").count(), 1);
    assert!(!rewrite(&global("")).unwrap().contains(".extern"));
    refuses(&local("mov.u64 %rd1, p;"), 9, "`p` is not read by a plain load");
    refuses(&local("@%p1 ld.param.u64 %rd1, [p];"), 9, "not read by a plain load");
    refuses(&local("ld.param.u32 %r1, [p+4];"), 9, "not read by a plain load");
    refuses(&kernel(".ptr .shared .align 3", ""), 4, "another kind");
    refuses(&kernel(".ptr .local .align 4", ""), 4, "another kind");
    refuses(&kernel(".ptr .align 4", ""), 4, "another kind");
}

#[test]
fn what_is_not_known_is_refused() {
    refuses(&global("mov.b32 %r1, %envreg10;"), 9, "`%envreg10`, which is not known");
    refuses(&global("\nadd.s32 %r1, %envreg3, 1;"), 10, "not read by a plain `mov`");
    refuses(&global("@%p1 mov.b32 %r1, %envreg3;"), 9, "not read by a plain `mov`");
    refuses(&global("mov.b32 %r9, 1;"), 9, "the register `%r9`");
    refuses(&global("mov.u32 %r1, %dynamic_smem_size;"), 9, "`%dynamic_smem_size`");
    refuses(&global("tex.2d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [t, s, {%r5, %r6}];"), 9, "images");
    refuses(&global("@!%p1 sust.b.1d.b32.trap [t, {%r1}], {%r2};"), 9, "images");
    refuses(&global("mov.u64 %rd1, onebuf_local;"), 9, "which grafting uses");
    refuses(&global("").replace("sm_90,", "sm_90, map_f64_to_f32,"), 2, "map_f64_to_f32");
    refuses(&global("").replace("_size 64", "_size 32"), 3, "64 bits");
    refuses(&global("").replace(".u64", ".u32"), 4, "64 bits");
    refuses(&(global("") + ".extern .shared .b8 x[];"), 12, "`.extern`");
    refuses(&(global("") + ".global .texref t;"), 12, "`.texref`");
    refuses(&(global("") + ".func f(.param .b64 x);"), 12, "`f`, which is not in the program");
    refuses(&(global("") + ".alias a, b;"), 12, "`.alias` between functions");
    refuses(&global("").replace("p)", "p) .maxclusterrank 2"), 4, "before a body");
    refuses(".version 8.8\n.target sm_90\n.address_size 64\n", 3, "no kernels");
    refuses("garbage", 1, "`.version` belongs");
    refuses(&global("").replace("ret;\n}", "ret;"), 10, "ends too early");
}

#[test]
fn functions_know_no_launch() {
    let function = |body: &str| {
        let function = format!(".func f()\n{{\n.reg .b32 %r<9>;\n{body}\nret;\n}}\n");
        global("call.uni f, ();") + &function
    };
    let text = rewrite(&function("mov.b32 %r1, %envreg3;")).unwrap();
    assert!(text.contains("// kernel k memory from-zero\n") && text.contains("mov.b32 %r1, 0;"));
    let text = rewrite(&function("mov.b32 %r1, %envreg6;")).unwrap();
    assert!(text.contains("// kernel k memory\n") && text.contains("mov.b32 %r1, %nctaid.x;"));
    refuses(&function("mov.b32 %r1, %envreg9;"), 15, "get_work_dim");
}

#[test]
fn constant_arguments_take_the_tables_along() {
    let tables = ".const .align 4 .b8 t[4] = {1, 2, 3, 4};\n";
    let body =
        "ld.param.u64 %rd1, [p];\nld.const.v2.u32 {%r1, %r2}, [%rd1+8];\nld.const.u32 %r3, [t];";
    let text = rewrite(&(kernel(".ptr .const .align 4", body) + tables)).unwrap();
    assert!(text.contains(".ptr .global .align 4") && text.contains(".global .align 4 .b8 t"));
    assert!(
        text.contains("ld.global.nc.v2.u32 {%r1, %r2}")
            && text.contains("ld.global.nc.u32 %r3, [t]")
    );
    let text = rewrite(&(global("ld.const.u32 %r3, [t];") + tables)).unwrap();
    assert!(text.contains("ld.const.u32 %r3, [t]") && text.contains(".const .align 4"));
    let odd = kernel(".ptr .const .align 4", "isspacep.const %p1, %rd1;");
    refuses(&odd, 9, "`isspacep.const`");
}

#[test]
fn a_required_group_size_is_told() {
    let sized =
        |size: &str| global("").replace("p)\n{", &format!("p) .reqntid {size} .maxnreg 32\n{{"));
    assert!(rewrite(&sized("8, 4")).unwrap().contains(" group:8:4:1"));
    assert!(rewrite(&sized("2, 3, 5")).unwrap().contains(" group:2:3:5"));
    assert!(!rewrite(&global("")).unwrap().contains("group"));
    refuses(&sized("1, 2, 3, 4"), 4, "a group size that is none");
}
