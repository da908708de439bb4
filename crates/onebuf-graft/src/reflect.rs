//! The parameters of a PTX kernel, which the core compares with their declaration.

use super::{
    Refusal,
    lex::{self, Token},
    parse::{Param, params},
};
use onebuf_hal::{NumberType, ParameterKind, ReflectedParameter};

/// Returns the parameters of a kernel; `None` if the image is no PTX, has no such kernel, or has parameters that are not
/// understood. Group-local memory is no parameter in PTX for CUDA.
pub fn ptx_parameters(image: &[u8], kernel: &str) -> Option<Vec<ReflectedParameter>> {
    let text = std::str::from_utf8(image).ok().filter(|text| text.contains(".entry"))?;
    let tokens = lex::tokens(text).ok()?;
    let is_entry = |pair: &[Token<'_>]| pair[0].is(".entry") && pair[1].is(kernel);
    let after = tokens.windows(2).position(is_entry)? + 2;
    let params = list(&tokens[after..]).ok()?;
    Some(params.iter().map(|param| reflected(param, text)).collect())
}

fn list<'t>(tokens: &'t [Token<'t>]) -> Result<Vec<Param<'t>>, Refusal> {
    match tokens.first().is_some_and(|token| token.is("(")) {
        true => params(tokens),
        false => Ok(Vec::new()),
    }
}

fn reflected(param: &Param<'_>, text: &str) -> ReflectedParameter {
    let space = param.pointer.as_ref().map(|pointer| pointer.space.map(|space| space.text));
    let kind = match space {
        Some(Some(".shared")) => ParameterKind::Local,
        Some(_) => ParameterKind::Buffer,
        // A structure of this size may hold one pointer.
        None if param.bytes == ADDRESS_BYTES && !param.kind.is(".f64") => ParameterKind::Word,
        None => ParameterKind::Value,
    };
    let number = number(param).filter(|_| param.pointer.is_none());
    let (written, bytes) = (text[param.first.at..param.last.end()].to_owned(), Some(param.bytes));
    let reads_only = space == Some(Some(".const"));
    ReflectedParameter { written, kind, number, bytes, reads_only }
}

/// Bytes of an address.
const ADDRESS_BYTES: usize = 8;

/// The number that a parameter is; `None` for a structure, and for bits of an unknown type.
fn number(param: &Param<'_>) -> Option<NumberType> {
    let is_float = match param.kind.text.as_bytes().get(1) {
        Some(b'f') => true,
        Some(b'u' | b's') => false,
        _ => return None,
    };
    (!param.is_array).then_some(NumberType { is_float, bytes: param.bytes, lanes: 1 })
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    const PTX: &str = "
// .entry gain(.param .u8 old)
.version 8.0
.target sm_90
.address_size 64
.section .debug_str { .b8 1 }
.visible .entry other() .maxclusterrank 2 { ret; }
.visible .entry gain(
    .param .u64 .ptr .global .align 4 gain_param_0,
    .param .u64 gain_param_1,
    .param .f32 gain_param_2,
    .param .align 8 .b8 gain_param_3[24],
    .param .b32 gain_param_4,
    .param .u64 .ptr .shared .align 8 gain_param_5,
    .param .u64 .ptr .const .align 8 gain_param_6,
    .param .f64 gain_param_7,
    .param .align 8 .b8 gain_param_8[8]
)
.maxntid 256
{ ret; }
.entry bare { ret; }
.entry textures(.param .texref image) { ret; }
";

    #[test]
    fn parameters_are_what_the_text_says() {
        use ParameterKind::{Buffer, Local, Value, Word};
        let found = ptx_parameters(PTX.as_bytes(), "gain").unwrap();
        let facts: Vec<_> =
            found.iter().map(|p| (p.kind, p.bytes, p.number.map(|n| n.is_float))).collect();
        let expected = [
            (Buffer, Some(8), None),
            (Word, Some(8), Some(false)),
            (Value, Some(4), Some(true)),
            (Value, Some(24), None),
            (Value, Some(4), None),
            (Local, Some(8), None),
            (Buffer, Some(8), None),
            (Value, Some(8), Some(true)),
            (Word, Some(8), None),
        ];
        assert_eq!(facts, expected);
        assert!(found[6].reads_only && !found[0].reads_only);
        assert_eq!(found[0].written, ".param .u64 .ptr .global .align 4 gain_param_0");
        assert_eq!(found[3].written, ".param .align 8 .b8 gain_param_3[24]");
    }

    #[test]
    fn kernels_without_parameters_and_other_images() {
        for kernel in ["other", "bare"] {
            assert_eq!(ptx_parameters(PTX.as_bytes(), kernel), Some(Vec::new()), "{kernel}");
        }
        assert_eq!(ptx_parameters(PTX.as_bytes(), "missing"), None);
        assert_eq!(ptx_parameters(PTX.as_bytes(), "textures"), None, "images are not understood");
        assert_eq!(ptx_parameters(b"\x7fELF \xff.entry gain(", "gain"), None);
        assert_eq!(ptx_parameters(b".entry gain(.param .u32 x", "gain"), None, "it does not end");
        assert_eq!(ptx_parameters(b".entry", "gain"), None);
    }
}
