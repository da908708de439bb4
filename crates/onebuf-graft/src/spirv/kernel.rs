//! How each kernel takes its arguments.

use super::{
    module::{EntryPoint, SpirvModule},
    types::{Sizes, Type},
};
use onebuf_hal::packing::{Packing, Slot};

/// Storage classes.
pub(super) const CONSTANT: u32 = 0;
pub(super) const LOCAL: u32 = 4;
pub(super) const GLOBAL: u32 = 5;
pub(super) const PRIVATE: u32 = 7;
/// The usual alignment of group-local memory.
const LOCAL_ALIGN: usize = 16;

/// Maximum number of arguments of all kernels together, in addition to the number of words of the module: otherwise
/// entries that share one function could multiply its parameters.
const MOST_SHARED: usize = 1 << 14;

/// Returns one packing for each kernel of the module, which has `words` words.
pub(super) fn packings(module: &SpirvModule, words: usize) -> Result<Vec<Packing>, String> {
    let parameters =
        |kernel: &EntryPoint| module.functions.get(&kernel.function).map_or(0, Vec::len);
    let all = module.kernels.iter().map(parameters).fold(0, usize::saturating_add);
    let most = words + MOST_SHARED;
    if all > most {
        return Err(format!("{all} arguments of all kernels together, and {most} are the most"));
    }
    let mut sizes = Sizes::default();
    module.kernels.iter().map(|kernel| packing(module, kernel, &mut sizes)).collect()
}

fn packing(
    module: &SpirvModule,
    kernel: &EntryPoint,
    sizes: &mut Sizes,
) -> Result<Packing, String> {
    let EntryPoint { name, function, .. } = kernel;
    // The name must be one word, because packings are written as lines of words.
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("a kernel called {name:?}"));
    }
    let parameters =
        module.functions.get(function).ok_or_else(|| format!("no function for `{name}`"))?;
    let slot = |(index, (kind, id)): (usize, &(u32, u32))| {
        let slot = slot(module, *kind, *id, sizes);
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

fn slot(module: &SpirvModule, kind: u32, id: u32, sizes: &mut Sizes) -> Result<Slot, String> {
    match module.types.get(kind) {
        Type::Pointer(CONSTANT | GLOBAL, _) => Ok(Slot::Memory),
        Type::Pointer(LOCAL, _) => Ok(Slot::Local(LOCAL_ALIGN)),
        Type::Pointer(PRIVATE, to) if module.is_by_value(id) => {
            module.types.value_bytes(*to, sizes).map(Slot::Value)
        }
        Type::Pointer(..) => Err("a pointer to memory that a caller cannot pass".into()),
        _ => module.types.value_bytes(kind, sizes).map(Slot::Value),
    }
}
