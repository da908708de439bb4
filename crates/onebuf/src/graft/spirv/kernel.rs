//! How each kernel takes its arguments.

use super::{
    module::{Entry, Module},
    types::Type,
};
use crate::hal::packing::{Packing, Slot};

/// Kinds of storage.
const CONSTANT: u32 = 0;
const LOCAL: u32 = 4;
const GLOBAL: u32 = 5;
const PRIVATE: u32 = 7;
/// As is usual for group-local memory.
const LOCAL_ALIGN: usize = 16;

/// One for each kernel of the module.
pub(super) fn packings(module: &Module) -> Result<Vec<Packing>, String> {
    module.kernels.iter().map(|kernel| packing(module, kernel)).collect()
}

fn packing(module: &Module, kernel: &Entry) -> Result<Packing, String> {
    let Entry { name, function, .. } = kernel;
    // It stands in a line of words.
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("a kernel called {name:?}"));
    }
    let parameters = module.functions.get(function).ok_or(format!("no function for `{name}`"))?;
    let slot = |(index, (kind, id)): (usize, &(u32, u32))| {
        let slot = slot(module, *kind, *id);
        slot.map_err(|why| format!("argument {index} of kernel `{name}` is {why}"))
    };
    Ok(Packing {
        name: name.to_owned(),
        slots: parameters.iter().enumerate().map(slot).collect::<Result<_, String>>()?,
        group: module.groups.get(function).copied(),
        three_dims: module.asks_dims(kernel),
        locals_apart: true,
        ..Packing::default()
    })
}

fn slot(module: &Module, kind: u32, id: u32) -> Result<Slot, String> {
    match module.types.get(kind) {
        Type::Pointer(CONSTANT | GLOBAL, _) => Ok(Slot::Memory),
        Type::Pointer(LOCAL, _) => Ok(Slot::Local(LOCAL_ALIGN)),
        Type::Pointer(PRIVATE, to) if module.by_value.contains(&id) => {
            module.types.value_bytes(to).map(Slot::Value)
        }
        Type::Pointer(..) => Err("a pointer to memory that no caller has".into()),
        _ => module.types.value_bytes(kind).map(Slot::Value),
    }
}
