//! Parameters that the caller declares, for devices whose driver does not list them: "const float*", "uint", "float4*", "local".

use crate::{
    error::{Fault, Result},
    param::{Param, Takes},
};
use onebuf::{Access, reflect::NumberType};

/// The names of numbers in OpenCL C, whether they are floating-point numbers, and their sizes.
const NUMBERS: [(&str, bool, usize); 11] = [
    ("char", false, 1),
    ("uchar", false, 1),
    ("short", false, 2),
    ("ushort", false, 2),
    ("int", false, 4),
    ("uint", false, 4),
    ("long", false, 8),
    ("ulong", false, 8),
    ("half", true, 2),
    ("float", true, 4),
    ("double", true, 8),
];

/// The declared parameters.
pub(crate) fn params(declared: &[String]) -> Result<Vec<Param>> {
    declared.iter().enumerate().map(|(index, text)| param(index, text)).collect()
}

fn param(index: usize, text: &str) -> Result<Param> {
    let written = text.trim();
    let (named, is_buffer) = match written.strip_suffix('*') {
        Some(named) => (named.trim(), true),
        None => (written, false),
    };
    let (named, reads) = match named.strip_prefix("const ") {
        Some(named) if is_buffer => (named.trim(), true),
        _ => (named, false),
    };
    let takes = match (number(named), is_buffer) {
        (Some(number), true) => {
            let access = if reads { Access::Read } else { Access::ReadWrite };
            Takes::Buffer { number: Some(number), access }
        }
        (Some(number), false) => Takes::Number(number),
        (None, false) if named == "local" => Takes::Local,
        _ => {
            return Err(Fault::invalid(format!(
                "parameter {index} is declared as {text:?}: \"float*\", \"const float4*\", \"uint\", \"local\" and the like are known"
            )));
        }
    };
    Ok(Param { written: written.to_owned(), takes })
}

/// A number, or a vector of 2, 3, 4, 8 or 16.
fn number(named: &str) -> Option<NumberType> {
    let plain = named.trim_end_matches(|end: char| end.is_ascii_digit());
    let lanes = match &named[plain.len()..] {
        "" => 1,
        "2" => 2,
        "3" => 3,
        "4" => 4,
        "8" => 8,
        "16" => 16,
        _ => return None,
    };
    let (_, is_float, bytes) = *NUMBERS.iter().find(|(known, ..)| *known == plain)?;
    Some(NumberType { is_float, bytes, lanes })
}
