//! The forms of a program.

use super::NativeKernel;
use crate::{Error, Result};
use std::{borrow::Cow, fmt};

/// A kernel language, by name. Each backend lists the languages that it supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Language(pub &'static str);

/// One kernel as a shader text with the single entry point `main`, and the name that the program uses for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shader {
    /// The kernel's name in the program.
    pub name: Cow<'static, str>,
    /// The text.
    pub text: Cow<'static, str>,
}

/// One program in one or more forms. A device takes the first that it supports: its own binary, SPIR-V, then text. The
/// host takes functions of this process.
#[derive(Clone, Default)]
pub struct Source {
    /// Program texts by language.
    pub texts: Vec<(Language, Cow<'static, str>)>,
    /// A SPIR-V module, as the caller gave it.
    pub spirv: Option<Cow<'static, [u8]>>,
    /// A device-specific binary.
    pub binary: Option<Cow<'static, [u8]>>,
    /// Shaders, one per kernel.
    pub shaders: Vec<Shader>,
    /// Kernels as functions of this process.
    pub native: Vec<NativeKernel>,
    /// Options for the compiler, in its own syntax.
    pub options: String,
}

impl Source {
    /// Adds a text in a language.
    pub fn with_text(mut self, language: Language, text: Cow<'static, str>) -> Self {
        self.texts.push((language, text));
        self
    }

    /// Adds a kernel as a shader.
    pub fn with_shader(mut self, name: Cow<'static, str>, text: Cow<'static, str>) -> Self {
        self.shaders.push(Shader { name, text });
        self
    }

    /// Adds a device-specific binary.
    pub fn with_binary(mut self, binary: impl Into<Cow<'static, [u8]>>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Sets the compiler options.
    pub fn with_options(mut self, options: impl Into<String>) -> Self {
        self.options = options.into();
        self
    }

    /// The program text in a language.
    pub fn text(&self, language: Language) -> Option<&str> {
        self.texts.iter().find(|(l, _)| *l == language).map(|(_, text)| text.as_ref())
    }

    /// The shader of a kernel.
    pub fn shader(&self, kernel: &str) -> Option<&Shader> {
        self.shaders.iter().find(|shader| shader.name == kernel)
    }

    /// The SPIR-V module, if there is one. An error if the bytes cannot be a module.
    pub fn module(&self) -> Result<Option<&[u8]>> {
        let Some(module) = self.spirv.as_deref() else { return Ok(None) };
        check_spirv(module).map_err(|why| Error::invalid(format!("no SPIR-V module: {why}")))?;
        Ok(Some(module))
    }

    /// The forms that it has, for messages.
    pub fn forms(&self) -> String {
        let texts = self.texts.iter().map(|(language, _)| language.0);
        let more = [
            (!self.shaders.is_empty(), "GLSL"),
            (self.spirv.is_some(), "SPIR-V"),
            (self.binary.is_some(), "a binary"),
            (!self.native.is_empty(), "native functions"),
        ];
        let more = more.into_iter().filter_map(|(has, form)| has.then_some(form));
        let forms: Vec<&str> = texts.chain(more).collect();
        if forms.is_empty() { "nothing".into() } else { forms.join(" and ") }
    }
}

/// Omits the texts and binaries.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}, options `{}`)", self.forms(), self.options)
    }
}

/// The first word of every module, in the writer's byte order.
const SPIRV_MAGIC: u32 = 0x0723_0203;
/// Magic, version, generator, bound, schema.
const SPIRV_HEADER_BYTES: usize = 20;

/// Whether the bytes begin with the SPIR-V magic number.
pub fn is_spirv(bytes: &[u8]) -> bool {
    let word = bytes.first_chunk().map(|word| u32::from_le_bytes(*word));
    word == Some(SPIRV_MAGIC) || word == Some(SPIRV_MAGIC.swap_bytes())
}

/// Checks magic number and length. Drivers trust the length that they are given.
fn check_spirv(bytes: &[u8]) -> Result<(), String> {
    let n = bytes.len();
    if !is_spirv(bytes) {
        return Err(format!("{n} bytes that do not begin with {SPIRV_MAGIC:#010x}"));
    }
    if n < SPIRV_HEADER_BYTES || !n.is_multiple_of(4) {
        return Err(format!("{n} bytes, where a header of 20 and whole words of 4 are needed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_looked_at_from_outside() {
        let header: Vec<u8> = [SPIRV_MAGIC, 0x0001_0000, 0, 1, 0].map(u32::to_le_bytes).concat();
        let with = |bytes: &[u8]| {
            let source = Source { spirv: Some(bytes.to_vec().into()), ..Source::default() };
            source.module().map(|module| module.map(<[u8]>::len))
        };
        assert_eq!(with(&header), Ok(Some(20)));
        let swapped: Vec<u8> = header.chunks(4).flat_map(|w| w.iter().rev().copied()).collect();
        assert_eq!(with(&swapped), Ok(Some(20)));
        assert_eq!(Source::default().module(), Ok(None));
        for wrong in
            [&header[..16], &header[..19], &[header.clone(), vec![0]].concat(), &[], b"kern"]
        {
            assert!(matches!(with(wrong), Err(Error::InvalidArgument(_))), "{wrong:?}");
        }
    }

    #[test]
    fn what_was_added_is_found_by_its_name() {
        let source = Source::default()
            .with_text(Language("A"), "one".into())
            .with_text(Language("B"), "two".into());
        let source = source
            .with_shader("f".into(), "main".into())
            .with_options("-O2")
            .with_binary(vec![1, 2]);
        assert_eq!(
            ["A", "B", "C"].map(|name| source.text(Language(name))),
            [Some("one"), Some("two"), None]
        );
        assert_eq!(source.shader("f").map(|shader| &*shader.text), Some("main"));
        assert!(source.shader("g").is_none());
        assert_eq!((source.options.as_str(), source.binary.as_deref()), ("-O2", Some(&[1, 2][..])));
        assert_eq!(source.forms(), "A and B and GLSL and a binary");
        assert!(!is_spirv(b"kernel void f() {}") && !is_spirv(&[3, 2]));
    }

    #[test]
    fn forms_are_named() {
        assert_eq!(Source::default().forms(), "nothing");
        let texts = vec![(Language("some C"), "".into())];
        let source = Source { texts, binary: Some(vec![1].into()), ..Source::default() };
        assert_eq!(source.forms(), "some C and a binary");
        assert_eq!(format!("{source:?}"), "Source(some C and a binary, options ``)");
    }
}
