//! Parsing of modules.

use super::*;

/// Encodes an instruction.
fn op(code: u16, operands: &[u32]) -> Vec<u32> {
    let first = (operands.len() as u32 + 1) << 16 | u32::from(code);
    [&[first], operands].concat()
}

fn header() -> Vec<u32> {
    vec![MAGIC, 0x0001_0300, 0, 100, 0]
}

/// The parts of a module of one shader with a buffer and values.
pub(super) fn parts() -> Vec<Vec<u32>> {
    let name = u32::from_le_bytes(*b"go\0\0");
    vec![
        header(),
        op(OP_CAPABILITY, &[CAPABILITY_SHADER]),
        op(OP_MEMORY_MODEL, &[0, 1]),
        op(OP_ENTRY_POINT, &[MODEL_COMPUTE, 1, name]),
        op(OP_EXECUTION_MODE, &[1, MODE_LOCAL_SIZE, 8, 4, 2]),
        op(OP_DECORATE, &[10, DECORATION_SET, 0]),
        op(OP_DECORATE, &[10, DECORATION_BINDING, 3]),
        op(OP_DECORATE, &[11, DECORATION_SET, 0]),
        op(OP_DECORATE, &[11, DECORATION_BINDING, 5]),
        op(OP_DECORATE, &[12, DECORATION_SET, 0]),
        op(OP_DECORATE, &[12, DECORATION_BINDING, 6]),
        op(OP_DECORATE, &[40, DECORATION_BUFFER_BLOCK]),
        op(OP_TYPE_POINTER, &[20, CLASS_UNIFORM, 40]),
        op(OP_VARIABLE, &[21, 10, CLASS_STORAGE_BUFFER]),
        op(OP_VARIABLE, &[22, 11, CLASS_UNIFORM]),
        op(OP_VARIABLE, &[20, 12, CLASS_UNIFORM]),
        op(54, &[2, 1, 0, 3]),
        op(OP_FUNCTION_END, &[]),
    ]
}

#[test]
fn entries_groups_and_bindings_are_found() {
    let module = Module::new(parts().concat(), 6).unwrap();
    assert_eq!(module.entries, [Entry { name: "go".to_owned(), group: [8, 4, 2] }]);
    let takes = [(3, Takes::Storage), (5, Takes::Values), (6, Takes::Storage)];
    assert_eq!(module.bindings, BTreeMap::from(takes));
    assert!(!module.other_sets);
    assert!(module.entry("go").is_some() && module.entry("main").is_none());
}

/// A constant group size takes precedence over that of the entry point.
#[test]
fn a_built_in_size_wins() {
    let mut parts = parts();
    let more = [
        op(OP_DECORATE, &[30, DECORATION_BUILT_IN, BUILT_IN_GROUP_SIZE]),
        op(OP_CONSTANT, &[7, 31, 16]),
        op(OP_CONSTANT, &[7, 32, 1]),
        op(OP_CONSTANT_COMPOSITE, &[8, 30, 31, 32, 32]),
    ];
    parts.splice(5..5, more);
    assert_eq!(Module::new(parts.concat(), 6).unwrap().entries[0].group, [16, 1, 1]);
}

#[test]
fn every_part_is_needed() {
    let without = |n: usize| {
        let mut parts = parts();
        parts.remove(n);
        Module::new(parts.concat(), 6).map(|_| ()).unwrap_err()
    };
    assert!(without(0).contains("header"));
    assert!(without(1).contains("not a module of shaders"));
    assert!(without(2).contains("not a module of shaders"));
    assert!(without(3).contains("no compute shader"));
    assert!(without(4).contains("how large its groups are"));
    assert!(without(17).contains("ends in the middle"));
}

#[test]
fn no_instruction_reaches_outside() {
    let whole = parts().concat();
    for end in 0..whole.len() {
        assert!(Module::new(whole[..end].to_vec(), 6).is_err(), "{end} words");
    }
    let mut parts = parts();
    parts[2] = vec![0];
    assert!(Module::new(parts.concat(), 6).unwrap_err().contains("has 0 words"));
    let mut few = whole.clone();
    few[3] = 12;
    assert!(Module::new(few, 6).unwrap_err().contains("names id 12 of 12"));
    assert!(Module::new(whole, 2).unwrap_err().contains("takes up to 1.2"));
}
