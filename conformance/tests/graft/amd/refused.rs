//! Code objects that are not grafted, each with its reason.

use super::{Part, TARGET, argument, buffer, described, file, kernel, local, whole};
use onebuf::{Error, graft::rewrite_code_object};

#[track_caller]
fn refuses(object: &[u8], why: &str) {
    match rewrite_code_object(object) {
        Err(Error::Unsupported { what, .. }) => assert!(what.contains(why), "{what}"),
        other => panic!("{why}: {:?}", other.map(|image| image.len())),
    }
}

fn of_kernel(kernel: Part) -> Vec<u8> {
    file(5, &described(5, TARGET, vec![kernel]))
}

fn with(arguments: Vec<Part>) -> Vec<u8> {
    of_kernel(kernel("k", 64, 0, arguments))
}

#[test]
fn arguments_that_nobody_can_fill() {
    let behind =
        |kind: &str| with(vec![buffer("global", 0), argument(kind, 8, 8).with(".name", "a")]);
    for (kind, why) in [
        ("image", "an image or a sampler"),
        ("sampler", "an image or a sampler"),
        ("pipe", "a pipe"),
        ("queue", "kernels that enqueue others"),
        ("hidden_default_queue", "kernels that enqueue others"),
        ("hidden_completion_action", "kernels that enqueue others"),
        ("hidden_printf_buffer", "`printf`"),
        ("hidden_hostcall_buffer", "calls of the host"),
        ("hidden_of_next_year", "`hidden_of_next_year` of 8 bytes, which is not known"),
        ("hidden_grid_dims", "`hidden_grid_dims` of 8 bytes"),
    ] {
        refuses(&behind(kind), "kernel `k` has argument 1 `a`, which");
        refuses(&behind(kind), why);
    }
    assert!(rewrite_code_object(&behind("by_value")).is_ok(), "the control");
}

#[test]
fn descriptions_that_do_not_hold_together() {
    let value = |offset, size| argument("by_value", offset, size);
    refuses(&with(vec![value(0, 8), value(4, 8)]), "does not lie behind");
    refuses(&with(vec![value(0, 65)]), "inside of them all");
    refuses(&with(vec![value(0, 0)]), "neither place nor size");
    refuses(
        &with(vec![argument("hidden_none", 0, 8), value(8, 8)]),
        "behind those that OpenCL hides",
    );
    refuses(&with(vec![argument("global_buffer", 0, 8)]), "memory of the kind None");
    refuses(&with(vec![buffer("local", 0)]), "memory of the kind Some(\"local\")");
    refuses(&with(vec![argument("global_buffer", 0, 4)]), "`global_buffer` of 4 bytes");
    refuses(&with(vec![local(0, 3)]), "aligned to Some(3)");
    refuses(&with(vec![local(0, 256)]), "aligned to Some(256)");
    let plain = || kernel("k", 8, 0, vec![value(0, 8)]);
    refuses(&of_kernel(plain().with(".symbol", "j.kd")), "not its name and `.kd`");
    refuses(&of_kernel(plain().with(".name", "k k")), "a kernel of the name \"k k\"");
    refuses(&of_kernel(plain().with(".kind", "init")), "runs automatically");
    refuses(&of_kernel(plain().with(".device_enqueue_symbol", "x")), "enqueued by other kernels");
    refuses(&of_kernel(plain().with(".reqd_workgroup_size", 4)), "requires an invalid group size");
    refuses(&of_kernel(plain().with(".new", 1)), "kernel `k` has `.new`, which is not known");
    refuses(&with(vec![value(0, 8).with(".new", 1)]), "`.new` in its argument 0");
    let other = described(5, TARGET, vec![plain()]).with("amdhsa.new", 1);
    refuses(&file(5, &other), "its metadata have `amdhsa.new`");
    refuses(&of_kernel(plain().with(".args", 4)), "arguments that are no list");
    refuses(&of_kernel(plain().with(".kernarg_segment_size", "x")), "no `.kernarg_segment_size`");
    refuses(&file(5, &described(5, TARGET, vec![])), "no kernels");
    refuses(&file(5, &described(5, TARGET, vec![plain(), plain()])), "kernel `k` twice");
    refuses(
        &file(5, &described(4, TARGET, vec![plain()])),
        "of version [Some(1), Some(1)], the object of version 5",
    );
    refuses(&file(5, &described(5, "r600", vec![plain()])), "no GPU of AMD's");
    assert!(rewrite_code_object(&of_kernel(plain())).is_ok(), "the control");
}

#[test]
fn files_of_other_kinds() {
    let other = |at: usize, byte: u8| {
        let mut object = whole(5);
        object[at] = byte;
        object
    };
    refuses(b"kernel void k() {}", "does not begin as an ELF file");
    refuses(b"\x7fELF", "outside of its 4");
    refuses(b"__CLANG_OFFLOAD_BUNDLE__", "a bundle or bitcode");
    refuses(b"CCOB", "a bundle or bitcode");
    refuses(b"BC\xc0\xde", "a bundle or bitcode");
    refuses(&other(4, 1), "HSA on 64 bits");
    refuses(&other(5, 2), "HSA on 64 bits");
    refuses(&other(7, 65), "HSA on 64 bits");
    refuses(&other(16, 1), "of type 1 for machine 224");
    refuses(&other(18, 62), "of type 3 for machine 62");
    refuses(&other(8, 0), "ABI version is 0");
    refuses(&other(8, 4), "ABI version is 4");
    refuses(&other(56, 0), "no metadata");
    refuses(&other(super::object::NOTES_AT + 8, 31), "no metadata");
    refuses(&other(54, 55), "entries of 55 bytes");
    let whole = whole(5);
    for end in [8, 63, 64, 119, 300, whole.len() - 1] {
        refuses(&whole[..end], "outside of its");
    }
}
