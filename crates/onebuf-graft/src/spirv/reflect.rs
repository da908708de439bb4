//! The parameters of a kernel, which the core compares with their declaration.

use super::{
    kernel::{CONSTANT, GLOBAL, LOCAL, PRIVATE},
    module::{self, SpirvModule},
    types::Type,
};
use onebuf_hal::{NumberType, ParameterKind, ReflectedParameter};

/// Returns the parameters of a kernel of an OpenCL module, `None` for each whose type is not understood. Empty if there is no such
/// kernel, or if the module is not understood.
pub fn parameters(spirv: &[u8], kernel: &str) -> Vec<Option<ReflectedParameter>> {
    let module = module::words(spirv).and_then(|words| SpirvModule::read(&words));
    let Ok(module) = module else { return Vec::new() };
    let function = module.kernels.iter().find(|entry| entry.name == kernel).map(|k| k.function);
    let found = function.and_then(|function| module.functions.get(&function));
    let found = found.map_or(&[][..], Vec::as_slice);
    found.iter().map(|(kind, id)| parameter(&module, *kind, *id)).collect()
}

fn parameter(module: &SpirvModule, kind: u32, id: u32) -> Option<ReflectedParameter> {
    use ParameterKind::{Buffer, Local, Value};
    let (kind, of, before, star) = match module.types.get(kind) {
        Type::Pointer(CONSTANT, to) => (Buffer, *to, "constant ", " *"),
        Type::Pointer(GLOBAL, to) => (Buffer, *to, "global ", " *"),
        Type::Pointer(LOCAL, to) => (Local, *to, "local ", " *"),
        Type::Pointer(PRIVATE, to) if module.is_by_value(id) => (Value, *to, "", ""),
        Type::Pointer(..) | Type::Other(_) => return None,
        _ => (Value, kind, "", ""),
    };
    // Compilers write pointers to bytes where they do not know the type.
    let is_known = |number: &NumberType| kind == Value || number.bytes > 1;
    let number = number(module, of).filter(is_known);
    let written = format!("{before}{}{star}", number.map_or("other".into(), |n| name(&n)));
    let reads_only = before == "constant ";
    Some(ReflectedParameter { written, kind, number, bytes: None, reads_only })
}

fn number(module: &SpirvModule, id: u32) -> Option<NumberType> {
    match *module.types.get(id) {
        Type::Number { bytes, is_float } => Some(NumberType { is_float, bytes, lanes: 1 }),
        Type::Vector(of, lanes @ (2 | 3 | 4 | 8 | 16)) => match *module.types.get(of) {
            Type::Number { bytes, is_float } => Some(NumberType { is_float, bytes, lanes }),
            _ => None,
        },
        _ => None,
    }
}

/// The type's name in OpenCL C. Modules do not tell signs.
fn name(number: &NumberType) -> String {
    let scalar = match (number.is_float, number.bytes) {
        (true, 2) => "half",
        (true, 4) => "float",
        (true, 8) => "double",
        (false, 1) => "char",
        (false, 2) => "short",
        (false, 4) => "int",
        (false, 8) => "long",
        _ => "number",
    };
    if number.lanes == 1 { scalar.into() } else { format!("{scalar}{}", number.lanes) }
}
