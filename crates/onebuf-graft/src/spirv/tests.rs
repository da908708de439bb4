//! Tests with modules built word by word.

use super::*;
use onebuf_hal::packing::{Packing, Slot};

/// Ids that every module here uses.
const VOID: u32 = 1;
pub(super) const UINT: u32 = 2;
const ULONG: u32 = 3;
pub(super) const KERNEL: u32 = 4;
const SIGNATURE: u32 = 5;
/// The first id that a test may use itself.
pub(super) const OWN: u32 = 20;

pub(super) fn op(code: u32, operands: &[u32]) -> Vec<u32> {
    [&[(operands.len() as u32 + 1) << 16 | code], operands].concat()
}

pub(super) fn named(code: u32, before: &[u32], name: &str, after: &[u32]) -> Vec<u32> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize((bytes.len() + 4) / 4 * 4, 0);
    let (letters, _) = bytes.as_chunks::<4>();
    let letters: Vec<u32> = letters.iter().map(|four| u32::from_le_bytes(*four)).collect();
    op(code, &[before, &letters, after].concat())
}

/// A kernel `k` with parameters of these types; `more` is inserted before its function, and declares the types.
pub(super) fn module(more: &[Vec<u32>], parameters: &[u32]) -> Vec<u8> {
    let parts = [
        vec![0x0723_0203, 0x0001_0000, 0, 100, 0],
        op(14, &[2, 2]),
        named(15, &[6, KERNEL], "k", &[]),
        op(19, &[VOID]),
        op(21, &[UINT, 32, 0]),
        op(21, &[ULONG, 64, 0]),
        more.concat(),
        op(33, &[&[SIGNATURE, VOID], parameters].concat()),
        op(54, &[VOID, KERNEL, 0, SIGNATURE]),
        (0..).zip(parameters).flat_map(|(n, kind)| op(55, &[*kind, 60 + n])).collect(),
        op(248, &[90]),
        op(253, &[]),
        op(56, &[]),
    ];
    parts.concat().iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn read(module: &[u8]) -> Result<Packing, String> {
    let image = rewrite(module)?;
    let mut kernels = packing::read(&image).unwrap().expect("a packing");
    assert_eq!(kernels.len(), 1);
    Ok(kernels.remove(0))
}

fn pointer(id: u32, storage: u32, to: u32) -> Vec<u32> {
    op(32, &[id, storage, to])
}

#[test]
fn parameters_of_every_kind_are_told() {
    let types = [
        pointer(OWN, 5, UINT),
        pointer(OWN + 1, 4, ULONG),
        pointer(OWN + 2, 0, UINT),
        op(23, &[OWN + 3, UINT, 4]),
        op(43, &[UINT, OWN + 4, 3]),
        op(28, &[OWN + 5, ULONG, OWN + 4]),
        op(30, &[OWN + 6, UINT, OWN + 5]),
        pointer(OWN + 7, 7, OWN + 6),
        // With a decoration group, as older translators write it.
        op(71, &[OWN + 9, 38, 2]),
        op(73, &[OWN + 9]),
        op(74, &[OWN + 9, 65]),
        op(16, &[KERNEL, 17, 8, 4, 1]),
    ];
    let parameters = [OWN, OWN + 1, UINT, OWN + 2, OWN + 3, OWN + 7];
    let (value, local) = (Slot::Value, Slot::Local(16));
    let expected = Packing {
        name: "k".into(),
        slots: vec![Slot::Memory, local, value(4), Slot::Memory, value(16), value(32)],
        group: Some([8, 4, 1]),
        locals_apart: true,
        ..Packing::default()
    };
    assert_eq!(read(&module(&types, &parameters)), Ok(expected));
}

#[test]
fn the_module_is_in_the_bundle_as_it_was() {
    let module = module(&[], &[UINT]);
    let image = rewrite(&module).unwrap();
    let code = packing::object(&image).expect("a bundle").code;
    let number = |at: usize| u64::from_le_bytes(*code[at..].first_chunk().unwrap()) as usize;
    assert_eq!([number(24), number(40), number(48)], [1, module.len(), ENTRY.len()]);
    assert_eq!(&code[56..56 + ENTRY.len()], ENTRY);
    assert_eq!(&code[number(32)..], module);
    let (words, _) = module.as_chunks::<4>();
    let turned: Vec<u8> = words.iter().flat_map(|word| word.iter().rev().copied()).collect();
    assert_eq!(rewrite(&turned), Ok(image), "the other byte order");
}

#[test]
fn who_asks_for_dimensions_is_told_of_three() {
    assert!(!read(&module(&[], &[])).unwrap().three_dims);
    let asks = [op(71, &[OWN, 11, 30])];
    assert!(read(&module(&asks, &[])).unwrap().three_dims, "nobody admits it");
    let [other, admits] = ["other", "four"].map(|name| {
        let uses: &[u32] = if name == "four" { &[OWN + 1, OWN] } else { &[OWN + 1] };
        named(15, &[6, KERNEL], name, uses)
    });
    let image = rewrite(&module(&[asks.concat(), other, admits], &[])).unwrap();
    let three: Vec<_> = packing::read(&image).unwrap().unwrap();
    let three = three.iter().map(|kernel| (kernel.name.as_str(), kernel.three_dims));
    assert_eq!(three.collect::<Vec<_>>(), [("k", false), ("other", false), ("four", true)]);
}

#[test]
fn what_the_runtime_would_get_wrong_is_refused() {
    let refused = |types: &[Vec<u32>], kind: u32, word: &str| {
        let why = read(&module(types, &[UINT, kind])).unwrap_err();
        assert!(why.contains(word), "{why}");
        assert!(why.contains("argument 1 of kernel `k`"), "{why}");
    };
    refused(&[op(23, &[OWN, UINT, 3])], OWN, "a vector of 3");
    refused(&[op(30, &[OWN, ULONG, UINT])], OWN, "padding at its end");
    let nested = [op(30, &[OWN, ULONG, UINT]), op(30, &[OWN + 1, OWN, UINT])];
    refused(&nested, OWN + 1, "padding at its end");
    let packed = [op(71, &[OWN, 10]), op(30, &[OWN, UINT, UINT])];
    refused(&packed, OWN, "a packed structure");
    refused(&[op(25, &[OWN, VOID, 1, 0, 0, 0, 0, 0])], OWN, "an image");
    refused(&[op(26, &[OWN])], OWN, "a sampler");
    refused(&[pointer(OWN, 7, UINT)], OWN, "memory that a caller cannot pass");
    refused(&[op(30, &[OWN, OWN])], OWN, "without an end");
    refused(&[], 77, "an unknown type");
    let huge = [op(43, &[UINT, OWN, u32::MAX]), op(28, &[OWN + 1, ULONG, OWN])];
    let huge = [&huge[..], &[op(28, &[OWN + 2, OWN + 1, OWN])]].concat();
    refused(&huge, OWN + 2, "larger than memory");
}

#[test]
fn printf_and_small_addresses_are_refused_with_their_place() {
    let prints = [named(11, &[OWN], "OpenCL.std", &[]), op(12, &[UINT, OWN + 1, OWN, 184, OWN])];
    let why = rewrite(&module(&prints, &[])).unwrap_err();
    assert!(why.contains("word ") && why.contains("printf"), "{why}");
    // The same number in another instruction set means something else.
    let other = [named(11, &[OWN], "Other.std", &[]), op(12, &[UINT, OWN + 1, OWN, 184, OWN])];
    assert!(rewrite(&module(&other, &[])).is_ok());
    let narrow = [op(14, &[1, 2])];
    let why = rewrite(&module(&narrow, &[])).unwrap_err();
    assert!(why.contains("64 bits"), "{why}");
}

#[test]
fn variables_in_global_memory_are_seen() {
    let variable = |storage| {
        let held = pointer(OWN, storage, UINT);
        module(&[held, op(43, &[UINT, OWN + 1, 5]), op(59, &[OWN, OWN + 2, storage, OWN + 1])], &[])
    };
    assert!(has_variables(&variable(5)));
    assert!(rewrite(&variable(5)).is_ok(), "which of itself is no reason to refuse it");
    assert!(!has_variables(&variable(0)), "a table of constants");
    assert!(!has_variables(&module(&[pointer(OWN, 5, UINT)], &[OWN])), "a parameter");
}

/// Changes every word, and truncates the module at every word: a result or a refusal, never a panic.
#[test]
fn broken_modules_are_refused_or_harmless() {
    let types = [op(30, &[OWN, UINT, UINT]), pointer(OWN + 1, 5, UINT)];
    let whole = module(&types, &[OWN, OWN + 1]);
    let mut refusals = 0;
    for at in (0..whole.len()).step_by(4) {
        refusals += usize::from(rewrite(&whole[..at]).is_err());
        for word in [0u32, 1, 0xffff, u32::MAX, 0x0001_0037, 0x0002_0020] {
            let mut broken = whole.clone();
            broken[at..at + 4].copy_from_slice(&word.to_le_bytes());
            refusals += usize::from(rewrite(&broken).is_err());
        }
    }
    assert!(refusals > 100, "{refusals}");
}

#[test]
fn parameters_are_told_for_comparison() {
    const FLOAT: u32 = OWN + 8;
    let types = [
        op(22, &[FLOAT, 32]),
        pointer(OWN, 5, UINT),
        op(23, &[OWN + 1, FLOAT, 4]),
        pointer(OWN + 2, 0, OWN + 1),
        pointer(OWN + 3, 4, ULONG),
        op(21, &[OWN + 4, 8, 0]),
        pointer(OWN + 5, 5, OWN + 4),
        op(30, &[OWN + 6, UINT, UINT]),
        pointer(OWN + 7, 5, OWN + 6),
        op(25, &[OWN + 9, VOID, 1, 0, 0, 0, 0, 0]),
        // A structure by value.
        pointer(OWN + 10, 7, OWN + 6),
        op(71, &[69, 38, 2]),
        // A pointer to memory that no caller can pass.
        pointer(OWN + 11, 7, UINT),
    ];
    let parameters = [0, 2, 3, 5, 7].map(|n| OWN + n).into_iter().chain([
        FLOAT,
        OWN + 1,
        OWN + 4,
        OWN + 9,
        OWN + 10,
    ]);
    let parameters: Vec<u32> = parameters.chain([OWN + 11]).collect();
    let module = module(&types, &parameters);
    let told = super::parameters(&module, "k").into_iter();
    let told =
        told.map(|one| one.map(|one| (one.written, one.number.map(|n| n.size()), one.reads_only)));
    let is = |written: &str, size, reads_only| Some((written.to_owned(), size, reads_only));
    let expected = [
        is("global int *", Some(4), false),
        is("constant float4 *", Some(16), true),
        is("local long *", Some(8), false),
        is("global other *", None, false),
        is("global other *", None, false),
        is("float", Some(4), false),
        is("float4", Some(16), false),
        is("char", Some(1), false),
        None,
        is("other", None, false),
        None,
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert!(super::parameters(&module, "other").is_empty());
    assert!(super::parameters(&module[..40], "k").is_empty(), "cut short");
    assert!(super::parameters(b"no module", "k").is_empty());
}
